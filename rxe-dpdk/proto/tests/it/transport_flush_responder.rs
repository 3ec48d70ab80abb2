//! FLUSH and ATOMIC WRITE at the responder: offered or not, rights, ranges, and what repeats do.

use crate::harness::Agreed;
use crate::harness::scripted_peer::{AckReq, ScriptedPeer};
use rxe_proto::mem::{Access, Memory, MemoryRegion};
use rxe_proto::transport::{AsyncEvent, EngineConfig, QpErrorCause, QpState, QpType};
use rxe_proto::wire::{Feth, Opcode};

use AckReq::{Ack, NoAck};
use Opcode::*;

const GLOBAL: u8 = Feth::GLOBAL_VISIBILITY;
const PERSISTENT: u8 = Feth::PERSISTENT;
const RANGE: u8 = Feth::LEVEL_RANGE;
const REGION: u8 = Feth::LEVEL_REGION;

/// Both operations offered, and a queue pair that grants everything.
fn offered() -> ScriptedPeer {
    granted(Access::all())
}

fn granted(access: Access) -> ScriptedPeer {
    let config = EngineConfig { flush: true, atomic_write: true, ..EngineConfig::default() };
    ScriptedPeer::of(QpType::Rc, false, Agreed { access, ..Agreed::default() }, config)
}

/// A region of 4096 bytes at address 0x7000 with these rights.
fn region(peer: &mut ScriptedPeer, access: Access) -> MemoryRegion {
    let pd = peer.node.pd;
    let access = access | Access::LOCAL_WRITE;
    peer.node.engine.keys_mut().register(pd, Memory::heap(4096), 0x7000, access).unwrap()
}

fn flush(peer: &mut ScriptedPeer, psn: u32, level: u8, placement: u8, va: u64, rkey: u32, len: u32) {
    let frame = peer.frame(Flush, peer.agreed.rq_psn.add(psn), Ack, b"", |packet| {
        packet.feth(level, placement).reth(va, rkey, len);
    });
    peer.inject(&frame);
}

fn atomic_write(peer: &mut ScriptedPeer, psn: u32, va: u64, rkey: u32, len: u32, bytes: &[u8]) {
    peer.rdma_raw(AtomicWrite, psn as i32, Ack, va, rkey, len, bytes);
}

#[track_caller]
fn expect_error(peer: &mut ScriptedPeer, nak: &str, cause: QpErrorCause, name: &str) {
    assert_eq!(peer.transmit(), [nak], "{name}");
    let errors: Vec<_> =
        peer.node.take_events().into_iter().filter(|event| matches!(event, AsyncEvent::QpError { .. })).collect();
    assert_eq!(errors, [AsyncEvent::QpError { qpn: peer.node.qpn, cause }], "{name}");
    assert_eq!(peer.node.state(), QpState::Error);
}

// [RC-RSP-UNSUPPORTED]
#[test]
fn not_offered_they_are_invalid_requests() {
    for op in [Flush, AtomicWrite] {
        let agreed = Agreed { access: Access::all(), ..Agreed::default() };
        let mut peer = ScriptedPeer::of(QpType::Rc, false, agreed, EngineConfig::default());
        let region = region(&mut peer, Access::all());
        match op {
            Flush => flush(&mut peer, 0, RANGE, GLOBAL, region.addr(), region.rkey(), 8),
            _ => atomic_write(&mut peer, 0, region.addr(), region.rkey(), 8, &[1; 8]),
        }
        expect_error(&mut peer, "NAK 0 InvalidRequest msn 0", QpErrorCause::OpcodeUnsupported, "off");
        assert_eq!((peer.node.stat("flushes"), peer.node.stat("atomic_writes")), (0, 0));
        let mut bytes = [9; 8];
        region.memory().read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 8]);
    }
}

