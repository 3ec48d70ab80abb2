//! Creating, connecting and querying queue pairs.

use std::fmt;
use std::marker::PhantomData;

use crate::mem::Access;
use crate::transport::{
    KeepAlive, MulticastError, QpAttrChange, QpCaps, QpError, QpInfo, QpInit, QpState, QpTransition, QpType, Qpn,
    RtrAttr, RtsAttr,
};
use crate::wire::{Gid, PathMtu, PortId, Psn};

use super::{
    Any, AnyQueuePair, CompletionQueue, Connected, Device, ProtectionDomain, QpService, QueuePair, Rc,
    SharedReceiveQueue, TransportService, Ud,
};

/// Attributes of a new queue pair (`ibv_qp_init_attr`). Start from [`QpInitAttr::new`].
#[derive(Clone, Copy, Debug)]
pub struct QpInitAttr {
    /// Completion queue of the send queue.
    pub send_cq: CompletionQueue,
    /// Completion queue of the receives.
    pub recv_cq: CompletionQueue,
    /// The shared receive queue that receives come from, in place of a receive queue of its own.
    pub srq: Option<SharedReceiveQueue>,
    /// Sizes of its queues. With a shared receive queue those of the receive queue are ignored.
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

    /// Sets the sizes of the queues.
    #[must_use]
    pub const fn with_caps(self, caps: QpCaps) -> QpInitAttr {
        QpInitAttr { caps, ..self }
    }

    /// Takes receives from `srq`.
    #[must_use]
    pub const fn with_srq(self, srq: SharedReceiveQueue) -> QpInitAttr {
        QpInitAttr { srq: Some(srq), ..self }
    }
}

/// Attributes of a datagram queue pair in RTS; see [`QueuePair::open`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdAttr {
    /// The port whose datagrams it gets.
    pub port: PortId,
    /// The queue key that datagrams must bear.
    pub qkey: u32,
    /// Most payload of one datagram.
    pub path_mtu: PathMtu,
    /// The PSN of its first datagram. Receivers ignore it.
    pub sq_psn: Psn,
}

/// A change of state of a queue pair of service `T`, with the attributes that the new state needs (`ibv_qp_attr` with its
/// mask). [`QueuePair::connect`] and [`QueuePair::open`] take a queue pair to RTS in one call.
#[derive(Clone)]
pub struct Transition<T: QpService> {
    transition: QpTransition,
    service: PhantomData<T>,
}

impl<T: QpService> Transition<T> {
    const fn of(transition: QpTransition) -> Transition<T> {
        Transition { transition, service: PhantomData }
    }

    /// From RTS to SQD: outstanding work is finished and no other begun.
    /// [`AsyncEvent::SendQueueDrained`](super::AsyncEvent::SendQueueDrained) reports the end of it.
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

    /// To RESET, from any state: all posted work is forgotten without completions.
    pub const fn to_reset() -> Transition<T> {
        Transition::of(QpTransition::ToReset)
    }

    /// The state after it.
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

impl<T: QpService> fmt::Debug for Transition<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.transition, f)
    }
}

impl<T: TransportService> From<Transition<T>> for Transition<Any> {
    #[inline]
    fn from(transition: Transition<T>) -> Transition<Any> {
        Transition::of(transition.transition)
    }
}

impl From<QpTransition> for Transition<Any> {
    /// A transition whose attributes are known at run time only.
    #[inline]
    fn from(transition: QpTransition) -> Transition<Any> {
        Transition::of(transition)
    }
}

