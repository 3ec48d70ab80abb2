//! Queue pairs: creation, states and attributes.

use nix::errno::Errno;

use super::bytes::{Bytes, cmd, extended, u32_at};
use super::change::QpChange;
use super::program::{Program, QpInit, RC, UC, UD};
use super::rings::connected;
use super::work::{Wr, wr};
use super::world::{Side, World};

const RESET: u8 = 0;
const INIT: u8 = 1;
const RTS: u8 = 3;
const SQD: u8 = 4;
const ERR: u8 = 6;

/// A program with a domain, a completion queue and a queue pair in RESET.
fn program_with_qp(side: &mut Side, qp_type: u8) -> (Program, QpInit, super::program::Qp) {
    let program = Program::open(side);
    let pd = program.alloc_pd(side);
    let cq = program.create_cq(side, 64, -1, 1).unwrap();
    let init = QpInit::new(qp_type, pd, cq.handle);
    let qp = program.create_qp(side, &init, 1).unwrap();
    (program, init, qp)
}

#[test]
fn sizes_are_rounded_up_and_reported() {
    let mut world = World::new();
    let side = &mut world.sides[0];
    let (program, init, _) = program_with_qp(side, RC);
    for (ex, qp) in [(false, program.create_qp(side, &init, 1)), (true, program.create_qp_ex(side, &init, 1))] {
        let qp = qp.unwrap();
        assert_eq!((qp.max_send_wr, qp.max_recv_wr, qp.max_inline_data), (31, 31, 64), "extended: {ex}");
        assert_eq!((program.mask(qp.sends), program.mask(qp.receives)), (31, 31));
        let attributes = program.query_qp(side, &qp);
        assert_eq!((u32_at(&attributes, 64), u32_at(&attributes, 68)), (31, 31));
        assert_eq!((u32_at(&attributes, 72), u32_at(&attributes, 76), u32_at(&attributes, 80)), (4, 2, 64));
        assert_eq!(attributes[108], RESET);
    }
    // Room for buffers serves inline data, too.
    let qp = program.create_qp(side, &QpInit { send_sge: 32, inline_data: 0, ..init }, 1).unwrap();
    assert_eq!(qp.max_inline_data, 512);
    for largest in [QpInit { send_wr: 1 << 14, ..init }, QpInit { recv_wr: 1 << 14, ..init }] {
        let qp = program.create_qp(side, &largest, 1).unwrap();
        program.destroy_qp(side, &qp).unwrap();
    }
    for (why, bad) in [
        ("max_send_wr", QpInit { send_wr: (1 << 14) + 1, ..init }),
        ("max_send_wr", QpInit { send_wr: u32::MAX, ..init }),
        ("max_recv_wr", QpInit { recv_wr: u32::MAX, ..init }),
        ("max_send_sge", QpInit { send_sge: 33, ..init }),
        ("max_recv_sge", QpInit { recv_sge: 0xFFFF, ..init }),
        ("max_inline_data", QpInit { inline_data: 513, ..init }),
        ("pd", QpInit { pd: 77, ..init }),
        ("send_cq", QpInit { send_cq: 77, ..init }),
        ("recv_cq", QpInit { recv_cq: 77, ..init }),
        ("srq", QpInit { srq: Some(77), ..init }),
        ("qp_type", QpInit { qp_type: 1, ..init }),
    ] {
        assert_eq!(program.create_qp(side, &bad, 1).err(), Some(Errno::EINVAL), "{why}");
    }
    // Raw packets, XRC, a driver's own.
    for qp_type in [8, 9, 10, 255] {
        let bad = QpInit { qp_type, ..init };
        assert_eq!(program.create_qp(side, &bad, 1).err(), Some(Errno::EOPNOTSUPP), "{qp_type}");
    }
}

#[test]
fn queues_of_no_entries_are_always_full() {
    let mut world = World::new();
    let side = &mut world.sides[0];
    let (program, init, _) = program_with_qp(side, RC);
    let none = QpInit { send_wr: 0, recv_wr: 0, send_sge: 0, recv_sge: 0, inline_data: 0, ..init };
    let qp = program.create_qp(side, &none, 1).unwrap();
    assert_eq!((qp.max_send_wr, qp.max_recv_wr), (0, 0));
    assert_eq!(program.push(qp.sends, &Wr::new(1, wr::SEND).bytes()), Err(Errno::ENOMEM));
    assert_eq!(program.post_recv(qp.receives, 1, &[]), Err(Errno::ENOMEM));
}