// [RC-RSP-FLUSH]
#[test]
fn a_flush_is_answered_like_a_read_of_nothing() {
    let mut peer = offered();
    let region = region(&mut peer, Access::all());
    let (va, rkey) = (region.addr(), region.rkey());
    peer.rdma_raw(WriteOnly, 0, NoAck, va, rkey, 5, b"bytes");
    flush(&mut peer, 1, RANGE, GLOBAL, va, rkey, 5);
    flush(&mut peer, 2, RANGE, PERSISTENT, va + 4095, rkey, 1);
    // The whole region: the range means nothing.
    flush(&mut peer, 3, REGION, GLOBAL, 0xDEAD_BEEF_0000, rkey, u32::MAX);
    // A FLUSH of no bytes needs no key.
    flush(&mut peer, 4, RANGE, GLOBAL, 1, 2, 0);
    peer.rdma_raw(WriteOnly, 5, Ack, va, rkey, 1, b"b");
    peer.expect([
        "READ_RESPONSE_ONLY 1 msn 2",
        "READ_RESPONSE_ONLY 2 msn 3",
        "READ_RESPONSE_ONLY 3 msn 4",
        "READ_RESPONSE_ONLY 4 msn 5",
        "ACK 5 msn 6",
    ]);
    assert_eq!(peer.node.stat("flushes"), 4);
    assert_eq!(peer.node.take_completions(), [], "no receive is taken");
}

// [RC-RSP-FLUSH-RIGHTS]
#[test]
fn rights_and_ranges_of_a_flush() {
    let global = Access::FLUSH_GLOBAL;
    let persistent = Access::FLUSH_PERSISTENT;
    type AckReq = (u8, u8, u64, u32);
    // The region's rights, the FLUSH, and whether it is granted.
    let cases: [(&str, Access, AckReq, bool); 13] = [
        ("global, granted", global, (RANGE, GLOBAL, 0x7000, 4096), true),
        ("global, not granted", persistent, (RANGE, GLOBAL, 0x7000, 8), false),
        ("persistent, granted", persistent, (RANGE, PERSISTENT, 0x7000, 4096), true),
        ("persistent, not granted", global, (RANGE, PERSISTENT, 0x7000, 8), false),
        ("region, granted", global, (REGION, GLOBAL, 0, 0), true),
        ("region, not granted", persistent, (REGION, GLOBAL, 0, 0), false),
        ("region persistent, not granted", global, (REGION, PERSISTENT, 0, 0), false),
        ("both, granted", global | persistent, (RANGE, GLOBAL | PERSISTENT, 0x7000, 8), true),
        ("both, one granted", global, (RANGE, GLOBAL | PERSISTENT, 0x7000, 8), false),
        ("both, the other granted", persistent, (REGION, GLOBAL | PERSISTENT, 0, 0), false),
        ("before the region", global, (RANGE, GLOBAL, 0x6FFF, 8), false),
        ("beyond the region", global, (RANGE, GLOBAL, 0x7000, 4097), false),
        ("writing is not flushing", Access::REMOTE_WRITE, (RANGE, GLOBAL, 0x7000, 8), false),
    ];
    for (name, access, (level, placement, va, len), fine) in cases {
        let mut peer = offered();
        let region = region(&mut peer, access);
        flush(&mut peer, 0, level, placement, va, region.rkey(), len);
        if fine {
            assert_eq!(peer.transmit(), ["READ_RESPONSE_ONLY 0 msn 1"], "{name}");
        } else {
            expect_error(&mut peer, "NAK 0 RemoteAccess msn 0", QpErrorCause::RemoteKey, name);
        }
        assert_eq!(peer.node.stat("flushes"), u64::from(fine), "{name}");
    }
    // The queue pair must grant it as well.
    for (access, placement) in [(global, PERSISTENT), (persistent, GLOBAL), (Access::REMOTE_WRITE, GLOBAL)] {
        let mut peer = granted(access);
        let region = region(&mut peer, Access::all());
        flush(&mut peer, 0, RANGE, placement, region.addr(), region.rkey(), 8);
        expect_error(&mut peer, "NAK 0 InvalidRequest msn 0", QpErrorCause::AccessFlags, "queue pair");
    }
    // An unknown key.
    for level in [RANGE, REGION] {
        let mut peer = offered();
        flush(&mut peer, 0, level, GLOBAL, 0x7000, 0x1234_5678, 8);
        expect_error(&mut peer, "NAK 0 RemoteAccess msn 0", QpErrorCause::RemoteKey, "unknown");
    }
}

