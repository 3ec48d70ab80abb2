//! Headers and queries, and commands that are refused.

use nix::errno::Errno;
use rxe_proto::transport::EngineConfig;

use super::bytes::{Bytes, cmd, extended, legacy, u32_at, u64_at};
use super::program::Program;
use super::world::World;

#[test]
fn the_device_and_its_port_are_described() {
    let mut world = World::new();
    let side = &mut world.sides[0];
    let program = Program::open(side);
    let device = program.call(side, cmd::QUERY_DEVICE, Bytes::new(), 176).unwrap();
    assert_eq!(device[8..16], side.local.node_guid.to_be_bytes(), "node_guid");
    assert_eq!(u32_at(&device, 40), 0xFF_FFFF, "vendor_id: not 0, or the programs' tests fail");
    assert_eq!((u32_at(&device, 56), u32_at(&device, 64)), (1 << 14, 32), "max_qp_wr, max_sge");
    let flags = u32_at(&device, 60);
    for bit in [13, 17, 21, 24] {
        assert_ne!(flags & 1 << bit, 0, "SRQ_RESIZE, MEM_WINDOW, MEM_MGT_EXTENSIONS, MEM_WINDOW_TYPE_2B: {bit}");
    }
    assert_eq!(device[171], 1, "phys_port_cnt");

    let mut response = vec![0xEE; 304];
    let command = extended(cmd::QUERY_DEVICE, &mut response, 0, &Bytes::new().u64(0));
    program.write(side, &command).unwrap();
    assert_eq!(response[..176], device);
    assert_eq!((u32_at(&response, 176), u32_at(&response, 180)), (0, 304), "comp_mask, response_length");
    assert_eq!((u64_at(&response, 184), u32_at(&response, 192)), (1, 0x3F), "on-demand paging, its operations on RC");
    assert_eq!(u64_at(&response, 224), u64::from(flags) | 1 << 40, "device_cap_flags_ex with ATOMIC_WRITE");
    // An older program has less room, a newer one more.
    for len in [184, 240, 400] {
        let mut response = vec![0xEE; len];
        let command = extended(cmd::QUERY_DEVICE, &mut response, 0, &Bytes::new().u64(0));
        program.write(side, &command).unwrap();
        assert_eq!(u32_at(&response, 180), len.min(304) as u32);
        assert!(response[304.min(len)..].iter().all(|&byte| byte == 0), "zeroes behind what is known");
    }

    let query_port = |side: &mut _, port| program.call(side, cmd::QUERY_PORT, Bytes::new().u8(port).pad(8), 40);
    let port = query_port(side, 1).unwrap();
    assert_eq!((u32_at(&port, 4), u32_at(&port, 16)), (1 << 31, 2), "max_msg_sz, gid_tbl_len");
    assert_eq!((port[26], port[27], port[28]), (4, 5, 5), "ACTIVE, max_mtu, active_mtu");
    assert_eq!((port[37], port[38]), (2, 1), "Ethernet, GRH required");
    for port in [0, 2, 255] {
        assert_eq!(query_port(side, port), Err(Errno::EINVAL));
    }
}

#[test]
fn a_context_begins_with_get_context() {
    let mut world = World::new();
    let side = &mut world.sides[0];
    let program = Program::open_only(side);
    assert_eq!(program.call(side, cmd::ALLOC_PD, Bytes::new(), 4), Err(Errno::EINVAL));
    program.call(side, cmd::GET_CONTEXT, Bytes::new(), 8).unwrap();
    assert_eq!(program.call(side, cmd::GET_CONTEXT, Bytes::new(), 8), Err(Errno::EINVAL));
    assert_eq!(side.write(9999, &[0; 8]), Err(Errno::EBADF));
    let context = program.context;
    assert!(side.uverbs.is_open(context));
    side.uverbs.close(&mut side.engine, side.now, context);
    assert!(!side.uverbs.is_open(context));
    assert_eq!(side.write(context, &[0; 8]), Err(Errno::EBADF));
}

#[test]
fn lengths_are_checked_as_the_kernel_does() {
    let mut world = World::new();
    let side = &mut world.sides[0];
    let program = Program::open(side);
    let context = program.context;
    let mut response = vec![0; 4];
    let good = legacy(cmd::ALLOC_PD, Some(&mut response), &Bytes::new());
    assert_eq!(side.write(context, &good), Ok(()));
    for len in 0..16 {
        assert_eq!(side.write(context, &good[..len]), Err(Errno::EINVAL), "{len}");
    }
    let short = Bytes::new().u32(cmd::ALLOC_PD).u16(2).u16(1).0;
    assert_eq!(side.write(context, &short), Err(Errno::ENOSPC), "no address of the response");
    let mut no_room = good.clone();
    no_room[6] = 0;
    assert_eq!(side.write(context, &no_room), Err(Errno::ENOSPC));
    // Bytes after the known part of a structure must be zero.
    let longer = |byte| legacy(cmd::DEALLOC_PD, None, &Bytes::new().u32(77).u8(byte).pad(8));
    assert_eq!(side.write(context, &longer(0)), Err(Errno::ENOENT));
    assert_eq!(side.write(context, &longer(1)), Err(Errno::EOPNOTSUPP));

    let mut response = vec![0; 304];
    let good = extended(cmd::QUERY_DEVICE, &mut response, 0, &Bytes::new().u64(0));
    let changed = |at: usize, byte: u8| {
        let mut command = good.clone();
        command[at] = byte;
        command
    };
    assert_eq!(side.write(context, &good), Ok(()));
    assert_eq!(side.write(context, &good[..24]), Err(Errno::EINVAL));
    assert_eq!(side.write(context, &changed(4, 2)), Err(Errno::EINVAL), "in_words");
    assert_eq!(side.write(context, &changed(6, 22)), Err(Errno::ENOSPC), "out_words");
    assert_eq!(side.write(context, &changed(20, 1)), Err(Errno::EINVAL), "reserved");
    assert_eq!(side.write(context, &changed(24, 1)), Err(Errno::EINVAL), "comp_mask");
    let mut no_address = good.clone();
    no_address[8..16].fill(0);
    assert_eq!(side.write(context, &no_address), Err(Errno::EINVAL));
}

