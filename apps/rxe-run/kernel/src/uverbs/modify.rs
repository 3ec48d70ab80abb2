//! Queue pairs: changes of state and attributes.

use nix::errno::Errno;
use rxe_proto::Instant;
use rxe_proto::mem::Access;
use rxe_proto::transport::{Engine, QpAttrChange, QpState, QpTransition, QpType, Qpn, RtrAttr, RtsAttr};
use rxe_proto::wire::{PathMtu, PortId, Psn};
use zerocopy::FromZeros;

use super::abi::{ExModifyQp, ExModifyQpResp, ModifyQp, qp_attr, qp_state};
use super::command::Command;
use super::path::{path, route_of_qp};
use super::qp::{errno, state_number};
use super::transitions::is_allowed;
use super::{PORT, Uverbs};
use crate::polling;

impl Uverbs {
    /// MODIFY_QP
    pub(super) fn modify_qp(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        let request = command.call.request::<ModifyQp>()?;
        if request.attr_mask & !qp_attr::STANDARD != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        self.change_qp(command, &request)
    }

    /// EX_MODIFY_QP
    pub(super) fn ex_modify_qp(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        let request = command.call.request::<ExModifyQp>()?.base;
        if request.attr_mask & !(qp_attr::STANDARD | qp_attr::RATE_LIMIT) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        self.change_qp(command, &request)?;
        let response_length = command.call.response_length::<ExModifyQpResp>();
        command.call.respond(&ExModifyQpResp { comp_mask: 0, response_length })
    }

    fn change_qp(&mut self, command: &mut Command<'_>, request: &ModifyQp) -> Result<(), Errno> {
        let handle = request.qp_handle;
        let qp = self.qps.get(command.context, handle).ok_or(Errno::EINVAL)?;
        let (qpn, qp_type) = (qp.qpn, qp.qp_type);
        let state = command.engine.query_qp(qpn).ok_or(Errno::EINVAL)?.state;
        let mask = checked_mask(request, &qp.attr)?;
        let has = |bit| mask & bit != 0;
        let from = if has(qp_attr::CUR_STATE) { request.cur_qp_state } else { state_number(state) };
        let to = if has(qp_attr::STATE) { request.qp_state } else { from };
        // A program that is wrong about the state gets nothing changed.
        if from != state_number(state) || !is_allowed(qp_type, from, to, mask) {
            return Err(Errno::EINVAL);
        }
        // There is one partition, and no alternate path.
        if has(qp_attr::PKEY_INDEX) && request.pkey_index != 0 || has(qp_attr::ALT_PATH) {
            return Err(Errno::EINVAL);
        }
        let attr = merged(&qp.attr, request, mask);
        if to == qp_state::ERR {
            // What the engine does not have yet is flushed with the rest.
            self.pull_receives_of(command.engine, handle);
        }
        self.apply(command.engine, command.now, qpn, qp_type, (state, to), mask, &attr)?;

        let Some(qp) = self.qps.at_mut(handle) else { return Ok(()) };
        qp.attr = attr;
        if to == qp_state::RESET {
            qp.attr = ModifyQp::new_zeroed();
            qp.sends.reset();
            qp.receives.iter_mut().for_each(|receives| receives.reset());
        }
        let user_handle = qp.user_handle;
        if let Some(info) = command.engine.query_qp(qpn) {
            self.note_state(handle, info.state);
        }
        if (from, to) == (qp_state::RESET, qp_state::INIT) {
            polling::wrap(user_handle, handle, qpn.get());
        }
        match to {
            // The program knows that it is connected. In RTR the first request raises an event.
            qp_state::RTS => command.engine.established(qpn),
            qp_state::INIT if qp_type == QpType::Ud => self.rejoin_groups(command.engine, handle),
            _ => {}
        }
        Ok(())
    }

