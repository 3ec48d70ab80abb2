//! `rxe-ctl events`: what a running target reports as it happens.

use std::process::Command;

use rxe_dpdk::rxe_proto::transport::WcStatus;
use rxe_dpdk::rxe_proto::wire::PathMtu;
use rxe_inspect::protocol::Request;
use rxe_testkit::child::ip;
use rxe_testkit::process::{Program, Streams};
use serde_json::Value;

use crate::alone::alone;
use crate::initiator::Initiator;
use crate::operate::{ctl, refused, rxe_ctl, wait_for_qp};
use crate::output::with_pair;
use crate::veth::{PATIENCE, VethTarget, eventually, is_reached};

/// A client of the events of a target, which receives them already.
struct Reader(Program);

impl Reader {
    fn start(prefix: &str, options: &[&str]) -> Reader {
        let mut command = rxe_ctl();
        command.args(["--file-prefix", prefix, "events"]).args(options);
        let program = Program::start(&mut command).unwrap();
        let begun = format!("rxe-ctl: events of rxe_{prefix}; Ctrl-C ends");
        eventually(&begun, || program.stderr().contains(&begun));
        Reader(program)
    }

    /// The events so far, of a reader with `--json`.
    fn events(&self) -> Vec<Value> {
        self.0.stdout().iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits for the events of these types, and returns them; there are no others. Where links are not expected, they do not
    /// count: a watcher may see late that a link has come up.
    #[track_caller]
    fn types(&self, types: &[&str]) -> Vec<Value> {
        let counts = |event: &Value| types.contains(&"link") || event["type"] != "link";
        let events = || self.events().into_iter().filter(counts).collect::<Vec<_>>();
        eventually(&format!("{types:?}, got {:?}", self.events()), || events().len() >= types.len());
        let events = events();
        let found: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
        assert_eq!(found, types, "{events:?}");
        events
    }

    /// Exit code and standard error after the end.
    fn end(mut self) -> (i32, String) {
        let done = self.0.finish(PATIENCE).unwrap();
        (done.code, done.stderr)
    }
}

#[test]
fn events_of_connections_addresses_faults_and_captures_are_streamed() {
    let name = "events::events_of_connections_addresses_faults_and_captures_are_streamed";
    alone(name, "", &[], |initiator: &mut Initiator, target| {
        let json = Reader::start(&target.prefix, &["--json"]);
        let text = Reader::start(&target.prefix, &[]);
        let first = Reader::start(&target.prefix, &["--json", "--count", "1"]);

        let connection = initiator.connect(4792, "demo", PathMtu::Mtu4096);
        let (local, peer_qpn) = (wait_for_qp(&target), connection.qpn());
        assert_eq!(first.end().0, 0, "after one event");
        connection.disconnect(initiator);
        let events = json.types(&["connected", "disconnected"]);
        for event in &events {
            assert_eq!((&event["lqpn"], &event["rqpn"]), (&local.into(), &peer_qpn.into()), "{event}");
            assert_eq!((&event["service"], &event["peer"]), (&"region".into(), &"10.77.0.2:40000".into()), "{event}");
        }
        assert_eq!(events[1]["reason"], "the peer disconnected");
        assert!(events[0]["time"].as_str() < events[1]["time"].as_str(), "{events:?}");
        let lines = || text.0.stdout();
        eventually("two lines", || lines().len() == 2);
        let connected = format!("Z connected lqpn {local:#x} service region peer 10.77.0.2:40000 rqpn {peer_qpn:#x}");
        assert!(lines()[0].ends_with(&connected), "{:?}", lines());
        assert!(lines()[1].ends_with(": the peer disconnected"), "{:?}", lines());
        text.0.signal("INT").unwrap();
        assert_eq!(text.end().0, 0, "Ctrl-C is its end");

        let all = [
            "connected",
            "disconnected",
            "connected",
            "qp-error",
            "disconnected",
            "connected",
            "disconnected",
            "address-added",
            "address-removed",
            "fault-added",
            "fault-removed",
            "capture-started",
            "capture-stopped",
        ];
        // The client's own queue pair is the cause.
        let mut connection = initiator.connect(4792, "demo", PathMtu::Mtu4096);
        json.types(&all[..3]);
        assert_eq!(connection.refused_write(initiator, 4 << 20, b"beyond"), WcStatus::RemAccessErr);
        connection.await_disconnect(initiator);
        // The operator is the cause.
        let connection = initiator.connect(4792, "demo", PathMtu::Mtu4096);
        json.types(&all[..6]);
        ctl(&target, &format!("disconnect {}", wait_for_qp(&target)));
        connection.await_disconnect(initiator);
        // Events of workers and those of management come from different threads: wait for those before.
        json.types(&all[..7]);
        ctl(&target, "address add 10.77.0.5/24");
        ctl(&target, "address remove 10.77.0.5");
        ctl(&target, "fault add drop --opcode SEND --count 1");
        ctl(&target, "fault remove 1");
        let file = std::env::temp_dir().join(format!("rxe-events-{}.pcapng", std::process::id()));
        ctl(&target, &format!("capture start {}", file.display()));
        ctl(&target, "capture stop");
        std::fs::remove_file(&file).unwrap();
        let events = json.types(&all);
        assert_eq!((&events[3]["cause"], &events[3]["lqpn"]), (&"remote_key".into(), &events[2]["lqpn"]));
        assert_eq!(events[4]["reason"], "its queue pair is in error (remote_key)");
        assert_eq!(events[6]["reason"], "we disconnected");
        for event in &events[7..9] {
            assert_eq!((&event["port"], &event["address"]), (&0.into(), &"10.77.0.5/24".into()), "{event}");
        }
        for event in &events[9..11] {
            assert_eq!((&event["id"], &event["rule"]), (&1.into(), &"rx drop opcode=SEND count=1".into()));
        }
        for event in &events[11..] {
            assert_eq!(event["file"], file.to_str().unwrap());
        }
        assert_eq!(events[12]["reason"], "it was stopped");
        refused(rxe_ctl().args(["events", "--count", "0"]), "0 is not in 1..");

        let prefix = target.prefix.clone();
        target.stop();
        let (code, stderr) = json.end();
        assert_eq!(code, 1, "{stderr}");
        assert_eq!(stderr.lines().last(), Some(&*format!("rxe-ctl: the target {prefix} has ended")));
    });
}

#[test]
fn events_of_links_and_of_address_conflicts_are_streamed() {
    with_pair(|| {
        let mut target = VethTarget::start("ev", Streams::default(), &[]);
        target.prints("ready ");
        eventually("a connection", is_reached);
        let reader = Reader::start(&target.prefix, &["--json"]);
        ip("link set rxa down");
        let down = reader.types(&["link"]).remove(0);
        let why = "interface rxa is down";
        assert_eq!((&down["port"], &down["up"], &down["reason"]), (&0.into(), &false.into(), &why.into()));
        ip("link set rxa up");
        assert_eq!(reader.types(&["link", "link"])[1]["up"], true);
        eventually("announcements", || target.counter("host", "announcements_sent") >= 3);
        ip("addr add 10.77.0.1/24 dev rxb");
        let mut claims = Command::new("busybox");
        claims.args(["arping", "-U", "-q", "-b", "-c", "1", "-I", "rxb", "-s", "10.77.0.1", "10.77.0.1"]);
        claims.status().unwrap();
        let conflict = reader.types(&["link", "link", "address-conflict"]).remove(2);
        assert_eq!((&conflict["port"], &conflict["address"]), (&0.into(), &"10.77.0.1".into()));
        assert_eq!(conflict["mac"], target.port().conflicts[0].mac.as_str());
        assert_eq!(target.terminate().code(), Some(0));
    });
}

#[test]
fn a_client_that_does_not_read_loses_events_and_learns_how_many() {
    with_pair(|| {
        let mut target = VethTarget::start("es", Streams::default(), &[]);
        target.prints("ready ");
        let reader = Reader::start(&target.prefix, &["--json"]);
        reader.0.signal("STOP").unwrap();
        let mut client = target.client();
        let rule = [("action".to_owned(), "drop".to_owned()), ("opcode".to_owned(), "SEND".to_owned())];
        let mut made = 0;
        // First the socket fills up, then the queue.
        while target.counter("management", "events_lost") == 0 {
            for _ in 0..10 {
                client.ask::<u32>(&Request::AddFault { rule: rule.clone().into() }).unwrap();
            }
            client.tell(&Request::ClearFaults).unwrap();
            made += 20;
        }
        eventually("a connection", is_reached);
        reader.0.signal("CONT").unwrap();
        let count = |events: &[Value]| -> u64 {
            events.iter().map(|event| if event["type"] == "lost" { event["events"].as_u64().unwrap() } else { 1 }).sum()
        };
        eventually("every event, or that it was lost", || count(&reader.events()) >= made);
        let events = reader.events();
        assert_eq!(count(&events), made);
        let lost: Vec<&Value> = events.iter().filter(|event| event["type"] == "lost").collect();
        assert!(!lost.is_empty());
        assert_eq!(
            target.counter("management", "events_lost"),
            lost.iter().map(|event| event["events"].as_u64().unwrap()).sum::<u64>()
        );
        assert_eq!(target.counter("management", "events_sent"), (events.len() - lost.len()) as u64);
        // Then it gets all again.
        client.ask::<u32>(&Request::AddFault { rule: rule.into() }).unwrap();
        eventually("the next event", || reader.events().last().is_some_and(|event| event["type"] == "fault-added"));
        assert_eq!(target.terminate().code(), Some(0));
    });
}

#[test]
fn clients_of_events_beyond_the_limit_are_refused_until_one_has_ended() {
    with_pair(|| {
        let mut target = VethTarget::start("el", Streams::default(), &[]);
        target.prints("ready ");
        let mut all: Vec<_> = (0..8).map(|_| target.client().events().unwrap()).collect();
        let ninth = || target.client().events().map(drop).map_err(|error| error.to_string());
        let refusal = "8 clients receive events, which is the most: end one of them".to_owned();
        assert_eq!(ninth(), Err(refusal));
        assert_eq!(target.counter("management", "events_refused"), 1);
        all.pop();
        eventually("room", || ninth().is_ok());
        assert_eq!(target.terminate().code(), Some(0));
    });
}
