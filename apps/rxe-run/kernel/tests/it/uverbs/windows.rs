//! Memory windows, and regions that change.

use nix::errno::Errno;

use super::bytes::{Bytes, cmd, u32_at};
use super::program::RC;
use super::rings::{End, connected};
use super::work::{Wr, wr};
use super::world::World;

const REMOTE_WRITE: u32 = 2;
const LOCAL_WRITE: u32 = 1;
const REMOTE_ACCESS_ERROR: u32 = 10;

/// ALLOC_MW; returns handle and key.
fn alloc_mw(end: &End, world: &mut World, kind: u8) -> Result<(u32, u32), Errno> {
    let rest = Bytes::new().u32(end.pd).u8(kind).u8(0).u8(0).u8(0);
    let reply = end.program.call(&mut world.sides[1], cmd::ALLOC_MW, rest, 8)?;
    Ok((u32_at(&reply, 0), u32_at(&reply, 4)))
}

/// The next key of a window, as `ibv_inc_rkey` and the provider's `ibv_bind_mw` make it.
fn next(rkey: u32) -> u32 {
    rkey & !0xFF | rkey.wrapping_add(1) & 0xFF
}

/// Binds a window of end 1 to the first 64 bytes of its buffer.
fn bind(ends: &[End; 2], world: &mut World, mw_rkey: u32, rkey: u32, len: u64) -> u32 {
    // Programs pass the region's local write access along.
    let access = REMOTE_WRITE | LOCAL_WRITE;
    let wr = Wr::new(5, wr::BIND_MW).bind(ends[1].buffer.addr(), len, ends[1].buffer.key, mw_rkey, rkey, access);
    ends[1].send(world, 1, &wr);
    let completion = ends[1].completion(world);
    assert_eq!((completion.wr_id, completion.opcode), (5, 5));
    completion.status
}

fn write(ends: &[End; 2], world: &mut World, rkey: u32) -> u32 {
    let addr = ends[1].buffer.addr();
    ends[0].send(world, 0, &Wr::new(1, wr::RDMA_WRITE).inline(b"through the window").remote(addr, rkey));
    ends[0].completion(world).status
}

#[test]
fn a_window_of_type_1_opens_under_its_next_key_and_closes_by_binding_nothing() {
    let mut world = World::new();
    let ends = connected(&mut world, RC);
    let (handle, first) = alloc_mw(&ends[1], &mut world, 1).unwrap();
    let second = next(first);
    assert_eq!(bind(&ends, &mut world, first, second, 64), 0);
    assert_eq!(write(&ends, &mut world, second), 0);
    assert_eq!(&ends[1].buffer.bytes[..18], b"through the window");
    // Bound again while it is bound.
    let third = next(second);
    assert_eq!(bind(&ends, &mut world, second, third, 64), 0);
    assert_eq!(write(&ends, &mut world, third), 0);
    let dereg = Bytes::new().u32(ends[1].buffer.handle);
    assert_eq!(
        ends[1].program.tell(&mut world.sides[1], cmd::DEREG_MR, dereg),
        Err(Errno::EINVAL),
        "a window is bound"
    );
    assert_eq!(bind(&ends, &mut world, third, next(third), 0), 0);
    assert_eq!(write(&ends, &mut world, next(third)), REMOTE_ACCESS_ERROR);
    ends[1].program.tell(&mut world.sides[1], cmd::DEALLOC_MW, Bytes::new().u32(handle)).unwrap();
    let again = ends[1].program.tell(&mut world.sides[1], cmd::DEALLOC_MW, Bytes::new().u32(handle));
    assert_eq!(again, Err(Errno::ENOENT));
}

#[test]
fn an_old_key_of_a_window_is_good_for_nothing() {
    let mut world = World::new();
    let ends = connected(&mut world, RC);
    let (_, first) = alloc_mw(&ends[1], &mut world, 1).unwrap();
    assert_eq!(bind(&ends, &mut world, first, next(first), 64), 0);
    assert_eq!(write(&ends, &mut world, first), REMOTE_ACCESS_ERROR);
}

#[test]
fn a_window_of_type_2_is_invalidated_by_its_owner() {
    let mut world = World::new();
    let ends = connected(&mut world, RC);
    let (_, first) = alloc_mw(&ends[1], &mut world, 2).unwrap();
    // The program chooses the last byte of the key.
    let chosen = first & !0xFF | 0x5C;
    assert_eq!(bind(&ends, &mut world, first, chosen, 64), 0);
    assert_eq!(write(&ends, &mut world, chosen), 0);
    ends[1].send(&mut world, 1, &Wr::new(6, wr::LOCAL_INV).key(chosen));
    assert_eq!((ends[1].success(&mut world).opcode, write(&ends, &mut world, chosen)), (6, REMOTE_ACCESS_ERROR));
}

