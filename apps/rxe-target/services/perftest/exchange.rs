//! The parameter exchange with a client, on its stream or its control connection: answers versions, path MTUs, records and
//! reports, and creates a queue pair for each one that a record names.

use rxe_proto::verbs::{Qpn, RemoteAddr};
use rxe_service::{Context, PeerPath, Standing};

use super::Perftest;
use super::client::{Channel, Client};
use super::connections::DATAGRAM;
use super::record::Record;
use super::refusals;
use super::report::Meter;
use super::talk::{REPORT_FIELDS, Said};
use super::test_qp::{RD_ATOMIC, Sink, TestQp};
use crate::services::out_of_band::{Peer, no_way};

impl Perftest {
    /// Handles the next bytes of the client.
    pub(super) fn hear(&mut self, cx: &mut Context<'_>, number: u64, data: &[u8]) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        client.heard = cx.now();
        let fed = client.talk.feed(data);
        let fed = fed.map_err(|nonsense| nonsense.to_string());
        if let Err(nonsense) = fed {
            self.nonsense(cx, number, &nonsense);
            return;
        }
        self.proceed(cx, number);
    }

    /// Answers the client's messages, until none is left or one has to wait for a path.
    fn proceed(&mut self, cx: &mut Context<'_>, number: u64) {
        loop {
            let Some(client) = self.clients.get_mut(&number) else { return };
            if client.waiting.is_some() {
                return;
            }
            match client.talk.next() {
                Ok(None) => return,
                Ok(Some(Said::Echo(bytes))) => client.say(cx, bytes.bytes()),
                Ok(Some(Said::Mtu(mtu))) => {
                    let digit = b'0' + client.path_mtu.code();
                    client.path_mtu = client.path_mtu.min(mtu);
                    client.say(cx, &[digit, 0]);
                }
                Ok(Some(Said::Record(record))) => self.record(cx, number, record),
                Ok(Some(Said::Report { field, value })) => self.report(cx, number, field, value),
                Ok(Some(Said::Done)) => self.done(cx, number),
                Err(nonsense) => self.nonsense(cx, number, &nonsense.to_string()),
            }
        }
    }

