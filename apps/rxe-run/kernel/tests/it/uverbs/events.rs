//! Completion channels and asynchronous events.

use nix::errno::Errno;
use rxe_uverbs::uverbs::PortEvent;

use super::bytes::{Bytes, cmd};
use super::change::QpChange;
use super::program::{Program, QpInit, RC, UC};
use super::rings::{End, connect, connected};
use super::work::{Wr, wr};
use super::world::World;

/// Two ends whose first has a completion channel.
fn with_channel(world: &mut World) -> ([End; 2], i32) {
    let [first, second] = connected(world, RC);
    let side = &mut world.sides[0];
    let channel = first.program.create_channel(side).fd;
    let cq = first.program.create_cq(side, 64, channel, 0xC4).unwrap();
    let qp = first.program.create_qp(side, &QpInit::new(RC, first.pd, cq.handle), 0x91).unwrap();
    first.program.to_init(side, &qp, RC);
    let init = QpInit::new(RC, second.pd, second.cq.handle);
    let peer = second.program.create_qp(&mut world.sides[1], &init, 1).unwrap();
    second.program.to_init(&mut world.sides[1], &peer, RC);
    let ends = [End { cq, qp, ..first }, End { qp: peer, ..second }];
    connect(world, RC, &ends);
    (ends, channel)
}

#[test]
fn an_armed_queue_fires_once() {
    let mut world = World::new();
    let (ends, channel) = with_channel(&mut world);
    let arm = |world: &mut World, solicited| ends[0].program.req_notify(&mut world.sides[0], &ends[0].cq, solicited);
    let receive = |world: &mut World, flags| {
        ends[0].receive(1, 0, 64);
        ends[1].send(world, 1, &Wr::new(1, wr::SEND).inline(b"!").flags(flags | wr::INLINE));
        world.settle();
    };
    receive(&mut world, 0);
    assert_eq!(Program::comp_event(channel), None, "not armed");
    arm(&mut world, false);
    assert_eq!(Program::comp_event(channel), None, "what was there does not count");
    receive(&mut world, 0);
    receive(&mut world, 0);
    assert_eq!((Program::comp_event(channel), Program::comp_event(channel)), (Some(0xC4), None));
    arm(&mut world, true);
    receive(&mut world, 0);
    assert_eq!(Program::comp_event(channel), None, "not solicited");
    receive(&mut world, wr::SOLICITED);
    assert_eq!(Program::comp_event(channel), Some(0xC4));
    arm(&mut world, false);
    arm(&mut world, true);
    receive(&mut world, 0);
    assert_eq!(Program::comp_event(channel), Some(0xC4), "the next one overrides solicited ones");
    arm(&mut world, true);
    ends[0].program.modify_qp(&mut world.sides[0], &ends[0].qp, &QpChange::to(6)).unwrap();
    ends[0].receive(2, 0, 64);
    world.settle();
    assert_eq!(Program::comp_event(channel), Some(0xC4), "failures count as solicited");
}

/// A program arms, polls once more, and sleeps if there was nothing.
#[test]
fn nothing_is_missed_between_polling_and_arming() {
    let mut world = World::new();
    let (ends, channel) = with_channel(&mut world);
    let (addr, key) = (ends[1].buffer.addr(), ends[1].buffer.key);
    for wr_id in 0..200 {
        let write = Wr::new(wr_id, wr::RDMA_WRITE).sge(ends[0].buffer.sge(0, 8)).remote(addr, key);
        ends[0].send(&mut world, 0, &write);
        // The completion may be in the engine, or in the queue, or not there yet.
        for _ in 0..wr_id % 4 {
            world.turn();
        }
        let mut done = ends[0].program.poll(&ends[0].cq);
        while done.is_none() {
            ends[0].program.req_notify(&mut world.sides[0], &ends[0].cq, false);
            done = ends[0].program.poll(&ends[0].cq);
            if done.is_none() {
                world.run(|_| Program::comp_event(channel).is_some());
                done = ends[0].program.poll(&ends[0].cq);
            }
        }
        assert_eq!(done.unwrap().wr_id, wr_id);
    }
}

