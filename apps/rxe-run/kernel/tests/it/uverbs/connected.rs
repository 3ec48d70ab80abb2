//! Connected queue pairs: what the pingpong programs and perftest do.

use nix::errno::Errno;
use rxe_proto::wire::TxFrames;

use super::program::{Completion, QpInit, RC, UC, UD};
use super::rings::{BUFFER, End, connected, connected_as, header};
use super::work::{Wr, wr};
use super::world::World;

const SUCCESS: u32 = 0;
const OPCODE_RECV: u32 = 128;
const OPCODE_RECV_RDMA_WITH_IMM: u32 = 129;

/// The traffic of ibv_{rc,uc,ud}_pingpong: each message is answered by one, receives are posted again as they complete.
fn pingpong(qp_type: u8, lose_every: u64, len: u32, iterations: usize) {
    let mut world = World::new();
    let mut ends = connected(&mut world, qp_type);
    world.lose_every = lose_every;
    let room = header(qp_type);
    let handles = [0, 1].map(|number: usize| {
        let peer = world.sides[1 - number].gid();
        let end = &ends[number];
        let mut ah = || end.program.create_ah(&mut world.sides[number], end.pd, peer, 1).unwrap().1;
        if qp_type == UD { ah() } else { 0 }
    });
    for end in &mut ends {
        for slot in 0..8 {
            end.receive(slot, 0, room as u32 + len);
        }
    }
    for turn in 0..iterations {
        let (from, to) = (turn % 2, 1 - turn % 2);
        let text: Vec<u8> = (0..len).map(|at| (at as usize * 7 + turn) as u8).collect();
        ends[from].buffer.bytes[BUFFER / 2..][..len as usize].copy_from_slice(&text);
        let wr = Wr::new(100, wr::SEND).sge(ends[from].buffer.sge(BUFFER as u64 / 2, len));
        let wr = if qp_type == UD { wr.to(ends[to].qp.qpn, 0x1111_1111, handles[from]) } else { wr };
        ends[from].send(&mut world, from, &wr);
        let received = ends[to].success(&mut world);
        assert_eq!((received.opcode, received.byte_len), (OPCODE_RECV, room as u32 + len));
        assert!(received.wr_id < 8 && received.qp_num == ends[to].qp.qpn);
        assert_eq!(ends[to].buffer.bytes[room as usize..][..len as usize], text);
        ends[to].receive(received.wr_id, 0, room as u32 + len);
        let sent = ends[from].success(&mut world);
        assert_eq!((sent.wr_id, sent.opcode, sent.qp_num), (100, 0, ends[from].qp.qpn));
    }
}

#[test]
pub fn rc_pingpong() {
    pingpong(RC, 0, 4096, 100);
}

#[test]
fn rc_pingpong_over_a_link_with_losses() {
    pingpong(RC, 7, 10_000, 100);
}

#[test]
fn uc_pingpong() {
    pingpong(UC, 0, 4096, 100);
}

#[test]
fn ud_pingpong() {
    pingpong(UD, 0, 1024, 100);
}

#[test]
fn messages_of_no_bytes() {
    for qp_type in [RC, UC, UD] {
        pingpong(qp_type, 0, 0, 4);
    }
}

/// Executes one work request of end 0 to its completion.
fn execute(world: &mut World, ends: &[End; 2], wr: &Wr) -> Completion {
    ends[0].send(world, 0, wr);
    ends[0].completion(world)
}

