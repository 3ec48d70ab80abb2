//! The peer: its addresses, and messages with small numbers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rxe_proto::cm::{LocalAddresses, MadPath};
use rxe_proto::wire::cm::{
    Answered, Apr, CmMessage, Drep, Dreq, IpAddressing, Lap, Mra, PortSpace, Rej, RejReason, Rep, Req, Rtu, ServiceId,
    SidrRep, SidrReq, SidrStatus,
};
use rxe_proto::wire::{Gid, MacAddr, PathMtu, PortId, Psn};

use super::{FLAG_FOREIGN, FLAG_IPV6};
use crate::input::Input;

/// The target's addresses, one of each IP version: those of the server or of the initiator in the captures.
#[derive(Clone, Copy)]
pub struct Addresses {
    pub initiator: bool,
}

impl Addresses {
    /// The last part of our address and of the peer's.
    fn ends(self) -> (u8, u8) {
        if self.initiator { (2, 1) } else { (1, 2) }
    }
}

impl LocalAddresses for Addresses {
    fn is_local(&self, _port: PortId, gid: Gid) -> bool {
        let (local, _) = self.ends();
        gid == ip(local, false).into() || gid == ip(local, true).into()
    }

    fn path_mtu(&self, _port: PortId) -> PathMtu {
        PathMtu::Mtu1024
    }
}

fn ip(end: u8, ipv6: bool) -> IpAddr {
    if ipv6 {
        Ipv6Addr::new(0xFD00, 0x77, 0, 0, 0, 0, 0, end.into()).into()
    } else {
        Ipv4Addr::new(192, 168, 77, end).into()
    }
}

/// The path of a MAD with these flags.
pub fn path(local: Addresses, flags: u8) -> MadPath {
    let (ours, mut theirs) = local.ends();
    if flags & FLAG_FOREIGN != 0 {
        theirs = 3;
    }
    let ipv6 = flags & FLAG_IPV6 != 0;
    MadPath {
        port: PortId(0),
        local_mac: MacAddr([0x52, 0x54, 0, 0, 0, ours]),
        peer_mac: MacAddr([0x52, 0x54, 0, 0, 0, theirs]),
        vlan: None,
        local: ip(ours, ipv6).into(),
        peer: ip(theirs, ipv6).into(),
        traffic_class: 0,
    }
}

/// The GUID of the peer's channel adapter.
const GUID: u64 = 0x5054_00FF_FE00_000B;

/// A message of kind `kind` as a Linux peer sends it, with the next numbers of the input.
pub fn message(kind: u8, flags: u8, local: Addresses, input: &mut Input<'_>) -> CmMessage {
    let (local_comm_id, remote_comm_id) = (u32::from(input.u8() % 4) + 1, u32::from(input.u8()));
    let (number, code) = (input.u8(), input.u8());
    let (qpn, psn) = (u32::from(number % 3), Psn::new(u32::from(number / 3 % 2)));
    let answered = [Answered::Req, Answered::Rep, Answered::Other, Answered::Reserved][usize::from(code % 4)];
    match kind % 12 {
        0 => CmMessage::Req(req(local, flags, local_comm_id, qpn, psn)),
        1 => CmMessage::Rep(Rep {
            local_comm_id,
            remote_comm_id,
            local_qpn: qpn,
            starting_psn: psn,
            responder_resources: code,
            initiator_depth: code,
            target_ack_delay: code % 32,
            rnr_retry_count: 7,
            local_ca_guid: GUID,
            ..Rep::default()
        }),
        2 => CmMessage::Rtu(Rtu { local_comm_id, remote_comm_id, ..Rtu::default() }),
        3 => CmMessage::Dreq(Dreq { local_comm_id, remote_comm_id, remote_qpn: qpn, ..Dreq::default() }),
        4 => CmMessage::Drep(Drep { local_comm_id, remote_comm_id, ..Drep::default() }),
        5 => CmMessage::Mra(Mra {
            local_comm_id,
            remote_comm_id,
            answered,
            service_timeout: number % 32,
            ..Mra::default()
        }),
        6 => {
            let reason = RejReason::from_code((number % 40).into());
            let mut rej = Rej { local_comm_id, remote_comm_id, answered, reason, ..Rej::default() };
            assert!(rej.set_ari(&GUID.to_be_bytes()));
            CmMessage::Rej(rej)
        }
        7 => {
            // A peer that was killed and does not know our id.
            let (answered, reason) = (Answered::Other, RejReason::Timeout);
            let mut rej = Rej { local_comm_id, answered, reason, ..Rej::default() };
            assert!(rej.set_ari(&GUID.to_be_bytes()));
            CmMessage::Rej(rej)
        }
        8 => {
            let service_id = ServiceId::new(PortSpace::Udp, 7174);
            let mut sidr = SidrReq { request_id: local_comm_id, pkey: 0xFFFF, service_id, ..SidrReq::default() };
            sidr.private_data[..36].copy_from_slice(&addressing(local, flags).to_bytes());
            CmMessage::SidrReq(sidr)
        }
        9 => CmMessage::SidrRep(SidrRep {
            request_id: local_comm_id,
            status: SidrStatus::from_code(code % 8),
            qpn,
            ..SidrRep::default()
        }),
        10 => CmMessage::Lap(Lap { local_comm_id, remote_comm_id, remote_qpn: qpn, ..Lap::default() }),
        _ => CmMessage::Apr(Apr { local_comm_id, remote_comm_id, ..Apr::default() }),
    }
}

/// The addresses that a request of the peer names.
fn addressing(local: Addresses, flags: u8) -> IpAddressing {
    let path = path(local, flags);
    IpAddressing::new((path.peer.ip(), 40_000), path.local.ip()).expect("addresses of one family")
}

fn req(local: Addresses, flags: u8, local_comm_id: u32, local_qpn: u32, starting_psn: Psn) -> Req {
    let mut req = Req {
        local_comm_id,
        service_id: ServiceId::new(PortSpace::Tcp, 7174),
        local_ca_guid: GUID,
        local_qpn,
        responder_resources: 1,
        initiator_depth: 1,
        remote_response_timeout: 20,
        starting_psn,
        local_response_timeout: 20,
        retry_count: 7,
        pkey: 0xFFFF,
        path_mtu: 3,
        rnr_retry_count: 7,
        max_cm_retries: 15,
        ..Req::default()
    };
    let path = path(local, flags);
    (req.primary.local_lid, req.primary.remote_lid) = (0xFFFF, 0xFFFF);
    (req.primary.local_gid, req.primary.remote_gid) = (path.peer, path.local);
    (req.primary.hop_limit, req.primary.ack_timeout) = (64, 19);
    assert!(req.set_private_data(&addressing(local, flags), b"ulp"));
    req
}
