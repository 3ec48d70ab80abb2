//! Connection manager messages, field by field and as a whole.

use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;
use rxe_proto::wire::cm::{
    Answered, CmMessage, CmTransport, IpAddressing, PortSpace, RejReason, Rep, Req, ServiceId, SidrStatus, private_data,
};
use rxe_proto::wire::mad::{MAD_LEN, MadError, MadHeader, attribute};
use rxe_proto::wire::{DropReason, Frame, Gid, PathMtu, Psn, classify};
use rxe_testkit::pcap;

/// The messages of a capture with their headers, in order.
fn messages(file: &str) -> Vec<(MadHeader, CmMessage)> {
    let mut out = Vec::new();
    for frame in pcap::recorded(file) {
        if let Ok(Frame::Roce(packet)) = classify(&frame)
            && packet.dest_qp() == 1
        {
            out.push(CmMessage::parse(packet.payload()).unwrap());
        }
    }
    out
}

fn req(messages: &[(MadHeader, CmMessage)]) -> &Req {
    match &messages[0].1 {
        CmMessage::Req(req) => req,
        other => panic!("{other}"),
    }
}

fn rep(messages: &[(MadHeader, CmMessage)]) -> &Rep {
    match &messages[1].1 {
        CmMessage::Rep(rep) => rep,
        other => panic!("{other}"),
    }
}

const SERVER: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 2);

#[test]
fn rping_connects() {
    let all = messages("cm-rping-ipv4.pcap");
    let names: Vec<_> = all.iter().map(|(_, message)| message.name()).collect();
    assert_eq!(names, ["REQ", "REP", "RTU", "DREQ", "DREP"]);
    assert!(all.iter().all(|(header, _)| header.transaction_id == all[0].0.transaction_id));

    let req = req(&all);
    assert_eq!((req.service_id, req.service_id.0), (ServiceId::new(PortSpace::Tcp, 7174), 0x0106_1C06));
    assert_eq!(req.local_ca_guid, 0x5054_00FF_FE00_000B);
    assert_eq!((req.responder_resources, req.initiator_depth), (1, 1));
    assert_eq!((req.remote_response_timeout, req.local_response_timeout, req.max_cm_retries), (20, 20, 15));
    assert_eq!((req.transport, req.flow_control, req.srq), (CmTransport::Rc, false, false));
    assert_eq!((req.retry_count, req.rnr_retry_count), (7, 7));
    assert_eq!((req.pkey, PathMtu::from_code(req.path_mtu)), (0xFFFF, Some(PathMtu::Mtu1024)));
    assert_eq!(req.starting_psn, Psn::new(0x29_480F));
    let path = &req.primary;
    assert_eq!((path.local_gid, path.remote_gid), (Gid::from(CLIENT), Gid::from(SERVER)));
    assert_eq!((path.local_lid, path.remote_lid, path.hop_limit, path.ack_timeout), (0xFFFF, 0xFFFF, 64, 19));
    assert!(!path.subnet_local);
    assert_eq!(req.alternate, Default::default());
    let addressing = req.ip_addressing();
    let (source, port) = addressing.source().unwrap();
    assert_eq!((source, addressing.destination()), (CLIENT.into(), Some(SERVER.into())));
    assert_eq!(path.flow_label, (u32::from(port) * 31 + 7174) & 0xF_FFFF);
    assert_eq!(IpAddressing::new((source, port), SERVER.into()), Some(addressing));
    assert_eq!(req.ulp_data(), [0; 56]);

    let rep = rep(&all);
    assert_eq!(rep.remote_comm_id, req.local_comm_id);
    assert_eq!(rep.starting_psn, Psn::new(0xDC_D52E));
    assert_eq!((rep.responder_resources, rep.initiator_depth), (1, 1));
    assert_eq!((rep.target_ack_delay, rep.rnr_retry_count, rep.srq, rep.failover_accepted), (15, 7, false, 0));
    assert_eq!(rep.local_ca_guid, 0x5054_00FF_FE00_000A);

    assert_eq!(all[2].1.comm_ids(), (req.local_comm_id, rep.local_comm_id));
    match &all[3].1 {
        CmMessage::Dreq(dreq) => assert_eq!(dreq.remote_qpn, rep.local_qpn),
        other => panic!("{other}"),
    }
    assert_eq!(all[4].1.comm_ids(), (rep.local_comm_id, req.local_comm_id));
}

