//! Two engines over two ports.

use rxe_proto::verbs::{Rc, RecvWr, Uc, WcOpcode, WorkRequest};
use rxe_proto::wire::DropReason;

use crate::support::{End, completion, connect, count, counted, open, open_with, pattern, turn_until};

const SIZES: [usize; 8] = [0, 1, 64, 1024, 4096, 4097, 65_536, 1 << 20];

fn ends() -> [End; 2] {
    [End::new(open(), 1 << 20), End::new(open(), 1 << 20)]
}

/// WRITE, READ and SEND of several sizes.
fn check_operations(ends: &mut [End; 2]) {
    let [qp, peer] = connect::<Rc>(ends);
    for len in SIZES {
        let there = ends[1].mr.remote(0).unwrap();
        let bytes = pattern(len, 1);
        ends[0].fill(&bytes);
        let local = [ends[0].mr.sge(..len).unwrap()];
        ends[0].device().post_send(qp, WorkRequest::write(&local, there).signaled()).unwrap();
        assert_eq!(completion(ends, 0).opcode, WcOpcode::RdmaWrite);
        assert_eq!(ends[1].bytes(len), bytes, "WRITE of {len}");

        let bytes = pattern(len, 2);
        ends[1].fill(&bytes);
        ends[0].device().post_send(qp, WorkRequest::read(&local, there).signaled()).unwrap();
        assert_eq!(completion(ends, 0).opcode, WcOpcode::RdmaRead);
        assert_eq!(ends[0].bytes(len), bytes, "READ of {len}");

        let bytes = pattern(len, 3);
        ends[0].fill(&bytes);
        let buffer = [ends[1].mr.sge(..).unwrap()];
        ends[1].device().post_recv(peer, RecvWr { wr_id: 7, sges: &buffer }).unwrap();
        ends[0].device().post_send(qp, WorkRequest::send(&local).signaled()).unwrap();
        let received = completion(ends, 1);
        assert_eq!((received.wr_id, received.byte_len as usize), (7, len));
        assert_eq!(ends[1].bytes(len), bytes, "SEND of {len}");
        completion(ends, 0);
    }
    for end in ends {
        // Others, as duplicates, may come of retransmissions on a busy machine.
        for reason in [DropReason::IcrcMismatch, DropReason::QpnUnknown, DropReason::QpWrongAddress] {
            assert_eq!(end.engine.drops().get(reason), 0, "{reason}");
        }
        for counter in ["foreign", "oversize", "send_failed", "identification_recovered", "rcvd_bad_length"] {
            assert_eq!(count(&end.port, counter), 0, "{counter}");
        }
    }
}

#[test]
fn operations_of_all_sizes_complete() {
    check_operations(&mut ends());
}

#[test]
fn operations_of_all_sizes_complete_without_offloads() {
    let plain = || open_with(|config| config.offload = false);
    check_operations(&mut [End::new(plain(), 1 << 20), End::new(plain(), 1 << 20)]);
}

#[test]
fn losses_in_a_small_receive_buffer_are_repaired() {
    let small = || open_with(|config| config.receive_buffer = 1);
    let mut ends = [End::new(small(), 1 << 20), End::new(small(), 1 << 20)];
    let [qp, _] = connect::<Rc>(&mut ends);
    let bytes = pattern(1 << 20, 4);
    ends[0].fill(&bytes);
    let (local, there) = ([ends[0].mr.sge(..).unwrap()], ends[1].mr.remote(0).unwrap());
    ends[0].device().post_send(qp, WorkRequest::write(&local, there).signaled()).unwrap();
    completion(&mut ends, 0);
    assert!(ends[1].bytes(1 << 20) == bytes);
    let lost = counted(ends[0].port.stats(), "sent_packets") - counted(ends[1].port.stats(), "rcvd_packets");
    assert!(lost > 0, "the buffer held everything");
    assert!(counted(ends[1].port.stats(), "rcvd_overflowed") > 0);
}

#[test]
fn unreliable_messages_arrive() {
    let mut ends = ends();
    let [qp, peer] = connect::<Uc>(&mut ends);
    let bytes = pattern(10_000, 5);
    ends[0].fill(&bytes);
    let buffer = [ends[1].mr.sge(..).unwrap()];
    ends[1].device().post_recv(peer, RecvWr { wr_id: 1, sges: &buffer }).unwrap();
    let local = [ends[0].mr.sge(..10_000).unwrap()];
    ends[0].device().post_send(qp, WorkRequest::send(&local)).unwrap();
    let received = turn_until(&mut ends, |ends| ends[1].completion()).success().unwrap();
    assert_eq!((received.byte_len, ends[1].bytes(10_000)), (10_000, bytes));
}
