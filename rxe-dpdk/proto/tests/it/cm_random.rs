//! Anything at all may arrive, in any order: nothing panics, everything stays bounded, the events keep their grammar,
//! and in the end nothing is left.

use std::collections::BTreeMap;

use crate::cm_support::{Target, drep, dreq, mad_of, mra, ms, path, path_from, rej, req, rtu};
use proptest::prelude::*;
use rxe_proto::cm::{AcceptParams, CmConfig, CmError, CmEvent, ConnId, ResolveParams, SidrId, SidrReply};
use rxe_proto::transport::Qpn;
use rxe_proto::wire::Psn;
use rxe_proto::wire::cm::{Answered, CmMessage, RejReason, Rep, Req, SidrRep, SidrReq, SidrStatus};
use rxe_proto::wire::mad::MAD_LEN;

/// A random step. Numbers are small, or picked from existing ones, so that messages meet connections.
#[derive(Clone, Debug)]
enum Step {
    Message {
        kind: u8,
        client: u8,
        qpn: u8,
        psn: u8,
        host: u8,
        conn: prop::sample::Index,
        hit: bool,
    },
    /// The message before, with bytes changed.
    Mutated {
        kind: u8,
        client: u8,
        conn: prop::sample::Index,
        changes: Vec<(u8, u8)>,
    },
    Noise(Vec<u8>),
    Accept(prop::sample::Index),
    Reject(prop::sample::Index),
    Established(prop::sample::Index),
    Connect,
    Confirm(prop::sample::Index),
    Resolve,
    Disconnect(prop::sample::Index),
    ReplySidr(prop::sample::Index),
    Wait(u32),
    Read,
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        8 => (0u8..15, 0u8..4, 0u8..3, 0u8..2, 0u8..2, index(), prop::bool::weighted(0.8)).prop_map(
            |(kind, client, qpn, psn, host, conn, hit)| Step::Message { kind, client, qpn, psn, host, conn, hit }
        ),
        2 => (0u8..15, 0u8..4, index(), prop::collection::vec(any::<(u8, u8)>(), 1..6))
            .prop_map(|(kind, client, conn, changes)| Step::Mutated { kind, client, conn, changes }),
        1 => prop::collection::vec(any::<u8>(), 0..300).prop_map(Step::Noise),
        3 => index().prop_map(Step::Accept),
        1 => index().prop_map(Step::Reject),
        1 => index().prop_map(Step::Established),
        2 => Just(Step::Connect),
        3 => index().prop_map(Step::Confirm),
        1 => Just(Step::Resolve),
        1 => index().prop_map(Step::Disconnect),
        1 => index().prop_map(Step::ReplySidr),
        2 => (0u32..20_000).prop_map(Step::Wait),
        3 => Just(Step::Read),
    ]
}

/// State of a connection according to its events.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Seen {
    Requested,
    Established,
    Over,
}

struct TestEnv {
    target: Target,
    conns: Vec<(ConnId, u32)>,
    seen: BTreeMap<ConnId, Seen>,
    sidrs: Vec<SidrId>,
    /// Our own requests, and how many were sent and answered.
    request_ids: Vec<u32>,
    asked: usize,
    answers: usize,
}

impl TestEnv {
    fn message(&self, kind: u8, client: u8, qpn: u8, psn: u8, conn: &prop::sample::Index, hit: bool) -> CmMessage {
        let mut client = u32::from(client) + 1;
        let mut server = 0x55;
        let mut server_qpn = 0x55;
        if hit && !self.conns.is_empty() {
            let (conn, remote) = *conn.get(&self.conns);
            // The active side does not know the peer's number before the REP; any will do.
            client = if remote == 0 { client } else { remote };
            server = conn.comm_id();
            server_qpn = self.target.cm.connection(conn).and_then(|info| info.local_qpn).map_or(0, Qpn::get);
        }
        match kind {
            0..=2 => {
                CmMessage::Req(Req { local_qpn: u32::from(qpn), starting_psn: Psn::new(psn.into()), ..req(client) })
            }
            3 => rtu(client, server),
            4 => dreq(client, server, server_qpn),
            5 => drep(client, server),
            6 => mra(client, server, Answered::Rep, qpn * 12),
            7 => rej(client, server, Answered::Rep, RejReason::ConsumerDefined, &[]),
            8 => rej(client, 0, Answered::Other, RejReason::Timeout, &crate::cm_support::CLIENT_GUID.to_be_bytes()),
            9 => {
                let (remote_qpn, psn) = (u32::from(qpn), Psn::new(psn.into()));
                CmMessage::Rep(Rep {
                    local_qpn: remote_qpn,
                    starting_psn: psn,
                    ..crate::cm_support::rep(client, server)
                })
            }
            11 => rej(client, server, Answered::Req, RejReason::InvalidServiceId, &[]),
            12 => mra(client, server, Answered::Req, qpn * 12),
            13 => {
                let request_id = if hit { self.request_ids.last().copied().unwrap_or(1) } else { client };
                let status = SidrStatus::from_code(psn);
                CmMessage::SidrRep(SidrRep { request_id, status, ..SidrRep::default() })
            }
            10 => dreq(client, server, server_qpn + 1),
            _ => {
                let mut sidr = SidrReq { request_id: client, pkey: 0xFFFF, ..SidrReq::default() };
                sidr.service_id.0 = 0x0111_1C06;
                sidr.private_data[..36].copy_from_slice(&req(1).private_data[..36]);
                CmMessage::SidrReq(sidr)
            }
        }
    }

