//! Accesses to the program's memory that are made together: payloads of short messages, and short writes of one burst.

use rxe_proto::wire::TxFrames;

use super::change::QpChange;
use super::faults::with_pages;
use super::program::{QpInit, RC, UC, UD};
use super::rings::{BUFFER, End, connected, connected_as, header};
use super::work::{Wr, wr};
use super::world::World;

const SUCCESS: u32 = 0;
const LENGTH_ERROR: u32 = 1;
const PROTECTION_ERROR: u32 = 4;
const FLUSHED: u32 = 5;
const OPERATION_ERROR: u32 = 11;

/// SENDs of `count` messages of 8 bytes, numbered from 0, from every 64th byte of the buffer. What is there is their number plus
/// `base`.
fn numbered(end: &mut End, count: u8, base: u8) -> Vec<Wr> {
    let send = |number: u8| {
        let at = 64 * usize::from(number);
        end.buffer.bytes[at..at + 8].fill(base + number);
        Wr::new(number.into(), wr::SEND).sge(end.buffer.sge(at as u64, 8))
    };
    (0..count).map(send).collect()
}

/// Posts receives of 64 bytes each, beginning at every 128th byte.
fn receive_all(end: &End, count: u64) {
    (0..count).for_each(|number| end.receive(number, 128 * number, 64));
}

/// Status of each completion that is there when nothing is left to happen.
fn statuses(world: &mut World, end: &End) -> Vec<(u64, u32)> {
    world.settle();
    end.completions().iter().map(|completion| (completion.wr_id, completion.status)).collect()
}

fn all(count: u64, status: u32) -> Vec<(u64, u32)> {
    (0..count).map(|number| (number, status)).collect()
}

#[test]
pub fn messages_of_one_doorbell_arrive_whole_and_in_order() {
    for qp_type in [RC, UC, UD] {
        let mut world = World::new();
        let mut ends = connected(&mut world, qp_type);
        let room = header(qp_type);
        let peer = world.sides[1].gid();
        let handle = match qp_type {
            UD => ends[0].program.create_ah(&mut world.sides[0], ends[0].pd, peer, 1).unwrap().1,
            _ => 0,
        };
        let (qpn, text) = (ends[1].qp.qpn, (0..BUFFER).map(|at| (at / 3) as u8).collect::<Vec<_>>());
        ends[0].buffer.bytes.copy_from_slice(&text);
        // One and two buffers, apart, adjacent, overlapping, backwards and empty; none, the longest that is read early, and longer.
        let messages: [&[(usize, usize)]; 12] = [
            &[(0, 64)],
            &[(64, 64)],
            &[(32, 64)],
            &[(9000, 100)],
            &[(200, 8)],
            &[(300, 10), (100, 20)],
            &[(40_000, 0), (50_000, 7)],
            &[],
            &[(60_000, 256)],
            &[(4000, 257)],
            &[(8190, 4)],
            &[(5000, 2000)],
        ];
        let sends = messages.iter().enumerate().map(|(number, pieces)| {
            let send = Wr::new(number as u64, wr::SEND).to(qpn, 0x1111_1111, handle);
            let sge = |&(at, len): &(usize, usize)| ends[0].buffer.sge(at as u64, len as u32);
            pieces.iter().fold(send, |send, piece| send.sge(sge(piece)))
        });
        let sends: Vec<_> = sends.collect();
        (0..12).for_each(|number| ends[1].receive(number, 4096 * number, 4096));
        ends[0].send_all(&mut world, 0, &sends);
        assert_eq!(statuses(&mut world, &ends[0]), all(12, SUCCESS), "{qp_type}");
        for (number, pieces) in messages.iter().enumerate() {
            let received = ends[1].success(&mut world);
            let sent: Vec<u8> = pieces.iter().flat_map(|&(at, len)| &text[at..at + len]).copied().collect();
            assert_eq!((received.wr_id, u64::from(received.byte_len)), (number as u64, room + sent.len() as u64));
            let first = 4096 * number + room as usize;
            assert_eq!(ends[1].buffer.bytes[first..first + sent.len()], sent, "{qp_type} {number}");
        }
    }
}

