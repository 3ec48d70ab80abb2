//! Rules of docs/compliance.md that no other test holds.

use crate::harness::ops::*;
use crate::harness::scripted_peer::{AckReq, PEER_QPN, ScriptedPeer};
use crate::harness::{ALL_ACCESS, Agreed, QKEY};
use rxe_proto::mem::{Access, KeyError, Memory, WindowBind, WindowKind};
use rxe_proto::transport::{EngineConfig, QpErrorCause, QpTransition, QpType, SendOp, WcStatus};
use rxe_proto::wire::{Frame, Opcode, classify, icrc};

use AckReq::{Ack, NoAck};
use Opcode::*;

/// A SEND of one byte to `peer`, changed by `change`, with a valid ICRC.
fn changed(peer: &ScriptedPeer, psn: u32, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut frame = peer.frame(SendOnly, peer.agreed.rq_psn.add(psn), Ack, b"x", |_| {});
    change(&mut frame);
    with_icrc(frame)
}

/// The frame with a valid ICRC.
fn with_icrc(mut frame: Vec<u8>) -> Vec<u8> {
    let end = frame.len() - 4;
    let icrc = icrc(&frame[14..end], true);
    frame[end..].copy_from_slice(&icrc.to_le_bytes());
    frame
}

fn with_receives(n: u64) -> ScriptedPeer {
    let mut peer = ScriptedPeer::new();
    for wr_id in 0..n {
        let sge = peer.node.sge(0x8000, 4096);
        peer.node.post_recv(wr_id, &[sge]);
    }
    peer
}

// [PKT-PAD]
#[test]
fn a_payload_is_padded_with_zeros() {
    for len in 0..9 {
        let mut peer = ScriptedPeer::new();
        peer.node.write(0, &[0xFF; 16]);
        post(&mut peer, 1, SEND, len);
        assert_eq!(peer.transmit().len(), 1);
        let frame = &peer.frames[0];
        let Ok(Frame::Roce(packet)) = classify(frame) else { panic!() };
        let end = frame.len() - 4;
        assert_eq!((packet.pad(), packet.payload().len()), ((4 - len % 4) % 4, len));
        assert!(frame[end - packet.pad()..end].iter().all(|&byte| byte == 0), "{len}");
    }
}

// [PKT-PKEY]
#[test]
fn a_limited_member_is_heard() {
    let mut peer = with_receives(1);
    // The P_Key: bytes 2 and 3 of the BTH.
    let frame = changed(&peer, 0, |frame| frame[42 + 2] &= 0x7F);
    peer.inject(&frame);
    peer.expect(["ACK 0 msn 1"]);
}

// [PKT-ADDRESS]
#[test]
fn macs_and_source_ports_may_be_any() {
    let mut peer = with_receives(2);
    let macs = changed(&peer, 0, |frame| frame[..12].fill(0x5A));
    peer.inject(&macs);
    let port = changed(&peer, 1, |frame| frame[34..36].copy_from_slice(&[0x12, 0x34]));
    peer.inject(&port);
    peer.expect(["ACK 1 msn 2"]);
}

// [RC-RSP-READ-WHOLE]
#[test]
fn a_read_that_ends_outside_has_no_response() {
    let mut peer = ScriptedPeer::new();
    // Three packets inside, one beyond the end.
    peer.rdma(ReadRequest, 0, Ack, (1 << 16) - 3 * 1024, 4 * 1024, b"");
    peer.expect(["NAK 0 RemoteAccess msn 0"]);
    assert_eq!(peer.node.stat("read_responses_sent"), 0);
}

// [RC-RSP-DUP-READ-BOUNDS]
#[test]
fn a_repeated_read_of_other_bytes_has_no_answer() {
    let mut peer = ScriptedPeer::new();
    let (pd, va, rkey) = (peer.node.pd, peer.node.region.addr() + 64, peer.node.region.rkey());
    let other = peer.node.engine.keys_mut().register(pd, Memory::heap(4096), va, ALL_ACCESS).unwrap().rkey();
    peer.rdma_raw(ReadRequest, 0, Ack, va, rkey, 64, b"");
    peer.expect(["READ_RESPONSE_ONLY 0 msn 1 64 bytes"]);
    for (va, rkey, len) in [(va - 1, rkey, 64), (va + 1, rkey, 64), (va, rkey, 65), (va, other, 64)] {
        peer.rdma_raw(ReadRequest, 0, Ack, va, rkey, len, b"");
        peer.expect([]);
    }
    assert_eq!((peer.node.dropped("psn_duplicate_gone"), errors(&mut peer)), (4, vec![]));
    peer.rdma_raw(ReadRequest, 0, Ack, va, rkey, 64, b"");
    peer.expect(["READ_RESPONSE_ONLY 0 msn 1 64 bytes"]);
}

// [RC-RSP-LENGTH]
#[test]
fn a_pad_count_must_make_a_multiple_of_four() {
    let mut peer = with_receives(1);
    // Seven bytes and no pad: the IP and UDP lengths follow.
    let mut frame = peer.frame(SendOnly, peer.agreed.rq_psn, Ack, b"8 bytes!", |_| {});
    frame.remove(frame.len() - 5);
    frame[17] -= 1;
    frame[39] -= 1;
    let frame = with_icrc(frame);
    peer.inject(&frame);
    peer.expect(["NAK 0 InvalidRequest msn 0"]);
    assert_eq!(errors(&mut peer), [QpErrorCause::Length]);
}

