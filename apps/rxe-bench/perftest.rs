//! perftest's parameter exchange, from the side of the client with `-R`: all of it over the connection manager.
//!
//! A control connection comes first. On it the client sends messages, and the server answers each with one of the same
//! length. The messages do not name the test, so both ends must be started for it: the server is `ib_write_bw -R` for the
//! tests of WRITEs, `ib_read_bw -R` for those of READs, `ib_atomic_bw -R` for those of atomics, `ib_send_bw -R` for
//! `send-bw` and `ib_send_lat -R` for `send-lat`; or a server of all of these tests.

use std::net::IpAddr;

use rxe_proto::transport::Qpn;
use rxe_proto::wire::{Gid, PathMtu};

use crate::load::RemoteMemory;
use crate::plan::{Plan, Test, Verb};

/// The port of perftest's servers.
pub const PORT: u16 = 18_515;
/// Length of the longest message.
pub const LONGEST_MESSAGE: usize = RECORD;
/// Outstanding READs and atomics; perftest's default.
pub const READS: u8 = 128;
/// Length of a record.
const RECORD: usize = 56;
const VERSION: &[u8; 16] = b"6.06\0\0\0\0\0\0\0\0\0\0\0\0";
/// Sizes of a page and a cache line that both ends assume.
const PAGE: u32 = 4096;
const LINE: u32 = 64;
/// Fields of a report: size, number, highest and mean bandwidth, rate.
const REPORT: usize = 5;

/// The steps of the exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Version,
    Page,
    Line,
    Mtu,
    /// A record of zeros.
    Nothing,
    /// The record of this queue pair.
    Record(usize),
    /// A field of the report, which the server ignores.
    Report,
    Connect,
    Traffic,
}

/// Next action of the client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// Send this on the control connection, and wait for the answer.
    Say(Vec<u8>),
    /// Establish the connections of the test.
    Connect,
    /// Run the test.
    Traffic,
    /// Disconnect.
    End,
}

/// The exchange of one run.
#[derive(Debug)]
pub struct Exchange {
    steps: Vec<Step>,
    at: usize,
    reads: u8,
    mtu: PathMtu,
    gid: Gid,
    /// Minimum length of the peer's memory in bytes.
    len: u64,
    qps: Vec<Qpn>,
    memory: Vec<Option<RemoteMemory>>,
}

impl Exchange {
    /// The exchange for `plan`; the client's path MTU is `mtu`.
    pub fn new(plan: &Plan, mtu: PathMtu) -> Exchange {
        let all = || (0..plan.qps as usize).map(Step::Record);
        let one = || std::iter::once(Step::Record(0));
        let mut steps =
            vec![Step::Version, Step::Page, Step::Line, Step::Mtu, Step::Nothing, Step::Connect, Step::Nothing];
        let sends = plan.test.verb() == Some(Verb::Send);
        if plan.test == Test::SendLat {
            steps.extend(one().chain(one()).chain(one()));
        } else if sends {
            steps.extend(all().chain(one()).chain(all()));
        } else {
            steps.extend(all().chain(all()).chain(one()).chain([Step::Traffic]));
        }
        // SENDs: both ends synchronize before each size, and with several sizes of send-bw also after it.
        for _ in plan.sizes.iter().filter(|_| sends) {
            steps.extend(one().chain([Step::Traffic]));
            steps.extend(one().filter(|_| plan.sizes.len() > 1 && plan.test != Test::SendLat));
        }
        steps.extend(one());
        if !sends {
            steps.extend([Step::Report; REPORT]);
            steps.extend(one());
        }
        let size = plan.sizes.iter().copied().max().unwrap_or_default();
        Exchange {
            steps,
            at: 0,
            reads: if matches!(plan.test.verb(), Some(Verb::Read | Verb::Atomic)) { plan.reads } else { 1 },
            mtu,
            gid: IpAddr::into(plan.address.ip),
            // The length that a server allocates for this size.
            len: u64::from(size.max(PAGE)),
            qps: Vec::new(),
            memory: vec![None; plan.qps as usize],
        }
    }

    /// The connections are established, with these queue pairs.
    pub fn connected(&mut self, qps: Vec<Qpn>) {
        self.qps = qps;
        self.at += 1;
    }

    /// The test is complete.
    pub fn tested(&mut self) {
        self.at += 1;
    }

    /// The next action.
    pub fn next(&self) -> Next {
        let Some(step) = self.steps.get(self.at) else { return Next::End };
        Next::Say(match *step {
            Step::Connect => return Next::Connect,
            Step::Traffic => return Next::Traffic,
            Step::Version => VERSION.to_vec(),
            Step::Page => PAGE.to_be_bytes().to_vec(),
            Step::Line => LINE.to_be_bytes().to_vec(),
            Step::Mtu => vec![b'0' + self.mtu.code(), 0],
            Step::Nothing => vec![0; RECORD],
            Step::Record(index) => self.record(self.qps.get(index).copied().unwrap_or_default()),
            Step::Report => vec![0; 8],
        })
    }