#[test]
pub fn short_payloads_of_one_doorbell_are_read_when_they_are_posted() {
    let mut world = World::new();
    let mut ends = connected(&mut world, RC);
    receive_all(&ends[1], 3);
    let sends = numbered(&mut ends[0], 3, 10);
    ends[0].send_all(&mut world, 0, &sends);
    ends[0].buffer.bytes.fill(0xFF);
    world.lose_every = 3;
    assert_eq!(statuses(&mut world, &ends[0]), all(3, SUCCESS));
    for number in 0..3 {
        assert_eq!(ends[1].buffer.bytes[128 * number..][..8], [10 + number as u8; 8]);
    }
}

#[test]
fn doorbells_that_wait_leave_their_work_requests_in_the_queue() {
    let mut world = World::new();
    let mut ends = connected(&mut world, RC);
    receive_all(&ends[1], 9);
    for (number, send) in numbered(&mut ends[0], 9, 1).iter().enumerate() {
        ends[0].send(&mut world, 0, send);
        let side = &mut world.sides[0];
        assert_eq!((side.uverbs.take_can_wait(), side.uverbs.has_unsent()), (number >= 4, number >= 4));
        side.engine.transmit(side.now, &mut TxFrames::default());
        assert_eq!(
            side.engine.send_queued(rxe_proto::transport::Qpn::new(ends[0].qp.qpn)),
            Some(4.min(number as u32 + 1))
        );
    }
    // They are read when they are taken.
    ends[0].buffer.bytes[4 * 64..9 * 64].fill(0xEE);
    assert_eq!(statuses(&mut world, &ends[0]), all(9, SUCCESS));
    for number in 0..9 {
        let expected = if number < 4 { 1 + number as u8 } else { 0xEE };
        assert_eq!(ends[1].buffer.bytes[128 * number..][..8], [expected; 8]);
    }
}

/// Five SENDs, of which the last ones wait in the queue, behind four whose packets are lost.
fn with_waiting_sends(world: &mut World) -> [End; 2] {
    let mut ends = connected(world, RC);
    for send in numbered(&mut ends[0], 7, 1) {
        ends[0].send(world, 0, &send);
        let side = &mut world.sides[0];
        side.engine.transmit(side.now, &mut TxFrames::default());
    }
    assert!(world.sides[0].uverbs.take_can_wait());
    ends
}

#[test]
fn work_requests_that_wait_are_flushed_with_the_others_and_forgotten_by_a_reset() {
    let mut world = World::new();
    let ends = with_waiting_sends(&mut world);
    ends[0].program.modify_qp(&mut world.sides[0], &ends[0].qp, &QpChange::to(6)).unwrap();
    assert_eq!(statuses(&mut world, &ends[0]), all(7, FLUSHED));

    let mut world = World::new();
    let ends = with_waiting_sends(&mut world);
    ends[0].program.modify_qp(&mut world.sides[0], &ends[0].qp, &QpChange::to(0)).unwrap();
    assert_eq!(statuses(&mut world, &ends[0]), []);

    let mut world = World::new();
    let ends = with_waiting_sends(&mut world);
    ends[0].program.destroy_qp(&mut world.sides[0], &ends[0].qp).unwrap();
    assert_eq!(statuses(&mut world, &ends[0]), []);
}

