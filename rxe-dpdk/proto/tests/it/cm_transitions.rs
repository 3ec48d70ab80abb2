//! The state machine as a table: every state, every event, and its outcome.

use std::fmt::Write;

use crate::cm_support::{
    CLIENT_GUID, SERVER_QPN, Target, accept_params, connect_params, drep, dreq, mra, ms, path, rej, rep, req, rtu,
};
use rxe_proto::cm::{CmEvent, ConnId, ResolveParams};
use rxe_proto::wire::cm::{Answered, Apr, CmMessage, Lap, RejReason, Rep, Req, SidrRep, SidrReq};
use rxe_proto::wire::{MacAddr, Psn};

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
        "ReqSent" => target.req_sent(),
        "RepReceived" => target.rep_received(CLIENT),
        "Established, asked" => target.confirmed(CLIENT),
        "DreqSent, asked" => {
            let conn = target.confirmed(CLIENT);
            target.cm.disconnect(target.now, conn).unwrap();
            conn
        }
        "Timewait, asked" => {
            let conn = target.confirmed(CLIENT);
            target.feed(&dreq(CLIENT, conn.comm_id(), SERVER_QPN)).unwrap();
            conn
        }
        "Timewait" => {
            let conn = target.established(req(CLIENT));
            target.feed(&dreq(CLIENT, conn.comm_id(), SERVER_QPN)).unwrap();
            conn
        }
        "gone" => {
            let conn = target.established(req(CLIENT));
            target.feed(&dreq(CLIENT, conn.comm_id(), SERVER_QPN)).unwrap();
            target.advance(ms(5000));
            assert!(target.cm.is_empty());
            conn
        }
        other => panic!("{other}"),
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
        ("REJ of REQ", |target, conn| {
            fed(target, &rej(CLIENT, conn.comm_id(), Answered::Req, RejReason::ConsumerDefined, &[]))
        }),
        ("REJ of REQ, no id", |target, conn| {
            fed(target, &rej(0, conn.comm_id(), Answered::Req, RejReason::ConsumerDefined, &[]))
        }),
        ("REJ timeout by ids", |target, conn| {
            let guid = CLIENT_GUID.to_be_bytes();
            fed(target, &rej(CLIENT, conn.comm_id(), Answered::Other, RejReason::Timeout, &guid))
        }),
        ("REJ of REP", |target, conn| {
            fed(target, &rej(CLIENT, conn.comm_id(), Answered::Rep, RejReason::ConsumerDefined, &[]))
        }),
        ("REJ timeout by GUID", |target, _| {
            fed(target, &rej(CLIENT, 0, Answered::Other, RejReason::Timeout, &CLIENT_GUID.to_be_bytes()))
        }),
        ("REP", |target, conn| fed(target, &CmMessage::Rep(rep(CLIENT, conn.comm_id())))),
        ("REP, other id", |target, conn| fed(target, &CmMessage::Rep(rep(CLIENT + 1, conn.comm_id())))),
        ("REP of another", |target, _| {
            // A peer that has forgotten the connection grants a new one with the queue pair of the old.
            let other = target.cm.connect(target.now, connect_params()).unwrap();
            let _req = target.sent();
            let rep = Rep { starting_psn: Psn::new(5), ..rep(CLIENT + 1, other.comm_id()) };
            fed(target, &CmMessage::Rep(rep))
        }),
        ("RTU", |target, conn| fed(target, &rtu(CLIENT, conn.comm_id()))),
        ("DREQ", |target, conn| fed(target, &dreq(CLIENT, conn.comm_id(), SERVER_QPN))),
        ("DREQ, wrong QPN", |target, conn| fed(target, &dreq(CLIENT, conn.comm_id(), SERVER_QPN + 1))),
        ("DREQ, wrong id", |target, conn| fed(target, &dreq(CLIENT + 1, conn.comm_id(), SERVER_QPN))),
        ("DREP", |target, conn| fed(target, &drep(CLIENT, conn.comm_id()))),
        ("LAP", |target, _| fed(target, &CmMessage::Lap(Lap::default()))),
        ("APR", |target, _| fed(target, &CmMessage::Apr(Apr::default()))),
        ("SIDR_REQ", |target, conn| {
            fed(target, &CmMessage::SidrReq(SidrReq { request_id: conn.comm_id(), ..SidrReq::default() }))
        }),
        ("SIDR_REP", |target, conn| {
            fed(target, &CmMessage::SidrRep(SidrRep { request_id: conn.comm_id(), ..SidrRep::default() }))
        }),
        ("accept", |target, conn| done(target.cm.accept(target.now, conn, accept_params()))),
        ("reject", |target, conn| done(target.cm.reject(conn, RejReason::InvalidServiceId, &[], &[]))),
        ("established", |target, conn| done(target.cm.established(conn))),
        ("confirm", |target, conn| done(target.cm.confirm(conn, &[]))),
        ("connect", |target, _| done(target.cm.connect(target.now, connect_params()).map(drop))),
        ("resolve", |target, _| {
            done(target.cm.resolve_datagram(target.now, ResolveParams::new(path(), (1, 2))).map(drop))
        }),
        ("move", |target, conn| done(target.cm.set_peer_mac(conn, MacAddr([2; 6])))),
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
        ("all resends", |target, conn| {
            let state = |target: &Target| target.cm.connection(conn).map(|info| info.state);
            let (before, mut resends) = (state(target), 0);
            while let Some(at) = target.cm.next_timeout() {
                target.now = at;
                target.cm.handle_timeout(at);
                if state(target) != before {
                    return format!("after {resends}");
                }
                resends += target.sent().len();
            }
            "none runs".into()
        }),
    ]
}

#[test]
fn table() {
    let states = [
        "ReqReceived",
        "RepSent",
        "Established",
        "DreqSent",
        "Timewait",
        "ReqSent",
        "RepReceived",
        "Established, asked",
        "DreqSent, asked",
        "Timewait, asked",
        "gone",
    ];
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
                    CmEvent::ConnectFailed { conn: which, reason, .. } => {
                        assert_eq!(which, conn);
                        format!("event ConnectFailed({reason:?})")
                    }
                    CmEvent::ConnectReply(_) => "event ConnectReply".into(),
                    other => panic!("{other:?}"),
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
            let unchanged = state.strip_suffix(", asked").unwrap_or(state);
            let after = if after == unchanged { String::new() } else { after };
            writeln!(text, "    {name:20} -> {after:12} {}", effects.join(", ")).unwrap();
        }
    }
    let text: String = text.lines().map(|line| format!("{}\n", line.trim_end())).collect();
    insta::assert_snapshot!(text);
}