    /// Answers a record with that of our queue pair for the client's. Creates ours for a new one.
    fn record(&mut self, cx: &mut Context<'_>, number: u64, record: Record) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        if let Channel::Control(..) = client.channel {
            if record.qpn.get() == 0 {
                // Before and after the client makes its connections.
                client.connects = true;
                client.say_record(cx, &Record::default());
                return;
            }
            if client.connects {
                // For datagram queue pairs the client needs no record: it has their numbers from the SIDR replies.
                let ours = self.rendezvous.record(client.from.ip(), record, cx.now());
                client.say_record(cx, &ours.unwrap_or_default());
                return;
            }
        }
        if let Some(test) = client.qps.get(&record.qpn).and_then(|qp| self.tests.get(qp)) {
            client.records += 1;
            // ib_write_lat has one; tests of SENDs, whose records are as many, may have more.
            let silent = client.records == records_before_silence(client.qps.len()) && client.out_reads == 1;
            if let Some(sink) = &client.sink {
                client.say_record(cx, &answer(client, sink, test));
            }
            if silent {
                cx.set_timer(self.config.write_lat_after, self.tag | number);
            }
            return;
        }
        let known = client.path.as_ref().filter(|(gid, _)| *gid == record.gid).map(|(_, path)| path.clone());
        let Some(path) = known else {
            client.waiting = Some(record);
            cx.resolve_path_of(client.from.ip(), record.gid.ip(), self.tag | number);
            return;
        };
        match self.open(cx, number, record, path) {
            Ok(()) => self.record(cx, number, record),
            Err(why) => self.refuse(cx, number, &why),
        }
    }

    /// Handles the result of a path request that had our tag, which the caller has removed.
    pub fn path_resolved(&mut self, cx: &mut Context<'_>, number: u64, path: Option<&PeerPath>) {
        if number & DATAGRAM != 0 {
            // The low 24 bits are the queue pair.
            self.datagram_path(cx, Qpn::new(number as u32), path);
            return;
        }
        let Some(client) = self.clients.get_mut(&number) else { return };
        let Some(record) = client.waiting.take() else { return };
        let Some(path) = path else {
            let why = no_way(client.from.ip(), record.gid.ip());
            self.refuse(cx, number, &why);
            return;
        };
        client.path = Some((record.gid, path.clone()));
        self.record(cx, number, record);
        self.proceed(cx, number);
    }

    /// Creates a queue pair for the client's.
    fn open(&mut self, cx: &mut Context<'_>, number: u64, record: Record, path: PeerPath) -> Result<(), String> {
        let Some(from) = self.clients.get(&number).map(|client| client.from.ip()) else { return Ok(()) };
        let of_address = self.clients.values().filter(|client| client.from.ip() == from);
        check_queue_pairs(of_address.map(|client| client.qps.len()), self.config.queue_pairs)?;
        let Some(client) = self.clients.get_mut(&number) else { return Ok(()) };
        if record.qpn.get() < 2 {
            return Err("it names no queue pair".to_owned());
        }
        let sink = match &mut client.sink {
            Some(sink) => sink,
            none => {
                let pd = self.pds.pop().unwrap_or_else(|| cx.device().alloc_pd());
                let made =
                    Sink::take(cx, &self.account, pd, (client.from.ip(), Standing::Proven), self.config.max_message);
                none.insert(made.inspect_err(|_| self.pds.push(pd))?)
            }
        };
        // A client without READs and atomics sends 1.
        client.out_reads = record.out_reads.clamp(1, RD_ATOMIC);
        let peer = Peer {
            path,
            qpn: record.qpn,
            psn: record.psn,
            path_mtu: client.path_mtu,
            // At most 128.
            rd_atomic: client.out_reads as u8,
            remote: RemoteAddr { addr: record.vaddr, rkey: record.rkey },
        };
        let test = TestQp::open(cx, &self.account, (number, from), sink, peer, client.qps.len())?;
        let qpn = test.answers.qp.qpn();
        client.qps.insert(record.qpn, qpn);
        self.tests.insert(qpn, test);
        Ok(())
    }

    /// Ends a client whose test is over.
    fn done(&mut self, cx: &mut Context<'_>, number: u64) {
        match self.clients.get(&number).filter(|client| client.writer.is_none() && self.is_untouched(cx, client)) {
            Some(_) => self.turn_away(cx, number, &refusals::reversed()),
            None => self.end(cx, number, "its test is over"),
        }
    }

    fn report(&mut self, cx: &mut Context<'_>, number: u64, field: u8, value: [u8; 8]) {
        if field == 0 && self.clients.get(&number).is_some_and(|client| self.is_untouched(cx, client)) {
            // Our figures would show a bandwidth of zero.
            self.turn_away(cx, number, &refusals::reversed());
            return;
        }
        let Some(client) = self.clients.get(&number) else { return };
        let mut sum = Meter::default();
        for qp in client.qps.values() {
            if let Some(test) = self.tests.get_mut(qp) {
                sum = sum.plus(&test.answers.meter);
                if field + 1 == REPORT_FIELDS {
                    test.answers.meter = Meter::default();
                }
            }
        }
        client.say(cx, &sum.answer(field, value));
    }
}

/// Number of records before the traffic of a client with `queue_pairs` of them that is silent then.
fn records_before_silence(queue_pairs: usize) -> u32 {
    2 * queue_pairs as u32 + 2
}

/// Checks that an address may have one more queue pair beside those of its `clients`.
fn check_queue_pairs(clients: impl Iterator<Item = usize>, limit: usize) -> Result<(), String> {
    if clients.sum::<usize>() < limit { Ok(()) } else { Err(refusals::too_many_queue_pairs(limit)) }
}

/// Our record of the queue pair of `test`.
fn answer(client: &Client, sink: &Sink, test: &TestQp) -> Record {
    Record {
        out_reads: client.out_reads,
        qpn: test.answers.qp.qpn(),
        psn: test.psn,
        rkey: sink.region.rkey(),
        vaddr: sink.region.addr(),
        gid: test.peer.path.path.src,
    }
}

#[cfg(test)]
mod tests {
    use super::super::client::RECORDS_OF_WRITE_LAT;
    use super::*;

    #[test]
    fn the_queue_pairs_of_an_address_are_limited() {
        assert_eq!(check_queue_pairs([600, 423].into_iter(), 1024), Ok(()));
        let why = "its address has 1024 queue pairs of tests on this lcore: raise queue-pairs of [service.perftest]";
        assert_eq!(check_queue_pairs([600, 424].into_iter(), 1024), Err(why.to_owned()));
    }

    #[test]
    fn silence_begins_after_two_rounds_of_records_and_two() {
        assert_eq!(records_before_silence(1), RECORDS_OF_WRITE_LAT);
        // ib_send_bw -q 4: a round, a record, a round, a record.
        assert_eq!(records_before_silence(4), 10);
    }
}