#[test]
fn commands_that_rxe_does_not_have_are_refused() {
    let mut world = World::new();
    let side = &mut world.sides[0];
    let program = Program::open(side);
    let unsupported = |number: u32| Bytes::new().u32(number).u16(2).u16(0).0;
    for number in [cmd::OPEN_XRCD, 6, 7, 10, 21, 40] {
        assert_eq!(program.write(side, &unsupported(number)), Err(Errno::EOPNOTSUPP), "{number}");
    }
    for number in [41, 50, 255] {
        assert_eq!(program.write(side, &unsupported(number)), Err(Errno::EINVAL), "{number}");
        assert_eq!(program.write(side, &unsupported(number | cmd::EXTENDED)), Err(Errno::EOPNOTSUPP), "{number}");
    }
    assert_eq!(program.write(side, &unsupported(0x4000_0000)), Err(Errno::EINVAL), "unknown flags");
}

#[test]
fn rights_and_addresses_of_a_region_are_checked() {
    let mut world = World::new();
    let side = &mut world.sides[0];
    let program = Program::open(side);
    let pd = program.alloc_pd(side);
    let bytes = vec![0u8; 8192];
    let addr = bytes.as_ptr() as u64;
    let reg = |side: &mut _, access| program.reg_mr(side, pd, addr, 8192, access).map(|_| ());
    // Legal combinations; with huge pages, on-demand paging and optional flags too.
    for access in [0, 1, 3, 5, 9, 0x1F, 1 << 7, 1 | 1 << 6, 1 | 1 << 20, 1 | 1 << 29] {
        assert_eq!(reg(side, access), Ok(()), "{access:#x}");
    }
    for access in [2, 8, 10, 1 << 10, 1 << 31] {
        assert_eq!(reg(side, access), Err(Errno::EINVAL), "{access:#x}");
    }
    let elsewhere = Bytes::new().u64(addr).u64(100).u64(addr + 1).u32(pd).u32(0);
    assert_eq!(program.call(side, cmd::REG_MR, elsewhere, 12), Err(Errno::EINVAL), "not at the same place of a page");
    let no_pd = Bytes::new().u64(addr).u64(100).u64(addr).u32(pd + 1).u32(0);
    assert_eq!(program.call(side, cmd::REG_MR, no_pd, 12), Err(Errno::EINVAL));
}

#[test]
fn handles_are_those_of_their_context() {
    let mut world = World::new();
    let side = &mut world.sides[0];
    let (one, two) = (Program::open(side), Program::open(side));
    let pd = one.alloc_pd(side);
    let cq = one.create_cq(side, 4, -1, 1).unwrap();
    assert_eq!(two.tell(side, cmd::DEALLOC_PD, Bytes::new().u32(pd)), Err(Errno::ENOENT));
    assert_eq!(two.destroy_cq(side, &cq), Err(Errno::ENOENT));
    let bytes = [0u8; 64];
    assert_eq!(two.reg_mr(side, pd, bytes.as_ptr() as u64, 64, 0), Err(Errno::EINVAL));
    assert_eq!(one.tell(side, cmd::DEALLOC_PD, Bytes::new().u32(pd)), Ok(()));
}

#[test]
fn each_kind_of_object_has_a_limit() {
    let config = EngineConfig {
        max_qp: 3,
        max_cq: 3,
        max_srq: 3,
        max_mr: 6,
        max_ah: 3,
        max_cqe: 100,
        max_qp_wr: 100,
        max_srq_wr: 100,
        ..EngineConfig::default()
    };
    let mut world = World::with(&config);
    let side = &mut world.sides[0];
    let program = Program::open(side);
    let device = program.call(side, cmd::QUERY_DEVICE, Bytes::new(), 176).unwrap();
    assert_eq!((u32_at(&device, 52), u32_at(&device, 72), u32_at(&device, 80)), (3, 3, 3), "max_qp, max_cq, max_mr");
    assert_eq!((u32_at(&device, 56), u32_at(&device, 76)), (63, 63), "what still fits the engine's queues");
    let pd = program.alloc_pd(side);
    let gid = side.gid();
    let bytes = [0u8; 64];
    let cq = program.create_cq(side, 63, -1, 1).unwrap();
    for round in 0..4 {
        let full = round == 3;
        let check =
            |what: &str, error: Option<Errno>| assert_eq!(error, full.then_some(Errno::ENOMEM), "{what} {round}");
        let init = super::program::QpInit::new(super::program::RC, pd, cq.handle);
        check("qp", program.create_qp(side, &init, 1).err());
        check("srq", program.create_srq(side, pd, 4, 0).err());
        check("mr", program.reg_mr(side, pd, bytes.as_ptr() as u64, 64, 0).err());
        check("ah", program.create_ah(side, pd, gid, 1).err());
        let mw = program.call(side, cmd::ALLOC_MW, Bytes::new().u32(pd).u32(1), 8);
        check("mw", mw.err());
    }
    for _ in 0..2 {
        program.create_cq(side, 1, -1, 1).unwrap();
    }
    assert_eq!(program.create_cq(side, 1, -1, 1).err(), Some(Errno::ENOMEM));
}

#[test]
fn the_device_may_change_threads() {
    fn is_send<T: Send>(_: &T) {}
    is_send(&World::new().sides[0].uverbs);
}
