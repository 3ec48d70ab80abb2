//! Completion queues: sizes, resizing, overruns.

use nix::errno::Errno;

use super::program::{Program, QpInit, RC};
use super::rings::{End, connect, connected};
use super::work::{Wr, wr};
use super::world::World;

fn write(ends: &[End; 2], wr_id: u64) -> Wr {
    let wr = Wr::new(wr_id, wr::RDMA_WRITE).sge(ends[0].buffer.sge(0, 8));
    wr.remote(ends[1].buffer.addr(), ends[1].buffer.key)
}

#[test]
fn sizes_are_rounded_up_and_limited() {
    let mut world = World::new();
    let side = &mut world.sides[0];
    let program = Program::open(side);
    for (cqe, rounded) in [(1, 1), (2, 3), (100, 127), (1_048_575, 1_048_575)] {
        let cq = program.create_cq(side, cqe, -1, 1).unwrap();
        assert_eq!((cq.cqe, program.mask(cq.queue)), (rounded, rounded));
        assert!(cq.queue.size >= 384 + 64 * (rounded + 1));
        assert_eq!(program.destroy_cq(side, &cq), Ok((0, 0)));
    }
    for cqe in [0, 1_048_576, u32::MAX] {
        assert_eq!(program.create_cq(side, cqe, -1, 1).err(), Some(Errno::EINVAL), "{cqe}");
    }
}

#[test]
fn a_queue_is_resized_under_load_without_losing_a_completion() {
    let mut world = World::new();
    let mut ends = connected(&mut world, RC);
    let (mut next, mut expected) = (0, 0);
    for (round, size) in [3, 100, 40, 1000, 32, 64].into_iter().cycle().take(40).enumerate() {
        for _ in 0..20 {
            let wr = write(&ends, next);
            next += u64::from(ends[0].try_send(&mut world, 0, &wr).is_ok());
            if round % 3 == 0 {
                world.turn();
            }
        }
        let End { program, cq, .. } = &mut ends[0];
        world.sides[0].finish_turn();
        let unpolled = program.producer(cq.queue).wrapping_sub(program.consumer(cq.queue)) & program.mask(cq.queue);
        let resized = program.resize_cq(&mut world.sides[0], cq, size);
        assert_eq!(resized, if size < unpolled { Err(Errno::EINVAL) } else { Ok(()) }, "{size} {unpolled}");
        assert!(resized.is_err() || cq.cqe >= size);
        for _ in 0..15 {
            if let Some(completion) = ends[0].program.poll(&ends[0].cq) {
                assert_eq!(completion.wr_id, expected);
                expected += 1;
            }
            world.turn();
        }
    }
    world.settle();
    for completion in ends[0].completions() {
        assert_eq!((completion.wr_id, completion.status), (expected, 0));
        expected += 1;
        world.settle();
    }
    while expected < next {
        assert_eq!(ends[0].success(&mut world).wr_id, expected);
        expected += 1;
    }
}

#[test]
fn a_resize_that_fails_changes_nothing() {
    let mut world = World::new();
    let mut ends = connected(&mut world, RC);
    for wr_id in 0..6 {
        let wr = write(&ends, wr_id);
        ends[0].send(&mut world, 0, &wr);
    }
    world.settle();
    let End { program, cq, .. } = &mut ends[0];
    let before = (cq.cqe, cq.queue.offset);
    for size in [0, 1, 5, 1_048_576] {
        assert_eq!(program.resize_cq(&mut world.sides[0], cq, size), Err(Errno::EINVAL), "{size}");
    }
    assert_eq!((cq.cqe, cq.queue.offset), before);
    program.resize_cq(&mut world.sides[0], cq, 6).unwrap();
    assert_eq!(cq.cqe, 7);
    assert_eq!(ends[0].completions().iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), (0..6).collect::<Vec<_>>());
}