#[test]
fn unread_events_are_purged_and_not_reported() {
    let mut world = World::new();
    let (ends, channel) = with_channel(&mut world);
    let side = &mut world.sides[0];
    // Another queue on the same channel.
    let other = ends[0].program.create_cq(side, 64, channel, 0xD5).unwrap();
    let init = QpInit { recv_cq: other.handle, ..QpInit::new(RC, ends[0].pd, ends[0].cq.handle) };
    let qp = ends[0].program.create_qp(side, &init, 1).unwrap();
    ends[0].program.to_init(side, &qp, RC);
    for _ in 0..3 {
        ends[0].program.req_notify(&mut world.sides[0], &ends[0].cq, false);
        ends[0].program.req_notify(&mut world.sides[0], &other, false);
        ends[0].receive(1, 0, 64);
        ends[1].send(&mut world, 1, &Wr::new(1, wr::SEND));
        world.settle();
    }
    ends[0].program.post_recv(qp.receives, 5, &[]).unwrap();
    ends[0].program.modify_qp(&mut world.sides[0], &qp, &QpChange::to(6)).unwrap();
    world.settle();
    // Three events of the first queue and one of the other; the program reads one.
    assert_eq!(Program::comp_event(channel), Some(0xC4));
    let side = &mut world.sides[0];
    ends[0].program.destroy_qp(side, &ends[0].qp).unwrap();
    ends[0].program.destroy_qp(side, &qp).unwrap();
    assert_eq!(ends[0].program.destroy_cq(side, &ends[0].cq), Ok((1, 0)));
    assert_eq!((Program::comp_event(channel), Program::comp_event(channel)), (Some(0xD5), None));
    assert_eq!(ends[0].program.destroy_cq(side, &other), Ok((1, 0)));
}

#[test]
fn a_channel_is_one_of_its_context() {
    let mut world = World::new();
    let side = &mut world.sides[0];
    let (one, two) = (Program::open(side), Program::open(side));
    let channel = one.create_channel(side);
    assert_eq!(two.create_cq(side, 1, channel.fd, 1).err(), Some(Errno::EBADF));
    for fd in [0, one.fd(), one.events.fd, 9999] {
        assert_eq!(one.create_cq(side, 1, fd, 1).err(), Some(Errno::EBADF), "{fd}");
    }
    let cq = one.create_cq(side, 1, channel.fd, 1).unwrap();
    one.destroy_cq(side, &cq).unwrap();
    // Closed, and its number used by something else.
    channel.close(side);
    assert_eq!(one.create_cq(side, 1, channel.fd, 1).err(), Some(Errno::EBADF));
    let again = one.create_channel(side);
    assert!(one.create_cq(side, 1, again.fd, 1).is_ok());
}

#[test]
fn a_responders_error_is_an_event_of_its_queue_pair() {
    let mut world = World::new();
    let ends = connected(&mut world, RC);
    let key = ends[1].buffer.key;
    ends[0].send(&mut world, 0, &Wr::new(1, wr::RDMA_WRITE).inline(b"x").remote(1, key));
    assert_eq!(ends[0].completion(&mut world).status, 10, "remote access error");
    world.settle();
    assert_eq!(ends[1].program.async_event(), Some((0x90, 3)), "QP_ACCESS_ERR");
    assert_eq!(ends[0].program.async_event(), None, "the completion says it");
    assert_eq!(ends[1].program.destroy_qp(&mut world.sides[1], &ends[1].qp), Ok(1));
    assert_eq!(ends[0].program.destroy_qp(&mut world.sides[0], &ends[0].qp), Ok(0));
}