impl Device<'_> {
    /// Creates a queue pair of service `T` in `pd`, in state RESET (`ibv_create_qp`).
    ///
    /// # Errors
    /// [`QpError::TooMany`], [`QpError::Limit`], [`QpError::UnknownPd`], [`QpError::UnknownCq`],
    /// [`QpError::UnknownSrq`].
    #[inline]
    pub fn create_qp<T: TransportService>(
        &mut self,
        pd: ProtectionDomain,
        attr: QpInitAttr,
    ) -> Result<QueuePair<T>, QpError> {
        self.create(T::QP_TYPE, pd, attr).map(QueuePair::of)
    }

    /// [`create_qp`](Self::create_qp) where the transport service is known at run time only.
    ///
    /// # Errors
    /// As for [`create_qp`](Self::create_qp).
    #[inline]
    pub fn create_qp_of_type(
        &mut self,
        pd: ProtectionDomain,
        qp_type: QpType,
        attr: QpInitAttr,
    ) -> Result<AnyQueuePair, QpError> {
        self.create(qp_type, pd, attr).map(QueuePair::of)
    }

    /// Creates a queue pair and takes it to INIT, where receives can be posted (`rdma_create_qp`). `access` are the remote
    /// operations that the peer may do. The connection manager does the rest.
    ///
    /// # Errors
    /// As for [`create_qp`](Self::create_qp) and [`modify_qp`](Self::modify_qp).
    pub fn create_qp_in_init<T: Connected>(
        &mut self,
        pd: ProtectionDomain,
        attr: QpInitAttr,
        access: Access,
    ) -> Result<QueuePair<T>, QpError> {
        let qp = self.create_qp(pd, attr)?;
        match self.modify_qp(qp, Transition::to_init(access)) {
            Ok(()) => Ok(qp),
            Err(error) => {
                // Created above, so it exists.
                let _ = self.destroy_qp(qp);
                Err(error)
            }
        }
    }

    fn create(&mut self, qp_type: QpType, pd: ProtectionDomain, attr: QpInitAttr) -> Result<Qpn, QpError> {
        let QpInitAttr { send_cq, recv_cq, srq, caps, sq_sig_all } = attr;
        let init = QpInit {
            qp_type,
            pd: pd.0,
            send_cq: send_cq.id(),
            recv_cq: recv_cq.id(),
            srq: srq.map(SharedReceiveQueue::id),
            caps,
            sq_sig_all,
        };
        if let Some(hooks) = &mut self.hooks {
            hooks.before_create_qp(self.engine, &init)?;
        }
        let qpn = self.engine.create_qp(self.now, &init)?;
        if let Some(hooks) = &mut self.hooks {
            hooks.qp_created(self.engine, qpn, &init);
        }
        Ok(qpn)
    }

    /// The handle of the queue pair with number `qpn`, such as a completion or event names.
    ///
    /// # Errors
    /// [`QpError::WrongType`] when it is not of service `T`, [`QpError::Unknown`].
    #[inline]
    pub fn find_qp<T: TransportService>(&self, qpn: Qpn) -> Result<QueuePair<T>, QpError> {
        match self.engine.qp_type(qpn) {
            Some(qp_type) if qp_type == T::QP_TYPE => Ok(QueuePair::of(qpn)),
            Some(qp_type) => Err(QpError::WrongType(qp_type)),
            None => Err(QpError::Unknown(qpn)),
        }
    }

    /// Changes the state of a queue pair (`ibv_modify_qp`).
    ///
    /// # Errors
    /// [`QpError::Transition`] when the state diagram has no such transition, [`QpError::Limit`] for an attribute out of
    /// range, [`QpError::WrongType`] for a transition of another transport service, [`QpError::Unknown`]. The queue pair is
    /// unchanged then.
    pub fn modify_qp<T: QpService>(&mut self, qp: QueuePair<T>, transition: Transition<T>) -> Result<(), QpError> {
        self.modify_qp_with(qp, transition, &QpAttrChange::default())
    }

    /// Changes the state of a queue pair, and attributes that the transition does not bring but allows (`ibv_modify_qp` with
    /// optional attributes).
    ///
    /// # Errors
    /// [`QpError::Attribute`], and as for [`modify_qp`](Self::modify_qp). The queue pair is unchanged then.
    pub fn modify_qp_with<T: QpService>(
        &mut self,
        qp: QueuePair<T>,
        transition: Transition<T>,
        change: &QpAttrChange,
    ) -> Result<(), QpError> {
        if let Some(hooks) = &mut self.hooks {
            hooks.before_modify_qp(qp.qpn(), &transition.transition)?;
            hooks.before_modify_attributes(qp.qpn(), change)?;
        }
        let may_leave_groups = matches!(transition.target(), QpState::Reset | QpState::Init);
        self.engine.modify_qp_with(self.now, qp.qpn(), transition.transition, change)?;
        if may_leave_groups && let Some(hooks) = &mut self.hooks {
            hooks.multicast_changed(self.engine);
        }
        Ok(())
    }

    /// Changes attributes of a queue pair in INIT, RTS or SQD, which stays in its state (`ibv_modify_qp` without
    /// `IBV_QP_STATE`). [`QpAttrChange`] says which ones.
    ///
    /// # Errors
    /// [`QpError::Attribute`] for one that cannot be changed in this state, [`QpError::Limit`] for one out of range,
    /// [`QpError::Transition`] in other states, [`QpError::Unknown`]. The queue pair is unchanged then.
    pub fn modify_qp_attr<T: QpService>(&mut self, qp: QueuePair<T>, change: &QpAttrChange) -> Result<(), QpError> {
        if let Some(hooks) = &mut self.hooks {
            hooks.before_modify_attributes(qp.qpn(), change)?;
        }
        self.engine.modify_attributes(self.now, qp.qpn(), change)?;
        if change.port.is_some()
            && let Some(hooks) = &mut self.hooks
        {
            hooks.multicast_changed(self.engine);
        }
        Ok(())
    }

    /// Lets a connected queue pair in RTR or RTS detect from its peer's first packet whether it is RC, UC or UD, and the
    /// peer's path MTU: for peers that announce only the numbers of their queue pairs. Until then it works as the type it
    /// was created with and the path MTU it was connected with. If the peer sends datagrams, those with `qkey` are
    /// accepted, and one may carry up to `path_mtu`. The typed handle must not be used any more.
    ///
    /// Work posted before that is sent as the assumed type; while such work is outstanding, only a peer of that type is
    /// accepted. libibverbs has no such call.
    ///
    /// # Errors
    /// [`QpError::NoPath`] before RTR, [`QpError::Unknown`].
    pub fn detect_peer_type<T: Connected>(
        &mut self,
        qp: QueuePair<T>,
        qkey: u32,
        path_mtu: PathMtu,
    ) -> Result<AnyQueuePair, QpError> {
        self.engine.detect_peer_type(qp.qpn(), qkey, path_mtu)?;
        Ok(qp.into())
    }

    /// Changes the transport service of a queue pair in RESET. Other handles of it must not be used any more. libibverbs
    /// has no such call.
    ///
    /// # Errors
    /// [`QpError::Transition`] in other states, [`QpError::Unknown`].
    pub fn set_qp_type<T: TransportService>(&mut self, qp: impl Into<AnyQueuePair>) -> Result<QueuePair<T>, QpError> {
        let qpn = qp.into().qpn();
        self.engine.set_qp_type(qpn, T::QP_TYPE)?;
        if let Some(hooks) = &mut self.hooks {
            hooks.multicast_changed(self.engine);
        }
        Ok(QueuePair::of(qpn))
    }

    /// Probes the peer of a reliable connection in RTS whenever nothing has come from it for some time; `None` ends that,
    /// and so do ERROR and RESET. A peer that does not answer takes the queue pair to ERROR, with
    /// [`QpErrorCause::PeerSilent`](super::QpErrorCause::PeerSilent). libibverbs has no such call.
    ///
    /// # Errors
    /// [`QpError::Transition`] in another state, [`QpError::Unknown`].
    pub fn set_keep_alive(&mut self, qp: QueuePair<Rc>, settings: Option<KeepAlive>) -> Result<(), QpError> {
        self.engine.set_keep_alive(self.now, qp.qpn(), settings)
    }

    /// Attributes and progress of a queue pair (`ibv_query_qp`).
    ///
    /// # Errors
    /// [`QpError::Unknown`].
    #[inline]
    pub fn query_qp<T: QpService>(&self, qp: QueuePair<T>) -> Result<QpInfo, QpError> {
        self.engine.query_qp(qp.qpn()).ok_or(QpError::Unknown(qp.qpn()))
    }

    /// Destroys a queue pair (`ibv_destroy_qp`). Its outstanding work is forgotten; completions made before stay in an
    /// [`Adapter`](super::Adapter)'s completion queues, while a runtime may drop them.
    ///
    /// # Errors
    /// [`QpError::Unknown`].
    pub fn destroy_qp<T: QpService>(&mut self, qp: QueuePair<T>) -> Result<(), QpError> {
        if let Some(hooks) = &mut self.hooks {
            hooks.before_destroy_qp(qp.qpn())?;
        }
        self.engine.destroy_qp(self.now, qp.qpn())?;
        if let Some(hooks) = &mut self.hooks {
            hooks.qp_destroyed(qp.qpn());
            hooks.multicast_changed(self.engine);
        }
        Ok(())
    }

    /// Attaches a datagram queue pair, in INIT or later, to a multicast group of its port (`ibv_attach_mcast`): it
    /// receives a copy of every datagram to the group. A runtime joins the group on the network (IGMP, MLD) for the first
    /// queue pair that attaches; without one that is the caller's part.
    ///
    /// # Errors
    /// [`MulticastError`]; nothing is changed then.
    pub fn attach_mcast(&mut self, qp: QueuePair<Ud>, group: Gid) -> Result<(), MulticastError> {
        self.engine.attach_multicast(qp.qpn(), group)?;
        if let Some(hooks) = &mut self.hooks {
            hooks.multicast_changed(self.engine);
        }
        Ok(())
    }

    /// Detaches a queue pair from a multicast group (`ibv_detach_mcast`).
    ///
    /// # Errors
    /// [`MulticastError::NotAttached`]; [`MulticastError::Unknown`] and [`MulticastError::NoPort`].
    pub fn detach_mcast(&mut self, qp: QueuePair<Ud>, group: Gid) -> Result<(), MulticastError> {
        self.engine.detach_multicast(qp.qpn(), group)?;
        if let Some(hooks) = &mut self.hooks {
            hooks.multicast_changed(self.engine);
        }
        Ok(())
    }
}

impl AnyQueuePair {
    /// The typed handle, if the queue pair is of service `T`.
    ///
    /// # Errors
    /// [`QpError::WrongType`] when it is not, [`QpError::Unknown`].
    #[inline]
    pub fn downcast<T: TransportService>(self, dev: &Device<'_>) -> Result<QueuePair<T>, QpError> {
        dev.find_qp(self.qpn())
    }
}

impl<T: Connected> QueuePair<T> {
    /// From RESET or INIT to RTS in one call. `access` are the remote operations that the peer may do.
    ///
    /// To have receives posted before the peer's first message, create the queue pair with
    /// [`Device::create_qp_in_init`], post them, then connect.
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
    /// From RESET or INIT to RTS in one call.
    ///
    /// # Errors
    /// As for [`Device::modify_qp`]; the queue pair stays in the last state that it reached.
    pub fn open(self, dev: &mut Device<'_>, attr: UdAttr) -> Result<(), QpError> {
        dev.modify_qp(self, Transition::to_init_datagram(attr.port, attr.qkey))?;
        dev.modify_qp(self, Transition::to_rtr_datagram(attr.path_mtu))?;
        dev.modify_qp(self, Transition::to_rts_datagram(attr.sq_psn))
    }
}
