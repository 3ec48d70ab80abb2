//! Memory of the program that is not, or no longer, what it was registered as.

use nix::errno::Errno;

use super::pages::Pages;
use super::program::{Program, RC};
use super::rings::{BUFFER, End, connected};
use super::work::{Wr, wr};
use super::world::World;

/// End `number` registers pages as its buffer.
pub fn with_pages(world: &mut World, ends: &mut [End; 2], number: usize) -> (Pages, u32) {
    let pages = Pages::new(BUFFER);
    let end = &ends[number];
    let side = &mut world.sides[number];
    let (_, key) = end.program.reg_mr(side, end.pd, pages.addr(), BUFFER as u64, 0xF).unwrap();
    (pages, key)
}

#[test]
fn only_memory_that_is_mapped_is_registered() {
    let mut world = World::new();
    let side = &mut world.sides[0];
    let program = Program::open(side);
    let pd = program.alloc_pd(side);
    let pages = Pages::new(1 << 16);
    let reg = |side: &mut _, addr, len, access| program.reg_mr(side, pd, addr, len, access).map(|_| ());
    assert_eq!(reg(side, pages.addr(), 1 << 16, 0xF), Ok(()));
    assert_eq!(reg(side, 4096, 4096, 0), Err(Errno::EFAULT));
    assert_eq!(reg(side, pages.addr(), 1 << 46, 0), Err(Errno::EFAULT));
    assert_eq!(reg(side, pages.addr(), 0, 0), Err(Errno::EINVAL));
    assert_eq!(reg(side, u64::MAX - 10, 100, 0), Err(Errno::EINVAL));
    pages.make_read_only();
    assert_eq!(reg(side, pages.addr(), 1 << 16, 1), Err(Errno::EFAULT), "not writable");
    assert_eq!(reg(side, pages.addr(), 1 << 16, 4), Ok(()), "remote read");
    pages.close();
    assert_eq!(reg(side, pages.addr(), 1 << 16, 0), Err(Errno::EFAULT));
}

#[test]
fn memory_that_is_paged_on_demand_may_be_mapped_later() {
    let mut world = World::new();
    let ends = connected(&mut world, RC);
    let pages = Pages::new(BUFFER);
    pages.close();
    let (program, pd) = (&ends[1].program, ends[1].pd);
    let reg = |side: &mut _, access| program.reg_mr(side, pd, pages.addr(), BUFFER as u64, access);
    assert_eq!(reg(&mut world.sides[1], 0xF), Err(Errno::EFAULT));
    let (_, key) = reg(&mut world.sides[1], 0xF | 1 << 6).unwrap();
    pages.reopen();
    let write = Wr::new(1, wr::RDMA_WRITE).inline(b"hello").remote(pages.addr(), key);
    ends[0].send(&mut world, 0, &write);
    ends[0].success(&mut world);
    pages.close();
    ends[0].send(&mut world, 0, &write);
    assert_eq!(ends[0].completion(&mut world).status, 10, "remote access error");
}

#[test]
fn a_source_that_has_gone_is_a_local_protection_error() {
    let mut world = World::new();
    let mut ends = connected(&mut world, RC);
    let (pages, key) = with_pages(&mut world, &mut ends, 0);
    let (remote, rkey) = (ends[1].buffer.addr(), ends[1].buffer.key);
    let write = Wr::new(1, wr::RDMA_WRITE).sge((pages.addr(), 5000, key)).remote(remote, rkey);
    ends[0].send(&mut world, 0, &write);
    ends[0].success(&mut world);
    pages.close();
    ends[0].send(&mut world, 0, &write);
    assert_eq!(ends[0].completion(&mut world).status, 4);
    assert_eq!(ends[0].program.qp_state(&mut world.sides[0], &ends[0].qp), 6);
}

#[test]
fn a_receive_whose_memory_has_gone_is_an_operational_error_for_the_sender() {
    let mut world = World::new();
    let mut ends = connected(&mut world, RC);
    let (pages, key) = with_pages(&mut world, &mut ends, 1);
    ends[1].program.post_recv(ends[1].qp.receives, 1, &[(pages.addr(), 64, key)]).unwrap();
    pages.close();
    ends[0].send(&mut world, 0, &Wr::new(1, wr::SEND).inline(b"hello"));
    assert_eq!(ends[0].completion(&mut world).status, 11, "remote operation error");
    let received = ends[1].completion(&mut world);
    assert_eq!((received.wr_id, received.status), (1, 4), "local protection error");
}

