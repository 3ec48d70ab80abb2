//! Orders to a worker that concern its ports and frames, not its services. Any thread may send them; the worker applies
//! them between two turns.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};

use rxe_proto::wire::{PortId, PrefixList};
use rxe_service::LocalPort;

use super::capture::Recorders;
use super::injector::Faults;
use crate::addressing::{Addressing, ConflictReports};

/// One order.
#[derive(Debug)]
pub enum Order {
    /// Start or stop recording frames.
    Capture(Box<CaptureOrder>),
    /// Replace the fault rules.
    Faults(FaultChange),
    /// Change the allowed peers of a port.
    Peers(PeersOrder),
    /// To worker 0: change the addresses and routes of a port.
    Addressing(AddressingOrder),
    /// The addresses of a port were changed.
    PortChanged(PortChangedOrder),
    /// To worker 0: refuse new clients. Notified once that is done.
    Drain(SyncSender<()>),
}

/// Ends the sleep of a worker that waits for packets.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// Sends orders to one worker, from any thread.
#[derive(Clone)]
pub struct OrderSender {
    orders: Sender<Order>,
    /// `None` for a worker that reads its orders every few microseconds.
    wake: Option<Wake>,
}

/// The worker has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended;

impl OrderSender {
    /// Sends an order. The worker applies it between two turns of its loop.
    ///
    /// # Errors
    /// [`Ended`].
    pub fn send(&self, order: Order) -> Result<(), Ended> {
        self.orders.send(order).map_err(|_| Ended)?;
        self.wake();
        Ok(())
    }

    /// Makes a sleeping worker turn its loop, to read what it was sent by another way.
    pub fn wake(&self) {
        if let Some(wake) = &self.wake {
            wake();
        }
    }
}

impl fmt::Debug for OrderSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OrderSender")
    }
}

/// Connects a worker with the senders of its orders. `wake` ends the worker's sleep, if it does sleep.
pub fn order_channel(wake: Option<Wake>) -> (OrderSender, Orders) {
    let (orders, inbox) = channel();
    (OrderSender { orders, wake }, Orders::new(inbox))
}

/// The orders of one worker, and those that it has read and not yet applied.
#[derive(Debug)]
pub struct Orders {
    inbox: Receiver<Order>,
    /// The last order about captures.
    pub capture: Option<Box<CaptureOrder>>,
    /// The last list of fault rules.
    pub faults: Option<FaultChange>,
    /// Changes of allowed peers.
    pub peers: Vec<PeersOrder>,
    /// Changes of addresses and routes, for the control side.
    pub addressing: Vec<AddressingOrder>,
    /// Ports with other addresses.
    pub ports_changed: Vec<PortChangedOrder>,
    /// Draining, with where to report that it has begun.
    pub drain: Option<SyncSender<()>>,
}

impl Orders {
    fn new(inbox: Receiver<Order>) -> Orders {
        Orders {
            inbox,
            capture: None,
            faults: None,
            peers: Vec::new(),
            addressing: Vec::new(),
            ports_changed: Vec::new(),
            drain: None,
        }
    }

    /// Reads all orders that have arrived; of those about captures and about faults the last one counts. Returns whether
    /// there were any.
    pub fn read(&mut self) -> bool {
        let mut any = false;
        while let Ok(order) = self.inbox.try_recv() {
            any = true;
            match order {
                Order::Capture(order) => self.capture = Some(order),
                Order::Faults(change) => self.faults = Some(change),
                Order::Peers(order) => self.peers.push(order),
                Order::Addressing(order) => self.addressing.push(order),
                Order::PortChanged(order) => self.ports_changed.push(order),
                Order::Drain(reply) => self.drain = Some(reply),
            }
        }
        any
    }
}

/// Record with these recorders from now on. A later order replaces an earlier one.
#[derive(Debug)]
pub struct CaptureOrder {
    /// `None` ends the recording.
    pub recorders: Option<Recorders>,
    /// Notified once the order is applied.
    pub done: Option<SyncSender<()>>,
}

impl CaptureOrder {
    /// Ends the recording.
    pub fn stop() -> CaptureOrder {
        CaptureOrder { recorders: None, done: None }
    }
}

/// Apply these fault rules instead of the present ones.
#[derive(Debug)]
pub struct FaultChange {
    /// All rules in force.
    pub rules: Faults,
    /// Notified once the rules are active.
    pub reply: Option<SyncSender<()>>,
}

/// Serve these peers at a port from now on.
#[derive(Debug)]
pub struct PeersOrder {
    /// The port.
    pub port: PortId,
    /// `None` for everyone.
    pub peers: Option<PrefixList>,
    /// Notified once the order is applied.
    pub reply: SyncSender<()>,
}

/// Use these addresses and routes at a port from now on. The workers get the outcome with [`Order::PortChanged`].
#[derive(Debug)]
pub struct AddressingOrder {
    /// The port.
    pub port: PortId,
    /// All of them.
    pub addressing: Addressing,
    /// Remove addresses although they have TCP streams.
    pub force: bool,
    /// Receives the outcome.
    pub reply: SyncSender<Result<AddressingChanged, AddressingRefused>>,
}

/// A port with other addresses.
#[derive(Debug)]
pub struct AddressingChanged {
    /// The port with its addresses.
    pub local: LocalPort,
    /// Conflicts of these addresses.
    pub conflicts: ConflictReports,
}

/// Why addresses and routes were not changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AddressingRefused {
    /// The port cannot use them; the text is a sentence.
    #[error("{0}")]
    Refused(String),
    /// TCP streams use an address that would be gone.
    #[error("{streams} TCP streams use it")]
    InUse {
        /// Their number.
        streams: usize,
    },
}

/// Know a port by these addresses from now on.
#[derive(Debug)]
pub struct PortChangedOrder {
    /// The port with its addresses.
    pub local: LocalPort,
    /// Notified once that is done.
    pub reply: SyncSender<()>,
}
