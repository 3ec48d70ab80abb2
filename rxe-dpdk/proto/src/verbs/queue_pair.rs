//! Making, connecting and asking queue pairs.

use std::fmt;
use std::marker::PhantomData;

use crate::mem::Access;
use crate::transport::{
    MulticastError, QpCaps, QpError, QpInfo, QpInit, QpState, QpTransition, Qpn, RtrAttr, RtsAttr, SrqInit,
};
use crate::wire::{Gid, PathMtu, PortId, Psn};

use super::{
    CompletionQueue, Connected, Device, ProtectionDomain, QueuePair, SharedReceiveQueue, TransportService, Ud,
};

/// What a queue pair is made of (`ibv_qp_init_attr`). Begin with [`QpInitAttr::new`].
#[derive(Clone, Copy, Debug)]
pub struct QpInitAttr {
    /// Where send queue work requests complete.
    pub send_cq: CompletionQueue,
    /// Where receives complete.
    pub recv_cq: CompletionQueue,
    /// The shared receive queue that receives come from, in place of a receive queue of its own.
    pub srq: Option<SharedReceiveQueue>,
    /// Sizes of its queues. With a shared receive queue those of the receive queue mean nothing.
    pub caps: QpCaps,
    /// Every send queue work request completes with a work completion, signalled or not.
    pub sq_sig_all: bool,
}

impl QpInitAttr {
    /// A queue pair that completes to `cq`, with queues of 16 work requests of one buffer each, no inline data and
    /// completions for signalled work requests only.
    pub const fn new(cq: CompletionQueue) -> QpInitAttr {
        QpInitAttr {
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            caps: QpCaps { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 },
            sq_sig_all: false,
        }
    }
}

/// What a shared receive queue is made of (`ibv_srq_init_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqInitAttr {
    /// Outstanding receives.
    pub max_wr: u32,
    /// Buffers of one receive.
    pub max_sge: u32,
    /// Limit as for [`Device::modify_srq`]; 0 is none.
    pub srq_limit: u32,
}

impl Default for SrqInitAttr {
    /// 16 receives of one buffer each, no limit.
    fn default() -> SrqInitAttr {
        SrqInitAttr { max_wr: 16, max_sge: 1, srq_limit: 0 }
    }
}

impl SrqInitAttr {
    pub(super) fn init(self, pd: ProtectionDomain) -> SrqInit {
        SrqInit { pd: pd.0, max_wr: self.max_wr, max_sge: self.max_sge, limit: self.srq_limit }
    }
}

/// What a datagram queue pair needs to be open; see [`QueuePair::open`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdAttr {
    /// The port whose datagrams it gets.
    pub port: PortId,
    /// The queue key that datagrams must bear.
    pub qkey: u32,
    /// Most payload of one datagram.
    pub path_mtu: PathMtu,
    /// The first PSN that it will send. Receivers do not look at it.
    pub sq_psn: Psn,
}

/// A change of state that a queue pair of service `T` can be asked for (`ibv_qp_attr` with its mask), with what the
/// new state needs. [`QueuePair::connect`] and [`QueuePair::open`] go all the way.
#[derive(Clone)]
pub struct Transition<T: TransportService> {
    transition: QpTransition,
    service: PhantomData<T>,
}

impl<T: TransportService> Transition<T> {
    const fn of(transition: QpTransition) -> Transition<T> {
        Transition { transition, service: PhantomData }
    }

    /// From RTS to SQD: finish what is outstanding, begin nothing new.
    /// [`AsyncEvent::SendQueueDrained`](super::AsyncEvent::SendQueueDrained) tells when that is done.
    pub const fn to_sqd() -> Transition<T> {
        Transition::of(QpTransition::ToSqd)
    }

    /// From SQD or SQE back to RTS.
    pub const fn resume() -> Transition<T> {
        Transition::of(QpTransition::Resume)
    }

    /// To ERROR, from any state: outstanding work completes as flushed.
    pub const fn to_error() -> Transition<T> {
        Transition::of(QpTransition::ToError)
    }

    /// To RESET, from any state: everything posted is forgotten without completions.
    pub const fn to_reset() -> Transition<T> {
        Transition::of(QpTransition::ToReset)
    }

    /// The state that it leads to.
    pub const fn target(&self) -> QpState {
        self.transition.target()
    }
}

impl<T: Connected> Transition<T> {
    /// To INIT, from RESET or INIT. `access` are the remote operations that the peer may do on this queue pair; a
    /// region must allow them as well. Local flags mean nothing here.
    pub const fn to_init(access: Access) -> Transition<T> {
        Transition::of(QpTransition::ToInit { access })
    }

    /// To RTR, from INIT: requests of the peer are served.
    pub const fn to_rtr(attr: RtrAttr) -> Transition<T> {
        Transition::of(QpTransition::ToRtr(attr))
    }

    /// To RTS, from RTR: work requests are sent.
    pub const fn to_rts(attr: RtsAttr) -> Transition<T> {
        Transition::of(QpTransition::ToRts(attr))
    }
}

impl Transition<Ud> {
    /// To INIT, from RESET or INIT: the port whose datagrams it gets, and the queue key that they must bear.
    pub const fn to_init_datagram(port: PortId, qkey: u32) -> Transition<Ud> {
        Transition::of(QpTransition::ToInitDatagram { port, qkey })
    }

    /// To RTR, from INIT: datagrams of at most `path_mtu` are received.
    pub const fn to_rtr_datagram(path_mtu: PathMtu) -> Transition<Ud> {
        Transition::of(QpTransition::ToRtrDatagram { path_mtu })
    }

