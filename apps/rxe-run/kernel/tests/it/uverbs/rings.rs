//! Two programs with a queue pair each, connected.

use nix::errno::Errno;

use super::change::QpChange;
use super::program::{Buffer, Completion, Cq, Program, Qp, QpInit, UD};
use super::work::Wr;
use super::world::World;

/// One program: its objects on one side of the world.
pub struct End {
    pub program: Program,
    pub pd: u32,
    pub cq: Cq,
    pub qp: Qp,
    pub buffer: Buffer,
}

/// Bytes of each end's buffer.
pub const BUFFER: usize = 1 << 16;

/// Two ends in RTS; for UD each without a peer.
pub fn connected(world: &mut World, qp_type: u8) -> [End; 2] {
    connected_as(world, qp_type, |init| init)
}

/// The same with queue pairs created as `init` changes it.
pub fn connected_as(world: &mut World, qp_type: u8, init: impl Fn(QpInit) -> QpInit) -> [End; 2] {
    let ends = [0, 1].map(|number| {
        let side = &mut world.sides[number];
        let program = Program::open(side);
        let pd = program.alloc_pd(side);
        let cq = program.create_cq(side, 64, -1, 0xC0 + number as u64).unwrap();
        let qp = program.create_qp(side, &init(QpInit::new(qp_type, pd, cq.handle)), 0x90).unwrap();
        program.to_init(side, &qp, qp_type);
        let buffer = program.buffer(side, pd, BUFFER);
        End { program, pd, cq, qp, buffer }
    });
    connect(world, qp_type, &ends);
    ends
}

/// Takes the queue pairs of two ends from INIT to RTS.
pub fn connect(world: &mut World, qp_type: u8, ends: &[End; 2]) {
    let gids = [world.sides[0].gid(), world.sides[1].gid()];
    for (number, end) in ends.iter().enumerate() {
        let (side, peer) = (&mut world.sides[number], 1 - number);
        let psn = |number: usize| 0x1000 * (number as u32 + 1);
        let rtr = QpChange::rtr(qp_type, gids[peer], ends[peer].qp.qpn, psn(peer));
        end.program.modify_qp(side, &end.qp, &rtr).unwrap();
        end.program.modify_qp(side, &end.qp, &QpChange::rts(qp_type, psn(number))).unwrap();
    }
}

impl End {
    /// Posts a work request.
    pub fn send(&self, world: &mut World, number: usize, wr: &Wr) {
        self.try_send(world, number, wr).unwrap();
    }

    pub fn try_send(&self, world: &mut World, number: usize, wr: &Wr) -> Result<(), Errno> {
        self.program.post_send(&mut world.sides[number], &self.qp, &wr.bytes())
    }

    /// Posts work requests with one doorbell.
    pub fn send_all(&self, world: &mut World, number: usize, wrs: &[Wr]) {
        let wqes: Vec<_> = wrs.iter().map(Wr::bytes).collect();
        self.program.post_sends(&mut world.sides[number], &self.qp, &wqes).unwrap();
    }

    /// Posts a receive of the bytes at `at` of the buffer.
    pub fn receive(&self, wr_id: u64, at: u64, len: u32) {
        self.program.post_recv(self.qp.receives, wr_id, &[self.buffer.sge(at, len)]).unwrap();
    }

    /// Waits for the next completion.
    pub fn completion(&self, world: &mut World) -> Completion {
        let mut completion = None;
        world.run(|_| {
            completion = self.program.poll(&self.cq);
            completion.is_some()
        });
        completion.unwrap()
    }

    /// Waits for the next completion, which is a success.
    pub fn success(&self, world: &mut World) -> Completion {
        let completion = self.completion(world);
        assert_eq!(completion.status, 0, "{completion:?}");
        completion
    }

    /// All completions that are ready.
    pub fn completions(&self) -> Vec<Completion> {
        std::iter::from_fn(|| self.program.poll(&self.cq)).collect()
    }
}

/// Length of the global route header before a datagram.
pub const GRH: u64 = 40;

/// Bytes before a message in a receive.
pub fn header(qp_type: u8) -> u64 {
    if qp_type == UD { GRH } else { 0 }
}
