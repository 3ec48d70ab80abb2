//! Two reliable connected queue pairs send each other a message in turns. Run it with
//! `cargo run -p rxe-proto --example ping_pong`.

pub mod common;

use common::{Failure, Link};
use rxe_proto::verbs::{
    Access, CompletionQueue, Memory, MemoryRegion, QpInitAttr, QueuePair, Rc, RecvWr, RtrAttr, RtsAttr, WcOpcode,
    WorkRequest,
};
use rxe_proto::wire::{PathMtu, Psn};

/// Length of a message: three packets and a bit.
const LEN: usize = 3100;

/// One player: the first half of its region is sent from, the second half received into.
struct Player {
    end: usize,
    cq: CompletionQueue,
    qp: QueuePair<Rc>,
    mr: MemoryRegion,
}

impl Player {
    fn new(link: &mut Link, end: usize) -> Result<Player, Failure> {
        let mut dev = link.device(end);
        let pd = dev.alloc_pd();
        let cq = dev.create_cq(8)?;
        let qp = dev.create_qp(pd, QpInitAttr::new(cq))?;
        let mr = dev.reg_mr(pd, Memory::heap(2 * LEN), Access::LOCAL_WRITE)?;
        Ok(Player { end, cq, qp, mr })
    }

    /// Each player needs the other's path, number and first PSN.
    fn connect(&self, link: &mut Link, peer: &Player) -> Result<(), Failure> {
        let rtr = RtrAttr {
            path: Link::path(self.end),
            path_mtu: PathMtu::Mtu1024,
            dest_qpn: peer.qp.qpn(),
            rq_psn: first_psn(peer.end),
            ..RtrAttr::default()
        };
        let rts = RtsAttr { sq_psn: first_psn(self.end), ..RtsAttr::default() };
        Ok(self.qp.connect(&mut link.device(self.end), Access::empty(), rtr, rts)?)
    }

    fn expect(&self, link: &mut Link, round: u64) -> Result<(), Failure> {
        let wr = RecvWr { wr_id: round, sges: &[self.mr.sge(LEN..)?] };
        Ok(link.device(self.end).post_recv(self.qp, wr)?)
    }

    fn send(&self, link: &mut Link, round: u64) -> Result<(), Failure> {
        self.mr.memory().write(0, &message(self.end, round))?;
        let buffer = [self.mr.sge(..LEN)?];
        let wr = WorkRequest::send(&buffer).wr_id(round).signaled();
        Ok(link.device(self.end).post_send(self.qp, wr)?)
    }

    /// Waits for the peer's message and checks it. The completion of our own last SEND may come before.
    fn receive(&self, link: &mut Link, round: u64) -> Result<(), Failure> {
        let wc = loop {
            let wc = link.completion(self.end, self.cq)?;
            if wc.opcode == WcOpcode::Recv {
                break wc;
            }
        };
        let mut bytes = vec![0; wc.byte_len as usize];
        self.mr.memory().read(LEN, &mut bytes)?;
        if (wc.wr_id, &bytes) != (round, &message(1 - self.end, round)) {
            return Err(format!("end {}: not the message of round {round}", self.end).into());
        }
        Ok(())
    }
}

fn first_psn(end: usize) -> Psn {
    Psn::new(0xFF_FFF0 + end as u32)
}

/// The message of `end` in a round.
fn message(end: usize, round: u64) -> Vec<u8> {
    (0..LEN as u64).map(|i| (i ^ round << 1 ^ end as u64) as u8).collect()
}

/// Plays `rounds` rounds.
pub fn run(link: &mut Link, rounds: u64) -> Result<(), Failure> {
    let (one, two) = (Player::new(link, 0)?, Player::new(link, 1)?);
    one.connect(link, &two)?;
    two.connect(link, &one)?;
    for round in 1..=rounds {
        one.expect(link, round)?;
        two.expect(link, round)?;
        one.send(link, round)?;
        two.receive(link, round)?;
        two.send(link, round)?;
        one.receive(link, round)?;
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let (mut link, rounds) = (Link::new(None), 1000);
    run(&mut link, rounds)?;
    println!("{rounds} rounds of {LEN} bytes each way, all as sent: {} frames", link.frames());
    Ok(())
}
