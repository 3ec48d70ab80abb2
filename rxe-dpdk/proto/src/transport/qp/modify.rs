//! Changes of state and of attributes: everything is checked first, then changed.

use crate::time::Instant;
use crate::transport::attr::{QpError, check_limit};
use crate::transport::congestion::Notifier;
use crate::transport::context::Context;
use crate::transport::link::Link;
use crate::transport::send_policy::SendPolicy;
use crate::transport::state::{QpState, QpTransition};
use crate::transport::{AsyncEvent, EngineConfig, QpAttrChange, QpType, RtrAttr, RtsAttr, WcStatus};

use super::Qp;

/// Checks the attributes that a transition brings. Those that mean nothing on an unreliable connection may have any value, as a
/// program does not set them.
fn check_attributes(config: &EngineConfig, qp_type: QpType, transition: &QpTransition) -> Result<(), QpError> {
    if qp_type != QpType::Rc {
        return Ok(());
    }
    match transition {
        QpTransition::ToRtr(attr) => {
            check_limit("max_dest_rd_atomic", attr.max_dest_rd_atomic.into(), config.max_rd_atomic.into())?;
            check_limit("min_rnr_timer", attr.min_rnr_timer.into(), 31)
        }
        QpTransition::ToRts(attr) => {
            check_limit("max_rd_atomic", attr.max_rd_atomic.into(), config.max_rd_atomic.into())?;
            check_limit("timeout", attr.timeout.into(), 31)?;
            check_limit("retry_cnt", attr.retry_cnt.into(), 7)?;
            check_limit("rnr_retry", attr.rnr_retry.into(), 7)
        }
        _ => Ok(()),
    }
}

/// The attributes in their ranges: on an unreliable connection they were not checked.
fn bounded_rtr(config: &EngineConfig, attr: RtrAttr) -> RtrAttr {
    RtrAttr {
        max_dest_rd_atomic: attr.max_dest_rd_atomic.min(config.max_rd_atomic),
        min_rnr_timer: attr.min_rnr_timer.min(31),
        ..attr
    }
}

/// Limits the attributes of RTS to those of the engine.
fn bounded_rts(config: &EngineConfig, attr: RtsAttr) -> RtsAttr {
    RtsAttr {
        timeout: attr.timeout.min(31),
        retry_cnt: attr.retry_cnt.min(7),
        rnr_retry: attr.rnr_retry.min(7),
        max_rd_atomic: attr.max_rd_atomic.min(config.max_rd_atomic),
        ..attr
    }
}

impl Qp {
    /// Changes the state, and attributes with it; nothing on error.
    pub(in crate::transport) fn modify(
        &mut self,
        cx: &mut Context,
        now: Instant,
        transition: QpTransition,
        change: &QpAttrChange,
    ) -> Result<(), QpError> {
        let (from, to) = (self.state, transition.target());
        // RTS is the target of two kinds of transitions, each from states of its own.
        let starts = matches!(transition, QpTransition::ToRts(_) | QpTransition::ToRtsDatagram { .. });
        let resumes = matches!(transition, QpTransition::Resume);
        let is_ready = from == QpState::Rtr;
        if !from.may_become(to) || starts && !is_ready || resumes && is_ready {
            return Err(QpError::Transition { from, to });
        }
        if !transition.is_of(self.common.qp_type) {
            return Err(QpError::WrongType(self.common.qp_type));
        }
        check_attributes(&cx.config, self.common.qp_type, &transition)?;
        change.check(&cx.config, self.common.qp_type, from, to)?;
        self.make_transition(cx, transition);
        self.state = to;
        self.apply(cx, now, change);
        Ok(())
    }

    /// Changes attributes, without a change of state; nothing on error.
    pub(in crate::transport) fn modify_attributes(
        &mut self,
        cx: &mut Context,
        now: Instant,
        change: &QpAttrChange,
    ) -> Result<(), QpError> {
        let state = self.state;
        if !matches!(state, QpState::Init | QpState::Rts | QpState::Sqd) {
            return Err(QpError::Transition { from: state, to: state });
        }
        change.check(&cx.config, self.common.qp_type, state, state)?;
        self.apply(cx, now, change);
        Ok(())
    }

