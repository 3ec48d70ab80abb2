//! Orders to a worker about the devices of its ports, from the thread that watches their links.

use std::sync::mpsc::{Receiver, SyncSender};

use rxe_proto::wire::PortId;

/// One order.
#[derive(Debug)]
pub(crate) enum PortOrder {
    /// Park the queues of a port whose device is gone, or resume them.
    Park(ParkOrder),
    /// To worker 0: the link of this port came up. Its IP host probes and announces its addresses.
    LinkUp(PortId),
}

/// Park the queues of a port, or resume them.
#[derive(Debug)]
pub(crate) struct ParkOrder {
    pub(crate) port: PortId,
    pub(crate) park: bool,
    /// Receives whether every queue could be parked or resumed.
    pub(crate) reply: SyncSender<bool>,
}

/// The orders of one worker, and those that it has read and not yet applied.
pub(crate) struct PortOrders {
    inbox: Receiver<PortOrder>,
    pub(crate) parks: Vec<ParkOrder>,
    pub(crate) links_up: Vec<PortId>,
}

impl PortOrders {
    pub(crate) fn new(inbox: Receiver<PortOrder>) -> PortOrders {
        PortOrders { inbox, parks: Vec::new(), links_up: Vec::new() }
    }

    /// Reads all orders that have arrived. Returns whether there were any.
    pub(crate) fn read(&mut self) -> bool {
        let mut any = false;
        while let Ok(order) = self.inbox.try_recv() {
            any = true;
            match order {
                PortOrder::Park(order) => self.parks.push(order),
                PortOrder::LinkUp(port) => self.links_up.push(port),
            }
        }
        any
    }
}
