//! Address handles and multicast groups.

use nix::errno::Errno;
use rxe_proto::wire::Gid;
use std::net::Ipv4Addr;

use super::bytes::{Bytes, cmd, u32_at};
use super::change::QpChange;
use super::program::{Program, UD, ah_request};
use super::rings::{End, connected};
use super::work::{Wr, wr};
use super::world::World;

const QKEY: u32 = 0x1111_1111;

fn datagram(ends: &[End; 2], ah_num: u32) -> Wr {
    Wr::new(1, wr::SEND).inline(b"datagram").to(ends[1].qp.qpn, QKEY, ah_num)
}

#[test]
fn an_address_handle_is_needed_and_its_number_is_never_zero() {
    let mut world = World::new();
    let ends = connected(&mut world, UD);
    let peer = world.sides[1].gid();
    let (handle, number) = ends[0].program.create_ah(&mut world.sides[0], ends[0].pd, peer, 1).unwrap();
    assert_ne!(number, 0, "the provider would take it for none");
    ends[1].receive(1, 0, 64);
    ends[0].send(&mut world, 0, &datagram(&ends, number));
    let received = ends[1].success(&mut world);
    assert_eq!((received.flags, received.byte_len, received.src_qp), (1, 48, ends[0].qp.qpn));
    // The IPv4 header that the datagram came with is the second half of the GRH.
    let grh = &ends[1].buffer.bytes[..40];
    assert_eq!((&grh[..20], grh[20], &grh[32..40]), (&[0; 20][..], 0x45, &[127, 0, 0, 2, 127, 0, 0, 3][..]));
    assert_eq!(&ends[1].buffer.bytes[40..48], b"datagram");
    ends[0].success(&mut world);

    ends[0].program.tell(&mut world.sides[0], cmd::DESTROY_AH, Bytes::new().u32(handle)).unwrap();
    let again = ends[0].program.tell(&mut world.sides[0], cmd::DESTROY_AH, Bytes::new().u32(handle));
    assert_eq!(again, Err(Errno::ENOENT));
    ends[0].send(&mut world, 0, &datagram(&ends, number));
    assert_eq!(ends[0].completion(&mut world).status, 2, "local QP operation error");
    assert_eq!(ends[0].program.qp_state(&mut world.sides[0], &ends[0].qp), 5, "SQE");
    // It sends again when it is taken back to RTS.
    let (_, number) = ends[0].program.create_ah(&mut world.sides[0], ends[0].pd, peer, 1).unwrap();
    ends[0].program.modify_qp(&mut world.sides[0], &ends[0].qp, &QpChange::to(3)).unwrap();
    ends[1].receive(2, 0, 64);
    ends[0].send(&mut world, 0, &datagram(&ends, number));
    assert_eq!(ends[1].success(&mut world).wr_id, 2);
}

#[test]
fn attributes_of_an_address_handle_are_checked() {
    let mut world = World::new();
    let peer = world.sides[1].gid();
    let side = &mut world.sides[0];
    let program = Program::open(side);
    let pd = program.alloc_pd(side);
    let create = |side: &mut _, rest| program.call(side, cmd::CREATE_AH, rest, 12).map(|_| ());
    for index in [0, 1] {
        assert_eq!(create(side, ah_request(pd, peer, index, 1, 1)), Ok(()), "GID index {index}");
    }
    let v6 = Gid([0xFD; 16]);
    for (why, bad) in [
        ("no GRH", ah_request(pd, peer, 1, 0, 1)),
        ("another port", ah_request(pd, peer, 1, 1, 2)),
        ("no such GID index", ah_request(pd, peer, 2, 1, 1)),
        ("another address family", ah_request(pd, v6, 1, 1, 1)),
        ("no such protection domain", ah_request(pd + 1, peer, 1, 1, 1)),
    ] {
        assert_eq!(create(side, bad), Err(Errno::EINVAL), "{why}");
    }
}

