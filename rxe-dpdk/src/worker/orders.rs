//! Orders to a worker that concern its ports and frames, not its services. Any thread may send them; the worker applies
//! them between two turns.

use std::sync::mpsc::{Receiver, SyncSender};

use rxe_proto::wire::{PortId, PrefixList};
use rxe_service::LocalPort;

use super::capture::Recorders;
use super::injector::Faults;
use crate::host::{Addressing, ConflictReports, HostConfigError};

/// One order.
#[derive(Debug)]
pub(crate) enum Order {
    /// Start or stop recording frames.
    Capture(Box<CaptureOrder>),
    /// Park the queues of a port whose device is gone, or resume them.
    Port(PortOrder),
    /// Replace the fault rules.
    Faults(FaultChange),
    /// To worker 0: the link of this port came up. Its IP host probes and announces its addresses.
    LinkUp(PortId),
    /// Change the allowed peers of a port.
    Peers(PeersOrder),
    /// To worker 0: change the addresses and routes of a port.
    Addressing(AddressingOrder),
    /// The addresses of a port were changed.
    PortChanged(PortChangedOrder),
    /// To worker 0: refuse new clients. Notified once that is done.
    Drain(SyncSender<()>),
}

/// The orders of one worker, and those that it has read and not yet applied.
pub(crate) struct Orders {
    inbox: Receiver<Order>,
    pub(crate) capture: Option<Box<CaptureOrder>>,
    pub(crate) ports: Vec<PortOrder>,
    pub(crate) links_up: Vec<PortId>,
    pub(crate) faults: Option<FaultChange>,
    pub(crate) peers: Vec<PeersOrder>,
    pub(crate) addressing: Vec<AddressingOrder>,
    pub(crate) ports_changed: Vec<PortChangedOrder>,
    pub(crate) drain: Option<SyncSender<()>>,
}

impl Orders {
    pub(crate) fn new(inbox: Receiver<Order>) -> Orders {
        Orders {
            inbox,
            capture: None,
            ports: Vec::new(),
            links_up: Vec::new(),
            faults: None,
            peers: Vec::new(),
            addressing: Vec::new(),
            ports_changed: Vec::new(),
            drain: None,
        }
    }

    /// Reads all orders that have arrived; of those about captures and about faults the last one counts. Returns whether
    /// there were any.
    pub(crate) fn read(&mut self) -> bool {
        let mut any = false;
        while let Ok(order) = self.inbox.try_recv() {
            any = true;
            match order {
                Order::Capture(order) => self.capture = Some(order),
                Order::Port(order) => self.ports.push(order),
                Order::LinkUp(port) => self.links_up.push(port),
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
pub(crate) struct CaptureOrder {
    /// `None` ends the recording.
    pub(crate) recorders: Option<Recorders>,
    /// Notified once the order is applied.
    pub(crate) done: Option<SyncSender<()>>,
}

impl CaptureOrder {
    /// Ends the recording.
    pub(crate) fn stop() -> CaptureOrder {
        CaptureOrder { recorders: None, done: None }
    }
}

/// Apply these fault rules instead of the present ones.
#[derive(Debug)]
pub(crate) struct FaultChange {
    pub(crate) rules: Faults,
    /// Notified once the rules are active.
    pub(crate) reply: Option<SyncSender<()>>,
}

/// Serve these peers at a port from now on.
#[derive(Debug)]
pub(crate) struct PeersOrder {
    pub(crate) port: PortId,
    /// `None` for everyone.
    pub(crate) peers: Option<PrefixList>,
    /// Notified once the order is applied.
    pub(crate) reply: SyncSender<()>,
}

/// Use these addresses and routes at a port from now on. The workers get the outcome with [`Order::PortChanged`].
#[derive(Debug)]
pub(crate) struct AddressingOrder {
    pub(crate) port: PortId,
    pub(crate) addressing: Addressing,
    /// Remove addresses although they have TCP streams.
    pub(crate) force: bool,
    /// Receives the outcome.
    pub(crate) reply: SyncSender<Result<AddressingChanged, AddressingRefused>>,
}

/// A port with other addresses.
#[derive(Debug)]
pub(crate) struct AddressingChanged {
    pub(crate) local: LocalPort,
    pub(crate) conflicts: ConflictReports,
}

/// Why addresses and routes were not changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum AddressingRefused {
    /// They contradict each other, or there is no such port.
    #[error(transparent)]
    Config(#[from] HostConfigError),
    /// The port does not pass the groups of an IPv6 address.
    #[error("the port does not pass the multicast groups of the address: {0}")]
    Filter(String),
    /// TCP streams use an address that would be gone.
    #[error("{streams} TCP streams use it")]
    InUse {
        /// Their number.
        streams: usize,
    },
}

/// Know a port by these addresses from now on.
#[derive(Debug)]
pub(crate) struct PortChangedOrder {
    pub(crate) local: LocalPort,
    /// Notified once that is done.
    pub(crate) reply: SyncSender<()>,
}

/// Park the queues of a port, or resume them.
#[derive(Debug)]
pub(crate) struct PortOrder {
    pub(crate) port: PortId,
    pub(crate) park: bool,
    /// Receives whether every queue could be parked or resumed.
    pub(crate) reply: SyncSender<bool>,
}
