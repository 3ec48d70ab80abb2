//! Recorded initiators and servers talk to our connection manager: what it says must be what the recorded other side
//! said.

use crate::cm_support::replay::{Outcome, capture_dir, mads, replay};
use crate::cm_support::replay_active;
use rxe_proto::cm::{
    CmEvent, ConnectFailure, DisconnectReason, GSI_UDP_SRC_PORT, MAD_FRAME_LEN_MAX, ResolveFailure, read_mad, write_mad,
};
use rxe_proto::wire::cm::{CmMessage, RejReason, SidrStatus};
use rxe_proto::wire::{Frame, PortId, Psn, TxFrames, classify};

/// Every exchange of two Linux machines: ours says the same as the recorded server, and ends with nothing open.
#[test]
fn linux_servers_are_matched() {
    let files = [
        "cm-ib_atomic_bw-R",
        "cm-ib_read_bw-R",
        "cm-ib_send_bw-R",
        "cm-ib_send_bw-R-UD",
        "cm-mra-slow-server",
        "cm-rej-no-listener",
        "cm-rping-ipv4",
        "cm-rping-ipv4-multipacket",
        "cm-rping-ipv6",
        "cm-rping-mtu9000",
        "cm-rstream",
        "cm-sidr-no-listener",
        "cm-ucmatose",
        "cm-udaddy",
        "cm-x-resp-dreq-retransmit",
        "cm-x-resp-rep-retransmit",
        "nvmf-rdma",
        "nvmf-rdma-cmds",
        "nvmf-rdma-discover",
    ];
    for file in files {
        let outcome = replay(&format!("{file}.pcap"));
        // Linux answers the second REQ with an MRA, ours answers when the service does.
        let theirs: Vec<_> =
            outcome.theirs.iter().filter(|sent| !matches!(sent.message, CmMessage::Mra(_))).cloned().collect();
        let (mut ours, mut theirs) = (Outcome::distinct(&outcome.ours), Outcome::distinct(&theirs));
        // When both sides disconnect at once, microseconds decide which answers first.
        for sent in [&mut ours, &mut theirs] {
            sent.sort_by_key(|sent| (sent.message.comm_ids().1, sent.message.attribute_id()));
        }
        assert_eq!(ours, theirs, "{file}\n{}", outcome.trace);
        let count = |wanted: fn(&CmEvent) -> bool| outcome.events.iter().filter(|event| wanted(event)).count();
        assert_eq!(count(|event| matches!(event, CmEvent::ConnectFailed { .. })), 0, "{file}\n{}", outcome.trace);
        let established = count(|event| matches!(event, CmEvent::Established { .. }));
        let disconnected = count(|event| matches!(event, CmEvent::Disconnected { .. }));
        assert_eq!(established, disconnected, "{file}\n{}", outcome.trace);
    }
}

/// The other end of the same exchanges: ours, in the initiator's place, says what the recorded initiator said, every
/// field of every message; a number that an initiator is free to choose is replaced by the recorded one.
#[test]
fn linux_initiators_are_matched() {
    let files = [
        "cm-ib_atomic_bw-R",
        "cm-ib_read_bw-R",
        "cm-ib_send_bw-R",
        "cm-ib_send_bw-R-UD",
        "cm-mra-slow-server",
        "cm-rej-no-listener",
        "cm-rping-ipv4",
        "cm-rping-ipv4-multipacket",
        "cm-rping-ipv6",
        "cm-rping-mtu9000",
        "cm-rstream",
        "cm-sidr-no-listener",
        "cm-ucmatose",
        "cm-udaddy",
        "cm-x-init-bad-rep-rejected",
        "cm-x-init-killed-rej-timeout",
        "cm-x-init-mra-of-rep",
        "cm-x-init-rejected-28",
        "cm-x-init-req-retransmit",
        "cm-x-init-stale-rep",
        "nvmf-rdma",
        "nvmf-rdma-cmds",
        "nvmf-rdma-discover",
    ];
    for file in files {
        let outcome = replay_active::replay(&format!("{file}.pcap"));
        let (mut ours, mut theirs) = (Outcome::distinct(&outcome.ours), Outcome::distinct(&outcome.theirs));
        // A DREQ is answered by the connection manager in one, by the program in the other.
        for sent in [&mut ours, &mut theirs] {
            sent.sort_by_key(|sent| (sent.message.comm_ids().0, sent.message.attribute_id()));
        }
        assert_eq!(ours, theirs, "{file}\n{}", outcome.trace);
        let count = |wanted: fn(&CmEvent) -> bool| outcome.events.iter().filter(|event| wanted(event)).count();
        let asked = count(|event| matches!(event, CmEvent::ConnectReply(_)));
        let established = count(|event| matches!(event, CmEvent::Established { .. }));
        let disconnected = count(|event| matches!(event, CmEvent::Disconnected { .. }));
        let odd = file.starts_with("cm-x");
        assert!(odd || asked == established && established == disconnected, "{file}\n{}", outcome.trace);
    }
}

