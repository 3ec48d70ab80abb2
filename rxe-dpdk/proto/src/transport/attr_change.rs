//! Attributes of a queue pair that can be changed while it exists, and when.

use crate::mem::Access;
use crate::wire::{Path, PortId};

use super::attr::check_limit;
use super::{EngineConfig, QpError, QpState, QpType};

/// Changes of a queue pair's attributes (`ibv_qp_attr` with its mask); what is `None` stays as it is.
///
/// Which attributes can be changed depends on the state, as in libibverbs:
///
/// | from | to | RC | UC | UD |
/// |---|---|---|---|---|
/// | RESET | INIT | `pkey_index`, `port` | `pkey_index`, `port` | `pkey_index` |
/// | INIT | INIT | `pkey_index`, `port`, `access` | `pkey_index`, `port`, `access` | `pkey_index`, `port`, `qkey` |
/// | INIT | RTR | `pkey_index`, `access` | `pkey_index`, `access` | `pkey_index`, `qkey` |
/// | RTR, RTS, SQD | RTS | `cur_state`, `access`, `min_rnr_timer` | `cur_state`, `access` | `cur_state`, `qkey` |
/// | SQE | RTS | | `cur_state`, `access` | `cur_state`, `qkey` |
/// | SQD | SQD | `pkey_index`, `port`, `access`, `path`, `timeout`, `retry_cnt`, `rnr_retry`, `min_rnr_timer`, `max_rd_atomic`, `max_dest_rd_atomic` | `pkey_index`, `access`, `path` | `pkey_index`, `qkey` |
///
/// Those that a [transition](super::QpTransition) brings are not in the table. There is no path migration, so there is no
/// alternate path.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct QpAttrChange {
    /// The state that the caller believes the queue pair to be in (`IBV_QP_CUR_STATE`): in another one nothing is changed.
    pub cur_state: Option<QpState>,
    /// Remote operations that the peer may do (`IBV_QP_ACCESS_FLAGS`).
    pub access: Option<Access>,
    /// Index of the partition key (`IBV_QP_PKEY_INDEX`): 0, the default partition.
    pub pkey_index: Option<u16>,
    /// The port (`IBV_QP_PORT`). For connected queue pairs that of the path counts.
    pub port: Option<PortId>,
    /// Queue key (`IBV_QP_QKEY`).
    pub qkey: Option<u32>,
    /// The path to the peer (`IBV_QP_AV`).
    pub path: Option<Path>,
    /// Code of the ACK timeout (`IBV_QP_TIMEOUT`), as in [`RtsAttr::timeout`](super::RtsAttr::timeout).
    pub timeout: Option<u8>,
    /// Transport retries (`IBV_QP_RETRY_CNT`).
    pub retry_cnt: Option<u8>,
    /// RNR retries (`IBV_QP_RNR_RETRY`).
    pub rnr_retry: Option<u8>,
    /// Code of the time that RNR NAKs ask for (`IBV_QP_MIN_RNR_TIMER`).
    pub min_rnr_timer: Option<u8>,
    /// READs and atomics that we may have outstanding at the peer (`IBV_QP_MAX_QP_RD_ATOMIC`). Those that are posted wait
    /// for ever if it is 0.
    pub max_rd_atomic: Option<u8>,
    /// READs and atomics that the peer may have outstanding here (`IBV_QP_MAX_DEST_RD_ATOMIC`). Those that it has are
    /// answered in any case.
    pub max_dest_rd_atomic: Option<u8>,
}

bitflags::bitflags! {
    /// The attributes of a [`QpAttrChange`].
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Mask: u16 {
        const CUR_STATE = 1;
        const ACCESS = 1 << 1;
        const PKEY_INDEX = 1 << 2;
        const PORT = 1 << 3;
        const QKEY = 1 << 4;
        const PATH = 1 << 5;
        const TIMEOUT = 1 << 6;
        const RETRY_CNT = 1 << 7;
        const RNR_RETRY = 1 << 8;
        const MIN_RNR_TIMER = 1 << 9;
        const MAX_RD_ATOMIC = 1 << 10;
        const MAX_DEST_RD_ATOMIC = 1 << 11;
    }
}