    /// To RTS, from RTR: datagrams are sent, the first one with `sq_psn`.
    pub const fn to_rts_datagram(sq_psn: Psn) -> Transition<Ud> {
        Transition::of(QpTransition::ToRtsDatagram { sq_psn })
    }
}

impl<T: TransportService> fmt::Debug for Transition<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.transition, f)
    }
}

impl Device<'_> {
    /// Makes a queue pair of service `T` in `pd`, in state RESET (`ibv_create_qp`).
    ///
    /// # Errors
    /// [`QpError::TooMany`], [`QpError::Limit`], [`QpError::UnknownPd`], [`QpError::UnknownCq`],
    /// [`QpError::UnknownSrq`].
    pub fn create_qp<T: TransportService>(
        &mut self,
        pd: ProtectionDomain,
        attr: QpInitAttr,
    ) -> Result<QueuePair<T>, QpError> {
        let QpInitAttr { send_cq, recv_cq, srq, caps, sq_sig_all } = attr;
        let init = QpInit {
            qp_type: T::QP_TYPE,
            pd: pd.0,
            send_cq: send_cq.id(),
            recv_cq: recv_cq.id(),
            srq: srq.map(SharedReceiveQueue::id),
            caps,
            sq_sig_all,
        };
        self.engine.create_qp(self.now, &init).map(QueuePair::of)
    }

    /// The handle of the queue pair with number `qpn`, which may have been made by the engine's own calls. To be used
    /// once for each queue pair: it gathers all that is known about it.
    ///
    /// # Errors
    /// [`QpError::WrongType`] when it is not of service `T`, [`QpError::Unknown`].
    pub fn find_qp<T: TransportService>(&self, qpn: Qpn) -> Result<QueuePair<T>, QpError> {
        match self.engine.query_qp(qpn) {
            Some(info) if info.qp_type == T::QP_TYPE => Ok(QueuePair::of(qpn)),
            Some(info) => Err(QpError::WrongType(info.qp_type)),
            None => Err(QpError::Unknown(qpn)),
        }
    }

    /// Changes the state of a queue pair (`ibv_modify_qp`).
    ///
    /// # Errors
    /// [`QpError::Transition`] when the state diagram has no such way, [`QpError::Limit`] for an attribute out of
    /// range, [`QpError::Unknown`]. The queue pair is unchanged then.
    #[inline]
    pub fn modify_qp<T: TransportService>(
        &mut self,
        qp: QueuePair<T>,
        transition: Transition<T>,
    ) -> Result<(), QpError> {
        self.engine.modify_qp(qp.qpn(), transition.transition)
    }

    /// What there is to know about a queue pair, its state first of all (`ibv_query_qp`).
    ///
    /// # Errors
    /// [`QpError::Unknown`].
    #[inline]
    pub fn query_qp<T: TransportService>(&self, qp: QueuePair<T>) -> Result<QpInfo, QpError> {
        self.engine.query_qp(qp.qpn()).ok_or(QpError::Unknown(qp.qpn()))
    }

    /// Removes a queue pair (`ibv_destroy_qp`). Its outstanding work is forgotten; completions already made stay.
    ///
    /// # Errors
    /// [`QpError::Unknown`].
    #[inline]
    pub fn destroy_qp<T: TransportService>(&mut self, qp: QueuePair<T>) -> Result<(), QpError> {
        self.engine.destroy_qp(self.now, qp.qpn())
    }

    /// Attaches a datagram queue pair, in INIT or later, to a multicast group of its port (`ibv_attach_mcast`): it gets
    /// a copy of every datagram to the group. To join the group on the network is the caller's part.
    ///
    /// # Errors
    /// [`MulticastError`]; nothing is changed then.
    #[inline]
    pub fn attach_mcast(&mut self, qp: QueuePair<Ud>, group: Gid) -> Result<(), MulticastError> {
        self.engine.attach_multicast(qp.qpn(), group)
    }

    /// Takes back [`attach_mcast`](Self::attach_mcast) (`ibv_detach_mcast`).
    ///
    /// # Errors
    /// [`MulticastError::NotAttached`], and those that say that there is no such queue pair or that it has no port.
    #[inline]
    pub fn detach_mcast(&mut self, qp: QueuePair<Ud>, group: Gid) -> Result<(), MulticastError> {
        self.engine.detach_multicast(qp.qpn(), group)
    }
}

impl<T: Connected> QueuePair<T> {
    /// From RESET or INIT to RTS in one go. `access` are the remote operations that the peer may do.
    ///
    /// Receives that must be there for the peer's first message are posted before: take the queue pair to INIT with
    /// [`Device::modify_qp`], post them, then connect.
    ///
    /// # Errors
    /// As for [`Device::modify_qp`]; the queue pair stays in the last state that it reached.
    pub fn connect(self, dev: &mut Device<'_>, access: Access, rtr: RtrAttr, rts: RtsAttr) -> Result<(), QpError> {
        dev.modify_qp(self, Transition::to_init(access))?;
        dev.modify_qp(self, Transition::to_rtr(rtr))?;
        dev.modify_qp(self, Transition::to_rts(rts))
    }
}

impl QueuePair<Ud> {
    /// From RESET or INIT to RTS in one go.
    ///
    /// # Errors
    /// As for [`Device::modify_qp`]; the queue pair stays in the last state that it reached.
    pub fn open(self, dev: &mut Device<'_>, attr: UdAttr) -> Result<(), QpError> {
        dev.modify_qp(self, Transition::to_init_datagram(attr.port, attr.qkey))?;
        dev.modify_qp(self, Transition::to_rtr_datagram(attr.path_mtu))?;
        dev.modify_qp(self, Transition::to_rts_datagram(attr.sq_psn))
    }
}