    /// Lets the engine make a change that the table of transitions allows.
    #[expect(clippy::too_many_arguments, reason = "all parts of one change")]
    fn apply(
        &self,
        engine: &mut Engine,
        now: Instant,
        qpn: Qpn,
        qp_type: QpType,
        (from, to): (QpState, u8),
        mask: u32,
        attr: &ModifyQp,
    ) -> Result<(), Errno> {
        let datagrams = qp_type == QpType::Ud;
        let access = Access::from_bits_truncate(attr.qp_access_flags);
        // Attributes that come with the transition, and those beside it.
        let (transition, brought) = match (from, to) {
            (QpState::Init, qp_state::INIT) => return self.change(engine, now, qpn, mask, attr),
            (_, qp_state::RESET) => (QpTransition::ToReset, 0),
            (_, qp_state::ERR) => (QpTransition::ToError, 0),
            (_, qp_state::INIT) if datagrams => {
                (QpTransition::ToInitDatagram { port: PortId(0), qkey: attr.qkey }, qp_attr::PORT | qp_attr::QKEY)
            }
            (_, qp_state::INIT) => (QpTransition::ToInit { access }, qp_attr::ACCESS_FLAGS),
            (_, qp_state::RTR) if datagrams => (QpTransition::ToRtrDatagram { path_mtu: self.local.path_mtu }, 0),
            (_, qp_state::RTR) => (QpTransition::ToRtr(self.rtr(attr)?), RTR_BROUGHT),
            (QpState::Rtr, qp_state::RTS) if datagrams => {
                (QpTransition::ToRtsDatagram { sq_psn: Psn::new(attr.sq_psn) }, qp_attr::SQ_PSN)
            }
            (QpState::Rtr, qp_state::RTS) => (QpTransition::ToRts(rts(attr)), RTS_BROUGHT),
            (QpState::Sqd | QpState::Sqe, qp_state::RTS) => (QpTransition::Resume, 0),
            (QpState::Rts, qp_state::SQD) => (QpTransition::ToSqd, 0),
            (QpState::Rts, qp_state::RTS) | (QpState::Sqd, qp_state::SQD) => {
                return self.change(engine, now, qpn, mask, attr);
            }
            _ => return Err(Errno::EINVAL),
        };
        let change = self.attributes(mask & !brought, attr)?;
        engine.modify_qp_with(now, qpn, transition, &change).map_err(errno)
    }

    /// Changes attributes alone.
    fn change(&self, engine: &mut Engine, now: Instant, qpn: Qpn, mask: u32, attr: &ModifyQp) -> Result<(), Errno> {
        let change = self.attributes(mask, attr)?;
        engine.modify_attributes(now, qpn, &change).map_err(errno)
    }

    fn rtr(&self, attr: &ModifyQp) -> Result<RtrAttr, Errno> {
        let path_mtu = PathMtu::from_code(attr.path_mtu).ok_or(Errno::EINVAL)?;
        // Longer packets would not pass the interface.
        if path_mtu > self.local.path_mtu {
            return Err(Errno::EINVAL);
        }
        Ok(RtrAttr {
            path: path(&self.local, &route_of_qp(&attr.dest)?)?,
            path_mtu,
            dest_qpn: Qpn::new(attr.dest_qp_num),
            rq_psn: Psn::new(attr.rq_psn),
            max_dest_rd_atomic: attr.max_dest_rd_atomic,
            min_rnr_timer: attr.min_rnr_timer,
        })
    }