#[test]
fn attributes_come_back_as_they_were_set() {
    let mut world = World::new();
    let ends = connected(&mut world, RC);
    let attributes = ends[0].program.query_qp(&mut world.sides[0], &ends[0].qp);
    assert_eq!(attributes[..16], world.sides[1].gid().0, "dgid");
    assert_eq!((attributes[24], attributes[30], attributes[31]), (1, 1, 1), "sgid_index, is_global, port");
    assert_eq!((u32_at(&attributes, 88), u32_at(&attributes, 92)), (0x2000, 0x1000), "rq_psn, sq_psn");
    assert_eq!((u32_at(&attributes, 96), u32_at(&attributes, 100)), (ends[1].qp.qpn, 0xE));
    assert_eq!((attributes[108], attributes[109], attributes[110]), (RTS, RTS, 3), "states, path_mtu");
    let timers = &attributes[113..120];
    assert_eq!(timers, [4, 4, 12, 1, 14, 7, 7], "rd_atomic, min_rnr_timer, port, timeout, retries");
}

#[test]
fn a_queue_pair_needs_its_attributes_and_nothing_else() {
    let mut world = World::new();
    let peer = world.sides[1].gid();
    let side = &mut world.sides[0];
    let (program, _, qp) = program_with_qp(side, RC);
    let init = QpChange { pkey_index: Some(0), port: Some(1), access: Some(0), ..QpChange::to(INIT) };
    let refuse = |side: &mut Side, why: &str, change: QpChange| {
        let before = program.qp_state(side, &qp);
        assert_eq!(program.modify_qp(side, &qp, &change), Err(Errno::EINVAL), "{why}");
        assert_eq!(program.qp_state(side, &qp), before);
    };
    refuse(side, "no port", QpChange { port: None, ..init.clone() });
    refuse(side, "a port that there is not", QpChange { port: Some(2), ..init.clone() });
    refuse(side, "a partition that there is not", QpChange { pkey_index: Some(1), ..init.clone() });
    refuse(side, "a Q_Key on RC", QpChange { qkey: Some(1), ..init.clone() });
    refuse(side, "RESET to ERR", QpChange::to(ERR));
    refuse(side, "no such state", QpChange::to(7));
    program.modify_qp(side, &qp, &init).unwrap();
    program.modify_qp(side, &qp, &init).unwrap();
    let rtr = QpChange::rtr(RC, peer, 0x1234, 1);
    refuse(side, "a path MTU beyond the interface's", QpChange { path_mtu: Some(6), ..rtr.clone() });
    refuse(side, "no path MTU of this code", QpChange { path_mtu: Some(0), ..rtr.clone() });
    refuse(side, "more READs than the limit", QpChange { max_dest_rd_atomic: Some(129), ..rtr.clone() });
    refuse(side, "no such GID index", QpChange { av: Some((peer, 9)), ..rtr.clone() });
    refuse(side, "an alternate path", QpChange { extra_mask: 1 << 14, ..rtr.clone() });
    refuse(side, "attributes of RTS", QpChange { timeout: Some(14), ..rtr.clone() });
    refuse(side, "RTS before RTR", QpChange::rts(RC, 1));
    program.modify_qp(side, &qp, &rtr).unwrap();
    let rts = QpChange::rts(RC, 1);
    refuse(side, "a timeout beyond 31", QpChange { timeout: Some(32), ..rts.clone() });
    refuse(side, "retries beyond 7", QpChange { retry_cnt: Some(8), ..rts.clone() });
    refuse(side, "the wrong current state", QpChange { cur_state: Some(RTS), ..rts.clone() });
    program.modify_qp(side, &qp, &QpChange { cur_state: Some(2), ..rts }).unwrap();
    let unknown = QpChange { extra_mask: 1 << 21, ..QpChange::default() };
    assert_eq!(program.modify_qp(side, &qp, &unknown), Err(Errno::EOPNOTSUPP));
}

