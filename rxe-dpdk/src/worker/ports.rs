//! The receive and transmit sides of one worker's ports.

use rxe_adapter::worker::capture::{TxRecorder, TxRecorders};
use rxe_adapter::worker::injector::Injector;
use rxe_proto::Instant;
use rxe_proto::wire::{PortId, Seal, TxQueue};

use super::tx_path::TxPath;
use crate::eal::{Mbuf, RxQueue};

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
