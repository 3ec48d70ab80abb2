//! Programs that write nonsense: the adapter and other programs are not touched.

use rxe_testkit::rng::Rng;

use super::bytes::Bytes;
use super::program::{Program, QpInit, Queue, RC, UC, UD};
use super::rings::{End, connected};
use super::work::{Wr, wr};
use super::world::World;

/// Two programs that still exchange messages.
fn still_works(world: &mut World, ends: &[End; 2]) {
    ends[1].receive(1, 0, 64);
    ends[0].send(world, 0, &Wr::new(1, wr::SEND).inline(b"still here"));
    assert_eq!(ends[1].success(world).byte_len, 10);
    ends[0].success(world);
}

#[test]
fn commands_of_random_bytes_do_no_harm() {
    let mut rng = Rng(1);
    let mut world = World::new();
    let good = connected(&mut world, RC);
    let program = Program::open(&mut world.sides[0]);
    // Responses go to memory of the test: an address that the device may write.
    let mut response = vec![0u8; 4096];
    let at = response.as_mut_ptr() as u64;
    let mut accepted = 0;
    for _ in 0..20_000 {
        let number = rng.below(45) as u32;
        let extended = rng.below(4) == 0;
        // Small numbers are handles, so that some name objects.
        let words = (0..rng.below(40)).map(|_| match rng.below(4) {
            0 => rng.next() as u32,
            1 => 0,
            _ => rng.below(8) as u32,
        });
        let body = words.fold(Bytes::new(), Bytes::u32);
        let command = if extended {
            let body = body.pad(160);
            let header = Bytes::new().u32(number | 0x8000_0000).u16(20).u16(rng.below(64) as u16);
            header.u64(at).u16(0).u16(rng.below(16) as u16).u32(0).bytes(&body.0)
        } else {
            let len = (16 + body.0.len()) as u16;
            let header = Bytes::new().u32(number).u16(len / 4).u16(rng.below(256) as u16);
            header.u64(at).bytes(&body.0)
        };
        let result = world.sides[0].write(program.context, &command.0);
        accepted += usize::from(result.is_ok());
        if rng.below(100) == 0 {
            world.turn();
        }
    }
    assert!(accepted > 100, "{accepted}");
    for _ in 0..20_000 {
        let len = rng.below(200) as usize;
        let bytes = rng.bytes(len);
        let _ = world.sides[0].write(program.context, &bytes);
    }
    world.settle();
    still_works(&mut world, &good);
    program.close(&mut world.sides[0]);
    still_works(&mut world, &good);
}

/// Random bytes, or random work requests that begin as real ones do.
fn fill(rng: &mut Rng, program: &Program, queue: Queue, plausible: bool) {
    let entry_len = 1u64 << program.read_u32(queue.offset).min(12);
    let mask = program.mask(queue);
    // The geometry is the program's to overwrite, too; keep it for this test's own use.
    for index in 0..=u64::from(mask) {
        let mut entry = rng.bytes(entry_len as usize);
        if plausible && entry.len() >= 208 {
            entry[12..16].copy_from_slice(&(rng.below(16) as u32).to_ne_bytes());
            entry[16..20].copy_from_slice(&(rng.below(16) as u32).to_ne_bytes());
            entry[184..188].copy_from_slice(&(rng.below(100) as u32).to_ne_bytes());
            entry[196..200].copy_from_slice(&(rng.below(6) as u32).to_ne_bytes());
        } else if plausible {
            entry[28..32].copy_from_slice(&(rng.below(4) as u32).to_ne_bytes());
        }
        program.write_at(queue.offset + 384 + index * entry_len, &entry);
    }
}

#[test]
fn rings_of_random_bytes_do_no_harm() {
    let mut rng = Rng(2);
    let mut world = World::new();
    let good = connected(&mut world, RC);
    for round in 0..60 {
        let qp_type = [RC, UC, UD][round % 3];
        let ends = connected(&mut world, qp_type);
        for _ in 0..10 {
            for end in &ends {
                for queue in [end.qp.sends, end.qp.receives] {
                    fill(&mut rng, &end.program, queue, round % 2 == 0);
                    let index = if rng.below(3) == 0 { rng.next() as u32 } else { rng.below(32) as u32 };
                    end.program.write_at(queue.offset + 128, &index.to_ne_bytes());
                }
                // Also what only this side writes.
                let index = (rng.next() as u32).to_ne_bytes();
                end.program.write_at(end.qp.sends.offset + 256, &index);
                end.program.write_at(end.cq.queue.offset + 128, &index);
                end.program.write_at(end.cq.queue.offset + 256, &index);
            }
            for (number, end) in ends.iter().enumerate() {
                let _ = end.program.doorbell(&mut world.sides[number], &end.qp);
            }
            for _ in 0..rng.below(8) {
                world.turn();
            }
        }
        for (number, end) in ends.into_iter().enumerate() {
            // Geometry overwritten at last: nobody reads it on this side.
            for queue in [end.qp.sends, end.qp.receives, end.cq.queue] {
                end.program.write_at(queue.offset, &rng.bytes(384));
            }
            let _ = end.program.doorbell(&mut world.sides[number], &end.qp);
            world.sides[number].finish_turn();
            end.program.close(&mut world.sides[number]);
        }
        still_works(&mut world, &good);
    }
}

