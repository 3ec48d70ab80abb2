//! A port's IP host as a worker uses it; `rxe_service::control::ip_host` has the part that control uses.

use rxe_proto::Instant;
use rxe_proto::wire::{DropReason, PrefixList, TxQueue};
use rxe_service::control::ip_host::IpHost;

use super::orders::{AddressingChanged, AddressingRefused};
use crate::addressing::Addressing;

/// The IP host of a port whose worker transmits frames.
pub trait WorkerHost: IpHost<Output: TxQueue> {
    /// Handles a received frame that is no RoCE packet.
    ///
    /// # Errors
    /// Why the frame is dropped.
    fn handle_frame(&mut self, now: Instant, frame: &[u8], output: &mut Self::Output) -> Result<(), DropReason>;

    /// Changes the allowed peers; `None` for everyone.
    fn set_peers(&mut self, peers: Option<PrefixList>);

    /// Replaces addresses and routes. Without `force` addresses with open streams stay.
    ///
    /// # Errors
    /// [`AddressingRefused`]; nothing has changed then.
    fn set_addressing(
        &mut self,
        now: Instant,
        addressing: Addressing,
        force: bool,
    ) -> Result<AddressingChanged, AddressingRefused>;
}
