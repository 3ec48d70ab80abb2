//! Input: the checks that every received packet passes, in order, and what handles it then.

use crate::time::Instant;
use crate::transport::qp::Qp;
use crate::transport::table::QpTable;
use crate::transport::{QpState, Qpn};
use crate::wire::{DropReason, MacAddr, PortId, RocePacket, Transport};

use super::Engine;

impl Engine {
    /// Receives one packet that came by `port` and whose destination queue pair, or multicast group, belongs to this
    /// engine.
    /// [`classify`](crate::wire::classify) has checked its headers, and the caller that it was sent to one of its
    /// addresses.
    ///
    /// The checks, in order; the first one that fails drops the packet, and [`drops`](Engine::drops) counts its reason:
    ///
    /// | check | reason |
    /// |---|---|
    /// | the queue pair exists | [`QpnUnknown`](DropReason::QpnUnknown) |
    /// | it has the packet's transport service | [`QpWrongTransport`](DropReason::QpWrongTransport) |
    /// | its state lets it take requests, or responses | [`QpInError`](DropReason::QpInError), [`QpWrongState`](DropReason::QpWrongState) |
    /// | the packet comes from its peer, by its port | [`QpWrongAddress`](DropReason::QpWrongAddress) |
    /// | the P_Key names the default partition | [`PkeyMismatch`](DropReason::PkeyMismatch) |
    /// | the ICRC is right | [`IcrcMismatch`](DropReason::IcrcMismatch) |
    ///
    /// Then the queue pair's type decides: a request goes to the responder (PSN, opcode sequence, rights, lengths,
    /// keys), a response to the completer (PSN, the work request that waits for it), a datagram to its receive (Q_Key,
    /// length).
    #[inline]
    pub fn receive(&mut self, now: Instant, port: PortId, packet: &RocePacket<'_>) {
        if let Err(reason) = self.admit(now, port, packet) {
            self.cx.drop(reason);
        }
    }

    #[inline]
    fn admit(&mut self, now: Instant, port: PortId, packet: &RocePacket<'_>) -> Result<(), DropReason> {
        let cx = &mut self.cx;
        let qpn = Qpn::new(packet.dest_qp());
        if qpn == Qpn::MULTICAST {
            return self.admit_multicast(port, packet);
        }
        let qp = check(&mut self.qps, qpn, port, packet)?;
        let transport = packet.transport();
        let response = packet.info().response;
        cx.now = now;
        cx.stats.rcvd_pkts.inc();
        cx.stats.rcvd_bytes.add(packet.frame().len() as u64);
        if packet.is_congestion_marked() {
            qp.congestion_experienced(cx, now);
        }
        match transport {
            Transport::Cnp => {
                qp.congestion_notified(cx, now);
            }
            Transport::Rc if response => qp.handle_response(cx, now, packet),
            Transport::Rc => qp.handle_request(cx, packet),
            Transport::Uc => qp.handle_unreliable(cx, packet),
            Transport::Ud => return qp.handle_datagram(cx, packet),
        }
        Ok(())
    }

    /// The source MAC address that packets to `qpn` have unless they come from another station than its peer, or by another
    /// router; `None` without a connected peer. [`receive`](Self::receive) does not check it, as routes may differ by
    /// direction.
    pub fn peer_mac(&self, qpn: Qpn) -> Option<MacAddr> {
        Some(self.qps.get(qpn)?.link.as_ref()?.path.dst_mac)
    }

    /// A datagram to a group: every attached queue pair gets a copy.
    #[cold]
    fn admit_multicast(&mut self, port: PortId, packet: &RocePacket<'_>) -> Result<(), DropReason> {
        if packet.transport() != Transport::Ud {
            return Err(DropReason::QpWrongTransport);
        }
        let members = self.groups.members(port, packet.dst_gid());
        if members.is_empty() {
            return Err(DropReason::QpnUnknown);
        }
        check_integrity(packet)?;
        let cx = &mut self.cx;
        cx.stats.rcvd_pkts.inc();
        cx.stats.rcvd_bytes.add(packet.frame().len() as u64);
        cx.stats.multicast_rcvd.inc();
        // compliance.md [UD-MULTICAST]: A datagram to queue pair 0xFFFFFF goes to each queue pair attached to its
        // group.
        for &qpn in members {
            if let Some(qp) = self.qps.get_mut(qpn)
                && qp.state.receives()
                && let Err(reason) = qp.handle_datagram(cx, packet)
            {
                cx.drop(reason);
            }
        }
        Ok(())
    }
}

/// The checks listed at [`Engine::receive`]. Returns the queue pair that is to handle the packet.
#[inline(always)]
pub(super) fn check<'q>(
    qps: &'q mut QpTable,
    qpn: Qpn,
    port: PortId,
    packet: &RocePacket<'_>,
) -> Result<&'q mut Qp, DropReason> {
    // The queue pair exists.
    let qp = qps.get_mut(qpn).ok_or(DropReason::QpnUnknown)?;
    // A peer whose transport service is not known yet: an intact packet may determine it.
    if let Some(detection) = qp.detection {
        check_integrity(packet)?;
        qp.detect_from(port, packet, detection)?;
    }
    // Transport service.
    let transport = packet.transport();
    // compliance.md [PKT-QP-TYPE]: A packet of another transport service than its queue pair's is dropped.
    if transport != qp.common.qp_type.transport() && transport != Transport::Cnp {
        return Err(DropReason::QpWrongTransport);
    }
    // State.
    // compliance.md [QP-STATE-SERVE]: Requests are accepted from RTR on (SQD and SQE included), responses in RTS and
    // SQD, nothing in RESET, INIT and ERROR.
    let open = if packet.info().response { qp.state.sends() } else { qp.state.receives() };
    if !open {
        let in_error = qp.state == QpState::Error;
        return Err(if in_error { DropReason::QpInError } else { DropReason::QpWrongState });
    }
    // Source address and port.
    let from_peer = match &qp.link {
        Some(link) => link.leads_here(port, packet),
        // compliance.md [UD-RSP-ANYBODY]: A datagram may come from any address, by the queue pair's port.
        None => qp.common.port == Some(port),
    };
    if !from_peer {
        return Err(DropReason::QpWrongAddress);
    }
    // Partition key and ICRC: last, as the ICRC costs the most.
    check_integrity(packet)?;
    Ok(qp)
}

/// Partition key and ICRC. The top bit of a P_Key tells full members from limited ones; either may talk to a full
/// member.
#[inline(always)]
fn check_integrity(packet: &RocePacket<'_>) -> Result<(), DropReason> {
    // compliance.md [PKT-PKEY]: The partition key must be the default partition's.
    if packet.bth().pkey() & 0x7FFF != 0x7FFF {
        Err(DropReason::PkeyMismatch)
    } else if !packet.icrc_ok() {
        // compliance.md [PKT-ICRC-CHECK]: A packet with a wrong ICRC is dropped, and none of its fields is used.
        Err(DropReason::IcrcMismatch)
    } else {
        Ok(())
    }
}