/// Events on the active side with unusual servers.
#[test]
fn initiators_hear_why() {
    let events = |file: &str| replay_active::replay(&format!("{file}.pcap")).events;
    let rejected = |file: &str| match events(file).as_slice() {
        [CmEvent::ConnectFailed { reason: ConnectFailure::PeerRejected(reason), rej: Some(rej), .. }] => {
            (*reason, rej.private_data)
        }
        other => panic!("{file}: {other:?}"),
    };
    assert_eq!(rejected("cm-rej-no-listener").0, RejReason::InvalidServiceId);
    let (reason, private_data) = rejected("cm-x-init-rejected-28");
    assert_eq!(reason, RejReason::ConsumerDefined);
    assert!(private_data.iter().any(|&byte| byte != 0), "the server's own words");
    let killed = events("cm-x-init-killed-rej-timeout");
    assert!(matches!(killed.as_slice(), [CmEvent::Disconnected { reason: DisconnectReason::Local, .. }]), "{killed:?}");
    let stale = events("cm-x-init-stale-rep");
    let is_stale =
        |event: &CmEvent| matches!(event, CmEvent::Disconnected { reason, .. } if *reason == DisconnectReason::Stale);
    assert_eq!(stale.iter().filter(|event| is_stale(event)).count(), 1, "{stale:?}");
    let nobody = events("cm-sidr-no-listener");
    let refused = ResolveFailure::Refused(SidrStatus::ServiceIdNotSupported);
    assert!(matches!(nobody.as_slice(), [CmEvent::ResolveFailed { reason, .. }] if *reason == refused), "{nobody:?}");
    let found = events("cm-udaddy");
    let [CmEvent::DatagramResolved(reply)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((reply.qkey, reply.qpn.get() > 1), (0x0123_4567, true));
    let granted = events("cm-rping-ipv4");
    let Some(CmEvent::ConnectReply(reply)) = granted.first() else { panic!("{granted:?}") };
    assert_eq!((reply.starting_psn, reply.local_ack_timeout), (Psn::new(0xDCD52E), 19));
    assert_eq!((reply.responder_resources, reply.initiator_depth, reply.rnr_retry_count), (1, 1, 7));
}

/// No capture of the repository is left out by mistake.
#[test]
fn every_capture_is_replayed_somewhere() {
    let here = include_str!("cm_replay.rs");
    for entry in std::fs::read_dir(capture_dir()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if let Some(stem) = name.strip_suffix(".pcap").filter(|stem| stem.starts_with("cm-")) {
            assert!(here.contains(&format!("\"{stem}\"")), "{stem}");
        }
    }
    // This one holds no MAD at all, which is its point: multicast joins do not use them.
    assert!(mads(&format!("{}.pcap", "cm-x-mckey-join-igmp")).is_empty());
}

/// Exchanges in which one side does odd things, side by side: "recorded" is what the other server did.
#[test]
fn odd_exchanges_side_by_side() {
    let files = [
        "cm-x-init-bad-rep-rejected",
        "cm-x-init-killed-rej-timeout",
        "cm-x-init-mra-of-rep",
        "cm-x-init-rejected-28",
        "cm-x-init-req-retransmit",
        "cm-x-init-stale-rep",
        "cm-x-resp-dreq-retransmit",
        "cm-x-resp-rejects",
        "cm-x-resp-rep-retransmit",
        "cm-x-resp-stale-conn",
        "cm-mra-slow-server",
        "cm-ib_read_bw-R",
    ];
    let text: String =
        files.into_iter().map(|file| format!("{file}\n{}\n", replay(&format!("{file}.pcap")).trace)).collect();
    insta::assert_snapshot!(text);
}

#[test]
fn a_killed_client_is_noticed_before_our_answer() {
    let outcome = replay("cm-x-init-killed-rej-timeout.pcap");
    let failed = ConnectFailure::PeerRejected(RejReason::Timeout);
    assert!(matches!(outcome.events.last(), Some(CmEvent::ConnectFailed { reason, .. }) if *reason == failed));
    assert_eq!((outcome.left, outcome.ours.len()), (0, 0));
}

#[test]
fn a_request_that_names_a_connection_in_use_can_be_rejected() {
    let outcome = replay("cm-x-resp-stale-conn.pcap");
    let rejected =
        |message: &CmMessage| matches!(message, CmMessage::Rej(rej) if rej.reason == RejReason::StaleConnection);
    assert!(outcome.ours.iter().any(|sent| rejected(&sent.message)), "{}", outcome.trace);
    let stale =
        |event: &CmEvent| matches!(event, CmEvent::Disconnected { reason, .. } if *reason == DisconnectReason::Stale);
    assert!(!outcome.events.iter().any(stale), "{}", outcome.trace);
    assert!(outcome.ours.iter().any(|sent| matches!(sent.message, CmMessage::Dreq(_))));
}

/// Our frames are Linux's frames but for the IP header's and the BTH's few free fields.
#[test]
fn frames_around_mads_are_as_linux_writes_them() {
    for (file, len) in [("cm-rping-ipv4.pcap", 322), ("cm-rping-ipv6.pcap", 342)] {
        for recorded in mads(file) {
            let Ok(Frame::Roce(packet)) = classify(&recorded.frame) else { panic!() };
            // Send what was received, the way it was sent.
            let mut path = recorded.path.clone();
            std::mem::swap(&mut path.local, &mut path.peer);
            std::mem::swap(&mut path.local_mac, &mut path.peer_mac);
            let mut mad = [0; 256];
            recorded.message.emit_with(&recorded.header, &mut mad);
            let mut tx = TxFrames::default();
            assert!(write_mad(&mut tx, &path, GSI_UDP_SRC_PORT, packet.psn(), &mad));
            let (port, frame) = tx.frames.remove(0);
            assert_eq!((port, frame.len()), (PortId(0), len));
            assert!(frame.len() <= MAD_FRAME_LEN_MAX);

            let Ok(Frame::Roce(ours)) = classify(&frame) else { panic!() };
            assert!(ours.icrc_ok());
            assert_eq!(ours.udp_src_port(), packet.udp_src_port());
            assert_eq!(ours.hop_limit(), 64);
            assert_eq!(ours.deth().map(|deth| (deth.qkey(), deth.src_qp())), Some((0x8001_0000, 1)));
            assert!(!ours.ack_req(), "Linux sets it, the standard does not");
            let (back, payload) = read_mad(PortId(0), &ours).unwrap();
            assert_eq!((back, payload), (recorded.path.clone(), &mad[..]));
            // Everything from the BTH's flags on, without the ACK request bit and the ICRC.
            let bth = len - 4 - 256 - 8 - 12;
            let mut theirs = recorded.frame[bth..len - 4].to_vec();
            theirs[8] &= 0x7F;
            assert_eq!(&frame[bth..len - 4], theirs);
        }
    }
}