#[test]
fn write_read_and_atomics() {
    let mut world = World::new();
    let mut ends = connected(&mut world, RC);
    let (addr, key) = (ends[1].buffer.addr(), ends[1].buffer.key);
    ends[0].buffer.bytes[..5000].fill(0x5A);
    let wr = Wr::new(1, wr::RDMA_WRITE).sge(ends[0].buffer.sge(0, 5000)).remote(addr + 8, key);
    let written = execute(&mut world, &ends, &wr);
    assert_eq!((written.wr_id, written.status, written.opcode), (1, SUCCESS, 1));
    assert_eq!(ends[1].buffer.bytes[..5016], [&[0; 8][..], &[0x5A; 5000], &[0; 8]].concat());

    ends[1].buffer.bytes[..3000].fill(0x77);
    let halves = Wr::new(2, wr::RDMA_READ).sge(ends[0].buffer.sge(0, 1000)).sge(ends[0].buffer.sge(2000, 2000));
    let read = execute(&mut world, &ends, &halves.remote(addr, key));
    assert_eq!((read.status, read.opcode, read.byte_len), (SUCCESS, 2, 3000));
    let bytes = &ends[0].buffer.bytes;
    assert!(bytes[..1000].iter().chain(&bytes[2000..4000]).all(|&byte| byte == 0x77) && bytes[1000] == 0x5A);

    ends[1].buffer.bytes[..8].copy_from_slice(&40u64.to_ne_bytes());
    let add = Wr::new(3, wr::ATOMIC_FETCH_AND_ADD).sge(ends[0].buffer.sge(64, 8)).atomic(addr, key, 2, 0);
    assert_eq!(execute(&mut world, &ends, &add).opcode, 4);
    assert_eq!(ends[0].buffer.bytes[64..72], 40u64.to_ne_bytes());
    let swap = Wr::new(4, wr::ATOMIC_CMP_AND_SWP).sge(ends[0].buffer.sge(72, 8)).atomic(addr, key, 42, 7);
    assert_eq!(execute(&mut world, &ends, &swap).opcode, 3);
    assert_eq!(ends[0].buffer.bytes[72..80], 42u64.to_ne_bytes());
    assert_eq!(ends[1].buffer.bytes[..8], 7u64.to_ne_bytes());

    // The provider puts the 8 bytes where inline data is, and sets no flag.
    let mut atomic_write = Wr::new(5, wr::ATOMIC_WRITE).inline(&9u64.to_ne_bytes()).remote(addr, key);
    atomic_write.flags = wr::SIGNALED;
    assert_eq!(execute(&mut world, &ends, &atomic_write).status, SUCCESS);
    assert_eq!(ends[1].buffer.bytes[..8], 9u64.to_ne_bytes());
}

#[test]
fn inline_data_needs_no_key_and_may_change_at_once() {
    let mut world = World::new();
    let ends = connected(&mut world, RC);
    ends[1].receive(1, 0, 64);
    ends[0].send(&mut world, 0, &Wr::new(1, wr::SEND).inline(b"inline data"));
    let received = ends[1].success(&mut world);
    assert_eq!((received.byte_len, &ends[1].buffer.bytes[..11]), (11, &b"inline data"[..]));
    assert_eq!(ends[0].success(&mut world).wr_id, 1);
    // As much as the provider believes to be allowed.
    let data: Vec<u8> = (0..ends[0].qp.max_inline_data).map(|at| at as u8).collect();
    let (addr, key) = (ends[1].buffer.addr(), ends[1].buffer.key);
    assert_eq!(execute(&mut world, &ends, &Wr::new(2, wr::RDMA_WRITE).inline(&data).remote(addr, key)).status, SUCCESS);
    assert_eq!(ends[1].buffer.bytes[..data.len()], data);
}

#[test]
fn immediate_data_arrives_in_network_order() {
    for qp_type in [RC, UC] {
        let mut world = World::new();
        let ends = connected(&mut world, qp_type);
        ends[1].receive(1, 0, 64);
        ends[1].receive(2, 0, 64);
        let send = Wr::new(1, wr::SEND_WITH_IMM).sge(ends[0].buffer.sge(0, 4)).imm(0x0102_0304);
        ends[0].send(&mut world, 0, &send);
        let received = ends[1].success(&mut world);
        assert_eq!((received.flags, received.ex, received.opcode), (2, [1, 2, 3, 4], OPCODE_RECV));
        let (addr, key) = (ends[1].buffer.addr(), ends[1].buffer.key);
        let write = Wr::new(2, wr::RDMA_WRITE_WITH_IMM).sge(ends[0].buffer.sge(0, 4)).imm(5).remote(addr, key);
        ends[0].send(&mut world, 0, &write);
        let received = ends[1].success(&mut world);
        assert_eq!((received.wr_id, received.opcode), (2, OPCODE_RECV_RDMA_WITH_IMM));
        assert_eq!((received.ex, received.byte_len), ([0, 0, 0, 5], 4));
    }
}

#[test]
fn unsignaled_work_requests_complete_without_a_completion() {
    let mut world = World::new();
    let ends = connected(&mut world, RC);
    let (addr, key) = (ends[1].buffer.addr(), ends[1].buffer.key);
    let write =
        |wr_id, flags| Wr::new(wr_id, wr::RDMA_WRITE).sge(ends[0].buffer.sge(0, 8)).remote(addr, key).flags(flags);
    // Far more than the queue holds.
    for wr_id in 0..200 {
        ends[0].send(&mut world, 0, &write(wr_id, 0));
        world.settle();
    }
    assert_eq!(ends[0].completions(), []);
    ends[0].send(&mut world, 0, &write(200, wr::SIGNALED));
    assert_eq!(ends[0].success(&mut world).wr_id, 200);
    // With sq_sig_all every one has a completion.
    let mut world = World::new();
    let ends = connected_as(&mut world, RC, |init| QpInit { sq_sig_all: true, ..init });
    let (addr, key) = (ends[1].buffer.addr(), ends[1].buffer.key);
    let quiet = Wr::new(1, wr::RDMA_WRITE).sge(ends[0].buffer.sge(0, 8)).remote(addr, key).flags(0);
    assert_eq!(execute(&mut world, &ends, &quiet).wr_id, 1);
}

