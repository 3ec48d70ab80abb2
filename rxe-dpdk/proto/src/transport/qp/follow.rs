//! A queue pair that learns from its peer what it is.
//!
//! Some programs tell each other the numbers of their queue pairs and nothing else: whether they talk RC, UC or UD, and
//! with which path MTU, the other end knows from its own command line. We have none. So a queue pair can follow its
//! peer: the first packet settles both, and is then handled as any packet is.
//!
//! Only a packet that shows knowledge of the connection is believed: a request with the expected PSN (on UC one that starts
//! a message), a response to a request of ours, or a datagram with the right Q_Key. Others, such as late packets of an
//! earlier queue pair with the same number, are handled as the type assumed has it, and settle nothing.

use crate::transport::attr::QpError;
use crate::transport::{QpState, QpType};
use crate::wire::{DropReason, PathMtu, PortId, RocePacket, Transport};

use super::Qp;

/// What a queue pair that follows its peer must know in case that the peer sends datagrams.
#[derive(Clone, Copy, Debug)]
pub(in crate::transport) struct Follow {
    qkey: u32,
    path_mtu: PathMtu,
}

impl Qp {
    /// See [`Engine::follow_peer`](crate::transport::Engine::follow_peer).
    pub(in crate::transport) fn follow_peer(&mut self, qkey: u32, path_mtu: PathMtu) -> Result<(), QpError> {
        if self.link.is_none() || !self.state.receives() {
            return Err(QpError::NoPath);
        }
        self.follow = Some(Follow { qkey, path_mtu });
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

    /// A packet for a queue pair that follows its peer: if it is one to believe, the queue pair has a type and a path MTU
    /// from here on.
    ///
    /// # Errors
    /// Why the packet is to be dropped.
    #[cold]
    pub(in crate::transport) fn settle(
        &mut self,
        port: PortId,
        packet: &RocePacket<'_>,
        follow: Follow,
    ) -> Result<(), DropReason> {
        let qp_type = match packet.transport() {
            Transport::Rc => QpType::Rc,
            Transport::Uc => QpType::Uc,
            Transport::Ud => QpType::Ud,
            // Says nothing of the kind.
            Transport::Cnp => return Ok(()),
        };
        let Some(link) = &self.link else { return Err(DropReason::QpWrongState) };
        if !link.leads_here(port, packet) {
            return Err(DropReason::QpWrongAddress);
        }
        if !self.is_believed(packet, follow)? {
            return Ok(());
        }
        // What is posted was cut into packets for the type and path MTU assumed.
        let busy = !self.requester.sq.is_empty();
        if busy && qp_type != self.common.qp_type {
            return Err(DropReason::QpWrongTransport);
        }
        self.follow = None;
        if busy {
            return Ok(());
        }
        if qp_type != QpType::Rc {
            // A packet that was not believed may have been answered as one of a reliable connection.
            self.responder.abandon_replies();
        }
        self.common.qp_type = qp_type;
        if qp_type == QpType::Ud {
            self.common.port = Some(port);
            self.common.qkey = follow.qkey;
            self.common.mtu = follow.path_mtu.bytes() as u32;
            self.link = None;
            return Ok(());
        }
        let Some(link) = &mut self.link else { return Err(DropReason::QpWrongState) };
        let path_mtu = path_mtu_of(packet, link.path_mtu);
        link.settle(qp_type, path_mtu);
        self.common.mtu = path_mtu.bytes() as u32;
        Ok(())
    }
}

impl Qp {
    /// Whether a packet from the peer's address shows that the peer sent it on this connection.
    ///
    /// # Errors
    /// Why it is to be dropped at once.
    fn is_believed(&self, packet: &RocePacket<'_>, follow: Follow) -> Result<bool, DropReason> {
        let expected = packet.psn() == self.responder.expected_psn();
        Ok(match packet.transport() {
            Transport::Rc if packet.info().response => self.requester.awaits(packet.psn()),
            Transport::Rc => expected,
            Transport::Uc => expected && packet.info().position.is_start(),
            Transport::Ud => {
                let deth = packet.deth().ok_or(DropReason::HeaderTruncated)?;
                if deth.qkey() != follow.qkey {
                    return Err(DropReason::QkeyMismatch);
                }
                true
            }
            Transport::Cnp => false,
        })
    }
}

/// The path MTU of a peer that sent `packet`: all packets of a message but the last are as long as that. A last one says
/// only that the path MTU is not smaller, and `assumed` stands if that is so.
fn path_mtu_of(packet: &RocePacket<'_>, assumed: PathMtu) -> PathMtu {
    let len = packet.payload().len();
    let exact = |mtu: &PathMtu| mtu.bytes() == len;
    let holds = |mtu: &PathMtu| *mtu >= assumed && mtu.bytes() >= len;
    let last = packet.info().position.is_end();
    let found = if last { PathMtu::ALL.into_iter().find(holds) } else { PathMtu::ALL.into_iter().find(exact) };
    found.unwrap_or(assumed)
}
