//! Messages of many packets, whose parts are read and written together.

use rxe_proto::wire::TxFrames;

use super::faults::with_pages;
use super::program::{RC, UC};
use super::rings::{End, connected};
use super::work::{Wr, wr};
use super::world::World;

const SUCCESS: u32 = 0;
const PROTECTION_ERROR: u32 = 4;
const FLUSHED: u32 = 5;
const ACCESS_ERROR: u32 = 10;
const OPERATION_ERROR: u32 = 11;

/// Length of a packet.
const MTU: usize = 4096;

/// What a sender's buffer holds, other for each `seed`.
fn fill(end: &mut End, seed: usize) -> Vec<u8> {
    let bytes = &mut end.buffer.bytes;
    bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 5 + at / MTU + seed) as u8);
    bytes.to_vec()
}

fn statuses(world: &mut World, end: &End) -> Vec<(u64, u32)> {
    world.settle();
    end.completions().iter().map(|completion| (completion.wr_id, completion.status)).collect()
}

#[test]
pub fn messages_of_many_packets_arrive_whole() {
    // Lengths, and where the messages begin at either end.
    let messages = [(65_536, 0, 0), (65_000, 100, 536), (4097, 1, 2), (20_000, 4000, 8192), (50_000, 0, 15_000)];
    for (qp_type, lose_every) in [(RC, 0), (RC, 7), (RC, 29), (UC, 0)] {
        let mut world = World::new();
        let mut ends = connected(&mut world, qp_type);
        world.lose_every = lose_every;
        for (round, &(len, from, to)) in messages.iter().enumerate() {
            let (addr, key) = (ends[1].buffer.addr() + to as u64, ends[1].buffer.key);
            for opcode in [wr::SEND, wr::RDMA_WRITE, wr::RDMA_WRITE_WITH_IMM, wr::RDMA_READ] {
                if (qp_type, opcode) == (UC, wr::RDMA_READ) {
                    continue;
                }
                let (source, target) = if opcode == wr::RDMA_READ { (1, 0) } else { (0, 1) };
                let (begin, end) = if opcode == wr::RDMA_READ { (to, from) } else { (from, to) };
                let text = fill(&mut ends[source], round + opcode as usize);
                ends[target].buffer.bytes.fill(0);
                let takes_receive = matches!(opcode, wr::SEND | wr::RDMA_WRITE_WITH_IMM);
                if takes_receive {
                    ends[1].receive(9, to as u64, len as u32);
                }
                let request = Wr::new(1, opcode).sge(ends[0].buffer.sge(from as u64, len as u32)).remote(addr, key);
                ends[0].send(&mut world, 0, &request);
                assert_eq!(statuses(&mut world, &ends[0]), [(1, SUCCESS)]);
                assert_eq!(statuses(&mut world, &ends[1]), if takes_receive { vec![(9, SUCCESS)] } else { vec![] });
                let found = std::hint::black_box(&ends[target].buffer.bytes);
                assert!(found[end..end + len] == text[begin..begin + len], "{qp_type} {round} {opcode}");
                assert!(found[..end].iter().chain(&found[end + len..]).all(|&byte| byte == 0), "{round} {opcode}");
            }
        }
    }
}

#[test]
pub fn packets_that_are_sent_again_are_read_again() {
    let mut world = World::new();
    let mut ends = connected(&mut world, RC);
    fill(&mut ends[0], 1);
    let len = 10 * MTU;
    ends[1].receive(1, 0, len as u32);
    ends[0].send(&mut world, 0, &Wr::new(1, wr::SEND).sge(ends[0].buffer.sge(0, len as u32)));
    // All packets are lost.
    let side = &mut world.sides[0];
    side.engine.transmit(side.now, &mut TxFrames::default());
    let text = fill(&mut ends[0], 2);
    assert_eq!(statuses(&mut world, &ends[0]), [(1, SUCCESS)]);
    assert!(std::hint::black_box(&ends[1].buffer.bytes)[..len] == text[..len]);
}