// [RC-RSP-FLUSH-RIGHTS]
#[test]
fn a_flush_with_unknown_placement_or_level() {
    for (level, placement) in [(RANGE, 0), (RANGE, 4), (RANGE, GLOBAL | 8), (2, GLOBAL), (3, GLOBAL)] {
        let mut peer = offered();
        let region = region(&mut peer, Access::all());
        flush(&mut peer, 0, level, placement, region.addr(), region.rkey(), 8);
        expect_error(&mut peer, "NAK 0 InvalidRequest msn 0", QpErrorCause::OpcodeUnsupported, "unknown");
    }
    // With a payload.
    let mut peer = offered();
    let region = region(&mut peer, Access::all());
    let frame = peer.frame(Flush, peer.agreed.rq_psn, Ack, b"data", |packet| {
        packet.feth(RANGE, GLOBAL).reth(region.addr(), region.rkey(), 4);
    });
    peer.inject(&frame);
    expect_error(&mut peer, "NAK 0 InvalidRequest msn 0", QpErrorCause::Length, "payload");
    // In the middle of a message.
    let mut peer = offered();
    peer.rdma(WriteFirst, 0, NoAck, 0, 3000, &[1; 1024]);
    flush(&mut peer, 1, RANGE, GLOBAL, 0, 0, 0);
    expect_error(&mut peer, "NAK 1 InvalidRequest msn 0", QpErrorCause::OpcodeSequence, "in the middle of a message");
}

// [RC-RSP-DUP-FLUSH]
#[test]
fn repeats_are_answered_and_not_executed() {
    let mut peer = offered();
    let region = region(&mut peer, Access::all());
    let (va, rkey) = (region.addr(), region.rkey());
    flush(&mut peer, 0, RANGE, GLOBAL, va, rkey, 8);
    atomic_write(&mut peer, 1, va + 8, rkey, 8, &[1; 8]);
    let both = ["READ_RESPONSE_ONLY 0 msn 1", "READ_RESPONSE_ONLY 1 msn 2"];
    peer.expect(both);
    // Another writer has changed the value since.
    region.memory().write(8, &[2; 8]).unwrap();
    flush(&mut peer, 0, RANGE, GLOBAL, va, rkey, 8);
    atomic_write(&mut peer, 1, va + 8, rkey, 8, &[1; 8]);
    peer.expect(both);
    let mut bytes = [0; 8];
    region.memory().read(8, &mut bytes).unwrap();
    assert_eq!(bytes, [2; 8]);
    let stats = ["flushes", "atomic_writes", "flush_replays"].map(|name| peer.node.stat(name));
    assert_eq!(stats, [1, 1, 2]);
    // Of another kind than the first time.
    peer.atomic(FetchAdd, 0, 8, 1, 1);
    peer.rdma(ReadRequest, 1, Ack, 0, 8, b"");
    peer.expect([]);
    assert_eq!(peer.node.dropped("psn_duplicate_gone"), 2);
}

// [RC-RSP-DUP-TOO-OLD]
#[test]
fn repeats_older_than_what_is_remembered_are_not_answered() {
    let mut peer = offered();
    for psn in 0..5 {
        flush(&mut peer, psn, RANGE, GLOBAL, 0, 0, 0);
        assert_eq!(peer.transmit().len(), 1);
    }
    flush(&mut peer, 0, RANGE, GLOBAL, 0, 0, 0);
    peer.expect([]);
    assert_eq!(peer.node.dropped("psn_duplicate_gone"), 1);
}