#[test]
fn attributes_are_changed_within_a_state() {
    let mut world = World::new();
    let ends = connected(&mut world, RC);
    let end = &ends[1];
    let (addr, key) = (end.buffer.addr(), end.buffer.key);
    let write = Wr::new(1, wr::RDMA_WRITE).inline(b"!").remote(addr, key);
    ends[0].send(&mut world, 0, &write);
    ends[0].success(&mut world);
    let change = QpChange { access: Some(0), min_rnr_timer: Some(20), ..QpChange::default() };
    end.program.modify_qp(&mut world.sides[1], &end.qp, &change).unwrap();
    let attributes = end.program.query_qp(&mut world.sides[1], &end.qp);
    assert_eq!((u32_at(&attributes, 100), attributes[115], attributes[108]), (0, 20, RTS));
    // In RTS the path cannot be changed, in SQD it can.
    let gid = world.sides[0].gid();
    let path = QpChange { av: Some((gid, 1)), timeout: Some(16), ..QpChange::default() };
    assert_eq!(end.program.modify_qp(&mut world.sides[1], &end.qp, &path), Err(Errno::EINVAL));
    end.program.modify_qp(&mut world.sides[1], &end.qp, &QpChange::to(SQD)).unwrap();
    end.program.modify_qp(&mut world.sides[1], &end.qp, &path).unwrap();
    assert_eq!(end.program.query_qp(&mut world.sides[1], &end.qp)[117], 16, "timeout");
    end.program.modify_qp(&mut world.sides[1], &end.qp, &QpChange::to(RTS)).unwrap();
    ends[0].send(&mut world, 0, &write);
    assert_eq!(ends[0].completion(&mut world).status, 9, "the peer may not write any more");
}

#[test]
fn extended_modify_is_the_same() {
    let mut world = World::new();
    let side = &mut world.sides[0];
    let (program, _, qp) = program_with_qp(side, UD);
    let init = QpChange { pkey_index: Some(0), port: Some(1), qkey: Some(7), ..QpChange::to(INIT) };
    let mut response = vec![0xEE; 8];
    for tail in [Bytes::new(), Bytes::new().u32(0).u32(0)] {
        let core = init.bytes(qp.handle).bytes(&tail.0);
        let command = extended(cmd::MODIFY_QP, &mut response, 0, &core);
        program.write(side, &command).unwrap();
        assert_eq!((u32_at(&response, 0), u32_at(&response, 4)), (0, 8));
    }
    assert_eq!(u32_at(&program.query_qp(side, &qp), 84), 7, "Q_Key");
    let rate = QpChange { extra_mask: 1 << 25, ..init };
    let command = extended(cmd::MODIFY_QP, &mut response, 0, &rate.bytes(qp.handle).u32(1).u32(0));
    assert_eq!(program.write(side, &command), Err(Errno::EINVAL), "no rate limit");
}

#[test]
fn a_datagram_queue_pair_changes_its_key_in_rts() {
    let mut world = World::new();
    let ends = connected(&mut world, UD);
    let change = QpChange { qkey: Some(0x2222), ..QpChange::default() };
    ends[1].program.modify_qp(&mut world.sides[1], &ends[1].qp, &change).unwrap();
    let peer = world.sides[1].gid();
    let (_, ah) = ends[0].program.create_ah(&mut world.sides[0], ends[0].pd, peer, 1).unwrap();
    ends[1].receive(1, 0, 64);
    for (qkey, arrives) in [(0x1111_1111, false), (0x2222, true)] {
        ends[0].send(&mut world, 0, &Wr::new(1, wr::SEND).inline(b"!").to(ends[1].qp.qpn, qkey, ah));
        world.settle();
        assert_eq!(ends[1].completions().len() == 1, arrives);
    }
}

#[test]
fn work_posted_before_rts_is_refused_and_forgotten() {
    let mut world = World::new();
    let side = &mut world.sides[0];
    let (program, _, qp) = program_with_qp(side, RC);
    let send = Wr::new(1, wr::SEND).inline(b"too early").bytes();
    assert_eq!(program.post_send(side, &qp, &send), Err(Errno::EINVAL), "RESET");
    program.to_init(side, &qp, RC);
    assert_eq!(program.post_send(side, &qp, &send), Err(Errno::EINVAL), "INIT");
    assert_eq!(program.consumer(qp.sends), program.producer(qp.sends));
    let peer = side.gid();
    program.modify_qp(side, &qp, &QpChange::rtr(RC, peer, qp.qpn, 1)).unwrap();
    program.modify_qp(side, &qp, &QpChange::rts(RC, 1)).unwrap();
    program.doorbell(side, &qp).unwrap();
    assert_eq!(side.engine.send_queued(rxe_proto::transport::Qpn::new(qp.qpn)), Some(0));
    assert_eq!(program.doorbell(side, &super::program::Qp { handle: 99, ..qp }), Err(Errno::EINVAL));
}