#[test]
fn doorbells_can_wait_behind_four_work_requests_that_will_be_acknowledged() {
    let behind_four = [false, false, false, false, true, true];
    for (qp_type, len, expected) in [(RC, 8, behind_four), (RC, 5000, [false; 6]), (UC, 8, [false; 6])] {
        let mut world = World::new();
        let ends = connected(&mut world, qp_type);
        let write = Wr::new(1, wr::RDMA_WRITE).sge(ends[0].buffer.sge(0, len));
        let write = write.remote(ends[1].buffer.addr(), ends[1].buffer.key);
        let doorbell = |_| {
            ends[0].send(&mut world, 0, &write);
            let side = &mut world.sides[0];
            let can_wait = side.uverbs.take_can_wait();
            side.engine.transmit(side.now, &mut TxFrames::default());
            can_wait
        };
        assert_eq!([0, 1, 2, 3, 4, 5].map(doorbell), expected, "{qp_type} {len}");
        let uverbs = &mut world.sides[0].uverbs;
        assert!(!uverbs.take_can_wait(), "asked for once");
        assert_eq!((uverbs.sends_short(), uverbs.sends_long()), (len == 8, len == 5000));
    }
}

#[test]
fn a_program_never_has_more_outstanding_than_it_asked_for() {
    let mut world = World::new();
    let ends = connected(&mut world, RC);
    let max = ends[0].qp.max_send_wr;
    assert_eq!(max, 31, "16, rounded up");
    let write = |wr_id| {
        let wr = Wr::new(wr_id, wr::RDMA_WRITE).sge(ends[0].buffer.sge(0, 8));
        wr.remote(ends[1].buffer.addr(), ends[1].buffer.key)
    };
    for wr_id in 0..u64::from(max) {
        ends[0].send(&mut world, 0, &write(wr_id));
    }
    assert_eq!(ends[0].try_send(&mut world, 0, &write(99)), Err(Errno::ENOMEM));
    assert_eq!(ends[0].success(&mut world).wr_id, 0);
    ends[0].send(&mut world, 0, &write(99));
    world.settle();
    let rest: Vec<u64> = ends[0].completions().iter().map(|completion| completion.wr_id).collect();
    assert_eq!(rest, (1..u64::from(max)).chain([99]).collect::<Vec<_>>());

    let max = ends[1].qp.max_recv_wr;
    for wr_id in 0..u64::from(max) {
        ends[1].receive(wr_id, 0, 8);
    }
    let full = ends[1].program.post_recv(ends[1].qp.receives, 99, &[]);
    assert_eq!(full, Err(Errno::ENOMEM));
    ends[0].send(&mut world, 0, &Wr::new(1, wr::SEND));
    assert_eq!(ends[1].success(&mut world).wr_id, 0);
    ends[1].receive(99, 0, 8);
}

#[test]
fn a_receive_posted_late_is_found_when_the_sender_tries_again() {
    let mut world = World::new();
    let ends = connected(&mut world, RC);
    ends[0].send(&mut world, 0, &Wr::new(1, wr::SEND).inline(b"early"));
    for _ in 0..5 {
        world.turn();
    }
    assert_eq!(ends[0].completions(), []);
    ends[1].receive(7, 0, 64);
    assert_eq!(ends[1].success(&mut world).wr_id, 7);
    assert_eq!(ends[0].success(&mut world).wr_id, 1);
}

#[test]
fn several_contexts_share_the_adapter() {
    let mut world = World::new();
    let pairs = [0, 1, 2].map(|_| connected(&mut world, RC));
    for (number, ends) in pairs.iter().enumerate() {
        ends[1].receive(number as u64, 0, 64);
        ends[0].send(&mut world, 0, &Wr::new(number as u64, wr::SEND).inline(&[number as u8]));
    }
    world.settle();
    for (number, ends) in pairs.iter().enumerate() {
        assert_eq!(ends[1].success(&mut world).wr_id, number as u64);
        assert_eq!(ends[1].buffer.bytes[0], number as u8);
    }
    // Each is closed separately, with everything in it.
    for ends in pairs {
        for (number, end) in ends.into_iter().enumerate() {
            end.program.close(&mut world.sides[number]);
        }
    }
    for side in &world.sides {
        let keys = side.engine.keys();
        assert_eq!((side.engine.qp_count(), side.engine.cq_count(), keys.len(), keys.pd_count()), (0, 0, 0, 0));
    }
}