impl Mask {
    /// The attributes that a queue pair may change on its way from one state to another one, or in a state. Linux:
    /// qp_state_table of ib_core.
    fn of(qp_type: QpType, from: QpState, to: QpState) -> Mask {
        use QpState::*;
        let (rc, uc, ud) = match (from, to) {
            (Reset, Init) => {
                let connected = Mask::PKEY_INDEX | Mask::PORT;
                (connected, connected, Mask::PKEY_INDEX)
            }
            (Init, Init) => {
                let connected = Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS;
                (connected, connected, Mask::PKEY_INDEX | Mask::PORT | Mask::QKEY)
            }
            (Init, Rtr) => {
                let connected = Mask::PKEY_INDEX | Mask::ACCESS;
                (connected, connected, Mask::PKEY_INDEX | Mask::QKEY)
            }
            (Rtr | Rts | Sqd | Sqe, Rts) => {
                let connected = Mask::CUR_STATE | Mask::ACCESS;
                (connected | Mask::MIN_RNR_TIMER, connected, Mask::CUR_STATE | Mask::QKEY)
            }
            (Sqd, Sqd) => {
                let connected = Mask::PKEY_INDEX | Mask::ACCESS | Mask::PATH;
                let reliable = Mask::all() - Mask::CUR_STATE - Mask::QKEY;
                (reliable, connected, Mask::PKEY_INDEX | Mask::QKEY)
            }
            _ => return Mask::empty(),
        };
        match qp_type {
            QpType::Rc => rc,
            QpType::Uc => uc,
            QpType::Ud => ud,
        }
    }
}

impl QpAttrChange {
    /// Whether no attribute is changed.
    pub fn is_empty(&self) -> bool {
        *self == QpAttrChange::default()
    }

    /// The attributes that it has, with their names in verbs terms.
    fn present(&self) -> impl Iterator<Item = (Mask, &'static str)> {
        [
            (self.cur_state.is_some(), Mask::CUR_STATE, "cur_qp_state"),
            (self.access.is_some(), Mask::ACCESS, "qp_access_flags"),
            (self.pkey_index.is_some(), Mask::PKEY_INDEX, "pkey_index"),
            (self.port.is_some(), Mask::PORT, "port_num"),
            (self.qkey.is_some(), Mask::QKEY, "qkey"),
            (self.path.is_some(), Mask::PATH, "ah_attr"),
            (self.timeout.is_some(), Mask::TIMEOUT, "timeout"),
            (self.retry_cnt.is_some(), Mask::RETRY_CNT, "retry_cnt"),
            (self.rnr_retry.is_some(), Mask::RNR_RETRY, "rnr_retry"),
            (self.min_rnr_timer.is_some(), Mask::MIN_RNR_TIMER, "min_rnr_timer"),
            (self.max_rd_atomic.is_some(), Mask::MAX_RD_ATOMIC, "max_rd_atomic"),
            (self.max_dest_rd_atomic.is_some(), Mask::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic"),
        ]
        .into_iter()
        .filter_map(|(present, mask, name)| present.then_some((mask, name)))
    }

    /// Checks whether a queue pair may make the change on its way from one state to another one, or in a state.
    ///
    /// # Errors
    /// [`QpError::Attribute`], [`QpError::Limit`]; [`QpError::Transition`] when it is in another state than `cur_state`.
    pub(super) fn check(
        &self,
        config: &EngineConfig,
        qp_type: QpType,
        from: QpState,
        to: QpState,
    ) -> Result<(), QpError> {
        // compliance.md [QP-ATTRIBUTES]: Each state and each transition allows the change of certain attributes only.
        let allowed = Mask::of(qp_type, from, to);
        if let Some((_, name)) = self.present().find(|&(mask, _)| !allowed.contains(mask)) {
            return Err(QpError::Attribute { name, qp_type, from, to });
        }
        if self.cur_state.is_some_and(|state| state != from) {
            return Err(QpError::Transition { from, to });
        }
        for (name, value, limit) in [
            ("pkey_index", self.pkey_index.map(u32::from), 0),
            ("timeout", self.timeout.map(u32::from), 31),
            ("retry_cnt", self.retry_cnt.map(u32::from), 7),
            ("rnr_retry", self.rnr_retry.map(u32::from), 7),
            ("min_rnr_timer", self.min_rnr_timer.map(u32::from), 31),
            ("max_rd_atomic", self.max_rd_atomic.map(u32::from), config.max_rd_atomic.into()),
            ("max_dest_rd_atomic", self.max_dest_rd_atomic.map(u32::from), config.max_rd_atomic.into()),
        ] {
            check_limit(name, value.unwrap_or(0), limit)?;
        }
        Ok(())
    }
}
