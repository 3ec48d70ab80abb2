//! Orders to a worker that concern its ports and frames, not its services. They come from any thread and are followed at the
//! end of a turn.

use std::sync::mpsc::Receiver;

use super::capture::CaptureOrder;
use super::faults::FaultChange;
use super::link_watch::PortOrder;

/// One order.
#[derive(Debug)]
pub(crate) enum Order {
    /// Start or stop capturing frames.
    Capture(Box<CaptureOrder>),
    /// Park the queues of a port whose device is gone, or resume them.
    Port(PortOrder),
    /// Replace the fault rules.
    Faults(FaultChange),
}

/// The orders of one worker that it has read and not yet followed.
pub(crate) struct Orders {
    inbox: Receiver<Order>,
    pub(crate) capture: Option<Box<CaptureOrder>>,
    pub(crate) ports: Vec<PortOrder>,
    pub(crate) faults: Option<FaultChange>,
}

impl Orders {
    pub(crate) fn new(inbox: Receiver<Order>) -> Orders {
        Orders { inbox, capture: None, ports: Vec::new(), faults: None }
    }

    /// Reads all orders that have arrived. Of those about captures and about faults the last one counts.
    pub(crate) fn read(&mut self) -> bool {
        let mut any = false;
        while let Ok(order) = self.inbox.try_recv() {
            any = true;
            match order {
                Order::Capture(order) => self.capture = Some(order),
                Order::Port(order) => self.ports.push(order),
                Order::Faults(change) => self.faults = Some(change),
            }
        }
        any
    }
}