    fn read(&mut self) -> Result<(), TestCaseError> {
        for event in self.target.events() {
            match event {
                CmEvent::ConnectRequest(request) => {
                    prop_assert_eq!(self.seen.insert(request.conn, Seen::Requested), None);
                    self.conns.push((request.conn, request.remote_comm_id));
                }
                CmEvent::ConnectReply(reply) => {
                    // A step may have ended it before its event was read.
                    prop_assert!(matches!(self.seen.get(&reply.conn), Some(Seen::Requested | Seen::Over)));
                    let (_, remote) = self.conns.iter_mut().find(|(conn, _)| *conn == reply.conn).unwrap();
                    prop_assert_eq!(std::mem::replace(remote, reply.remote_comm_id), 0, "granted once");
                }
                CmEvent::DatagramResolved(_) | CmEvent::ResolveFailed { .. } => self.answers += 1,
                CmEvent::Established { conn } => {
                    prop_assert_eq!(self.seen.insert(conn, Seen::Established), Some(Seen::Requested));
                }
                CmEvent::Disconnected { conn, .. } => {
                    // Disconnected before it was established only if we asked for it.
                    let before = self.seen.insert(conn, Seen::Over);
                    prop_assert!(matches!(before, Some(Seen::Requested | Seen::Established)), "{:?}", before);
                }
                CmEvent::ConnectFailed { conn, .. } => {
                    prop_assert_eq!(self.seen.insert(conn, Seen::Over), Some(Seen::Requested));
                }
                CmEvent::SidrRequest(request) => self.sidrs.push(request.id),
            }
        }
        for transmit in self.target.transmits() {
            let (_, message) = CmMessage::parse(&*transmit.mad).unwrap();
            if let CmMessage::SidrReq(req) = &message {
                self.request_ids.push(req.request_id);
            }
            prop_assert!(!matches!(message, CmMessage::Lap(_) | CmMessage::Apr(_)), "{}", message);
        }
        Ok(())
    }

