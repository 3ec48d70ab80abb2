//! The parameter exchange with a client, on its stream or its control connection: answers versions, path MTUs, records and
//! reports, and creates a queue pair for each one that a record names.

use rxe_dpdk::service::{Context, PeerPath};
use rxe_proto::verbs::{Qpn, RemoteAddr};

use super::Perftest;
use super::client::{Channel, Client, RECORDS_OF_WRITE_LAT};
use super::connections::DATAGRAM;
use super::record::Record;
use super::report::Meter;
use super::talk::{REPORT_FIELDS, Said};
use super::test_qp::{RD_ATOMIC, Sink, TestQp};
use crate::services::out_of_band::{Peer, no_way};

/// Maximum number of queue pairs of one client: more than `-q` has on any guest, and few enough to serve many clients.
const MAX_QPS: usize = 256;

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
                Ok(Some(Said::Done)) => self.end(cx, number, "its test is over"),
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
            let silent = client.records == RECORDS_OF_WRITE_LAT && client.qps.len() == 1 && client.out_reads == 1;
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
        let Some(client) = self.clients.get_mut(&number) else { return Ok(()) };
        if client.qps.len() >= MAX_QPS {
            return Err(format!("it wants more than {MAX_QPS} queue pairs"));
        }
        if record.qpn.get() < 2 {
            return Err("it names no queue pair".to_owned());
        }
        let sink = match &mut client.sink {
            Some(sink) => sink,
            none => {
                let pd = self.pds.pop().unwrap_or_else(|| cx.device().alloc_pd());
                let made = Sink::take(cx, &mut self.sinks, pd, client.from.ip(), self.config.max_message);
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
        let test = TestQp::open(cx, number, sink, peer)?;
        let qpn = test.answers.qp.qpn();
        client.qps.insert(record.qpn, qpn);
        self.tests.insert(qpn, test);
        Ok(())
    }

    fn report(&mut self, cx: &mut Context<'_>, number: u64, field: u8, value: [u8; 8]) {
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
