//! Shared receive queues.

use nix::errno::Errno;

use super::bytes::{Bytes, cmd, u32_at, u64_at};
use super::change::QpChange;
use super::program::{Program, QpInit, RC, Srq, UD};
use super::rings::{End, connect, connected, connected_as};
use super::work::{Wr, wr};
use super::world::World;

/// Two ends; the second one's receives come from a shared queue.
fn with_srq(world: &mut World, max_wr: u32, limit: u32) -> ([End; 2], Srq) {
    let [first, second] = connected(world, RC);
    let side = &mut world.sides[1];
    let srq = second.program.create_srq(side, second.pd, max_wr, limit).unwrap();
    let init = QpInit { srq: Some(srq.handle), ..QpInit::new(RC, second.pd, second.cq.handle) };
    let qp = second.program.create_qp(side, &init, 0x92).unwrap();
    assert_eq!(qp.receives.size, 0, "no queue of its own");
    second.program.to_init(side, &qp, RC);
    let init = QpInit::new(RC, first.pd, first.cq.handle);
    let peer = first.program.create_qp(&mut world.sides[0], &init, 1).unwrap();
    first.program.to_init(&mut world.sides[0], &peer, RC);
    let ends = [End { qp: peer, ..first }, End { qp, ..second }];
    connect(world, RC, &ends);
    (ends, srq)
}

fn post(end: &End, srq: &Srq, wr_id: u64) -> Result<(), Errno> {
    end.program.post_recv(srq.queue, wr_id, &[end.buffer.sge(0, 64)])
}

fn modify(end: &End, world: &mut World, srq: &mut Srq, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), Errno> {
    let mut info = vec![0; 16];
    let mask = u32::from(max_wr.is_some()) | u32::from(limit.is_some()) << 1;
    let rest = Bytes::new().u32(srq.handle).u32(mask).u32(max_wr.unwrap_or(0)).u32(limit.unwrap_or(0));
    end.program.tell(&mut world.sides[1], cmd::MODIFY_SRQ, rest.u64(info.as_mut_ptr() as u64))?;
    if max_wr.is_some() {
        (srq.queue.offset, srq.queue.size) = (u64_at(&info, 0), u32_at(&info, 8));
        srq.max_wr = end.program.mask(srq.queue);
    }
    Ok(())
}

fn query(end: &End, world: &mut World, srq: &Srq) -> (u32, u32, u32) {
    let rest = Bytes::new().u32(srq.handle).u32(0);
    let reply = end.program.call(&mut world.sides[1], cmd::QUERY_SRQ, rest, 16).unwrap();
    (u32_at(&reply, 0), u32_at(&reply, 4), u32_at(&reply, 8))
}

#[test]
fn receives_are_taken_in_order_and_can_be_posted_again() {
    let mut world = World::new();
    let (ends, srq) = with_srq(&mut world, 10, 0);
    assert_eq!(srq.max_wr, 15);
    for wr_id in 0..15 {
        post(&ends[1], &srq, wr_id).unwrap();
    }
    assert_eq!(post(&ends[1], &srq, 15), Err(Errno::ENOMEM));
    for turn in 0..100u64 {
        ends[0].send(&mut world, 0, &Wr::new(turn, wr::SEND).inline(&turn.to_ne_bytes()));
        let received = ends[1].success(&mut world);
        assert_eq!((received.wr_id, &ends[1].buffer.bytes[..8]), (turn, &turn.to_ne_bytes()[..]));
        assert_eq!(received.qp_num, ends[1].qp.qpn);
        post(&ends[1], &srq, turn + 15).unwrap();
        ends[0].success(&mut world);
    }
}

#[test]
fn the_limit_event_comes_when_fewer_receives_are_left() {
    let mut world = World::new();
    let (ends, mut srq) = with_srq(&mut world, 15, 3);
    for wr_id in 0..5 {
        post(&ends[1], &srq, wr_id).unwrap();
    }
    let send = |world: &mut World| {
        ends[0].send(world, 0, &Wr::new(1, wr::SEND));
        ends[1].success(world);
    };
    // 5, 4 and 3 receives are not fewer than 3.
    send(&mut world);
    send(&mut world);
    assert_eq!((ends[1].program.async_event(), query(&ends[1], &mut world, &srq)), (None, (15, 2, 3)));
    send(&mut world);
    assert_eq!(ends[1].program.async_event(), Some((0x5E5E, 15)), "SRQ_LIMIT_REACHED");
    assert_eq!(query(&ends[1], &mut world, &srq).2, 0, "disarmed");
    send(&mut world);
    assert_eq!(ends[1].program.async_event(), None);
    for wr_id in 5..9 {
        post(&ends[1], &srq, wr_id).unwrap();
    }
    modify(&ends[1], &mut world, &mut srq, None, Some(5)).unwrap();
    assert_eq!((ends[1].program.async_event(), query(&ends[1], &mut world, &srq).2), (None, 5), "five are not fewer");
    send(&mut world);
    assert_eq!(ends[1].program.async_event(), Some((0x5E5E, 15)));
    let side = &mut world.sides[1];
    let destroy = |side: &mut _| {
        let reply = ends[1].program.call(side, cmd::DESTROY_SRQ, Bytes::new().u32(srq.handle).u32(0), 4);
        reply.map(|reply| u32_at(&reply, 0))
    };
    assert_eq!(destroy(side), Err(Errno::EBUSY));
    ends[1].program.destroy_qp(side, &ends[1].qp).unwrap();
    assert_eq!(destroy(side), Ok(2), "events");
    assert_eq!(destroy(side), Err(Errno::ENOENT));
}