#[test]
fn error_flushes_what_is_posted_and_what_follows() {
    for qp_type in [RC, UC, UD] {
        let mut world = World::new();
        let ends = connected(&mut world, qp_type);
        let side = &mut world.sides[0];
        let end = &ends[0];
        for wr_id in 0..5 {
            end.receive(wr_id, 0, 64);
        }
        end.program.modify_qp(side, &end.qp, &QpChange::to(ERR)).unwrap();
        let statuses = |world: &mut World| {
            world.settle();
            end.completions().iter().map(|wc| (wc.wr_id, wc.status)).collect::<Vec<_>>()
        };
        assert_eq!(statuses(&mut world), (0..5).map(|wr_id| (wr_id, 5)).collect::<Vec<_>>());
        end.receive(7, 0, 64);
        assert_eq!(statuses(&mut world), [(7, 5)], "without a doorbell");
        let wr = Wr::new(8, wr::SEND);
        end.send(&mut world, 0, &wr);
        assert_eq!(statuses(&mut world), [(8, 5)]);
        assert_eq!(end.program.consumer(end.qp.receives), end.program.producer(end.qp.receives));
    }
}

#[test]
fn reset_forgets_everything_and_the_queue_pair_connects_again() {
    let mut world = World::new();
    let ends = connected(&mut world, RC);
    for round in 0..3 {
        for wr_id in 0..5 {
            ends[1].receive(wr_id, 0, 64);
        }
        ends[0].send(&mut world, 0, &Wr::new(round, wr::SEND).inline(b"round"));
        ends[1].success(&mut world);
        ends[0].success(&mut world);
        for (number, end) in ends.iter().enumerate() {
            let side = &mut world.sides[number];
            end.program.modify_qp(side, &end.qp, &QpChange::to(RESET)).unwrap();
            for queue in [end.qp.sends, end.qp.receives] {
                assert_eq!((end.program.producer(queue), end.program.consumer(queue)), (0, 0));
            }
            end.program.to_init(side, &end.qp, RC);
        }
        super::rings::connect(&mut world, RC, &ends);
        assert_eq!((ends[0].completions(), ends[1].completions()), (vec![], vec![]));
    }
}

#[test]
fn objects_in_use_are_not_destroyed() {
    let mut world = World::new();
    let ends = connected(&mut world, RC);
    let (side, end) = (&mut world.sides[0], &ends[0]);
    let pd = || Bytes::new().u32(end.pd);
    assert_eq!(end.program.tell(side, cmd::DEALLOC_PD, pd()), Err(Errno::EBUSY));
    assert_eq!(end.program.destroy_cq(side, &end.cq), Err(Errno::EBUSY));
    assert_eq!(end.program.destroy_qp(side, &end.qp), Ok(0));
    assert_eq!(end.program.destroy_qp(side, &end.qp), Err(Errno::ENOENT));
    assert_eq!(end.program.destroy_cq(side, &end.cq), Ok((0, 0)));
    assert_eq!(end.program.destroy_cq(side, &end.cq), Err(Errno::ENOENT));
    assert_eq!(end.program.tell(side, cmd::DEALLOC_PD, pd()), Err(Errno::EBUSY), "the region");
    end.program.tell(side, cmd::DEREG_MR, Bytes::new().u32(end.buffer.handle)).unwrap();
    assert_eq!(end.program.tell(side, cmd::DEREG_MR, Bytes::new().u32(end.buffer.handle)), Err(Errno::ENOENT));
    assert_eq!(end.program.tell(side, cmd::DEALLOC_PD, pd()), Ok(()));
    assert_eq!(end.program.tell(side, cmd::DEALLOC_PD, pd()), Err(Errno::ENOENT));
}
