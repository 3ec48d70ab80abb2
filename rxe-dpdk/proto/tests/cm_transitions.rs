//! The state machine as a table: every state, every thing that can happen in it, and what comes of it.

mod cm_support;

use std::fmt::Write;

use cm_support::{CLIENT_GUID, SERVER_QPN, Target, accept_params, drep, dreq, mra, ms, rej, req, rtu};
use rxe_proto::cm::{CmEvent, ConnId};
use rxe_proto::wire::Psn;
use rxe_proto::wire::cm::{Answered, CmMessage, Lap, RejReason, Rep, Req};

const CLIENT: u32 = 0x1111;

type Happening = (&'static str, fn(&mut Target, ConnId) -> String);

fn fed(target: &mut Target, message: &CmMessage) -> String {
    match target.feed(message) {
        Ok(()) => String::new(),
        Err(reason) => format!("dropped: {reason}"),
    }
}

fn done<E: std::fmt::Debug>(result: Result<(), E>) -> String {
    match result {
        Ok(()) => String::new(),
        Err(error) => format!("refused: {error:?}"),
    }
}

/// A target with one connection in the named state, nothing unread.
fn in_state(state: &str) -> (Target, ConnId) {
    let mut target = Target::default();
    let conn = match state {
        "ReqReceived" => {
            target.feed(&CmMessage::Req(req(CLIENT))).unwrap();
            target.request().conn
        }
        "RepSent" => target.rep_sent(req(CLIENT)),
        "Established" => target.established(req(CLIENT)),
        "DreqSent" => {
            let conn = target.established(req(CLIENT));
            target.cm.disconnect(target.now, conn).unwrap();
            conn
        }
        "Timewait" => {
            let conn = target.established(req(CLIENT));
            target.feed(&dreq(CLIENT, conn.comm_id(), SERVER_QPN)).unwrap();
            conn
        }
        _ => {
            let conn = target.established(req(CLIENT));
            target.feed(&dreq(CLIENT, conn.comm_id(), SERVER_QPN)).unwrap();
            target.advance(ms(5000));
            assert!(target.cm.is_empty());
            conn
        }
    };
    let _read = (target.events(), target.sent());
    (target, conn)
}

fn happenings() -> Vec<Happening> {
    vec![
        ("REQ again", |target, _| fed(target, &CmMessage::Req(req(CLIENT)))),
        ("REQ, same QPN", |target, _| fed(target, &CmMessage::Req(req(CLIENT + 1)))),
        ("REQ, same id", |target, _| {
            fed(target, &CmMessage::Req(Req { local_qpn: 0x99, starting_psn: Psn::new(5), ..req(CLIENT) }))
        }),
        ("REQ, no relation", |target, _| fed(target, &CmMessage::Req(Req { local_qpn: 0x99, ..req(CLIENT + 1) }))),
        ("MRA of REP", |target, conn| fed(target, &mra(CLIENT, conn.comm_id(), Answered::Rep, 20))),
        ("MRA of REQ", |target, conn| fed(target, &mra(CLIENT, conn.comm_id(), Answered::Req, 20))),
        ("REJ of REP", |target, conn| {
            fed(target, &rej(CLIENT, conn.comm_id(), Answered::Rep, RejReason::ConsumerDefined, &[]))
        }),
        ("REJ timeout by GUID", |target, _| {
            fed(target, &rej(CLIENT, 0, Answered::Other, RejReason::Timeout, &CLIENT_GUID.to_be_bytes()))
        }),
        ("REP", |target, conn| {
            let ids = (CLIENT, conn.comm_id());
            let rep = Rep { local_comm_id: ids.0, remote_comm_id: ids.1, ..Rep::default() };
            fed(target, &CmMessage::Rep(rep))
        }),
        ("RTU", |target, conn| fed(target, &rtu(CLIENT, conn.comm_id()))),
        ("DREQ", |target, conn| fed(target, &dreq(CLIENT, conn.comm_id(), SERVER_QPN))),
        ("DREQ, wrong QPN", |target, conn| fed(target, &dreq(CLIENT, conn.comm_id(), SERVER_QPN + 1))),
        ("DREQ, wrong id", |target, conn| fed(target, &dreq(CLIENT + 1, conn.comm_id(), SERVER_QPN))),
        ("DREP", |target, conn| fed(target, &drep(CLIENT, conn.comm_id()))),
        ("LAP", |target, _| fed(target, &CmMessage::Lap(Lap::default()))),
        ("accept", |target, conn| done(target.cm.accept(target.now, conn, accept_params()))),
        ("reject", |target, conn| done(target.cm.reject(target.now, conn, RejReason::InvalidServiceId, &[], &[]))),
        ("established", |target, conn| done(target.cm.established(target.now, conn))),
        ("disconnect", |target, conn| done(target.cm.disconnect(target.now, conn))),
        ("timer", |target, _| match target.cm.next_timeout() {
            Some(at) => {
                let wait = at.saturating_since(target.now);
                target.now = at;
                target.cm.handle_timeout(at);
                format!("after {} ms", wait.as_millis())
            }
            None => "none runs".into(),
        }),
        ("all resends", |target, _| {
            if target.cm.next_timeout().is_none() {
                return "none runs".into();
            }
            // Up to the last one; what comes after is what counts.
            target.advance(ms(4295 * 15));
            let count = target.sent().len();
            target.advance(ms(4295));
            format!("after {count}")
        }),
    ]
}

#[test]
fn table() {
    let states = ["ReqReceived", "RepSent", "Established", "DreqSent", "Timewait", "gone"];
    let mut text = String::new();
    for state in states {
        writeln!(text, "{state}").unwrap();
        for (name, happen) in happenings() {
            let (mut target, conn) = in_state(state);
            let mut effects = vec![happen(&mut target, conn)];
            for event in target.events() {
                effects.push(match event {
                    CmEvent::ConnectRequest(_) => "event ConnectRequest".into(),
                    CmEvent::Established { .. } => "event Established".into(),
                    CmEvent::Disconnected { conn: which, reason } => {
                        assert_eq!(which, conn);
                        format!("event Disconnected({reason:?})")
                    }
                    CmEvent::ConnectFailed { conn: which, reason } => {
                        assert_eq!(which, conn);
                        format!("event ConnectFailed({reason:?})")
                    }
                    CmEvent::SidrRequest(_) => panic!(),
                });
            }
            for message in target.sent() {
                effects.push(match message {
                    CmMessage::Rej(rej) => format!("send REJ({:?})", rej.reason),
                    other => format!("send {}", other.name()),
                });
            }
            effects.retain(|effect| !effect.is_empty());
            let after = target.cm.connection(conn).map_or("gone".into(), |info| format!("{:?}", info.state));
            let after = if after == state { String::new() } else { after };
            writeln!(text, "    {name:20} -> {after:12} {}", effects.join(", ")).unwrap();
        }
    }
    let text: String = text.lines().map(|line| format!("{}\n", line.trim_end())).collect();
    insta::assert_snapshot!(text);
}
