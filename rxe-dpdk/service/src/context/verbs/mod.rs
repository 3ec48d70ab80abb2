//! Verbs for services: queue pairs of every transport service, shared receive queues, address handles, multicast.
//!
//! A service has one completion queue per worker. It is kept as deep as all that can complete to it: the send queues
//! of its queue pairs, their receive queues, and its shared receive queues. A request counts as outstanding until the
//! service has seen its completion; who posts no more than that never overflows the queue.

use std::collections::{BTreeSet, HashMap};

use rxe_proto::mem::{Access, KeyTable, PdId};
use rxe_proto::transport::{
    AhError, AhId, CqError, CqId, MulticastError, PostError, QpCaps, QpError, QpInfo, QpInit, QpTransition, QpType,
    Qpn, RecvWr, SendWr, SrqError, SrqId, SrqInit, WorkCompletion,
};
use rxe_proto::wire::{Gid, Path, PathMtu, PortId, Psn};

use super::Context;
use crate::messages::ToControl;
use crate::qp_map::QpMap;

/// What a queue pair of a service is made of; see [`Context::create_qp`].
#[derive(Clone, Copy, Debug)]
pub struct QpSpec {
    /// The transport service, and what a queue pair of it must know from the start.
    pub kind: QpKind,
    /// Protection domain: the queue pair reaches regions of this domain only.
    pub pd: PdId,
    /// Sizes of its queues. With a shared receive queue those of the receive queue mean nothing.
    pub caps: QpCaps,
    /// The shared receive queue that receives come from, in place of a receive queue of its own.
    pub srq: Option<SrqId>,
}

/// The transport service of a [`QpSpec`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpKind {
    /// Reliable connection.
    Rc {
        /// What the peer may do besides SEND.
        access: Access,
    },
    /// Unreliable connection.
    Uc {
        /// What the peer may do besides SEND: WRITE is all that there is.
        access: Access,
    },
    /// Unreliable datagram.
    Ud {
        /// The port whose datagrams it gets.
        port: PortId,
        /// The queue key that datagrams must bear.
        qkey: u32,
    },
}

impl QpSpec {
    /// A reliable-connected queue pair, whose peer may do `access` besides SEND.
    pub fn rc(pd: PdId, caps: QpCaps, access: Access) -> QpSpec {
        QpSpec { kind: QpKind::Rc { access }, pd, caps, srq: None }
    }

    /// An unreliable-connected queue pair, whose peer may do `access` besides SEND.
    pub fn uc(pd: PdId, caps: QpCaps, access: Access) -> QpSpec {
        QpSpec { kind: QpKind::Uc { access }, pd, caps, srq: None }
    }

    /// A datagram queue pair on `port`, which takes datagrams that bear `qkey`.
    pub fn ud(pd: PdId, caps: QpCaps, port: PortId, qkey: u32) -> QpSpec {
        QpSpec { kind: QpKind::Ud { port, qkey }, pd, caps, srq: None }
    }

    /// The same with receives from `srq`.
    #[must_use]
    pub fn with_srq(self, srq: SrqId) -> QpSpec {
        QpSpec { srq: Some(srq), ..self }
    }

    /// How many completions it can have outstanding. A shared receive queue counts by itself; one receive more may be
    /// in the hands of each queue pair that takes from it.
    fn depth(&self) -> usize {
        let receives = if self.srq.is_some() { 1 } else { self.caps.max_recv_wr };
        self.caps.max_send_wr as usize + receives as usize
    }
}

/// The completion queue of one service, and how deep it must be.
#[derive(Debug)]
pub(crate) struct ServiceCq {
    pub(crate) cq: CqId,
    /// All that may complete to it.
    depth: usize,
    /// The part of `depth` whose owners are gone: their last completions may still wait in the queue.
    retired: usize,
}

impl ServiceCq {
    /// A queue of depth 1, the least there is.
    pub(crate) fn new(cq: CqId) -> ServiceCq {
        ServiceCq { cq, depth: 1, retired: 0 }
    }

    /// How many completions it holds at most.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// The queue is empty: nothing of those who are gone is left in it.
    pub(crate) fn drained(&mut self) {
        self.depth -= std::mem::take(&mut self.retired);
    }

    fn retire(&mut self, depth: usize) {
        self.retired += depth;
    }
}

/// Without end: programs post receives when they come to it.
const RNR_RETRY: u8 = 7;

#[derive(Clone, Copy, Debug)]
struct Owned {
    service: usize,
    depth: usize,
    /// How often a queue pair of a connection tries again when the peer is not ready.
    rnr_retry: u8,
}

/// What the services of one worker have made: so completions and events find their service.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    qps: QpMap<Owned>,
    srqs: HashMap<SrqId, Owned>,
    /// The multicast groups with members here, as the control side was told.
    groups: BTreeSet<(PortId, Gid)>,
}