    /// Handles the server's answer.
    ///
    /// # Errors
    /// Description of what is wrong with it.
    pub fn answered(&mut self, answer: &[u8]) -> Result<(), String> {
        let Next::Say(said) = self.next() else { return Err("it sends a message that is not an answer".to_owned()) };
        if said.len() != answer.len() {
            return Err(format!("it answers {} bytes with {}", said.len(), answer.len()));
        }
        if let Some(Step::Record(index)) = self.steps.get(self.at) {
            let word = |at: usize| answer.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes);
            let (rkey, high, low) = (word(16), word(24), word(28));
            if let (Some(rkey), Some(high), Some(low)) = (rkey, high, low)
                && let Some(memory) = self.memory.get_mut(*index)
            {
                let addr = u64::from(high) << 32 | u64::from(low);
                *memory = Some(RemoteMemory { addr, len: self.len, rkey });
            }
        }
        self.at += 1;
        Ok(())
    }

    /// The peer's memory for the queue pair at `index`.
    pub fn memory(&self, index: usize) -> Option<RemoteMemory> {
        // `send-lat` has one record only, and SENDs need no remote address.
        self.memory.get(index).copied().flatten().or_else(|| self.memory.first().copied().flatten())
    }

    /// The client's record for a queue pair. Key and address are 0: the server does not access the client's memory.
    fn record(&self, qpn: Qpn) -> Vec<u8> {
        let mut record = Vec::with_capacity(RECORD);
        for word in [0, u32::from(self.reads), qpn.get(), 0, 0, 0, 0, 0] {
            record.extend_from_slice(&u32::to_be_bytes(word));
        }
        record.extend_from_slice(&self.gid.0);
        record.resize(RECORD, 0);
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::plan;

    /// The lengths of all messages; 0 for other steps.
    fn exchange(test: Test, qps: u32) -> Vec<usize> {
        let mut exchange = Exchange::new(&Plan { test, qps, ..plan() }, PathMtu::Mtu4096);
        lengths_of(&mut exchange, qps)
    }

    fn lengths_of(exchange: &mut Exchange, qps: u32) -> Vec<usize> {
        let mut lengths = Vec::new();
        loop {
            match exchange.next() {
                Next::Say(said) => {
                    lengths.push(said.len());
                    exchange.answered(&said).expect("an echo");
                }
                Next::Connect => {
                    lengths.push(0);
                    exchange.connected((0..qps).map(|n| Qpn::new(n + 2)).collect());
                }
                Next::Traffic => {
                    lengths.push(0);
                    exchange.tested();
                }
                Next::End => return lengths,
            }
        }
    }

    #[test]
    fn each_test_exchanges_as_many_records_as_perftest() {
        let count = |test, qps| exchange(test, qps).split(|length| *length == 0).map(<[_]>::len).collect::<Vec<_>>();
        assert_eq!(exchange(Test::WriteBw, 1)[..6], [16, 4, 4, 2, 56, 0]);
        // Before the connections; before the traffic, with one of zeros; after it.
        assert_eq!(count(Test::WriteBw, 1), [5, 1 + 3, 1 + 5 + 1]);
        assert_eq!(count(Test::ReadLat, 4), [5, 1 + 9, 7]);
        assert_eq!(count(Test::SendBw, 4), [5, 1 + 4 + 1 + 4 + 1, 1]);
        assert_eq!(count(Test::SendLat, 1), [5, 1 + 4, 1]);
        let two = Plan { test: Test::SendBw, sizes: vec![2, 4], ..plan() };
        let lengths = lengths_of(&mut Exchange::new(&two, PathMtu::Mtu4096), 1);
        let count: Vec<usize> = lengths.split(|length| *length == 0).map(<[_]>::len).collect();
        assert_eq!(count, [5, 1 + 4, 2, 2]);
    }

    #[test]
    fn records_carry_queue_pair_numbers_and_memory() {
        let mut exchange = Exchange::new(&Plan { test: Test::ReadBw, reads: 128, ..plan() }, PathMtu::Mtu1024);
        for _ in 0..4 {
            let Next::Say(said) = exchange.next() else { panic!("silent") };
            exchange.answered(&said).expect("an echo");
        }
        let Next::Say(zeros) = exchange.next() else { panic!("silent") };
        assert_eq!(zeros, [0; 56]);
        assert!(exchange.answered(&[0; 8]).is_err());
        exchange.answered(&zeros).expect("an echo");
        exchange.connected(vec![Qpn::new(0x123)]);
        exchange.answered(&zeros).expect("an echo");
        let Next::Say(record) = exchange.next() else { panic!("silent") };
        assert_eq!((record[7], &record[8..12]), (128, &[0, 0, 1, 0x23][..]));
        assert_eq!(record[32..48], Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 2)).0);
        let mut answer = [0; 56];
        answer[16..20].copy_from_slice(&7u32.to_be_bytes());
        answer[24..32].copy_from_slice(&0x7F00_1234_5678u64.to_be_bytes());
        exchange.answered(&answer).expect("a record");
        assert_eq!(exchange.memory(0), Some(RemoteMemory { addr: 0x7F00_1234_5678, len: 4096, rkey: 7 }));
    }
}