    /// Makes a transition that has been checked.
    fn make_transition(&mut self, cx: &mut Context, transition: QpTransition) {
        match transition {
            QpTransition::ToInit { access } => self.responder.set_access(access),
            QpTransition::ToInitDatagram { port, qkey } => {
                self.common.port = Some(port);
                self.common.qkey = qkey;
            }
            QpTransition::ToRtr(attr) => self.ready_to_receive(cx, attr),
            QpTransition::ToRtrDatagram { path_mtu } => self.common.mtu = path_mtu.bytes() as u32,
            QpTransition::ToRts(attr) => {
                self.requester.start(&bounded_rts(&cx.config, attr), &cx.config);
                if self.common.qp_type == QpType::Rc {
                    self.policy.start(&cx.config);
                }
            }
            QpTransition::ToRtsDatagram { sq_psn } => self.requester.start_at(sq_psn),
            QpTransition::Resume => {
                self.drained = false;
                self.activate(cx);
            }
            QpTransition::ToSqd => {
                if self.state == QpState::Rts && self.requester.is_drained() {
                    self.drained = true;
                    cx.events.push_back(AsyncEvent::SendQueueDrained { qpn: self.common.qpn });
                }
            }
            QpTransition::ToError => {
                if self.state != QpState::Error {
                    self.enter_error(cx, None, None);
                    self.responder.abandon_replies();
                }
            }
            QpTransition::ToReset => self.reset(cx),
        }
    }

    fn ready_to_receive(&mut self, cx: &Context, attr: RtrAttr) {
        let attr = bounded_rtr(&cx.config, attr);
        self.responder.start(&attr);
        self.common.mtu = attr.path_mtu.bytes() as u32;
        self.common.port = Some(attr.path.port);
        let path = cx.config.bind_path(attr.path);
        self.link = Some(Link::new(path, attr.dest_qpn, attr.path_mtu));
    }

    fn reset(&mut self, cx: &mut Context) {
        self.responder.reset();
        self.requester.reset();
        self.settle(cx, cx.now);
        // compliance.md [MEM-WINDOW-QP-END]: The type 2 windows of a queue pair are unbound when it is reset or
        // destroyed.
        cx.keys.unbind_windows_of(self.common.qpn.get());
        self.notifier = Notifier::default();
        self.policy = SendPolicy::default();
        self.detection = None;
        self.link = None;
        self.common.port = None;
        self.established = false;
        self.drained = false;
    }

    /// Makes a change that has been checked.
    fn apply(&mut self, cx: &mut Context, now: Instant, change: &QpAttrChange) {
        // The destination has been the state that the caller means; the partition is the only one.
        let QpAttrChange { cur_state: _, pkey_index: _, access, port, qkey, path, .. } = change;
        if let Some(access) = *access {
            self.responder.set_access(access);
        }
        if let Some(port) = *port {
            self.common.port = Some(port);
        }
        if let Some(qkey) = *qkey {
            self.common.qkey = qkey;
        }
        if let (Some(path), Some(link)) = (path, &mut self.link) {
            self.common.port = Some(path.port);
            let path = cx.config.bind_path(path.clone());
            *link = Link::new(path, link.dest_qpn, link.path_mtu);
        }
        self.responder.change(change);
        if self.requester.change(cx, now, change) {
            self.arm_timer(cx);
            self.activate(cx);
        }
    }

    pub(super) fn enter_error(&mut self, cx: &mut Context, send: Option<(u64, WcStatus)>, receive: Option<WcStatus>) {
        self.state = QpState::Error;
        self.requester.flush(&self.common, cx, send);
        self.settle(cx, cx.now);
        self.responder.flush(&self.common, cx, receive);
        if self.common.srq.is_some() {
            // compliance.md [SRQ-LAST-WQE]: A queue pair in error with a shared receive queue raises the last-WQE
            // event.
            cx.events.push_back(AsyncEvent::LastWqeReached { qpn: self.common.qpn });
        }
    }
}