#[test]
fn a_queue_is_resized_with_the_receives_in_it() {
    let mut world = World::new();
    let (ends, mut srq) = with_srq(&mut world, 7, 0);
    let (mut posted, mut received) = (0, 0);
    for size in [20, 5, 3, 100, 7, 1] {
        while post(&ends[1], &srq, posted).is_ok() {
            posted += 1;
            if posted - received > 6 {
                break;
            }
        }
        for _ in 0..2 {
            ends[0].send(&mut world, 0, &Wr::new(1, wr::SEND));
            assert_eq!(ends[1].success(&mut world).wr_id, received);
            received += 1;
            ends[0].success(&mut world);
        }
        let outstanding = posted - received;
        let resized = modify(&ends[1], &mut world, &mut srq, Some(size), None);
        assert_eq!(resized, if u64::from(size) < outstanding { Err(Errno::EINVAL) } else { Ok(()) }, "{size}");
        if resized.is_ok() {
            assert!(srq.max_wr >= size);
            // There is room for what is not outstanding, and no more.
            let mut room = 0;
            while post(&ends[1], &srq, posted).is_ok() {
                posted += 1;
                room += 1;
            }
            assert_eq!(room, u64::from(srq.max_wr) - outstanding);
            while posted - received > 3 {
                ends[0].send(&mut world, 0, &Wr::new(1, wr::SEND));
                assert_eq!(ends[1].success(&mut world).wr_id, received);
                received += 1;
                ends[0].success(&mut world);
            }
        }
    }
}

#[test]
fn sizes_and_limits_are_checked() {
    let mut world = World::new();
    let (ends, mut srq) = with_srq(&mut world, 7, 0);
    for (max_wr, limit) in [(0, 0), (16385, 0), (u32::MAX, 0), (4, 5)] {
        let made = ends[1].program.create_srq(&mut world.sides[1], ends[1].pd, max_wr, limit);
        assert_eq!(made.err(), Some(Errno::EINVAL), "{max_wr} {limit}");
    }
    for (max_wr, limit) in [(Some(0), None), (Some(16385), None), (None, Some(8)), (Some(3), Some(4))] {
        let changed = modify(&ends[1], &mut world, &mut srq, max_wr, limit);
        assert_eq!(changed, Err(Errno::EINVAL), "{max_wr:?} {limit:?}");
    }
    assert_eq!(query(&ends[1], &mut world, &srq), (7, 2, 0));
    // The provider's part is missing, or its address is bad.
    let rest = Bytes::new().u32(srq.handle).u32(1).u32(100).u32(0);
    let side = &mut world.sides[1];
    assert_eq!(ends[1].program.tell(side, cmd::MODIFY_SRQ, rest.clone()), Err(Errno::EINVAL));
    assert_eq!(ends[1].program.tell(side, cmd::MODIFY_SRQ, rest.u64(8)), Err(Errno::EFAULT));
    assert_eq!(query(&ends[1], &mut world, &srq), (7, 2, 0));
    post(&ends[1], &srq, 1).unwrap();
    ends[0].send(&mut world, 0, &Wr::new(1, wr::SEND));
    ends[1].success(&mut world);
}

#[test]
fn basic_queues_only_are_made_by_the_extended_call() {
    let mut world = World::new();
    let side = &mut world.sides[0];
    let program = Program::open(side);
    let pd = program.alloc_pd(side);
    let request = |kind| Bytes::new().u64(7).u32(kind).u32(pd).u32(10).u32(1).u32(0).u32(0).u32(0).u32(0);
    let reply = program.call(side, cmd::CREATE_XSRQ, request(0), 40).unwrap();
    assert_eq!((u32_at(&reply, 4), u32_at(&reply, 8)), (15, 1));
    for kind in [1, 2] {
        assert_eq!(program.call(side, cmd::CREATE_XSRQ, request(kind), 40), Err(Errno::EOPNOTSUPP));
    }
}

#[test]
fn a_queue_pair_in_error_leaves_the_receives_to_others() {
    let mut world = World::new();
    let (ends, srq) = with_srq(&mut world, 7, 0);
    post(&ends[1], &srq, 1).unwrap();
    ends[1].program.modify_qp(&mut world.sides[1], &ends[1].qp, &QpChange::to(6)).unwrap();
    world.settle();
    assert_eq!(ends[1].completions(), []);
    assert_eq!(ends[1].program.async_event(), Some((0x92, 16)), "QP_LAST_WQE_REACHED");
}

#[test]
fn datagrams_take_shared_receives() {
    let mut world = World::new();
    let ends = connected_as(&mut world, UD, |init| init);
    let side = &mut world.sides[1];
    let srq = ends[1].program.create_srq(side, ends[1].pd, 7, 0).unwrap();
    let init = QpInit { srq: Some(srq.handle), ..QpInit::new(UD, ends[1].pd, ends[1].cq.handle) };
    let qp = ends[1].program.create_qp(side, &init, 0x92).unwrap();
    ends[1].program.to_init(side, &qp, UD);
    ends[1].program.modify_qp(side, &qp, &QpChange::to(2)).unwrap();
    post(&ends[1], &srq, 4).unwrap();
    let peer = world.sides[1].gid();
    let (_, ah) = ends[0].program.create_ah(&mut world.sides[0], ends[0].pd, peer, 1).unwrap();
    ends[0].send(&mut world, 0, &Wr::new(1, wr::SEND).inline(b"to all").to(qp.qpn, 0x1111_1111, ah));
    let received = ends[1].success(&mut world);
    assert_eq!((received.wr_id, received.byte_len, received.src_qp), (4, 46, ends[0].qp.qpn));
}
