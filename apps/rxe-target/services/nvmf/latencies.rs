//! How long commands take, by namespace.

use std::sync::Arc;

use rxe_adapter::latency::histogram;
use rxe_inspect::latency::NamespaceTimes;
use rxe_nvmf::wire::Nqn;
use rxe_sync::Histogram;

use super::work::Work;

/// The kinds of commands that are told apart.
#[derive(Clone, Copy)]
enum Kind {
    Read,
    Write,
    Flush,
    Other,
}

/// Their names, in the same order.
const KINDS: [&str; 4] = ["read", "write", "flush", "other"];

/// The times of the commands of one namespace on one worker, the only writer.
#[derive(Default, Debug)]
pub struct CommandTimes([Histogram; KINDS.len()]);

impl CommandTimes {
    /// Counts a command.
    pub fn record(&self, work: &Work, nanos: u64) {
        let kind = match work {
            Work::Read { .. } => Kind::Read,
            Work::Write { .. } => Kind::Write,
            Work::Flush { .. } => Kind::Flush,
            _ => Kind::Other,
        };
        self.0[kind as usize].record(nanos);
    }

    /// Counts a read that is answered within the turn of its arrival, whose time is 0 by the worker's clock.
    #[inline]
    pub fn record_direct_read(&self) {
        self.0[Kind::Read as usize].record(0);
    }
}

/// The times of all workers, as reports in the order of `all`: one per namespace and kind.
pub fn report(all: &[(Nqn, u32, Arc<CommandTimes>)]) -> Vec<NamespaceTimes> {
    let mut reports: Vec<NamespaceTimes> = Vec::new();
    for (subsystem, nsid, counted) in all {
        for (command, counted) in KINDS.into_iter().zip(&counted.0) {
            let times = histogram(counted);
            let same = |of: &&mut NamespaceTimes| {
                of.subsystem == subsystem.as_str() && of.nsid == *nsid && of.command == command
            };
            match reports.iter_mut().find(same) {
                Some(report) => report.times.add(&times),
                None => reports.push(NamespaceTimes {
                    subsystem: subsystem.to_string(),
                    nsid: *nsid,
                    command: command.to_owned(),
                    times,
                }),
            }
        }
    }
    reports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_summed_and_kinds_and_namespaces_are_not() {
        let disk: Nqn = "nqn.2026-01.test:disk".parse().unwrap();
        let all = [1, 1, 2].map(|nsid| (disk.clone(), nsid, Arc::<CommandTimes>::default()));
        let read = |nanos| move |times: &CommandTimes| times.record(&read_of(), nanos);
        read(300)(&all[0].2);
        read(500)(&all[1].2);
        all[2].2.record(&Work::Flush { namespaces: Vec::new() }, 7);
        all[2].2.record(&Work::Deallocate { ranges: Vec::new() }, 9);
        let counted: Vec<(u32, String, u64, u64)> = report(&all)
            .into_iter()
            .filter(|of| of.times.count > 0)
            .map(|of| (of.nsid, of.command, of.times.count, of.times.sum_ns))
            .collect();
        let expected = [(1, "read", 2, 800), (2, "flush", 1, 7), (2, "other", 1, 9)];
        assert_eq!(counted, expected.map(|(nsid, command, count, sum)| (nsid, command.to_owned(), count, sum)));
        assert_eq!(report(&all).len(), 2 * KINDS.len());
    }

    fn read_of() -> Work {
        let to = rxe_nvmf::wire::HostBuffer { addr: 0, len: 512, rkey: 1, invalidate: false };
        Work::Read { offset: 0, len: 512, to, done: true }
    }
}