/// One of five messages of a doorbell has a bad buffer: those before it arrive, those behind it are flushed.
#[test]
fn a_bad_buffer_is_an_error_of_its_own_message() {
    type Spoil = fn(&mut World, &mut [End; 2], &mut Wr) -> Option<super::pages::Pages>;
    let spoils: [Spoil; 5] = [
        // Memory that has gone.
        |world, ends, wr| {
            let (pages, key) = with_pages(world, ends, 0);
            pages.close();
            wr.sges[0] = (pages.addr(), 8, key);
            Some(pages)
        },
        // The second of two buffers.
        |world, ends, wr| {
            let (pages, key) = with_pages(world, ends, 0);
            pages.close();
            wr.sges.push((pages.addr() + 100, 8, key));
            Some(pages)
        },
        // A key that does not exist.
        |_, _, wr| {
            wr.sges[0].2 ^= 0xFF00;
            None
        },
        // Beyond the end of the region.
        |_, ends, wr| {
            wr.sges[0] = ends[0].buffer.sge(BUFFER as u64 - 4, 8);
            None
        },
        // The region of another protection domain.
        |world, ends, wr| {
            let (program, side) = (&ends[0].program, &mut world.sides[0]);
            let pd = program.alloc_pd(side);
            wr.sges[0].2 = program.reg_mr(side, pd, ends[0].buffer.addr(), BUFFER as u64, 0xF).unwrap().1;
            None
        },
    ];
    for (kind, spoil) in spoils.into_iter().enumerate() {
        for bad in 0..5_usize {
            let mut world = World::new();
            let mut ends = connected(&mut world, RC);
            receive_all(&ends[1], 5);
            let mut sends = numbered(&mut ends[0], 5, 1);
            let _pages = spoil(&mut world, &mut ends, &mut sends[bad]);
            ends[0].send_all(&mut world, 0, &sends);
            let status = |number: u64| match number.cmp(&(bad as u64)) {
                std::cmp::Ordering::Less => SUCCESS,
                std::cmp::Ordering::Equal => PROTECTION_ERROR,
                std::cmp::Ordering::Greater => FLUSHED,
            };
            let expected: Vec<_> = (0..5).map(|number| (number, status(number))).collect();
            assert_eq!(statuses(&mut world, &ends[0]), expected, "{kind} {bad}");
            assert_eq!(ends[1].completions().len(), bad, "{kind} {bad}");
            for number in 0..bad {
                assert_eq!(ends[1].buffer.bytes[128 * number..][..8], [1 + number as u8; 8], "{kind} {bad}");
            }
        }
    }
}

#[test]
fn data_that_a_read_returns_is_sent_by_the_messages_behind_it() {
    for (together, flags) in [(true, wr::FENCE), (false, wr::FENCE), (true, 0), (false, 0)] {
        let mut world = World::new();
        let mut ends = connected(&mut world, RC);
        receive_all(&ends[1], 2);
        ends[1].buffer.bytes[4096..4104].copy_from_slice(b"returned");
        let (addr, key) = (ends[1].buffer.addr() + 4096, ends[1].buffer.key);
        let read = Wr::new(0, wr::RDMA_READ).sge(ends[0].buffer.sge(0, 8)).remote(addr, key);
        // With the fence flag of one, the READ has completed when either is sent.
        let send = |wr_id| Wr::new(wr_id, wr::SEND).sge(ends[0].buffer.sge(0, 8));
        let fenced = send(1).flags(wr::SIGNALED | wr::FENCE);
        if together {
            ends[0].send_all(&mut world, 0, &[read, fenced, send(2).flags(wr::SIGNALED | flags)]);
        } else {
            ends[0].send(&mut world, 0, &read);
            ends[0].send_all(&mut world, 0, &[fenced, send(2).flags(wr::SIGNALED | flags)]);
        }
        assert_eq!(statuses(&mut world, &ends[0]), all(3, SUCCESS));
        for slot in [0, 128] {
            assert_eq!(ends[1].buffer.bytes[slot..slot + 8], *b"returned", "{together} {flags}");
        }
        // Once it has completed, payloads are read early again.
        receive_all(&ends[1], 2);
        let sends = numbered(&mut ends[0], 2, 1);
        ends[0].send_all(&mut world, 0, &sends);
        ends[0].buffer.bytes.fill(0xFF);
        assert_eq!(statuses(&mut world, &ends[0]), all(2, SUCCESS));
        assert_eq!(ends[1].buffer.bytes[128..136], [2; 8]);
    }
}