#[test]
fn the_first_request_before_rts_is_an_event() {
    let mut world = World::new();
    let gids = [world.sides[0].gid(), world.sides[1].gid()];
    for qp_type in [RC, UC] {
        let ends = connected(&mut world, qp_type);
        let reset = |world: &mut World, number: usize| {
            let (side, end) = (&mut world.sides[number], &ends[number]);
            end.program.modify_qp(side, &end.qp, &QpChange::to(0)).unwrap();
            end.program.to_init(side, &end.qp, qp_type);
            let rtr = QpChange::rtr(qp_type, gids[1 - number], ends[1 - number].qp.qpn, 5);
            end.program.modify_qp(side, &end.qp, &rtr).unwrap();
        };
        reset(&mut world, 0);
        reset(&mut world, 1);
        ends[0].program.modify_qp(&mut world.sides[0], &ends[0].qp, &QpChange::rts(qp_type, 5)).unwrap();
        ends[1].receive(1, 0, 64);
        ends[0].send(&mut world, 0, &Wr::new(1, wr::SEND));
        ends[1].success(&mut world);
        assert_eq!(ends[1].program.async_event(), Some((0x90, 4)), "COMM_EST");
        world.settle();
        assert_eq!(ends[0].program.async_event(), None);
        // Unread events of a queue pair are purged with it.
        reset(&mut world, 1);
        ends[1].receive(1, 0, 64);
        reset(&mut world, 0);
        ends[0].program.modify_qp(&mut world.sides[0], &ends[0].qp, &QpChange::rts(qp_type, 5)).unwrap();
        ends[0].send(&mut world, 0, &Wr::new(1, wr::SEND));
        ends[1].success(&mut world);
        assert_eq!(ends[1].program.destroy_qp(&mut world.sides[1], &ends[1].qp), Ok(1), "one was read");
        assert_eq!(ends[1].program.async_event(), None);
    }
}

#[test]
fn draining_is_an_event_for_a_program_that_wants_it() {
    let mut world = World::new();
    let ends = connected(&mut world, RC);
    let to_sqd = |notify| QpChange { sqd_notify: notify, ..QpChange::to(4) };
    ends[0].program.modify_qp(&mut world.sides[0], &ends[0].qp, &to_sqd(None)).unwrap();
    world.settle();
    assert_eq!(ends[0].program.async_event(), None);
    ends[0].program.modify_qp(&mut world.sides[0], &ends[0].qp, &QpChange::to(3)).unwrap();
    ends[0].program.modify_qp(&mut world.sides[0], &ends[0].qp, &to_sqd(Some(1))).unwrap();
    world.settle();
    assert_eq!(ends[0].program.async_event(), Some((0x90, 5)), "SQ_DRAINED");
}

#[test]
fn every_context_hears_of_the_port() {
    let mut world = World::new();
    let side = &mut world.sides[0];
    let programs = [Program::open(side), Program::open(side)];
    let silent = Program::open_only(side);
    let (down, up) = (1, 4);
    let events = [
        (PortEvent::GidChange, 18, up),
        (PortEvent::Error, 10, down),
        (PortEvent::GidChange, 18, down),
        (PortEvent::Active, 9, up),
    ];
    for (event, number, state) in events {
        side.uverbs.port_event(event);
        for program in &programs {
            assert_eq!(program.async_event(), Some((1, number)));
            let port = program.call(side, cmd::QUERY_PORT, Bytes::new().u8(1).pad(8), 40).unwrap();
            assert_eq!(port[26], state);
        }
    }
    assert_eq!(silent.events.fd, -1);
}

#[test]
fn events_beyond_the_sockets_room_wait() {
    let mut world = World::new();
    let side = &mut world.sides[0];
    let program = Program::open(side);
    let mut sent = 0;
    while !side.uverbs.waits_for_room() {
        side.uverbs.port_event(PortEvent::Active);
        sent += 1;
    }
    let mut read = 0;
    while program.async_event().is_some() {
        read += 1;
        side.uverbs.deliver(&mut side.engine);
    }
    assert_eq!((read, side.uverbs.waits_for_room()), (sent, false));
}