#[test]
fn a_window_of_type_2_is_invalidated_by_its_peer() {
    let mut world = World::new();
    let ends = connected(&mut world, RC);
    let (_, first) = alloc_mw(&ends[1], &mut world, 2).unwrap();
    let chosen = next(first);
    assert_eq!(bind(&ends, &mut world, first, chosen, 64), 0);
    ends[1].receive(1, 100, 64);
    ends[0].send(&mut world, 0, &Wr::new(2, wr::SEND_WITH_INV).inline(b"bye").key(chosen));
    let received = ends[1].success(&mut world);
    assert_eq!((received.flags, received.ex), (8, chosen.to_ne_bytes()), "WITH_INV");
    assert_eq!((ends[0].success(&mut world).wr_id, write(&ends, &mut world, chosen)), (2, REMOTE_ACCESS_ERROR));
}

#[test]
fn a_window_that_was_freed_is_closed() {
    let mut world = World::new();
    let ends = connected(&mut world, RC);
    let (handle, first) = alloc_mw(&ends[1], &mut world, 2).unwrap();
    let chosen = next(first);
    assert_eq!(bind(&ends, &mut world, first, chosen, 64), 0);
    assert_eq!(write(&ends, &mut world, chosen), 0);
    ends[1].program.tell(&mut world.sides[1], cmd::DEALLOC_MW, Bytes::new().u32(handle)).unwrap();
    assert_eq!(write(&ends, &mut world, chosen), REMOTE_ACCESS_ERROR);
}

#[test]
fn a_bind_that_makes_no_sense_fails() {
    let mut world = World::new();
    let ends = connected(&mut world, RC);
    let (_, first) = alloc_mw(&ends[1], &mut world, 2).unwrap();
    assert_eq!(bind(&ends, &mut world, first, next(first), 1 << 40), 6, "memory window bind error");
    for kind in [0, 3] {
        assert_eq!(alloc_mw(&ends[1], &mut world, kind), Err(Errno::EINVAL));
    }
}

/// REREG_MR of end 1's region: flags, and what they change.
fn rereg(end: &End, world: &mut World, flags: u32, addr: u64, len: u64, pd: u32, access: u32) -> Result<(), Errno> {
    let rest = Bytes::new().u32(end.buffer.handle).u32(flags).u64(addr).u64(len).u64(addr).u32(pd).u32(access);
    let reply = end.program.call(&mut world.sides[1], cmd::REREG_MR, rest, 8)?;
    assert_eq!((u32_at(&reply, 0), u32_at(&reply, 4)), (end.buffer.key, end.buffer.key), "the key stays");
    Ok(())
}

#[test]
fn a_region_changes_rights_memory_and_domain_under_its_key() {
    let (trans, domain, rights) = (1, 2, 4);
    let mut world = World::new();
    let ends = connected(&mut world, RC);
    let key = ends[1].buffer.key;
    assert_eq!(write(&ends, &mut world, key), 0);

    let mut other = vec![0u8; 4096];
    let start = other.as_mut_ptr() as u64;
    rereg(&ends[1], &mut world, trans, start, 4096, 0, 0).unwrap();
    ends[0].send(&mut world, 0, &Wr::new(1, wr::RDMA_WRITE).inline(b"elsewhere").remote(start, key));
    assert_eq!(ends[0].success(&mut world).wr_id, 1);
    assert_eq!(&other[..9], b"elsewhere");

    for (why, flags, addr, pd, access) in [
        ("nothing to change", 0, start, 0, 0),
        ("not mapped", trans, 4096, 0, 0),
        ("no such domain", domain, 0, 99, 0),
        ("rights that do not go together", rights, 0, 0, REMOTE_WRITE),
    ] {
        let expected = if flags == trans { Errno::EFAULT } else { Errno::EINVAL };
        assert_eq!(rereg(&ends[1], &mut world, flags, addr, 4096, pd, access), Err(expected), "{why}");
    }
    assert_eq!(rereg(&ends[1], &mut world, 8, 0, 0, 0, 0), Err(Errno::EOPNOTSUPP));

    rereg(&ends[1], &mut world, rights, 0, 0, 0, LOCAL_WRITE).unwrap();
    ends[0].send(&mut world, 0, &Wr::new(2, wr::RDMA_WRITE).inline(b"x").remote(start, key));
    assert_eq!(ends[0].completion(&mut world).status, REMOTE_ACCESS_ERROR);
    let pd = ends[1].program.alloc_pd(&mut world.sides[1]);
    rereg(&ends[1], &mut world, domain | rights, 0, 0, pd, LOCAL_WRITE | REMOTE_WRITE).unwrap();
    let busy = ends[1].program.tell(&mut world.sides[1], cmd::DEALLOC_PD, Bytes::new().u32(pd));
    assert_eq!(busy, Err(Errno::EBUSY), "the region is in it");
}
