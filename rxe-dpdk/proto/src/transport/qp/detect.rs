//! Detecting a peer's transport service and path MTU from its first packet.
//!
//! Some programs exchange the numbers of their queue pairs and nothing else: whether they use RC, UC or UD, and which
//! path MTU, each end takes from its own command line. A target has no such command line. So a queue pair can be told
//! to detect both: the first packet determines them, and is then handled like any other packet.
//!
//! Only a packet that shows knowledge of the connection counts: a request with the expected PSN, a response to a request of
//! ours, or a datagram with the right Q_Key. On UC nobody repeats a lost packet, so a packet counts also when its PSN is up
//! to [`UC_LOST_AT_MOST`] ahead. Other packets, such as late ones of an earlier queue pair with the
//! same number, are handled according to the assumed type and determine nothing.

use crate::transport::attr::QpError;
use crate::transport::{QpState, QpType};
use crate::wire::{DropReason, PathMtu, PortId, RocePacket, Transport};

use super::Qp;

/// Packets of a UC peer that may be lost before the first one that arrives: 16 MiB at path MTU 1024. One PSN in 1024 is that
/// near, so a packet of another connection is hardly ever taken for one of this.
const UC_LOST_AT_MOST: i32 = 1 << 14;

/// State of a queue pair that detects its peer's type, needed if the peer sends datagrams.
#[derive(Clone, Copy, Debug)]
pub(in crate::transport) struct PeerDetection {
    qkey: u32,
    path_mtu: PathMtu,
}

impl Qp {
    /// See [`Engine::detect_peer_type`](crate::transport::Engine::detect_peer_type).
    pub(in crate::transport) fn detect_peer_type(&mut self, qkey: u32, path_mtu: PathMtu) -> Result<(), QpError> {
        if self.link.is_none() || !self.state.receives() {
            return Err(QpError::NoPath);
        }
        self.detection = Some(PeerDetection { qkey, path_mtu });
        Ok(())
    }

    /// See [`Engine::set_qp_type`](crate::transport::Engine::set_qp_type).
    pub(in crate::transport) fn set_type(&mut self, qp_type: QpType) -> Result<(), QpError> {
        if self.state != QpState::Reset {
            return Err(QpError::Transition { from: self.state, to: QpState::Reset });
        }
        self.common.qp_type = qp_type;
        Ok(())
    }

    /// Sets type and path MTU from a packet, if it shows knowledge of the connection.
    ///
    /// # Errors
    /// Why the packet is to be dropped.
    #[cold]
    pub(in crate::transport) fn detect_from(
        &mut self,
        port: PortId,
        packet: &RocePacket<'_>,
        detection: PeerDetection,
    ) -> Result<(), DropReason> {
        let qp_type = match packet.transport() {
            Transport::Rc => QpType::Rc,
            Transport::Uc => QpType::Uc,
            Transport::Ud => QpType::Ud,
            // A congestion notification does not tell the transport service.
            Transport::Cnp => return Ok(()),
        };
        let Some(link) = &self.link else { return Err(DropReason::QpWrongState) };
        if !link.leads_here(port, packet) {
            return Err(DropReason::QpWrongAddress);
        }
        if !self.knows_connection(packet, detection)? {
            return Ok(());
        }
        // Posted work was cut into packets for the assumed type and path MTU.
        let busy = !self.requester.sq.is_empty();
        if busy && qp_type != self.common.qp_type {
            return Err(DropReason::QpWrongTransport);
        }
        self.detection = None;
        if busy {
            return Ok(());
        }
        if qp_type != QpType::Rc {
            // An earlier packet without knowledge of the connection may have been answered as one of a reliable
            // connection.
            self.responder.abandon_replies();
        }
        self.common.qp_type = qp_type;
        if qp_type == QpType::Ud {
            self.common.port = Some(port);
            self.common.qkey = detection.qkey;
            self.common.mtu = detection.path_mtu.bytes() as u32;
            self.link = None;
            return Ok(());
        }
        let Some(link) = &mut self.link else { return Err(DropReason::QpWrongState) };
        let path_mtu = path_mtu_of(packet, link.path_mtu);
        link.path_mtu = path_mtu;
        self.common.mtu = path_mtu.bytes() as u32;
        Ok(())
    }
}

impl Qp {
    /// Whether a packet from the peer's address shows that the peer sent it on this connection.
    ///
    /// # Errors
    /// Why it is to be dropped at once.
    fn knows_connection(&self, packet: &RocePacket<'_>, detection: PeerDetection) -> Result<bool, DropReason> {
        let ahead = packet.psn().diff(self.responder.expected_psn());
        Ok(match packet.transport() {
            Transport::Rc if packet.info().response => self.requester.awaits(packet.psn()),
            Transport::Rc => ahead == 0,
            Transport::Uc => {
                let position = packet.info().position;
                // The last packet of a message whose beginning is lost does not tell the path MTU; the next message does.
                let tells = position.is_start() || ahead > 0 && !position.is_end();
                tells && (0..=UC_LOST_AT_MOST).contains(&ahead)
            }
            Transport::Ud => {
                let deth = packet.deth().ok_or(DropReason::HeaderTruncated)?;
                if deth.qkey() != detection.qkey {
                    return Err(DropReason::QkeyMismatch);
                }
                true
            }
            Transport::Cnp => false,
        })
    }
}

/// The path MTU of a peer that sent `packet`. Every packet of a message but the last has exactly that payload length. A
/// last packet is a lower bound only: `assumed` is kept if it is large enough.
fn path_mtu_of(packet: &RocePacket<'_>, assumed: PathMtu) -> PathMtu {
    let len = packet.payload().len();
    let exact = |mtu: &PathMtu| mtu.bytes() == len;
    let holds = |mtu: &PathMtu| *mtu >= assumed && mtu.bytes() >= len;
    let last = packet.info().position.is_end();
    let found = if last { PathMtu::ALL.into_iter().find(holds) } else { PathMtu::ALL.into_iter().find(exact) };
    found.unwrap_or(assumed)
}