// [RC-RSP-WRITE-GONE]
#[test]
fn memory_deregistered_during_a_write() {
    let mut peer = ScriptedPeer::new();
    let pd = peer.node.pd;
    let region = peer.node.engine.keys_mut().register(pd, Memory::heap(4096), 0, ALL_ACCESS).unwrap();
    peer.rdma_raw(WriteFirst, 0, NoAck, 0, region.rkey(), 1025, &[1; 1024]);
    peer.expect([]);
    let memory = peer.node.engine.keys_mut().deregister(region.rkey()).unwrap().unwrap();
    peer.request(WriteLast, 1, Ack, b"!");
    peer.expect(["NAK 1 RemoteAccess msn 0"]);
    assert_eq!(errors(&mut peer), [QpErrorCause::RemoteKey]);
    let mut last = [0];
    memory.read(1024, &mut last).unwrap();
    assert_eq!(last, [0], "not written");
}

// [RC-RSP-CQ-OVERFLOW]
#[test]
fn a_full_completion_queue_causes_no_nak() {
    let mut peer = with_receives(2);
    let cq = peer.node.cq;
    peer.node.engine.resize_cq(cq, 1).unwrap();
    peer.request(SendOnly, 0, Ack, b"fits");
    peer.request(SendOnly, 1, Ack, b"does not");
    peer.expect([]);
    assert_eq!(errors(&mut peer), [QpErrorCause::CqOverflow]);
}

// [RC-REQ-RETRY-7]
#[test]
fn seven_retries_are_seven() {
    let mut peer = ScriptedPeer::with(Agreed { retry_cnt: 7, ..Agreed::default() });
    post(&mut peer, 1, SEND, 1);
    assert_eq!(peer.transmit().len(), 1);
    for _ in 0..7 {
        peer.advance(TIMEOUT);
        assert_eq!(peer.transmit().len(), 1);
    }
    assert_eq!(completed(&mut peer), []);
    peer.advance(TIMEOUT);
    assert_eq!(completed(&mut peer), [(1, WcStatus::RetryExcErr)]);
}

// [RC-REQ-NAK-RETRY]
#[test]
fn a_gap_in_a_read_response_costs_no_retry() {
    let mut peer = ScriptedPeer::with(Agreed { retry_cnt: 0, ..Agreed::default() });
    post(&mut peer, 1, READ, 3 * 1024);
    assert_eq!(peer.transmit().len(), 1);
    peer.read_response(ReadResponseFirst, 0, &[1; 1024]);
    peer.read_response(ReadResponseLast, 2, &[3; 1024]);
    peer.expect(["READ_REQUEST 1 va 0x10400 len 2048 ack_req"]);
    peer.read_response(ReadResponseFirst, 1, &[2; 1024]);
    peer.read_response(ReadResponseLast, 2, &[3; 1024]);
    assert_eq!(completed(&mut peer), [(1, WcStatus::Success)]);
}

// [MEM-WINDOW-QP-END]
#[test]
fn windows_end_with_their_queue_pair() {
    for destroyed in [false, true] {
        let mut peer = ScriptedPeer::new();
        let (pd, qpn) = (peer.node.pd, peer.node.qpn);
        let keys = peer.node.engine.keys_mut();
        let access = ALL_ACCESS | Access::MW_BIND;
        let region_key = keys.register(pd, Memory::heap(64), 0, access).unwrap().lkey();
        let key = keys.alloc_window(pd, WindowKind::Type2).unwrap();
        let bind = WindowBind { region_key, addr: 0, len: 64, access: Access::REMOTE_READ };
        peer.node.post_send(1, SendOp::BindWindow { key, key_byte: None, bind }, &[]);
        peer.expect([]);
        let open = |peer: &ScriptedPeer| {
            let keys = peer.node.engine.keys();
            keys.check_remote(key, pd, qpn.get(), 0, 64, Access::REMOTE_READ).map(|span| span.len())
        };
        assert_eq!(open(&peer), Ok(64));
        if destroyed {
            peer.node.engine.destroy_qp(peer.now, qpn).unwrap();
        } else {
            peer.node.engine.modify_qp(qpn, QpTransition::ToReset).unwrap();
        }
        assert_eq!(open(&peer), Err(KeyError::Unknown));
    }
}

// [UC-RSP-SILENT]
#[test]
fn an_unreliable_connection_acknowledges_nothing_when_it_sends() {
    let mut peer = ScriptedPeer::of(QpType::Uc, false, Agreed::default(), EngineConfig::default());
    peer.node.post_recv(1, &[peer.node.sge(0, 64)]);
    peer.request(SendOnly, 0, Ack, b"x");
    peer.rdma(WriteOnly, 1, Ack, 0, 1, b"w");
    post(&mut peer, 2, SEND, 1);
    peer.expect(["UC SEND_ONLY 0 1 bytes"]);
}

// [UD-NO-CNP]
#[test]
fn a_marked_datagram_is_counted_and_not_answered() {
    let mut peer = ScriptedPeer::of(QpType::Ud, false, Agreed::default(), EngineConfig::default());
    peer.node.post_recv(1, &[peer.node.sge(0, 64)]);
    peer.mark_congestion(true);
    let frame = peer.frame(SendOnly, peer.agreed.rq_psn, NoAck, b"marked", |packet| {
        packet.deth(QKEY, PEER_QPN);
    });
    peer.inject(&frame);
    assert!(!peer.node.engine.wants_transmit());
    peer.expect([]);
    assert_eq!((peer.node.stat("ecn_marked"), peer.node.stat("cnps_sent")), (1, 0));
    assert_eq!(completed(&mut peer), [(1, WcStatus::Success)]);
}