#[test]
fn a_peer_gets_an_access_error_for_memory_that_has_gone_or_is_read_only() {
    type Access = fn(&End, u64, u32) -> Wr;
    let operations: [Access; 4] = [
        |_, addr, key| Wr::new(1, wr::RDMA_WRITE).inline(b"hello").remote(addr, key),
        |end, addr, key| Wr::new(1, wr::RDMA_READ).sge(end.buffer.sge(0, 64)).remote(addr, key),
        |end, addr, key| Wr::new(1, wr::ATOMIC_FETCH_AND_ADD).sge(end.buffer.sge(0, 8)).atomic(addr, key, 1, 0),
        |end, addr, key| Wr::new(1, wr::ATOMIC_CMP_AND_SWP).sge(end.buffer.sge(0, 8)).atomic(addr, key, 0, 1),
    ];
    for (number, operation) in operations.into_iter().enumerate() {
        for read_only in [false, true] {
            let mut world = World::new();
            let mut ends = connected(&mut world, RC);
            let (pages, key) = with_pages(&mut world, &mut ends, 1);
            if read_only {
                pages.make_read_only();
            } else {
                pages.close();
            }
            ends[0].send(&mut world, 0, &operation(&ends[0], pages.addr(), key));
            let reads = number == 1 && read_only;
            assert_eq!(ends[0].completion(&mut world).status, if reads { 0 } else { 10 }, "{number} {read_only}");
        }
    }
}

#[test]
fn a_response_to_memory_that_is_not_mapped_is_a_fault_and_makes_nothing() {
    use super::bytes::{Bytes, cmd};
    let mut world = World::new();
    let side = &mut world.sides[0];
    let program = Program::open(side);
    let pd = program.alloc_pd(side);
    let buffer = program.buffer(side, pd, 4096);
    let cq = program.create_cq(side, 4, -1, 1).unwrap();
    let counts = |side: &super::world::Side| {
        let keys = side.engine.keys();
        (side.engine.cq_count(), side.engine.qp_count(), side.engine.srq_count(), keys.len(), keys.pd_count())
    };
    let before = counts(side);
    // A header with a response of `out` bytes at address 8.
    let bad = |number: u32, out: usize, rest: &Bytes| {
        let len = (16 + rest.0.len()) as u16;
        Bytes::new().u32(number).u16(len / 4).u16((out / 4) as u16).u64(8).bytes(&rest.0).0
    };
    let addr = buffer.addr();
    let qp =
        Bytes::new().u64(1).u32(pd).u32(cq.handle).u32(cq.handle).u32(0).u32(4).u32(4).u32(1).u32(1).u32(0).u8(0).u8(2);
    for (number, out, rest) in [
        (cmd::ALLOC_PD, 4, Bytes::new()),
        (cmd::REG_MR, 12, Bytes::new().u64(addr).u64(4096).u64(addr).u32(pd).u32(0)),
        (cmd::ALLOC_MW, 8, Bytes::new().u32(pd).u32(1)),
        (cmd::CREATE_COMP_CHANNEL, 4, Bytes::new()),
        (cmd::CREATE_CQ, 24, Bytes::new().u64(1).u32(4).u32(0).u32(u32::MAX).u32(0)),
        (cmd::RESIZE_CQ, 24, Bytes::new().u32(cq.handle).u32(10)),
        (cmd::CREATE_SRQ, 40, Bytes::new().u64(1).u32(pd).u32(4).u32(1).u32(0)),
        (cmd::CREATE_QP, 64, qp.u8(0).u8(0)),
        (cmd::CREATE_AH, 12, super::program::ah_request(pd, side.gid(), 1, 1, 1)),
    ] {
        assert_eq!(program.write(side, &bad(number, out, &rest)), Err(Errno::EFAULT), "{number}");
        assert_eq!(counts(side), before, "{number}");
        assert_eq!(side.engine.ah_count(), 0);
    }
    assert_eq!(program.mask(cq.queue), 7);
}