    /// The attributes of `mask`, without those that have no effect here.
    fn attributes(&self, mask: u32, attr: &ModifyQp) -> Result<QpAttrChange, Errno> {
        let has = |bit| mask & bit != 0;
        let path = if has(qp_attr::AV) { Some(path(&self.local, &route_of_qp(&attr.dest)?)?) } else { None };
        Ok(QpAttrChange {
            access: has(qp_attr::ACCESS_FLAGS).then(|| Access::from_bits_truncate(attr.qp_access_flags)),
            qkey: has(qp_attr::QKEY).then_some(attr.qkey),
            path,
            timeout: has(qp_attr::TIMEOUT).then_some(attr.timeout),
            retry_cnt: has(qp_attr::RETRY_CNT).then_some(attr.retry_cnt),
            rnr_retry: has(qp_attr::RNR_RETRY).then_some(attr.rnr_retry),
            min_rnr_timer: has(qp_attr::MIN_RNR_TIMER).then_some(attr.min_rnr_timer),
            max_rd_atomic: has(qp_attr::MAX_QP_RD_ATOMIC).then_some(attr.max_rd_atomic),
            max_dest_rd_atomic: has(qp_attr::MAX_DEST_RD_ATOMIC).then_some(attr.max_dest_rd_atomic),
            ..QpAttrChange::default()
        })
    }
}

/// Attributes in [`RtrAttr`].
const RTR_BROUGHT: u32 = qp_attr::AV
    | qp_attr::PATH_MTU
    | qp_attr::DEST_QPN
    | qp_attr::RQ_PSN
    | qp_attr::MAX_DEST_RD_ATOMIC
    | qp_attr::MIN_RNR_TIMER;

/// Attributes in [`RtsAttr`].
const RTS_BROUGHT: u32 =
    qp_attr::SQ_PSN | qp_attr::TIMEOUT | qp_attr::RETRY_CNT | qp_attr::RNR_RETRY | qp_attr::MAX_QP_RD_ATOMIC;

fn rts(attr: &ModifyQp) -> RtsAttr {
    RtsAttr {
        sq_psn: Psn::new(attr.sq_psn),
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        max_rd_atomic: attr.max_rd_atomic,
    }
}

/// The mask of a request, after the checks of ports that the kernel makes before it looks at the state.
fn checked_mask(request: &ModifyQp, old: &ModifyQp) -> Result<u32, Errno> {
    let mut mask = request.attr_mask;
    let has = |bit| mask & bit != 0;
    if has(qp_attr::PORT) && request.port_num != PORT {
        return Err(Errno::EINVAL);
    }
    if has(qp_attr::AV) {
        if request.dest.port_num != PORT {
            return Err(Errno::EINVAL);
        }
        if has(qp_attr::STATE) && request.qp_state == qp_state::RTR {
            if request.dest.port_num != old.port_num {
                return Err(Errno::EINVAL);
            }
        } else {
            // A new path outside of the way to RTR brings its port.
            mask |= qp_attr::PORT;
        }
    }
    Ok(mask)
}

/// The attributes with those of the mask replaced.
fn merged(old: &ModifyQp, new: &ModifyQp, mask: u32) -> ModifyQp {
    let mut attr = *old;
    let has = |bit| mask & bit != 0;
    macro_rules! take {
        ($($bit:ident => $field:ident),*) => {$(if has(qp_attr::$bit) { attr.$field = new.$field; })*};
    }
    take!(
        AV => dest, QKEY => qkey, RQ_PSN => rq_psn, SQ_PSN => sq_psn, DEST_QPN => dest_qp_num,
        ACCESS_FLAGS => qp_access_flags, PKEY_INDEX => pkey_index, PATH_MTU => path_mtu,
        EN_SQD_ASYNC_NOTIFY => en_sqd_async_notify, MAX_QP_RD_ATOMIC => max_rd_atomic,
        MAX_DEST_RD_ATOMIC => max_dest_rd_atomic, MIN_RNR_TIMER => min_rnr_timer, TIMEOUT => timeout,
        RETRY_CNT => retry_cnt, RNR_RETRY => rnr_retry
    );
    if has(qp_attr::PORT) {
        attr.port_num = PORT;
    }
    // Asked for with each change to SQD.
    if has(qp_attr::STATE) && new.qp_state == qp_state::SQD && !has(qp_attr::EN_SQD_ASYNC_NOTIFY) {
        attr.en_sqd_async_notify = 0;
    }
    attr
}