#[test]
fn a_work_request_that_makes_no_sense_fails_and_flushes_the_rest() {
    let mut world = World::new();
    let cases: [(&str, Wr, u32); 6] = [
        ("no such opcode", Wr::new(1, 77), 2),
        ("READ_WITH_INV", Wr::new(1, 11), 2),
        ("too many buffers", (0..5).fold(Wr::new(1, wr::SEND), |wr, _| wr.sge((0, 0, 0))), 2),
        ("inline data beyond the entry", Wr { flags: wr::INLINE, ..Wr::new(1, wr::SEND).sge((0, 5000, 0)) }, 1),
        ("a READ with inline data", Wr::new(1, wr::RDMA_READ).inline(b"x"), 1),
        ("a key that there is not", Wr::new(1, wr::SEND).sge((0, 8, 0x77)), 4),
    ];
    for (why, wr, status) in cases {
        let ends = connected(&mut world, RC);
        // The provider would refuse some of them.
        ends[0].program.push(ends[0].qp.sends, &Wr::new(0, wr::RDMA_WRITE).bytes()).unwrap();
        ends[0].program.push(ends[0].qp.sends, &wr.bytes()).unwrap();
        ends[0].program.push(ends[0].qp.sends, &Wr::new(2, wr::SEND).bytes()).unwrap();
        ends[0].program.doorbell(&mut world.sides[0], &ends[0].qp).unwrap();
        world.settle();
        let statuses: Vec<_> = ends[0].completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(statuses, [(0, 0), (1, status), (2, 5)], "{why}");
        assert_eq!(ends[0].program.qp_state(&mut world.sides[0], &ends[0].qp), 6, "{why}");
    }
}

#[test]
fn a_receive_that_makes_no_sense_fails_when_it_is_needed() {
    let mut world = World::new();
    for (why, wqe) in [
        ("too many buffers", Bytes::new().u64(1).u64(0).u32(8).u32(8).u32(0).u32(99).u64(0)),
        ("longer than any message", super::work::recv_wqe(1, &[(0, u32::MAX, 1), (0, u32::MAX, 1)])),
    ] {
        let ends = connected(&mut world, RC);
        ends[1].program.push(ends[1].qp.receives, &wqe).unwrap();
        ends[0].send(&mut world, 0, &Wr::new(1, wr::SEND).inline(b"x"));
        assert_eq!(ends[0].completion(&mut world).status, 11, "{why}");
        assert_eq!(ends[1].completion(&mut world).wr_id, 1);
    }
}

#[test]
fn many_work_requests_of_one_doorbell_are_taken_over_several_turns() {
    let mut world = World::new();
    let ends = super::rings::connected_as(&mut world, RC, |init| QpInit { send_wr: 1000, ..init });
    let cq = ends[0].program.create_cq(&mut world.sides[0], 2000, -1, 1).unwrap();
    let init = QpInit { send_cq: cq.handle, send_wr: 1000, ..QpInit::new(RC, ends[0].pd, ends[0].cq.handle) };
    let qp = ends[0].program.create_qp(&mut world.sides[0], &init, 1).unwrap();
    ends[0].program.to_init(&mut world.sides[0], &qp, RC);
    let peer = QpInit::new(RC, ends[1].pd, ends[1].cq.handle);
    let peer = ends[1].program.create_qp(&mut world.sides[1], &peer, 1).unwrap();
    ends[1].program.to_init(&mut world.sides[1], &peer, RC);
    let [first, second] = ends;
    let ends = [End { qp, cq, ..first }, End { qp: peer, ..second }];
    super::rings::connect(&mut world, RC, &ends);
    let (addr, key) = (ends[1].buffer.addr(), ends[1].buffer.key);
    for wr_id in 0..1000 {
        let write = Wr::new(wr_id, wr::RDMA_WRITE).inline(b"12345678").remote(addr, key);
        ends[0].program.push(ends[0].qp.sends, &write.bytes()).unwrap();
    }
    ends[0].program.doorbell(&mut world.sides[0], &ends[0].qp).unwrap();
    world.settle();
    let done: Vec<u64> = ends[0].completions().iter().map(|wc| wc.wr_id).collect();
    assert_eq!(done, (0..1000).collect::<Vec<_>>());
}