impl Objects {
    /// The service that made a queue pair.
    pub(crate) fn owner_of_qp(&self, qpn: Qpn) -> Option<usize> {
        self.qps.get(&qpn).map(|owned| owned.service)
    }

    /// The service that made a shared receive queue.
    pub(crate) fn owner_of_srq(&self, srq: SrqId) -> Option<usize> {
        self.srqs.get(&srq).map(|owned| owned.service)
    }

    /// How often a queue pair tries again when its peer is not ready.
    pub(crate) fn rnr_retry(&self, qpn: Qpn) -> u8 {
        self.qps.get(&qpn).map_or(RNR_RETRY, |owned| owned.rnr_retry)
    }

    /// Forgets a queue pair and gives back its part of the completion queue; `false` when it was not known.
    pub(crate) fn forget_qp(&mut self, qpn: Qpn, cq: &mut ServiceCq) -> bool {
        let owned = self.qps.remove(&qpn);
        owned.inspect(|owned| cq.retire(owned.depth)).is_some()
    }
}

impl Context<'_> {
    /// A queue pair in Init, whose completions and events come to this service. Receives can be posted.
    ///
    /// What is next depends on who knows the peer: a connection's queue pair goes into a
    /// [`Decision`](crate::service::Decision), and the runtime does the rest. One whose peer is known otherwise is the
    /// service's own: [`modify_qp`](Self::modify_qp) opens it, or [`open_datagram_qp`](Self::open_datagram_qp) for
    /// datagrams, and the service destroys it in the end.
    ///
    /// # Errors
    /// [`QpError::Limit`] for sizes, a port that does not exist (`port_num`) and a completion queue that gets too deep;
    /// [`QpError::TooMany`], [`QpError::UnknownPd`], [`QpError::UnknownSrq`].
    pub fn create_qp(&mut self, spec: &QpSpec) -> Result<Qpn, QpError> {
        let (qp_type, to_init) = match spec.kind {
            QpKind::Rc { access } => (QpType::Rc, QpTransition::ToInit { access }),
            QpKind::Uc { access } => (QpType::Uc, QpTransition::ToInit { access }),
            QpKind::Ud { port, qkey } => {
                self.check_port(port)?;
                (QpType::Ud, QpTransition::ToInitDatagram { port, qkey })
            }
        };
        let depth = spec.depth();
        self.make_room(depth).map_err(|(value, limit)| QpError::Limit {
            name: "completion queue depth",
            value,
            limit,
        })?;
        let cq = self.cq.cq;
        let QpSpec { pd, caps, srq, .. } = *spec;
        let init = QpInit { qp_type, pd, send_cq: cq, recv_cq: cq, srq, caps, sq_sig_all: false };
        let qpn = self.engine.create_qp(self.now, &init)?;
        if let Err(error) = self.engine.modify_qp(qpn, to_init) {
            // Made above, so it exists.
            let _ = self.engine.destroy_qp(self.now, qpn);
            return Err(error);
        }
        self.cq.depth += depth;
        self.objects.qps.insert(qpn, Owned { service: self.service, depth, rnr_retry: RNR_RETRY });
        Ok(qpn)
    }

    /// Before a queue pair goes into a [`Decision`](crate::service::Decision) or to [`connect`](Self::connect): how often
    /// it is to try again when the peer has no receive for a message, 0 to 7; 7 is without end, as are all that are not
    /// told. What the peer says in its REQ or REP is what it does itself.
    pub fn set_rnr_retry(&mut self, qpn: Qpn, rnr_retry: u8) {
        if let Some(owned) = self.objects.qps.get_mut(&qpn) {
            owned.rnr_retry = rnr_retry.min(RNR_RETRY);
        }
    }

    /// From now on asks the peer of a reliable connection, which is up, whether it is still there when it has been silent
    /// for the [configured time](rxe_proto::transport::EngineConfig::keep_alive). One that does not answer ends the
    /// connection.
    pub fn keep_alive(&mut self, qpn: Qpn) {
        let settings = self.engine.config().keep_alive;
        // One that is in error ends anyway.
        let _ = self.engine.set_keep_alive(self.now, qpn, settings);
    }

    /// Destroys a queue pair of this service that is not part of a connection; those of connections are destroyed by
    /// the runtime. What was posted and has not completed is forgotten, and what completed is not delivered any more.
    pub fn destroy_qp(&mut self, qpn: Qpn) {
        if self.objects.forget_qp(qpn, self.cq) {
            // Known above, so it exists.
            let _ = self.engine.destroy_qp(self.now, qpn);
            self.tell_groups();
        }
    }

    /// Changes the state of a queue pair that is not part of a connection: to RTR and RTS when its peer is known, to SQD
    /// to let it run dry, to ERROR to get its receives back.
    ///
    /// # Errors
    /// [`QpError::Transition`], [`QpError::WrongType`], [`QpError::Limit`] for an attribute out of range (a port that
    /// does not exist: `port_num`), [`QpError::Unknown`]. The queue pair is unchanged then.
    pub fn modify_qp(&mut self, qpn: Qpn, transition: QpTransition) -> Result<(), QpError> {
        match &transition {
            QpTransition::ToRtr(rtr) => self.check_port(rtr.path.port)?,
            QpTransition::ToInitDatagram { port, .. } => self.check_port(*port)?,
            _ => {}
        }
        self.engine.modify_qp(qpn, transition)
    }

    /// Takes a datagram queue pair from Init to RTS. `path_mtu` is the most that one datagram may carry, at most
    /// [`LocalPort::path_mtu`](crate::LocalPort).
    ///
    /// # Errors
    /// As for [`modify_qp`](Self::modify_qp).
    pub fn open_datagram_qp(&mut self, qpn: Qpn, path_mtu: PathMtu) -> Result<(), QpError> {
        self.modify_qp(qpn, QpTransition::ToRtrDatagram { path_mtu })?;
        let sq_psn = self.random_psn();
        self.modify_qp(qpn, QpTransition::ToRtsDatagram { sq_psn })
    }

    /// Lets a connected queue pair in RTR or RTS learn from its peer's first packet whether it is RC, UC or UD, and the
    /// peer's path MTU; see [`Engine::detect_peer_type`](rxe_proto::transport::Engine::detect_peer_type). For peers that tell the
    /// numbers of their queue pairs over a TCP stream and nothing else. Datagrams must bear `qkey`.
    ///
    /// # Errors
    /// [`QpError::NoPath`] before RTR, [`QpError::Unknown`].
    pub fn follow_peer(&mut self, qpn: Qpn, qkey: u32) -> Result<(), QpError> {
        let info = self.query_qp(qpn).ok_or(QpError::Unknown(qpn))?;
        let port = info.path.ok_or(QpError::NoPath)?.port;
        let path_mtu = self.port(port).ok_or(QpError::NoPath)?.path_mtu;
        self.engine.detect_peer_type(qpn, qkey, path_mtu)
    }

    /// Makes a queue pair in RESET one of another type.
    ///
    /// # Errors
    /// [`QpError::Transition`] in other states, [`QpError::Unknown`].
    pub fn set_qp_type(&mut self, qpn: Qpn, qp_type: QpType) -> Result<(), QpError> {
        self.engine.set_qp_type(qpn, qp_type)
    }

    /// What there is to know about a queue pair.
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpInfo> {
        self.engine.query_qp(qpn)
    }

    /// Whether the queue pair of a completion is still there: the service may have destroyed it since.
    #[inline]
    pub fn has_qp_of(&self, wc: &WorkCompletion) -> bool {
        // While nobody has gone, all that completes is of those who are there.
        self.cq.retired == 0 || self.objects.owner_of_qp(wc.qpn).is_some()
    }

    /// A packet sequence number to start with that nobody can guess.
    pub fn random_psn(&mut self) -> Psn {
        self.psns.psn()
    }

    /// Posts to the send queue.
    ///
    /// # Errors
    /// See [`PostError`]; nothing is posted then.
    pub fn post_send(&mut self, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.engine.post_send(qpn, wr)
    }

    /// Posts to the send queue a request that brings its bytes along (inline): `data` is copied now and needs no key.
    /// `wr` names no buffers. For SEND, WRITE, ATOMIC WRITE and datagrams.
    ///
    /// # Errors
    /// [`PostError::InlineTooLong`], and as for [`post_send`](Self::post_send).
    pub fn post_send_inline(&mut self, qpn: Qpn, wr: &SendWr<'_>, data: &[u8]) -> Result<(), PostError> {
        self.engine.post_send_inline(qpn, wr, data)
    }

    /// Posts to the receive queue.
    ///
    /// # Errors
    /// See [`PostError`]; nothing is posted then.
    pub fn post_recv(&mut self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.engine.post_recv(qpn, wr)
    }

    /// Makes a shared receive queue for queue pairs of this service.
    ///
    /// # Errors
    /// [`SrqError::Limit`] for sizes and a completion queue that gets too deep; [`SrqError::TooMany`],
    /// [`SrqError::UnknownPd`].
    pub fn create_srq(&mut self, init: &SrqInit) -> Result<SrqId, SrqError> {
        let depth = init.max_wr as usize;
        self.make_room(depth).map_err(|(value, limit)| SrqError::Limit {
            name: "completion queue depth",
            value,
            limit,
        })?;
        let srq = self.engine.create_srq(init)?;
        self.cq.depth += depth;
        self.objects.srqs.insert(srq, Owned { service: self.service, depth, rnr_retry: RNR_RETRY });
        Ok(srq)
    }

    /// Asks for [`AsyncEvent::SrqLimitReached`](rxe_proto::transport::AsyncEvent), once, when fewer than `limit` receives
    /// are left; 0 asks for nothing.
    ///
    /// # Errors
    /// [`SrqError::Limit`], [`SrqError::Unknown`].
    pub fn modify_srq(&mut self, srq: SrqId, limit: u32) -> Result<(), SrqError> {
        self.engine.modify_srq(srq, limit)
    }

    /// How many receives wait in a shared receive queue.
    pub fn srq_len(&self, srq: SrqId) -> Option<u32> {
        self.engine.srq_len(srq)
    }

    /// Posts to a shared receive queue.
    ///
    /// # Errors
    /// See [`PostError`]; nothing is posted then.
    pub fn post_srq_recv(&mut self, srq: SrqId, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.engine.post_srq_recv(srq, wr)
    }

    /// Removes a shared receive queue of this service, with the receives in it.
    ///
    /// # Errors
    /// [`SrqError::InUse`] while queue pairs use it, [`SrqError::Unknown`].
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), SrqError> {
        self.engine.destroy_srq(srq)?;
        if let Some(owned) = self.objects.srqs.remove(&srq) {
            self.cq.retire(owned.depth);
        }
        Ok(())
    }

    /// Makes an address handle: where datagrams of queue pairs in `pd` may go. For a multicast group, `path.dst` is the
    /// group and `path.dst_mac` its MAC address.
    ///
    /// # Errors
    /// [`AhError::TooMany`], [`AhError::UnknownPd`], [`AhError::UnknownPort`].
    pub fn create_ah(&mut self, pd: PdId, path: &Path) -> Result<AhId, AhError> {
        if self.port(path.port).is_none() {
            return Err(AhError::UnknownPort(path.port));
        }
        self.engine.create_ah(pd, path)
    }

    /// Removes an address handle. Datagrams posted with it and not yet sent fail.
    ///
    /// # Errors
    /// [`AhError::Unknown`].
    pub fn destroy_ah(&mut self, ah: AhId) -> Result<(), AhError> {
        self.engine.destroy_ah(ah)
    }

    /// Attaches a datagram queue pair to a multicast group on its port: it gets a copy of every datagram to the group,
    /// whichever worker receives it. The first one to attach makes the port join the group (IGMP, MLD); frames follow
    /// when the network has taken note.
    ///
    /// # Errors
    /// [`MulticastError`]; nothing is changed then.
    pub fn attach_multicast(&mut self, qpn: Qpn, group: Gid) -> Result<(), MulticastError> {
        self.engine.attach_multicast(qpn, group)?;
        self.tell_groups();
        Ok(())
    }

    /// Takes back [`attach_multicast`](Self::attach_multicast). The last one to detach makes the port leave the group.
    ///
    /// # Errors
    /// [`MulticastError::NotAttached`] and those that say that there is no such queue pair.
    pub fn detach_multicast(&mut self, qpn: Qpn, group: Gid) -> Result<(), MulticastError> {
        self.engine.detach_multicast(qpn, group)?;
        self.tell_groups();
        Ok(())
    }

    /// The keys of this worker: regions, fast regions and memory windows beyond what [`register`](Self::register) does.
    pub fn keys(&mut self) -> &mut KeyTable {
        self.engine.keys_mut()
    }

    fn check_port(&self, port: PortId) -> Result<(), QpError> {
        // At most 65,536 ports.
        let limit = self.ports.len() as u32;
        match self.port(port) {
            Some(_) => Ok(()),
            None => Err(QpError::Limit { name: "port_num", value: port.0.into(), limit: limit.saturating_sub(1) }),
        }
    }

    /// Tells the control side which groups have members here, if that has changed.
    fn tell_groups(&mut self) {
        let groups: BTreeSet<(PortId, Gid)> = self.engine.multicast_groups().collect();
        let worker = self.worker;
        for &(port, group) in groups.symmetric_difference(&self.objects.groups) {
            let joined = groups.contains(&(port, group));
            self.tell(ToControl::GroupMember { worker, port, group, joined });
        }
        self.objects.groups = groups;
    }

    /// Makes the completion queue deep enough for `more` completions, or says what depth that takes and what the most is.
    fn make_room(&mut self, more: usize) -> Result<(), (u32, u32)> {
        let depth = self.cq.depth + more;
        self.engine.resize_cq(self.cq.cq, depth).map_err(|error| {
            let limit = if let CqError::Depth(limit) = error { limit } else { self.engine.config().max_cqe };
            (u32::try_from(depth).unwrap_or(u32::MAX), limit)
        })
    }
}

#[cfg(test)]
mod tests;
