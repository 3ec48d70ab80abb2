//! The transmitting half of the adapter's port.

use rxe_proto::wire::{PortId, Seal, TxQueue};
use rxe_udp::host::PortTx;
use rxe_udp::{Tap, UdpTx};

use super::share::guest::GuestTx;

/// The queue for frames to transmit.
pub enum Tx {
    /// Of our own UDP port.
    Own(Box<UdpTx>),
    /// To the process that has the UDP port of the address.
    Guest(GuestTx),
}

impl PortTx for Tx {
    fn flush(&mut self) -> usize {
        match self {
            Tx::Own(tx) => tx.flush(),
            Tx::Guest(tx) => tx.flush(),
        }
    }

    fn waiting(&self) -> usize {
        match self {
            Tx::Own(tx) => tx.waiting(),
            Tx::Guest(tx) => tx.waiting(),
        }
    }

    #[inline]
    fn note_retransmissions(&mut self, total: u64) {
        match self {
            Tx::Own(tx) => tx.note_retransmissions(total),
            // The owner does not know them: it sees the packets only.
            Tx::Guest(_) => {}
        }
    }

    fn set_tap(&mut self, tap: Option<Tap>) -> Option<Tap> {
        match self {
            Tx::Own(tx) => tx.set_tap(tap),
            Tx::Guest(tx) => tx.set_tap(tap),
        }
    }
}

impl TxQueue for Tx {
    #[inline]
    fn push(&mut self, port: PortId, len: usize) -> Option<&mut [u8]> {
        match self {
            Tx::Own(tx) => tx.push(port, len),
            Tx::Guest(tx) => tx.push(port, len),
        }
    }

    #[inline]
    fn push_unsealed(&mut self, port: PortId, len: usize, seal: Seal) -> Option<(&mut [u8], bool)> {
        match self {
            Tx::Own(tx) => tx.push_unsealed(port, len, seal),
            Tx::Guest(tx) => tx.push_unsealed(port, len, seal),
        }
    }
}
