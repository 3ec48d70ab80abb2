//! The receive and transmit sides of one worker's ports.

use crossbeam_utils::CachePadded;
use rxe_proto::wire::{Gid, MacAddr, PortId, PrefixList, Seal, TxQueue};
use rxe_proto::{Instant, counters};
use rxe_service::{LocalPort, Restrictions};
use rxe_sync::Histogram;

use super::capture::{TxRecorder, TxRecorders};
use super::injector::Injector;
use super::tx_path::TxPath;
use crate::eal::{Mbuf, RxQueue};

counters! {
    /// Counters of one worker's loop.
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
        /// Frames received here and enqueued for the worker that owns their queue pair.
        handoff_out,
        /// Frames that other workers received and enqueued for this one.
        handoff_in,
        /// Copies of multicast frames enqueued for other workers with members of the group.
        multicast_copies,
        /// Such copies not enqueued: no buffer, or no room in the ring.
        multicast_copies_lost,
        /// Frames handed to the host stack.
        host_frames,
        /// Packets handed to the connection manager.
        gsi_packets,
        /// Packets handed to the queue pairs.
        qp_packets,
        /// Frames dropped before any of these; counted by reason too.
        dropped_frames,
        /// Frames staged for transmission.
        tx_frames,
        /// Frames of other workers put on a transmit queue of this one.
        tx_forwarded,
        /// Turns that ended with frames that a port had refused (back-pressure).
        tx_stalls,
        /// Frames not sent because the interface of their port is gone.
        tx_port_gone,
        /// Times that the loop did not turn for 2 s; counted by the watchdog.
        stalls,
        /// Milliseconds of such stalls.
        stalled_ms,
    }
}

/// How long the turns of one worker's loop that found something to do took, in nanoseconds: to the start of the next turn.
pub type TurnTimes = CachePadded<Histogram>;

/// The addresses by which dispatch filters the frames of a port.
#[derive(Clone, Debug)]
pub(crate) struct PortIdentity {
    pub(crate) mac: MacAddr,
    /// `None` is untagged.
    pub(crate) vlan: Option<u16>,
    /// The port's GID table.
    pub(crate) gids: Vec<Gid>,
    /// `None` serves everyone.
    pub(crate) restrictions: Option<Box<Restrictions>>,
}

impl PortIdentity {
    /// Changes the allowed peers; `None` for everyone.
    pub(crate) fn set_peers(&mut self, peers: Option<PrefixList>) {
        let before = self.restrictions.take().map(|restrictions| *restrictions).unwrap_or_default();
        let restrictions = Restrictions { peers, ..before };
        self.restrictions = (!restrictions.is_none()).then(|| Box::new(restrictions));
    }
}

impl From<&LocalPort> for PortIdentity {
    fn from(port: &LocalPort) -> PortIdentity {
        PortIdentity {
            mac: port.mac,
            vlan: port.vlan.map(|tci| tci & 0x0FFF),
            gids: port.gids().collect(),
            restrictions: (!port.restrictions.is_none()).then(|| Box::new(port.restrictions.clone())),
        }
    }
}

/// The receive side of one port of one worker.
pub(crate) struct RxPort {
    pub(crate) port: PortId,
    pub(crate) queue: RxQueue,
    /// The injector between the queue and the worker, while a rule needs one.
    pub(crate) faults: Option<Box<Injector<Mbuf>>>,
}

/// The transmit side of all ports of one worker.
pub(crate) struct PortsTx {
    /// By port number.
    pub(crate) paths: Vec<TxPath>,
    /// While a capture runs: for each path without an injector, the recorder of one that is placed later.
    pub(crate) spare_recorders: Vec<Option<TxRecorder>>,
    /// Frames staged in this turn.
    pub(crate) frames: u64,
}

impl TxQueue for PortsTx {
    #[inline]
    fn push(&mut self, port: PortId, len: usize) -> Option<&mut [u8]> {
        let room = self.paths.get_mut(usize::from(port.0))?.push(len)?;
        self.frames += 1;
        Some(room)
    }

    #[inline]
    fn push_unsealed(&mut self, port: PortId, len: usize, seal: Seal) -> Option<(&mut [u8], bool)> {
        let room = self.paths.get_mut(usize::from(port.0))?.push_unsealed(len, seal)?;
        self.frames += 1;
        Some(room)
    }
}

impl PortsTx {
    /// Sends everything staged. Returns whether a port refused frames, which stay staged for the next call.
    pub(crate) fn flush(&mut self, now: Instant) -> bool {
        let mut waiting = false;
        for path in &mut self.paths {
            waiting |= path.flush(now) > 0;
        }
        waiting
    }

    /// As [`flush`](Self::flush), and releases frames that injectors delay.
    pub(crate) fn finish(&mut self) -> bool {
        let mut waiting = false;
        for path in &mut self.paths {
            waiting |= path.finish() > 0;
        }
        waiting
    }

    /// Sets the recorders, by port number; none ends the recording.
    pub(crate) fn set_recorders(&mut self, recorders: Vec<TxRecorders>) {
        let mut recorders = recorders.into_iter();
        self.spare_recorders = self.paths.iter_mut().map(|path| path.set_recorders(recorders.next())).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_peers_change_and_other_restrictions_stay() {
        let peers: PrefixList = ["10.0.0.0/24".parse().unwrap()].into_iter().collect();
        let mut open = PortIdentity { mac: MacAddr::default(), vlan: None, gids: Vec::new(), restrictions: None };
        open.set_peers(Some(peers.clone()));
        assert_eq!(open.restrictions.as_ref().and_then(|restrictions| restrictions.peers.clone()), Some(peers.clone()));
        open.set_peers(None);
        assert!(open.restrictions.is_none(), "one check per burst, as before");
        let pinned = Restrictions { pin_mac: true, ..Restrictions::default() };
        let mut strict = PortIdentity { restrictions: Some(Box::new(pinned.clone())), ..open };
        strict.set_peers(Some(peers));
        strict.set_peers(None);
        assert_eq!(strict.restrictions.as_deref(), Some(&pinned));
    }
}