#[test]
fn other_captures_have_their_own_values() {
    let mtu9000 = messages("cm-rping-mtu9000.pcap");
    assert_eq!(PathMtu::from_code(req(&mtu9000).path_mtu), Some(PathMtu::Mtu4096));
    let ipv6 = messages("cm-rping-ipv6.pcap");
    let source: IpAddr = "fd00:77::2".parse().unwrap();
    assert_eq!(req(&ipv6).ip_addressing().source().unwrap().0, source);
    assert_eq!(req(&ipv6).primary.local_gid, Gid::from(source));
    let ucmatose = messages("cm-ucmatose.pcap");
    assert_eq!((req(&ucmatose).retry_count, req(&ucmatose).rnr_retry_count), (5, 0));
    let rstream = messages("cm-rstream.pcap");
    assert!(req(&rstream).flow_control);
    let read = messages("cm-ib_read_bw-R.pcap");
    assert!(read.iter().any(|(_, message)| matches!(message, CmMessage::Req(req) if req.initiator_depth == 128)));

    match &messages("cm-mra-slow-server.pcap")[2].1 {
        CmMessage::Mra(mra) => assert_eq!((mra.answered, mra.service_timeout), (Answered::Req, 24)),
        other => panic!("{other}"),
    }
    match &messages("cm-rej-no-listener.pcap")[1].1 {
        CmMessage::Rej(rej) => assert_eq!((rej.answered, rej.reason), (Answered::Req, RejReason::InvalidServiceId)),
        other => panic!("{other}"),
    }
    match &messages("cm-x-init-killed-rej-timeout.pcap")[1].1 {
        CmMessage::Rej(rej) => {
            assert_eq!((rej.reason, rej.remote_comm_id), (RejReason::Timeout, 0));
            assert_eq!(rej.ari(), 0x5054_00FF_FE00_0002u64.to_be_bytes());
        }
        other => panic!("{other}"),
    }
    let reasons: Vec<u16> = messages("cm-x-resp-rejects.pcap")
        .iter()
        .filter_map(|(_, message)| match message {
            CmMessage::Rej(rej) => Some(rej.reason.code()),
            _ => None,
        })
        .collect();
    assert_eq!(reasons, [8, 28, 12, 28, 18, 12]);

    let sidr = messages("cm-udaddy.pcap");
    match (&sidr[0].1, &sidr[1].1) {
        (CmMessage::SidrReq(req), CmMessage::SidrRep(rep)) => {
            assert_eq!(req.service_id, ServiceId::new(PortSpace::Udp, 7174));
            assert_eq!(req.ip_addressing().destination(), Some(SERVER.into()));
            assert_eq!(req.ulp_data(), [0; 180]);
            assert_eq!((rep.request_id, rep.service_id), (req.request_id, req.service_id));
            assert_eq!((rep.status, rep.qkey), (SidrStatus::Valid, 0x0123_4567));
        }
        other => panic!("{other:?}"),
    }
    match &messages("cm-sidr-no-listener.pcap")[1].1 {
        CmMessage::SidrRep(rep) => assert_eq!(rep.status, SidrStatus::ServiceIdNotSupported),
        other => panic!("{other}"),
    }
}

#[test]
fn service_ids() {
    let id = ServiceId::new(PortSpace::Udp, 0x1D2F);
    assert_eq!((id.0, id.port_space(), id.port()), (0x0111_1D2F, Some(PortSpace::Udp), 0x1D2F));
    assert_eq!(id.to_string(), "Udp:7471");
    let odd = ServiceId(0x0100_0000_0106_1C06);
    assert_eq!(odd.port_space(), None);
    assert_eq!(odd.to_string(), "0x0100000001061c06");
    for space in [PortSpace::Ipoib, PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib] {
        assert_eq!(ServiceId::new(space, 9).port_space(), Some(space));
    }
}