#[test]
fn a_program_has_no_more_inline_data_than_it_asked_for() {
    let mut world = World::new();
    let ends = connected_as(&mut world, RC, |init| QpInit { inline_data: 60, ..init });
    // The room of four buffers. An entry has a power of two of bytes, and so room for more.
    assert_eq!(ends[0].qp.max_inline_data, 64);
    ends[1].receive(0, 0, 64);
    ends[0].send_all(&mut world, 0, &[Wr::new(0, wr::SEND).inline(&[1; 64]), Wr::new(1, wr::SEND).inline(&[1; 65])]);
    assert_eq!(statuses(&mut world, &ends[0]), [(0, SUCCESS), (1, LENGTH_ERROR)]);
}

#[test]
pub fn short_writes_of_one_burst_are_there_before_a_read_or_an_atomic_operation_sees_the_memory() {
    let mut world = World::new();
    let mut ends = connected(&mut world, RC);
    let (addr, key) = (ends[1].buffer.addr(), ends[1].buffer.key);
    // A WRITE may otherwise change what a READ before it returns.
    let fenced = wr::SIGNALED | wr::INLINE | wr::FENCE;
    let write =
        |wr_id, at: u64, value: u64| Wr::new(wr_id, wr::RDMA_WRITE).inline(&value.to_ne_bytes()).remote(addr + at, key);
    ends[0].send_all(
        &mut world,
        0,
        &[
            write(0, 0, 1),
            write(1, 8, 2),
            write(2, 8, 3),
            Wr::new(3, wr::RDMA_READ).sge(ends[0].buffer.sge(0, 16)).remote(addr, key),
            write(4, 0, 4).flags(fenced),
            Wr::new(5, wr::ATOMIC_FETCH_AND_ADD).sge(ends[0].buffer.sge(16, 8)).atomic(addr, key, 10, 0),
            write(6, 8, 5).flags(fenced),
        ],
    );
    assert_eq!(statuses(&mut world, &ends[0]), all(7, SUCCESS));
    let values = |end: &mut End, count: usize| {
        let bytes = std::hint::black_box(&end.buffer.bytes);
        bytes.chunks_exact(8).take(count).map(|value| u64::from_ne_bytes(value.try_into().unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(values(&mut ends[0], 3), [1, 3, 4]);
    assert_eq!(values(&mut ends[1], 2), [14, 5]);
}

#[test]
fn a_receive_whose_memory_has_gone_does_not_harm_those_of_the_same_burst() {
    for bad in 0..4 {
        let mut world = World::new();
        let mut ends = connected(&mut world, RC);
        let (pages, key) = with_pages(&mut world, &mut ends, 1);
        pages.close();
        for number in 0..4 {
            let sge = if number == bad { (pages.addr(), 64, key) } else { ends[1].buffer.sge(64 * number, 64) };
            ends[1].program.post_recv(ends[1].qp.receives, number, &[sge]).unwrap();
        }
        let sends = numbered(&mut ends[0], 4, 1);
        ends[0].send_all(&mut world, 0, &sends);
        let sent = statuses(&mut world, &ends[0]);
        assert_eq!(sent[..bad as usize], all(bad, SUCCESS));
        assert_eq!(sent[bad as usize], (bad, OPERATION_ERROR));
        let received: Vec<_> = ends[1].completions().iter().map(|one| (one.wr_id, one.status)).collect();
        assert_eq!(received[..bad as usize], all(bad, SUCCESS));
        assert_eq!(received[bad as usize], (bad, PROTECTION_ERROR));
        for number in 0..bad as usize {
            assert_eq!(ends[1].buffer.bytes[64 * number..][..8], [1 + number as u8; 8]);
        }
    }
}