    fn feed(&mut self, host: u8, mad: &[u8]) {
        let path = if host == 0 { path() } else { path_from([192, 168, 77, 3].into()) };
        let target = &mut self.target;
        let _dropped = target.cm.handle_mad(target.now, &path, mad, &target.local);
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        let picked = |conns: &[(ConnId, u32)], index: prop::sample::Index| {
            if conns.is_empty() { None } else { Some(index.get(conns).0) }
        };
        let now = self.target.now;
        match step {
            Step::Message { kind, client, qpn, psn, host, conn, hit } => {
                let message = self.message(kind, client, qpn, psn, &conn, hit);
                self.feed(host, &mad_of(&message, 3));
            }
            Step::Mutated { kind, client, conn, changes } => {
                let mut mad = mad_of(&self.message(kind, client, 1, 0, &conn, true), 3);
                for (at, value) in changes {
                    mad[usize::from(at)] = value;
                }
                self.feed(0, &mad);
            }
            Step::Noise(bytes) => self.feed(0, &bytes),
            Step::Accept(index) => {
                if let Some(conn) = picked(&self.conns, index) {
                    let params = AcceptParams { qpn: Qpn::new(conn.comm_id()), ..crate::cm_support::accept_params() };
                    let _refused = self.target.cm.accept(now, conn, params);
                }
            }
            Step::Reject(index) => {
                if let Some(conn) = picked(&self.conns, index)
                    && self.target.cm.reject(conn, RejReason::InvalidServiceId, &[], b"x").is_ok()
                {
                    prop_assert_eq!(self.seen.insert(conn, Seen::Over), Some(Seen::Requested));
                }
            }
            Step::Established(index) => {
                if let Some(conn) = picked(&self.conns, index) {
                    let _refused = self.target.cm.established(conn);
                }
            }
            Step::Connect => {
                let started = self.target.cm.connect(now, crate::cm_support::connect_params());
                prop_assert!(started.is_ok() || started == Err(CmError::Limit), "{:?}", started);
                if let Ok(conn) = started {
                    prop_assert_eq!(self.seen.insert(conn, Seen::Requested), None);
                    self.conns.push((conn, 0));
                }
            }
            Step::Confirm(index) => {
                if let Some(conn) = picked(&self.conns, index) {
                    let _refused = self.target.cm.confirm(conn, b"x");
                }
            }
            Step::Resolve => {
                let asked = self.target.cm.resolve_datagram(now, ResolveParams::new(path(), (1, 2)));
                prop_assert!(asked.is_ok() || asked == Err(CmError::Limit), "{:?}", asked);
                self.asked += usize::from(asked.is_ok());
            }
            Step::Disconnect(index) => {
                if let Some(conn) = picked(&self.conns, index) {
                    let _refused = self.target.cm.disconnect(now, conn);
                }
            }
            Step::ReplySidr(index) => {
                if !self.sidrs.is_empty() {
                    let id = *index.get(&self.sidrs);
                    let _refused = self.target.cm.reply_sidr(now, id, SidrReply::valid(Qpn::new(2)));
                }
            }
            Step::Wait(millis) => self.target.advance(ms(millis.into())),
            Step::Read => self.read()?,
        }
        Ok(())
    }
}

const CONNECTIONS: usize = 6;
const CLOSING: usize = 5;
const SIDR: usize = 3;
const TRANSMITS: usize = 20;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn anything_may_arrive(steps in prop::collection::vec(step(), 0..150), seed in any::<[u8; 32]>()) {
        let config = CmConfig {
            max_connections: CONNECTIONS,
            max_pending: 4,
            max_closing: CLOSING,
            max_sidr: SIDR,
            max_transmits: TRANSMITS,
            max_events: 8,
            ..CmConfig::new(1, seed)
        };
        let target = Target::new(config);
        let mut env = TestEnv {
            target,
            conns: Vec::new(),
            seen: BTreeMap::new(),
            sidrs: Vec::new(),
            request_ids: Vec::new(),
            asked: 0,
            answers: 0,
        };
        for step in steps {
            env.step(step)?;
            prop_assert!(env.target.cm.len() <= CONNECTIONS + CLOSING);
            prop_assert!(env.target.cm.sidr_len() <= SIDR && env.target.cm.resolving() <= SIDR);
        }
        // The user disconnects everything; timers end the rest.
        env.read()?;
        for (conn, _) in env.conns.clone() {
            let _gone = env.target.cm.disconnect(env.target.now, conn);
        }
        env.target.advance(ms(3_000_000));
        prop_assert!(env.target.transmits().len() <= TRANSMITS);
        env.read()?;
        let cm = &env.target.cm;
        prop_assert_eq!((cm.len(), cm.sidr_len(), cm.resolving()), (0, 0, 0));
        prop_assert_eq!(env.asked, env.answers);
        prop_assert_eq!(env.target.cm.next_timeout(), None);
        prop_assert!(env.seen.values().all(|&seen| seen == Seen::Over), "{:?}", env.seen);
    }

    /// No answer is longer than its message.
    #[test]
    fn noise_is_not_amplified(mads in prop::collection::vec(prop::collection::vec(any::<u8>(), MAD_LEN), 1..8), attribute in 0x10u8..0x1B) {
        let mut target = Target::default();
        for mut mad in mads {
            mad[..4].copy_from_slice(&[1, 7, 2, 3]);
            mad[16] = 0;
            mad[17] = attribute;
            let _dropped = target.cm.handle_mad(target.now, &path(), &mad, &target.local);
            prop_assert!(target.transmits().len() <= 1);
        }
        prop_assert_eq!(target.cm.len(), 0);
    }
}