#[test]
fn completions_wait_while_the_queue_is_full() {
    let mut world = World::new();
    let ends = connected(&mut world, RC);
    let side = &mut world.sides[0];
    let End { program, pd, .. } = &ends[0];
    let small = program.create_cq(side, 3, -1, 0xABC).unwrap();
    let init = QpInit { send_cq: small.handle, ..QpInit::new(RC, *pd, ends[0].cq.handle) };
    let qp = program.create_qp(side, &init, 0x91).unwrap();
    program.to_init(side, &qp, RC);
    let peer =
        ends[1].program.create_qp(&mut world.sides[1], &QpInit::new(RC, ends[1].pd, ends[1].cq.handle), 1).unwrap();
    ends[1].program.to_init(&mut world.sides[1], &peer, RC);
    let [first, second] = ends;
    let ends = [End { qp, cq: small, ..first }, End { qp: peer, ..second }];
    connect(&mut world, RC, &ends);
    // Three fill the program's queue, three the engine's.
    for wr_id in 0..6 {
        ends[0].send(&mut world, 0, &write(&ends, wr_id));
        world.settle();
    }
    assert_eq!(ends[0].program.async_event(), None);
    assert_eq!(ends[0].success(&mut world).wr_id, 0);
    world.settle();
    let rest: Vec<u64> = ends[0].completions().iter().map(|wc| wc.wr_id).collect();
    assert_eq!(rest, [1, 2, 3]);
    world.settle();
    assert_eq!(ends[0].completions().iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [4, 5]);
    // One more than both hold: the queue is in error, and so is the queue pair.
    for wr_id in 6..14 {
        let _ = ends[0].try_send(&mut world, 0, &write(&ends, wr_id));
        world.settle();
    }
    let events: Vec<_> = std::iter::from_fn(|| ends[0].program.async_event()).collect();
    assert!(events.contains(&(0xABC, 0)), "CQ_ERR: {events:?}");
    assert_eq!(ends[0].program.qp_state(&mut world.sides[0], &ends[0].qp), 6);
    // libibverbs waits for the program to acknowledge what it has read.
    assert_eq!(ends[0].program.destroy_cq(&mut world.sides[0], &ends[0].cq), Err(Errno::EBUSY));
    let of_qp = events.iter().filter(|event| event.0 == 0x91).count() as u32;
    assert_eq!(ends[0].program.destroy_qp(&mut world.sides[0], &ends[0].qp), Ok(of_qp));
    assert_eq!(ends[0].program.destroy_cq(&mut world.sides[0], &ends[0].cq), Ok((0, 1)));
}

#[test]
fn one_full_queue_does_not_keep_another_from_being_filled() {
    let mut world = World::new();
    let full = connected(&mut world, RC);
    let side = &mut world.sides[0];
    let small = full[0].program.create_cq(side, 1, -1, 0).unwrap();
    let init = QpInit { send_cq: small.handle, ..QpInit::new(RC, full[0].pd, full[0].cq.handle) };
    let qp = full[0].program.create_qp(side, &init, 0).unwrap();
    full[0].program.to_init(side, &qp, RC);
    let peer =
        full[1].program.create_qp(&mut world.sides[1], &QpInit::new(RC, full[1].pd, full[1].cq.handle), 1).unwrap();
    full[1].program.to_init(&mut world.sides[1], &peer, RC);
    let [first, second] = full;
    let full = [End { qp, cq: small, ..first }, End { qp: peer, ..second }];
    connect(&mut world, RC, &full);
    let other = connected(&mut world, RC);
    for wr_id in 0..2 {
        full[0].send(&mut world, 0, &write(&full, wr_id));
        world.settle();
    }
    for wr_id in 0..40 {
        other[0].send(&mut world, 0, &write(&other, wr_id));
        assert_eq!(other[0].success(&mut world).wr_id, wr_id);
    }
    assert_eq!(full[0].success(&mut world).wr_id, 0);
    assert_eq!(full[0].success(&mut world).wr_id, 1);
}