/// The second of three messages of several packets has a page that is missing at the sender.
#[test]
fn a_page_that_is_missing_is_an_error_of_its_own_message() {
    for page in [0, 1, 2, 7, 14, 15] {
        let mut world = World::new();
        let mut ends = connected(&mut world, RC);
        let (pages, key) = with_pages(&mut world, &mut ends, 0);
        pages.close_page(page * MTU);
        let (addr, rkey) = (ends[1].buffer.addr(), ends[1].buffer.key);
        let good = |wr_id| Wr::new(wr_id, wr::RDMA_WRITE).sge(ends[0].buffer.sge(0, 30_000)).remote(addr, rkey);
        let bad = Wr::new(1, wr::RDMA_WRITE).sge((pages.addr(), 1 << 16, key)).remote(addr, rkey);
        ends[0].send_all(&mut world, 0, &[good(0), bad, good(2)]);
        assert_eq!(statuses(&mut world, &ends[0]), [(0, SUCCESS), (1, PROTECTION_ERROR), (2, FLUSHED)], "{page}");
    }
}

/// The same at the receiver, of a WRITE and of a SEND. With losses, the last packets arrive when the first ones were written.
#[test]
fn a_page_that_is_missing_at_the_peer_is_an_error_of_its_own_message() {
    let cases = [wr::RDMA_WRITE, wr::SEND].into_iter().flat_map(|opcode| [(opcode, 0), (opcode, 7)]);
    for (opcode, lose_every) in cases {
        for page in [0, 1, 2, 7, 14, 15] {
            let mut world = World::new();
            world.lose_every = lose_every;
            let mut ends = connected(&mut world, RC);
            let (pages, key) = with_pages(&mut world, &mut ends, 1);
            pages.close_page(page * MTU);
            let (addr, rkey) = (ends[1].buffer.addr(), ends[1].buffer.key);
            ends[1].receive(0, 0, 30_000);
            ends[1].program.post_recv(ends[1].qp.receives, 1, &[(pages.addr(), 1 << 16, key)]).unwrap();
            ends[1].receive(2, 0, 30_000);
            let request =
                |wr_id, len, addr, rkey| Wr::new(wr_id, opcode).sge(ends[0].buffer.sge(0, len)).remote(addr, rkey);
            let bad = request(1, 1 << 16, pages.addr(), key);
            ends[0].send_all(&mut world, 0, &[request(0, 30_000, addr, rkey), bad, request(2, 30_000, addr, rkey)]);
            let error = if opcode == wr::SEND { OPERATION_ERROR } else { ACCESS_ERROR };
            let found = statuses(&mut world, &ends[0]);
            assert_eq!(found, [(0, SUCCESS), (1, error), (2, FLUSHED)], "{opcode} {page} {lose_every}");
            let expected = match opcode {
                wr::SEND => [(0, SUCCESS), (1, PROTECTION_ERROR), (2, FLUSHED)],
                _ => [0, 1, 2].map(|number| (number, FLUSHED)),
            };
            assert_eq!(statuses(&mut world, &ends[1]), expected, "{opcode} {page} {lose_every}");
        }
    }
}

#[test]
fn what_has_arrived_is_there_before_a_read_or_an_atomic_operation_sees_the_memory() {
    let mut world = World::new();
    let mut ends = connected(&mut world, RC);
    let text = fill(&mut ends[0], 3);
    let (addr, key) = (ends[1].buffer.addr(), ends[1].buffer.key);
    let len = 5 * MTU as u32;
    let write = Wr::new(0, wr::RDMA_WRITE).sge(ends[0].buffer.sge(0, len)).remote(addr, key);
    let read = Wr::new(1, wr::RDMA_READ).sge(ends[0].buffer.sge(40_000, len)).remote(addr, key);
    // It may otherwise change what the READ before it returns.
    let fenced = wr::SIGNALED | wr::FENCE;
    let add = Wr::new(2, wr::ATOMIC_FETCH_AND_ADD).sge(ends[0].buffer.sge(64_000, 8)).flags(fenced);
    let add = add.atomic(addr + 4096, key, 1, 0);
    ends[0].send_all(&mut world, 0, &[write, read, add]);
    assert_eq!(statuses(&mut world, &ends[0]), [(0, SUCCESS), (1, SUCCESS), (2, SUCCESS)]);
    let found = std::hint::black_box(&ends[0].buffer.bytes);
    assert!(found[40_000..][..len as usize] == text[..len as usize]);
    assert_eq!(found[64_000..64_008], text[4096..4104]);
    let sum = u64::from_ne_bytes(text[4096..4104].try_into().unwrap()) + 1;
    assert_eq!(std::hint::black_box(&ends[1].buffer.bytes)[4096..4104], sum.to_ne_bytes());
}
