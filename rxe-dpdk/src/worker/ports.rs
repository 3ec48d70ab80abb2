//! The ports of one worker: where its frames come from and go to.

use rxe_proto::wire::{Gid, MacAddr, PortId, Seal, TxQueue};
use rxe_proto::{Instant, counters};
use rxe_service::LocalPort;

use super::capture::TxRecorder;
use super::injector::Injector;
use super::lane::TxLane;
use crate::eal::{Mbuf, RxQueue};

counters! {
    /// What one worker's loop did.
    pub struct WorkerStats {
        /// Turns of the loop.
        turns,
        /// Turns that found nothing to do.
        idle_turns,
        /// Receive bursts that brought frames.
        rx_bursts,
        /// Frames received from ports.
        rx_frames,
        /// Bytes received from ports.
        rx_bytes,
        /// Frames received that another worker owns: handed over.
        handoff_out,
        /// Frames that other workers handed to this one.
        handoff_in,
        /// Copies of multicast frames for other workers with members of the group.
        multicast_copies,
        /// Such copies not made: no buffer or no room in the ring.
        multicast_copies_lost,
        /// Frames handed to the host stack.
        host_frames,
        /// Packets handed to the connection manager.
        gsi_packets,
        /// Packets handed to the queue pairs.
        qp_packets,
        /// Frames dropped before any of these looked at them; each has its reason.
        dropped_frames,
        /// Frames staged for transmission.
        tx_frames,
        /// Frames of other workers put on a transmit queue of this one.
        tx_forwarded,
        /// Turns that ended with frames which the port did not take yet.
        tx_stalls,
        /// Frames not sent because the interface of their port is gone.
        tx_port_gone,
    }
}

/// What a worker must know of a port to filter frames.
#[derive(Clone, Debug)]
pub(crate) struct PortIdentity {
    pub(crate) mac: MacAddr,
    /// The VLAN we live in; `None` is untagged.
    pub(crate) vlan: Option<u16>,
    /// Our IP addresses.
    pub(crate) gids: Vec<Gid>,
}

impl From<&LocalPort> for PortIdentity {
    fn from(port: &LocalPort) -> PortIdentity {
        PortIdentity { mac: port.mac, vlan: port.vlan.map(|tci| tci & 0x0FFF), gids: port.gids().collect() }
    }
}

/// The receive side of one port of one worker.
pub(crate) struct RxPort {
    pub(crate) port: PortId,
    pub(crate) queue: RxQueue,
    /// What stands between the queue and the worker where faults are wanted.
    pub(crate) faults: Option<Box<Injector<Mbuf>>>,
}

/// The transmit side of all ports of one worker.
pub(crate) struct PortsTx {
    pub(crate) lanes: Vec<TxLane>,
    /// Of each lane, while there is a capture, what an injector in front of it will capture by.
    pub(crate) recorders: Vec<Option<TxRecorder>>,
    pub(crate) frames: u64,
}

impl TxQueue for PortsTx {
    #[inline]
    fn push(&mut self, port: PortId, len: usize) -> Option<&mut [u8]> {
        let room = self.lanes.get_mut(usize::from(port.0))?.push(len)?;
        self.frames += 1;
        Some(room)
    }

    #[inline]
    fn push_unsealed(&mut self, port: PortId, len: usize, seal: Seal) -> Option<(&mut [u8], bool)> {
        let room = self.lanes.get_mut(usize::from(port.0))?.push_unsealed(len, seal)?;
        self.frames += 1;
        Some(room)
    }
}

impl PortsTx {
    /// Hands everything staged to the ports. Returns whether a port refused some, which then wait for the next call.
    pub(crate) fn flush(&mut self, now: Instant) -> bool {
        let mut waiting = false;
        for lane in &mut self.lanes {
            waiting |= lane.flush(now) > 0;
        }
        waiting
    }

    /// As [`flush`](Self::flush), with what injectors hold for later.
    pub(crate) fn finish(&mut self) -> bool {
        let mut waiting = false;
        for lane in &mut self.lanes {
            waiting |= lane.finish() > 0;
        }
        waiting
    }
}