// [RC-RSP-READ-DEPTH]
#[test]
fn they_count_as_reads_outstanding() {
    let config = EngineConfig { flush: true, atomic_write: true, ..EngineConfig::default() };
    let agreed = Agreed { rd_atomic: 2, access: Access::all(), ..Agreed::default() };
    let mut peer = ScriptedPeer::of(QpType::Rc, false, agreed, config);
    let region = region(&mut peer, Access::all());
    flush(&mut peer, 0, RANGE, GLOBAL, 0, 0, 0);
    atomic_write(&mut peer, 1, region.addr(), region.rkey(), 8, &[1; 8]);
    flush(&mut peer, 2, RANGE, GLOBAL, 0, 0, 0);
    peer.expect(["READ_RESPONSE_ONLY 0 msn 1", "READ_RESPONSE_ONLY 1 msn 2", "NAK 2 InvalidRequest msn 2"]);
    assert_eq!(peer.node.dropped("too_many_reads"), 1);
}

// [RC-RSP-ATOMIC-WRITE]
#[test]
fn an_atomic_write_writes_eight_bytes() {
    let mut peer = offered();
    let region = region(&mut peer, Access::REMOTE_WRITE);
    region.memory().fill(0, 4096, 0xEE).unwrap();
    atomic_write(&mut peer, 0, region.addr() + 16, region.rkey(), 8, b"ABCDEFGH");
    peer.expect(["READ_RESPONSE_ONLY 0 msn 1"]);
    let mut bytes = [0; 24];
    region.memory().read(8, &mut bytes).unwrap();
    assert_eq!(&bytes, b"\xEE\xEE\xEE\xEE\xEE\xEE\xEE\xEEABCDEFGH\xEE\xEE\xEE\xEE\xEE\xEE\xEE\xEE");
    assert_eq!((peer.node.stat("atomic_writes"), peer.node.take_completions().len()), (1, 0));
}

// [RC-RSP-ATOMIC-WRITE]
#[test]
fn an_atomic_write_against_the_rules() {
    use QpErrorCause::{AccessFlags, Length, Misaligned, RemoteKey};
    let invalid = "NAK 0 InvalidRequest msn 0";
    let access = "NAK 0 RemoteAccess msn 0";
    let (all, write) = (Access::all(), Access::REMOTE_WRITE);
    type Write<'a> = (u64, u32, &'a [u8]);
    let cases: [(&str, Access, Access, Write<'_>, &str, QpErrorCause); 8] = [
        ("too little", all, write, (0x7000, 8, &[1; 4]), invalid, Length),
        ("too much", all, write, (0x7000, 8, &[1; 12]), invalid, Length),
        ("another length in the header", all, write, (0x7000, 16, &[1; 8]), invalid, Length),
        ("misaligned", all, write, (0x7004, 8, &[1; 8]), invalid, Misaligned),
        ("beyond the region", all, write, (0x8000, 8, &[1; 8]), access, RemoteKey),
        ("before the region", all, write, (0x6FF8, 8, &[1; 8]), access, RemoteKey),
        ("not for writing", all, Access::REMOTE_READ, (0x7000, 8, &[1; 8]), access, RemoteKey),
        ("queue pair not for writing", Access::REMOTE_READ, write, (0x7000, 8, &[1; 8]), invalid, AccessFlags),
    ];
    for (name, qp_access, region_access, (va, len, bytes), nak, cause) in cases {
        let mut peer = granted(qp_access);
        let region = region(&mut peer, region_access);
        atomic_write(&mut peer, 0, va, region.rkey(), len, bytes);
        expect_error(&mut peer, nak, cause, name);
        assert_eq!(peer.node.stat("atomic_writes"), 0, "{name}");
        let mut first = [0; 16];
        region.memory().read(0, &mut first).unwrap();
        assert_eq!(first, [0; 16], "{name}");
    }
}
