//! Rules of docs/compliance.md that no other test holds.

use crate::harness::ops::*;
use crate::harness::solo::{Ask, PEER_QPN, Solo};
use crate::harness::{ALL_ACCESS, Agreed, QKEY};
use rxe_proto::mem::{Access, KeyError, Memory, WindowBind, WindowKind};
use rxe_proto::transport::{EngineConfig, QpErrorCause, QpTransition, QpType, SendOp, WcStatus};
use rxe_proto::wire::{Frame, Opcode, classify, icrc};

use Ask::{Ack, Nothing};
use Opcode::*;

/// A SEND of one byte to `solo`, changed by `change` and with the ICRC that is right then.
fn changed(solo: &Solo, psn: u32, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut frame = solo.frame(SendOnly, solo.agreed.rq_psn.add(psn), Ack, b"x", |_| {});
    change(&mut frame);
    with_icrc(frame)
}

/// The frame with the ICRC that is right for it.
fn with_icrc(mut frame: Vec<u8>) -> Vec<u8> {
    let end = frame.len() - 4;
    let icrc = icrc(&frame[14..end], true);
    frame[end..].copy_from_slice(&icrc.to_le_bytes());
    frame
}

fn with_receives(n: u64) -> Solo {
    let mut solo = Solo::new();
    for wr_id in 0..n {
        let sge = solo.node.sge(0x8000, 4096);
        solo.node.post_recv(wr_id, &[sge]);
    }
    solo
}

// [PKT-PAD]
#[test]
fn a_payload_is_padded_with_zeros() {
    for len in 0..9 {
        let mut solo = Solo::new();
        solo.node.write(0, &[0xFF; 16]);
        post(&mut solo, 1, SEND, len);
        assert_eq!(solo.transmit().len(), 1);
        let frame = &solo.frames[0];
        let Ok(Frame::Roce(packet)) = classify(frame) else { panic!() };
        let end = frame.len() - 4;
        assert_eq!((packet.pad(), packet.payload().len()), ((4 - len % 4) % 4, len));
        assert!(frame[end - packet.pad()..end].iter().all(|&byte| byte == 0), "{len}");
    }
}

// [PKT-PKEY]
#[test]
fn a_limited_member_is_heard() {
    let mut solo = with_receives(1);
    // The P_Key: bytes 2 and 3 of the BTH.
    let frame = changed(&solo, 0, |frame| frame[42 + 2] &= 0x7F);
    solo.inject(&frame);
    solo.expect(["ACK 0 msn 1"]);
}

// [PKT-ADDRESS]
#[test]
fn macs_and_source_ports_may_be_any() {
    let mut solo = with_receives(2);
    let macs = changed(&solo, 0, |frame| frame[..12].fill(0x5A));
    solo.inject(&macs);
    let port = changed(&solo, 1, |frame| frame[34..36].copy_from_slice(&[0x12, 0x34]));
    solo.inject(&port);
    solo.expect(["ACK 1 msn 2"]);
}

// [RC-RSP-READ-WHOLE]
#[test]
fn a_read_that_ends_outside_has_no_response() {
    let mut solo = Solo::new();
    // Three packets inside, one beyond the end.
    solo.rdma(ReadRequest, 0, Ack, (1 << 16) - 3 * 1024, 4 * 1024, b"");
    solo.expect(["NAK 0 RemoteAccess msn 0"]);
    assert_eq!(solo.node.stat("read_responses_sent"), 0);
}

// [RC-RSP-DUP-READ-BOUNDS]
#[test]
fn a_repeated_read_of_other_bytes_has_no_answer() {
    let mut solo = Solo::new();
    let (pd, va, rkey) = (solo.node.pd, solo.node.region.addr() + 64, solo.node.region.rkey());
    let other = solo.node.engine.keys_mut().register(pd, Memory::heap(4096), va, ALL_ACCESS).unwrap().rkey();
    solo.rdma_raw(ReadRequest, 0, Ack, va, rkey, 64, b"");
    solo.expect(["READ_RESPONSE_ONLY 0 msn 1 64 bytes"]);
    for (va, rkey, len) in [(va - 1, rkey, 64), (va + 1, rkey, 64), (va, rkey, 65), (va, other, 64)] {
        solo.rdma_raw(ReadRequest, 0, Ack, va, rkey, len, b"");
        solo.expect([]);
    }
    assert_eq!((solo.node.dropped("psn_duplicate_gone"), errors(&mut solo)), (4, vec![]));
    solo.rdma_raw(ReadRequest, 0, Ack, va, rkey, 64, b"");
    solo.expect(["READ_RESPONSE_ONLY 0 msn 1 64 bytes"]);
}

// [RC-RSP-LENGTH]
#[test]
fn a_pad_count_must_make_a_multiple_of_four() {
    let mut solo = with_receives(1);
    // Seven bytes and no pad: the IP and UDP lengths follow.
    let mut frame = solo.frame(SendOnly, solo.agreed.rq_psn, Ack, b"8 bytes!", |_| {});
    frame.remove(frame.len() - 5);
    frame[17] -= 1;
    frame[39] -= 1;
    let frame = with_icrc(frame);
    solo.inject(&frame);
    solo.expect(["NAK 0 InvalidRequest msn 0"]);
    assert_eq!(errors(&mut solo), [QpErrorCause::Length]);
}