/// A provider that asks for no number puts the route into each work request.
#[test]
fn a_route_in_the_work_request_serves_an_old_provider() {
    let mut world = World::new();
    let ends = connected(&mut world, UD);
    let peer = world.sides[1].gid();
    let side = &mut world.sides[0];
    let reply = ends[0].program.call(side, cmd::CREATE_AH, ah_request(ends[0].pd, peer, 1, 1, 1), 4).unwrap();
    let handle = u32_at(&reply, 0);
    let route = Bytes::new().bytes(&peer.0).u32(0).u8(1).u8(1).u8(0).u8(0);
    let av = Bytes::new().u8(1).u8(1).bytes(&[0; 6]).bytes(&route.0);
    let wqe = || {
        let mut wqe = datagram(&ends, 0);
        wqe.union = Bytes::new().bytes(&wqe.union.0).pad(32).bytes(&av.0);
        wqe
    };
    ends[1].receive(1, 0, 64);
    ends[0].send(&mut world, 0, &wqe());
    assert_eq!(ends[1].success(&mut world).byte_len, 48);
    ends[0].success(&mut world);
    ends[0].program.tell(&mut world.sides[0], cmd::DESTROY_AH, Bytes::new().u32(handle)).unwrap();
    ends[0].send(&mut world, 0, &wqe());
    assert_eq!(ends[0].completion(&mut world).status, 2, "the route belongs to no address handle any more");
}

#[test]
fn a_datagram_longer_than_a_packet_is_a_length_error() {
    let mut world = World::new();
    let ends = connected(&mut world, UD);
    let peer = world.sides[1].gid();
    let (_, number) = ends[0].program.create_ah(&mut world.sides[0], ends[0].pd, peer, 1).unwrap();
    let long = Wr::new(1, wr::SEND).sge(ends[0].buffer.sge(0, 4097)).to(ends[1].qp.qpn, QKEY, number);
    ends[0].send(&mut world, 0, &long);
    assert_eq!(ends[0].completion(&mut world).status, 1);
}

fn mcast(end: &End, world: &mut World, number: u32, group: Gid) -> Result<(), Errno> {
    let rest = Bytes::new().bytes(&group.0).u32(end.qp.handle).u16(0).u16(0);
    end.program.tell(&mut world.sides[1], number, rest)
}

#[test]
fn a_group_reaches_its_members() {
    let mut world = World::new();
    let ends = connected(&mut world, UD);
    let group = Gid::from(Ipv4Addr::new(239, 1, 2, 3));
    let (_, number) = ends[0].program.create_ah(&mut world.sides[0], ends[0].pd, group, 1).unwrap();
    let send = |world: &mut World| {
        let wr = Wr::new(1, wr::SEND).inline(b"to the group").to(0xFF_FFFF, QKEY, number);
        ends[0].send(world, 0, &wr);
        ends[0].success(world);
        world.settle();
        ends[1].completions().iter().map(|completion| completion.wr_id).collect::<Vec<_>>()
    };
    ends[1].receive(1, 0, 64);
    assert!(send(&mut world).is_empty());
    mcast(&ends[1], &mut world, cmd::ATTACH_MCAST, group).unwrap();
    mcast(&ends[1], &mut world, cmd::ATTACH_MCAST, group).unwrap();
    assert_eq!(send(&mut world), [1]);
    assert_eq!(world.sides[1].engine.multicast_groups().count(), 1);
    let destroyed = ends[1].program.destroy_qp(&mut world.sides[1], &ends[1].qp);
    assert_eq!(destroyed, Err(Errno::EBUSY), "still in the group");
    // A queue pair keeps its groups through RESET.
    let side = &mut world.sides[1];
    ends[1].program.modify_qp(side, &ends[1].qp, &QpChange::to(0)).unwrap();
    assert_eq!(side.engine.multicast_groups().count(), 0);
    ends[1].program.to_init(side, &ends[1].qp, UD);
    ends[1].program.modify_qp(side, &ends[1].qp, &QpChange::to(2)).unwrap();
    ends[1].receive(2, 0, 64);
    assert_eq!(send(&mut world), [2]);
    mcast(&ends[1], &mut world, cmd::DETACH_MCAST, group).unwrap();
    assert_eq!(mcast(&ends[1], &mut world, cmd::DETACH_MCAST, group), Err(Errno::EINVAL));
    ends[1].receive(3, 0, 64);
    assert!(send(&mut world).is_empty());
    assert_eq!(ends[1].program.destroy_qp(&mut world.sides[1], &ends[1].qp), Ok(0));
}

#[test]
fn only_datagram_queue_pairs_join_groups_and_only_groups_are_joined() {
    let mut world = World::new();
    let ends = connected(&mut world, UD);
    let unicast = world.sides[0].gid();
    assert_eq!(mcast(&ends[1], &mut world, cmd::ATTACH_MCAST, unicast), Err(Errno::EINVAL));
    let connected = connected(&mut world, super::program::RC);
    let group = Gid::from(Ipv4Addr::new(239, 1, 2, 3));
    assert_eq!(mcast(&connected[1], &mut world, cmd::ATTACH_MCAST, group), Err(Errno::EINVAL));
}
