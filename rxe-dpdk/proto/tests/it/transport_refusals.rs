//! Requests that the responder refuses, and how: NAKs, completions, the error state, silent drops.

use crate::harness::receives::{errors, statuses, with_receives};
use crate::harness::scripted_peer::{AckReq, ScriptedPeer};
use crate::harness::{ALL_ACCESS, Agreed, Node};
use rxe_proto::mem::{Access, Memory};
use rxe_proto::transport::{EngineConfig, QpErrorCause, QpState, Sge, WcStatus};
use rxe_proto::wire::{Frame, Opcode, PortId, classify};

use AckReq::{Ack, NoAck};
use Opcode::*;

/// Checks that the queue pair went to ERROR for `cause`, once, with these completions.
#[track_caller]
fn expect_error(peer: &mut ScriptedPeer, cause: QpErrorCause, completions: &[(u64, WcStatus)]) {
    assert_eq!(errors(&peer.node.take_events()), [cause]);
    assert_eq!(statuses(&peer.node.take_completions()), completions);
    let qpn = peer.node.qpn;
    assert_eq!(peer.node.engine.query_qp(qpn).unwrap().state, QpState::Error);
    // Silent from now on.
    peer.request(SendOnly, 100, Ack, b"anybody there?");
    peer.expect([]);
    assert_eq!(peer.node.dropped("qp_in_error"), 1);
}

// [RC-RSP-READ-GONE]
#[test]
fn memory_deregistered_during_a_read() {
    let mut peer = ScriptedPeer::new();
    let pd = peer.node.pd;
    let region = peer.node.engine.keys_mut().register(pd, Memory::heap(4096), 0, ALL_ACCESS).unwrap();
    peer.rdma_raw(ReadRequest, 0, Ack, 0, region.rkey(), 4096, b"");
    assert_eq!(peer.transmit_at_most(Some(1)).len(), 1);
    peer.node.engine.keys_mut().deregister(region.rkey()).unwrap();
    // The READ is not complete: its message does not count.
    peer.expect(["NAK 1 RemoteAccess msn 0"]);
    expect_error(&mut peer, QpErrorCause::RemoteKey, &[]);
}

// [RC-RSP-READ-GONE] [RC-RSP-DUP-READ-BOUNDS]
#[test]
fn memory_deregistered_during_a_repeated_read() {
    // The region goes before the READ comes again, and after.
    for gone_first in [true, false] {
        let mut peer = ScriptedPeer::new();
        let pd = peer.node.pd;
        let region = peer.node.engine.keys_mut().register(pd, Memory::heap(4096), 0, ALL_ACCESS).unwrap();
        peer.rdma_raw(ReadRequest, 0, Ack, 0, region.rkey(), 4096, b"");
        assert_eq!(peer.transmit_at_most(Some(3)).len(), 3);
        let again = |peer: &mut ScriptedPeer| peer.rdma_raw(ReadRequest, 1, Ack, 1024, region.rkey(), 3072, b"");
        if !gone_first {
            again(&mut peer);
        }
        peer.node.engine.keys_mut().deregister(region.rkey()).unwrap();
        if gone_first {
            again(&mut peer);
        }
        // The READ that the peer repeats was never answered completely, and never will be.
        peer.expect(["NAK 1 RemoteAccess msn 0"]);
        assert_eq!(peer.node.stat("replays_abandoned"), 0);
        expect_error(&mut peer, QpErrorCause::RemoteKey, &[]);
    }
}

