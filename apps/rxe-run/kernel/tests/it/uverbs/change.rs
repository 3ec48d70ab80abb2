//! Changes of queue pairs.

use rxe_proto::wire::Gid;

use super::bytes::Bytes;
use super::program::{RC, UC};

/// A change of a queue pair: `ib_uverbs_modify_qp`, with the mask made from what is given.
#[derive(Clone, Debug, Default)]
pub struct QpChange {
    pub state: Option<u8>,
    pub cur_state: Option<u8>,
    pub sqd_notify: Option<u8>,
    pub access: Option<u32>,
    pub pkey_index: Option<u16>,
    pub port: Option<u8>,
    pub qkey: Option<u32>,
    /// Destination GID and index of the source GID.
    pub av: Option<(Gid, u8)>,
    pub path_mtu: Option<u8>,
    pub timeout: Option<u8>,
    pub retry_cnt: Option<u8>,
    pub rnr_retry: Option<u8>,
    pub rq_psn: Option<u32>,
    pub max_rd_atomic: Option<u8>,
    pub min_rnr_timer: Option<u8>,
    pub sq_psn: Option<u32>,
    pub max_dest_rd_atomic: Option<u8>,
    pub dest_qpn: Option<u32>,
    /// Bits of the mask beside those.
    pub extra_mask: u32,
}

impl QpChange {
    /// To a state, with nothing else.
    pub fn to(state: u8) -> QpChange {
        QpChange { state: Some(state), ..QpChange::default() }
    }

    /// INIT to RTR as ibv_rc_pingpong and ibv_uc_pingpong do.
    pub fn rtr(qp_type: u8, dgid: Gid, dest_qpn: u32, rq_psn: u32) -> QpChange {
        let change = QpChange {
            av: Some((dgid, 1)),
            path_mtu: Some(3),
            dest_qpn: Some(dest_qpn),
            rq_psn: Some(rq_psn),
            ..QpChange::to(2)
        };
        match qp_type {
            RC => QpChange { max_dest_rd_atomic: Some(4), min_rnr_timer: Some(12), ..change },
            UC => change,
            _ => QpChange::to(2),
        }
    }

    /// RTR to RTS as they do.
    pub fn rts(qp_type: u8, sq_psn: u32) -> QpChange {
        let change = QpChange { sq_psn: Some(sq_psn), ..QpChange::to(3) };
        match qp_type {
            RC => {
                QpChange { timeout: Some(14), retry_cnt: Some(7), rnr_retry: Some(7), max_rd_atomic: Some(4), ..change }
            }
            _ => change,
        }
    }

    pub fn bytes(&self, handle: u32) -> Bytes {
        let mut mask = self.extra_mask;
        let mut set = |bit: u32, present: bool| mask |= u32::from(present) << bit;
        set(0, self.state.is_some());
        set(1, self.cur_state.is_some());
        set(2, self.sqd_notify.is_some());
        set(3, self.access.is_some());
        set(4, self.pkey_index.is_some());
        set(5, self.port.is_some());
        set(6, self.qkey.is_some());
        set(7, self.av.is_some());
        set(8, self.path_mtu.is_some());
        set(9, self.timeout.is_some());
        set(10, self.retry_cnt.is_some());
        set(11, self.rnr_retry.is_some());
        set(12, self.rq_psn.is_some());
        set(13, self.max_rd_atomic.is_some());
        set(15, self.min_rnr_timer.is_some());
        set(16, self.sq_psn.is_some());
        set(17, self.max_dest_rd_atomic.is_some());
        set(20, self.dest_qpn.is_some());
        let (dgid, sgid_index) = self.av.unwrap_or_default();
        let dest = Bytes::new().bytes(&dgid.0).u32(0).u16(0).u16(0);
        let dest = dest.u8(sgid_index).u8(1).u8(0).u8(0).u8(0).u8(0).u8(1).u8(1);
        dest.pad(64)
            .u32(handle)
            .u32(mask)
            .u32(self.qkey.unwrap_or(0))
            .u32(self.rq_psn.unwrap_or(0))
            .u32(self.sq_psn.unwrap_or(0))
            .u32(self.dest_qpn.unwrap_or(0))
            .u32(self.access.unwrap_or(0))
            .u16(self.pkey_index.unwrap_or(0))
            .u16(0)
            .u8(self.state.unwrap_or(0))
            .u8(self.cur_state.unwrap_or(0))
            .u8(self.path_mtu.unwrap_or(0))
            .u8(0)
            .u8(self.sqd_notify.unwrap_or(0))
            .u8(self.max_rd_atomic.unwrap_or(0))
            .u8(self.max_dest_rd_atomic.unwrap_or(0))
            .u8(self.min_rnr_timer.unwrap_or(0))
            .u8(self.port.unwrap_or(0))
            .u8(self.timeout.unwrap_or(0))
            .u8(self.retry_cnt.unwrap_or(0))
            .u8(self.rnr_retry.unwrap_or(0))
            .pad(112)
    }
}