#[test]
fn codes_round_trip() {
    for code in 0..=u16::MAX {
        assert_eq!(RejReason::from_code(code).code(), code);
    }
    assert_eq!(RejReason::from_code(34), RejReason::Unknown(34));
    for code in 0..=u8::MAX {
        assert_eq!(SidrStatus::from_code(code).code(), code);
    }
}

#[test]
fn private_data_and_additional_information_fit_or_not() {
    assert_eq!(private_data::<4>(&[1, 2]), Some([1, 2, 0, 0]));
    assert_eq!(private_data::<4>(&[1, 2, 3, 4, 5]), None);
    let mut req = Req::default();
    assert!(!req.set_private_data(&IpAddressing::default(), &[1; 57]));
    assert_eq!(req, Req::default());
    assert!(req.set_private_data(&IpAddressing::default(), &[1; 56]));
    assert_eq!(req.ulp_data(), [1; 56]);
    let mut rej = rxe_proto::wire::cm::Rej::default();
    assert!(!rej.set_ari(&[1; 73]));
    assert!(rej.set_ari(&[1, 2]));
    assert_eq!(rej.ari(), [1, 2]);
    rej.ari_len = 127;
    assert_eq!(rej.ari().len(), 72, "never more than there is");
}

#[test]
fn mixed_address_families_make_no_addressing() {
    assert_eq!(IpAddressing::new((CLIENT.into(), 1), "::1".parse().unwrap()), None);
    let mut addressing = IpAddressing::new((CLIENT.into(), 1), SERVER.into()).unwrap();
    assert_eq!(IpAddressing::parse(&addressing.to_bytes()), addressing);
    assert_eq!(addressing.src[..12], [0; 12], "not a mapped address");
    addressing.ip_version = 5;
    assert_eq!((addressing.source(), addressing.destination()), (None, None));
    addressing = IpAddressing { version: 1, ip_version: 4, ..addressing };
    assert_eq!(addressing.source(), None);
}

#[test]
fn other_mads_are_refused() {
    let mut mad = [0; MAD_LEN];
    CmMessage::Rtu(Default::default()).emit(7, &mut mad);
    assert!(CmMessage::parse(&mad).is_ok());
    assert_eq!(CmMessage::parse(&mad[..255]), Err(MadError::Length(255)));
    assert_eq!(CmMessage::parse(&[&mad[..], &[0]].concat()), Err(MadError::Length(257)));
    let with = |at: usize, value: u8| {
        let mut mad = mad;
        mad[at] = value;
        CmMessage::parse(&mad).unwrap_err()
    };
    assert_eq!(with(0, 2), MadError::Version { base: 2, class: 2 });
    assert_eq!(with(1, 3), MadError::Class(3));
    assert_eq!(with(2, 1), MadError::Version { base: 1, class: 1 });
    assert_eq!(with(3, 1), MadError::Method(1));
    assert_eq!(with(17, 0x1B), MadError::Attribute(0x1B));
    assert_eq!(DropReason::from(with(2, 1)), DropReason::MadMalformed);
    assert_eq!(DropReason::from(with(1, 3)), DropReason::MadUnsupported);
    assert!(!with(3, 1).to_string().is_empty());
}

proptest! {
    #[test]
    fn any_message_is_written_again_byte_for_byte(
        header in prop::array::uniform20(any::<u8>()), body in prop::collection::vec(any::<u8>(), 232),
        attribute in attribute::REQ..=attribute::APR,
    ) {
        let mut mad = [0; MAD_LEN];
        mad[4..24].copy_from_slice(&header);
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[16..18].copy_from_slice(&attribute.to_be_bytes());
        mad[24..].copy_from_slice(&body);
        let (header, message) = CmMessage::parse(&mad).unwrap();
        prop_assert_eq!(message.attribute_id(), attribute);
        let mut again = [0xA5; MAD_LEN];
        message.emit_with(&header, &mut again);
        prop_assert_eq!(again, mad);
        prop_assert!(message.to_string().starts_with(message.name()));
    }

    #[test]
    fn random_bytes_are_no_message_or_one(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = CmMessage::parse(&bytes);
    }
}