// [RC-RSP-READ-DEPTH-COPY] [RC-RSP-READ-DEPTH]
#[test]
fn an_early_copy_gives_up_no_place() {
    // Copies of what was not answered yet: one more than agreed is still one too many.
    let flush = |peer: &mut ScriptedPeer, psn: u32| {
        let (va, rkey) = (peer.node.region.addr(), peer.node.region.rkey());
        let frame = peer.frame(Flush, peer.agreed.rq_psn.add(psn), Ack, &[], |packet| {
            packet.feth(0, 1).reth(va, rkey, 8);
        });
        peer.inject(&frame);
    };
    type Request<'a> = &'a dyn Fn(&mut ScriptedPeer, i32);
    let requests: [(Request<'_>, &str); 3] = [
        (&|peer, psn| peer.atomic(FetchAdd, psn, 8, 1, 0), "ATOMIC_ACKNOWLEDGE 0 msn 1 value 0"),
        (&|peer, psn| flush(peer, psn as u32), "READ_RESPONSE_ONLY 0 msn 1"),
        (&|peer, psn| peer.rdma(ReadRequest, psn, Ack, 0, 9, b""), "READ_RESPONSE_ONLY 0 msn 1 9 bytes"),
    ];
    for (request, answer) in requests {
        let agreed = Agreed { rd_atomic: 1, access: ALL_ACCESS | Access::FLUSH_GLOBAL, ..Agreed::default() };
        let config = EngineConfig { flush: true, ..EngineConfig::default() };
        let mut peer = ScriptedPeer::with_config(agreed, config);
        request(&mut peer, 0);
        request(&mut peer, 0);
        request(&mut peer, 1);
        peer.expect([answer, "NAK 1 InvalidRequest msn 1"]);
    }
}

// [RC-RSP-OPCODE-ORDER] [RC-RSP-FATAL-SILENT]
#[test]
fn opcodes_out_of_order() {
    for (before, bad) in [
        (None, SendMiddle),
        (None, SendLast),
        (None, WriteMiddle),
        (Some(SendFirst), SendFirst),
        (Some(SendFirst), SendOnly),
        (Some(SendFirst), WriteMiddle),
        (Some(WriteFirst), SendMiddle),
        (Some(WriteFirst), SendOnly),
    ] {
        let mut peer = with_receives(2);
        let mtu = vec![1; peer.mtu()];
        let mut psn = 0;
        match before {
            Some(WriteFirst) => peer.rdma(WriteFirst, 0, NoAck, 0, 3000, &mtu),
            Some(op) => peer.request(op, 0, NoAck, &mtu),
            None => psn = -1,
        }
        psn += 1;
        peer.request(bad, psn, Ack, &mtu);
        assert_eq!(peer.transmit(), [format!("NAK {psn} InvalidRequest msn 0")], "{before:?} {bad:?}");
        let first = if before == Some(SendFirst) { WcStatus::RemInvReqErr } else { WcStatus::WrFlushErr };
        expect_error(&mut peer, QpErrorCause::OpcodeSequence, &[(0, first), (1, WcStatus::WrFlushErr)]);
    }
    // Not even a READ may interleave.
    let mut peer = with_receives(0);
    let mtu = vec![1; peer.mtu()];
    peer.rdma(WriteFirst, 0, NoAck, 0, 3000, &mtu);
    peer.rdma(ReadRequest, 1, Ack, 0, 1, b"");
    peer.expect(["NAK 1 InvalidRequest msn 0"]);
}

// [RC-RSP-UNSUPPORTED]
#[test]
fn unsupported_operations_are_invalid_requests() {
    let mut peer = ScriptedPeer::new();
    peer.rdma(AtomicWrite, 0, Ack, 0, 8, &[0; 8]);
    peer.expect(["NAK 0 InvalidRequest msn 0"]);
    expect_error(&mut peer, QpErrorCause::OpcodeUnsupported, &[]);
}

// [RC-RSP-QP-ACCESS]
#[test]
fn access_flags_of_the_queue_pair() {
    for op in [WriteOnly, ReadRequest, FetchAdd] {
        let mut peer = ScriptedPeer::with(Agreed { access: Access::empty(), ..Agreed::default() });
        match op {
            WriteOnly => peer.rdma(op, 0, Ack, 0, 1, b"x"),
            ReadRequest => peer.rdma(op, 0, Ack, 0, 1, b""),
            _ => peer.atomic(op, 0, 0, 1, 1),
        }
        peer.expect(["NAK 0 InvalidRequest msn 0"]);
        expect_error(&mut peer, QpErrorCause::AccessFlags, &[]);
    }
}

// [RC-RSP-RKEY]
#[test]
fn bad_remote_keys() {
    type Bad = fn(&mut ScriptedPeer) -> (u64, u32, u32);
    let cases: [(&str, Bad); 4] = [
        ("unknown", |peer| (peer.node.region.addr(), peer.node.region.rkey() ^ 0x10, 8)),
        ("range", |peer| (peer.node.region.addr() + (1 << 16) - 7, peer.node.region.rkey(), 8)),
        ("rights", |peer| {
            let pd = peer.node.pd;
            let keys = peer.node.engine.keys_mut();
            (0, keys.register(pd, Memory::heap(64), 0, Access::LOCAL_WRITE).unwrap().rkey(), 8)
        }),
        ("domain", |peer| {
            let keys = peer.node.engine.keys_mut();
            let pd = keys.alloc_pd();
            (0, keys.register(pd, Memory::heap(64), 0, ALL_ACCESS).unwrap().rkey(), 8)
        }),
    ];
    for (name, bad) in cases {
        for op in [WriteOnly, ReadRequest, FetchAdd] {
            let mut peer = with_receives(1);
            peer.request(SendOnly, 0, Ack, b"before");
            let (va, rkey, len) = bad(&mut peer);
            match op {
                WriteOnly => peer.rdma_raw(op, 1, Ack, va, rkey, len, &[0; 8]),
                ReadRequest => peer.rdma_raw(op, 1, Ack, va, rkey, len, b""),
                _ => {
                    let va = va & !7;
                    let va = if name == "range" { va + 8 } else { va };
                    let frame = peer.frame(op, peer.agreed.rq_psn.add(1), Ack, b"", |packet| {
                        packet.atomic_eth(va, rkey, 1, 1);
                    });
                    peer.inject(&frame);
                }
            }
            assert_eq!(peer.transmit(), ["NAK 1 RemoteAccess msn 1"], "{name} {op:?}");
            expect_error(&mut peer, QpErrorCause::RemoteKey, &[(0, WcStatus::Success)]);
        }
    }
}

// [RC-RSP-RKEY-FIRST]
#[test]
fn a_bad_range_is_found_before_a_byte_is_written() {
    let mut peer = ScriptedPeer::new();
    let mtu = vec![0xFF; peer.mtu()];
    peer.rdma(WriteFirst, 0, NoAck, (1 << 16) - 1024, 1025, &mtu);
    peer.expect(["NAK 0 RemoteAccess msn 0"]);
    assert_eq!(peer.node.read((1 << 16) - 1024, 1024), [0; 1024]);
}

// [RC-RSP-LENGTH] [RC-RSP-WRITE-LENGTH]
#[test]
fn lengths_against_the_rules() {
    type Bad = fn(&mut ScriptedPeer, &[u8]);
    let cases: [(&str, Bad); 9] = [
        ("short SEND_FIRST", |peer, mtu| peer.request(SendFirst, 0, Ack, &mtu[1..])),
        ("long SEND_ONLY", |peer, mtu| peer.request(SendOnly, 0, Ack, &[mtu, b"x"].concat())),
        ("short WRITE_FIRST", |peer, mtu| peer.rdma(WriteFirst, 0, Ack, 0, 2000, &mtu[1..])),
        ("WRITE_FIRST with all", |peer, mtu| peer.rdma(WriteFirst, 0, Ack, 0, mtu.len(), mtu)),
        ("WRITE_ONLY with less", |peer, _| peer.rdma(WriteOnly, 0, Ack, 0, 10, b"123456789")),
        ("WRITE_ONLY with more", |peer, _| peer.rdma(WriteOnly, 0, Ack, 0, 8, b"123456789")),
        ("WRITE_ONLY beyond the MTU", |peer, mtu| {
            peer.rdma(WriteOnly, 0, Ack, 0, mtu.len() + 1, &[mtu, b"x"].concat());
        }),
        ("endless READ", |peer, _| peer.rdma(ReadRequest, 0, Ack, 0, (1 << 31) + 1, b"")),
        ("WRITE without end", |peer, mtu| peer.rdma(WriteFirst, 0, Ack, 0, (1 << 31) + 1, mtu)),
    ];
    for (name, bad) in cases {
        let mut peer = with_receives(1);
        let mtu = vec![1; peer.mtu()];
        bad(&mut peer, &mtu);
        assert_eq!(peer.transmit(), ["NAK 0 InvalidRequest msn 0"], "{name}");
        let status = if name.contains("SEND") { WcStatus::RemInvReqErr } else { WcStatus::WrFlushErr };
        expect_error(&mut peer, QpErrorCause::Length, &[(0, status)]);
    }
    // An empty last packet.
    let mut peer = with_receives(1);
    let mtu = vec![1; peer.mtu()];
    peer.request(SendFirst, 0, NoAck, &mtu);
    peer.request(SendLast, 1, Ack, b"");
    peer.expect(["NAK 1 InvalidRequest msn 0"]);
    // A last packet that is not the rest.
    let mut peer = ScriptedPeer::new();
    peer.rdma(WriteFirst, 0, NoAck, 0, 2000, &mtu);
    peer.request(WriteLast, 1, Ack, &mtu[..975]);
    peer.expect(["NAK 1 InvalidRequest msn 0"]);
}

// [RC-RSP-RECV-TOO-SMALL] [RC-RSP-FATAL-SILENT]
#[test]
fn a_send_longer_than_its_receive() {
    let mut peer = ScriptedPeer::new();
    let sge = peer.node.sge(0, 1500);
    peer.node.post_recv(1, &[sge]);
    peer.node.post_recv(2, &[sge]);
    let mtu = vec![1; peer.mtu()];
    peer.request(SendFirst, 0, NoAck, &mtu);
    peer.request(SendLast, 1, Ack, &mtu);
    peer.expect(["NAK 1 InvalidRequest msn 0"]);
    expect_error(&mut peer, QpErrorCause::ReceiveTooSmall, &[(1, WcStatus::LocLenErr), (2, WcStatus::WrFlushErr)]);
}

// [RC-RSP-RECV-KEY]
#[test]
fn a_receive_with_a_bad_key() {
    let mut peer = ScriptedPeer::new();
    peer.node.post_recv(1, &[Sge { addr: 0, length: 100, lkey: 12345 }]);
    peer.request(SendOnly, 0, Ack, b"x");
    peer.expect(["NAK 0 RemoteOperational msn 0"]);
    expect_error(&mut peer, QpErrorCause::ReceiveKey, &[(1, WcStatus::LocProtErr)]);
}

// [RC-RSP-INVALIDATE]
#[test]
fn only_fast_regions_and_windows_can_be_invalidated() {
    let mut peer = with_receives(2);
    let key = peer.node.fast_region(64);
    let send = |peer: &mut ScriptedPeer, psn: u32, rkey: u32| {
        let frame = peer.frame(SendOnlyInvalidate, peer.agreed.rq_psn.add(psn), Ack, b"inv", |packet| {
            packet.ieth(rkey);
        });
        peer.inject(&frame);
    };
    send(&mut peer, 0, key);
    let [wc] = peer.node.take_completions()[..] else { panic!() };
    assert_eq!(wc.invalidated_rkey, Some(key));
    assert!(peer.node.engine.keys().region(key).is_none());
    peer.expect(["ACK 0 msn 1"]);
    // Peers may not invalidate a plain region.
    let rkey = peer.node.region.rkey();
    send(&mut peer, 1, rkey);
    peer.expect(["ACK 1 msn 2"]);
    assert!(peer.node.engine.keys().region(rkey).is_some());
    peer.node.take_events();
    assert_eq!(statuses(&peer.node.take_completions()), [(1, WcStatus::RemInvReqErr)]);
}

// [RC-RSP-ATOMIC-ALIGN]
#[test]
fn misaligned_atomic() {
    let mut peer = ScriptedPeer::new();
    peer.atomic(FetchAdd, 0, 4, 1, 0);
    peer.expect(["NAK 0 InvalidRequest msn 0"]);
    expect_error(&mut peer, QpErrorCause::Misaligned, &[]);
}

// [RC-RSP-READ-DEPTH] [RC-RSP-DEPTH-POW2]
#[test]
fn read_depth() {
    // Three agreed: the ring holds four, as rxe would use.
    let mut peer = ScriptedPeer::with(Agreed { rd_atomic: 3, ..Agreed::default() });
    for psn in 0..4 {
        peer.rdma(ReadRequest, psn, Ack, 0, 1, b"");
    }
    assert_eq!(peer.transmit().len(), 4);
    for psn in 4..9 {
        peer.rdma(ReadRequest, psn, Ack, 0, 1, b"");
    }
    // Those accepted are answered before the refusal.
    peer.expect([
        "READ_RESPONSE_ONLY 4 msn 5 1 bytes",
        "READ_RESPONSE_ONLY 5 msn 6 1 bytes",
        "READ_RESPONSE_ONLY 6 msn 7 1 bytes",
        "READ_RESPONSE_ONLY 7 msn 8 1 bytes",
        "NAK 8 InvalidRequest msn 8",
    ]);
    expect_error(&mut peer, QpErrorCause::ReadDepth, &[]);

    let mut peer = ScriptedPeer::with(Agreed { rd_atomic: 0, ..Agreed::default() });
    peer.rdma(ReadRequest, 0, Ack, 0, 1, b"");
    peer.expect(["NAK 0 InvalidRequest msn 0"]);
}

// [RC-RSP-CQ-OVERFLOW]
#[test]
fn a_full_completion_queue_ends_the_queue_pair() {
    let mut peer = with_receives(3);
    let (cq, qpn) = (peer.node.cq, peer.node.qpn);
    peer.node.engine.resize_cq(cq, 1).unwrap();
    // Not collected in between, as the harness does when it transmits.
    peer.request(SendOnly, 0, Ack, b"fits");
    peer.request(SendOnly, 1, Ack, b"does not");
    assert_eq!(errors(&peer.node.take_events()), [QpErrorCause::CqOverflow]);
    assert_eq!(peer.node.engine.query_qp(qpn).unwrap().state, QpState::Error);
    assert!(peer.node.stat("cq_overflows") > 0);
}

// [PKT-ICRC-CHECK] [PKT-PKEY] [PKT-ADDRESS] [PKT-QP-TYPE]
#[test]
fn strangers_are_not_heard() {
    let mut peer = with_receives(4);
    let frame = peer.frame(SendOnly, peer.agreed.rq_psn, Ack, b"x", |_| {});

    let mut damaged = frame.clone();
    let last = damaged.len() - 6;
    damaged[last] ^= 1;
    peer.inject(&damaged);
    assert_eq!(peer.node.dropped("icrc_mismatch"), 1);

    let mut elsewhere = frame.clone();
    elsewhere[14 + 15] ^= 1;
    peer.inject(&elsewhere);
    let mut to_elsewhere = frame.clone();
    to_elsewhere[14 + 19] ^= 1;
    peer.inject(&to_elsewhere);
    let Ok(Frame::Roce(packet)) = classify(&frame) else { panic!() };
    peer.node.engine.receive(peer.now, PortId(1), &packet);
    assert_eq!(peer.node.dropped("qp_wrong_address"), 3);

    let mut partition = frame.clone();
    partition[14 + 20 + 8 + 3] = 0xFE;
    peer.inject(&partition);
    assert_eq!(peer.node.dropped("pkey_mismatch"), 1);

    let mut unreliable = frame.clone();
    unreliable[14 + 20 + 8] |= 0x20;
    peer.inject(&unreliable);
    assert_eq!(peer.node.dropped("qp_wrong_transport"), 1);

    let mut nobody = frame.clone();
    nobody[14 + 20 + 8 + 7] ^= 1;
    peer.inject(&nobody);
    assert_eq!(peer.node.dropped("qpn_unknown"), 1);

    peer.expect([]);
    peer.inject(&frame);
    peer.expect(["ACK 0 msn 1"]);
}

// [QP-NUMBER-REUSE]
#[test]
fn the_number_of_a_former_queue_pair_is_unknown() {
    let mut peer = ScriptedPeer::new();
    let frame = peer.frame(SendOnly, peer.agreed.rq_psn, Ack, b"x", |_| {});
    let old = peer.node.qpn;
    let (pd, cq) = (peer.node.pd, peer.node.cq);
    let init = rxe_proto::transport::QpInit {
        qp_type: rxe_proto::transport::QpType::Rc,
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        caps: rxe_proto::transport::QpCaps {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        },
        sq_sig_all: false,
    };
    peer.node.engine.destroy_qp(peer.now, old).unwrap();
    let new = peer.node.engine.create_qp(peer.now, &init).unwrap();
    assert_ne!(new, old);
    peer.inject(&frame);
    assert_eq!(peer.node.dropped("qpn_unknown"), 1);
    // The protection domain and the completion queue are held by queue pairs.
    assert!(peer.node.engine.destroy_cq(cq).is_err());
    peer.node.engine.destroy_qp(peer.now, new).unwrap();
    assert!(peer.node.engine.destroy_cq(cq).is_ok());
}

// [QP-NUMBER-MANAGEMENT]
#[test]
fn numbers_name_the_worker_and_leave_out_the_management_pairs() {
    let node = |worker| Node::new(1, EngineConfig { worker, ..EngineConfig::default() }, 1, 64, ALL_ACCESS);
    let mut first = node(0);
    for _ in 0..10_000 {
        let qpn = first.create_qp(1, ALL_ACCESS);
        assert!(qpn.get() > 1 && qpn.worker() == 0, "{qpn:?}");
    }
    assert_eq!(node(5).qpn.worker(), 5);
}