// [RC-RSP-WRITE-GONE]
#[test]
fn memory_gone_amid_a_write() {
    let mut solo = Solo::new();
    let pd = solo.node.pd;
    let region = solo.node.engine.keys_mut().register(pd, Memory::heap(4096), 0, ALL_ACCESS).unwrap();
    solo.rdma_raw(WriteFirst, 0, Nothing, 0, region.rkey(), 1025, &[1; 1024]);
    solo.expect([]);
    let memory = solo.node.engine.keys_mut().deregister(region.rkey()).unwrap().unwrap();
    solo.request(WriteLast, 1, Ack, b"!");
    solo.expect(["NAK 1 RemoteAccess msn 0"]);
    assert_eq!(errors(&mut solo), [QpErrorCause::RemoteKey]);
    let mut last = [0];
    memory.read(1024, &mut last).unwrap();
    assert_eq!(last, [0], "not written");
}

// [RC-RSP-CQ-OVERFLOW]
#[test]
fn a_full_completion_queue_is_not_told_to_the_peer() {
    let mut solo = with_receives(2);
    let cq = solo.node.cq;
    solo.node.engine.resize_cq(cq, 1).unwrap();
    solo.request(SendOnly, 0, Ack, b"fits");
    solo.request(SendOnly, 1, Ack, b"does not");
    solo.expect([]);
    assert_eq!(errors(&mut solo), [QpErrorCause::CqOverflow]);
}

// [RC-REQ-RETRY-7]
#[test]
fn seven_retries_are_seven() {
    let mut solo = Solo::with(Agreed { retry_cnt: 7, ..Agreed::default() });
    post(&mut solo, 1, SEND, 1);
    assert_eq!(solo.transmit().len(), 1);
    for _ in 0..7 {
        solo.advance(TIMEOUT);
        assert_eq!(solo.transmit().len(), 1);
    }
    assert_eq!(completed(&mut solo), []);
    solo.advance(TIMEOUT);
    assert_eq!(completed(&mut solo), [(1, WcStatus::RetryExcErr)]);
}

// [RC-REQ-NAK-RETRY]
#[test]
fn a_gap_in_a_read_response_costs_no_retry() {
    let mut solo = Solo::with(Agreed { retry_cnt: 0, ..Agreed::default() });
    post(&mut solo, 1, READ, 3 * 1024);
    assert_eq!(solo.transmit().len(), 1);
    solo.read_response(ReadResponseFirst, 0, &[1; 1024]);
    solo.read_response(ReadResponseLast, 2, &[3; 1024]);
    solo.expect(["READ_REQUEST 1 va 0x10400 len 2048 ask"]);
    solo.read_response(ReadResponseFirst, 1, &[2; 1024]);
    solo.read_response(ReadResponseLast, 2, &[3; 1024]);
    assert_eq!(completed(&mut solo), [(1, WcStatus::Success)]);
}

// [MEM-WINDOW-QP-END]
#[test]
fn windows_end_with_their_queue_pair() {
    for destroyed in [false, true] {
        let mut solo = Solo::new();
        let (pd, qpn) = (solo.node.pd, solo.node.qpn);
        let keys = solo.node.engine.keys_mut();
        let access = ALL_ACCESS | Access::MW_BIND;
        let region_key = keys.register(pd, Memory::heap(64), 0, access).unwrap().lkey();
        let key = keys.alloc_window(pd, WindowKind::Type2).unwrap();
        let bind = WindowBind { region_key, addr: 0, len: 64, access: Access::REMOTE_READ };
        solo.node.post_send(1, SendOp::BindWindow { key, bind }, &[]);
        solo.expect([]);
        let open = |solo: &Solo| {
            let keys = solo.node.engine.keys();
            keys.check_remote(key, pd, qpn.get(), 0, 64, Access::REMOTE_READ).map(|span| span.len())
        };
        assert_eq!(open(&solo), Ok(64));
        if destroyed {
            solo.node.engine.destroy_qp(solo.now, qpn).unwrap();
        } else {
            solo.node.engine.modify_qp(qpn, QpTransition::ToReset).unwrap();
        }
        assert_eq!(open(&solo), Err(KeyError::Unknown));
    }
}

// [UC-RSP-SILENT]
#[test]
fn an_unreliable_connection_acknowledges_nothing_when_it_sends() {
    let mut solo = Solo::of(QpType::Uc, false, Agreed::default(), EngineConfig::default());
    solo.node.post_recv(1, &[solo.node.sge(0, 64)]);
    solo.request(SendOnly, 0, Ack, b"x");
    solo.rdma(WriteOnly, 1, Ack, 0, 1, b"w");
    post(&mut solo, 2, SEND, 1);
    solo.expect(["UC SEND_ONLY 0 1 bytes"]);
}

// [UD-NO-CNP]
#[test]
fn a_marked_datagram_is_counted_and_not_answered() {
    let mut solo = Solo::of(QpType::Ud, false, Agreed::default(), EngineConfig::default());
    solo.node.post_recv(1, &[solo.node.sge(0, 64)]);
    solo.mark_congestion(true);
    let frame = solo.frame(SendOnly, solo.agreed.rq_psn, Nothing, b"marked", |packet| {
        packet.deth(QKEY, PEER_QPN);
    });
    solo.inject(&frame);
    assert!(!solo.node.engine.wants_transmit());
    solo.expect([]);
    assert_eq!((solo.node.stat("ecn_marked"), solo.node.stat("cnps_sent")), (1, 0));
    assert_eq!(completed(&mut solo), [(1, WcStatus::Success)]);
}

// [ECN-CNP-NOT-OBEYED]
#[test]
fn a_notification_slows_nothing() {
    let mut solo = Solo::new();
    post(&mut solo, 1, SEND, 1);
    assert_eq!(solo.transmit().len(), 1);
    for _ in 0..3 {
        solo.notify_congestion();
    }
    for wr_id in 2..42 {
        post(&mut solo, wr_id, SEND, 1);
    }
    assert_eq!(solo.transmit().len(), 40, "all at once, in no time");
    assert_eq!(solo.node.engine.query_qp(solo.node.qpn).unwrap().cnps, (3, 0));
}
