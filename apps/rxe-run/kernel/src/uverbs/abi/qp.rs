//! Queue pairs.

use super::abi;

abi! {
    /// `ib_uverbs_create_qp`
    CreateQp {
        response: u64,
        user_handle: u64,
        pd_handle: u32,
        send_cq_handle: u32,
        recv_cq_handle: u32,
        srq_handle: u32,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
        sq_sig_all: u8,
        qp_type: u8,
        is_srq: u8,
        reserved: u8,
    }

    /// `ib_uverbs_ex_create_qp`
    ExCreateQp {
        user_handle: u64,
        pd_handle: u32,
        send_cq_handle: u32,
        recv_cq_handle: u32,
        srq_handle: u32,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
        sq_sig_all: u8,
        qp_type: u8,
        is_srq: u8,
        reserved: u8,
        comp_mask: u32,
        create_flags: u32,
        rwq_ind_tbl_handle: u32,
        source_qpn: u32,
    }

    /// `ib_uverbs_create_qp_resp`
    CreateQpResp {
        qp_handle: u32,
        qpn: u32,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
        reserved: u32,
    }

    /// `ib_uverbs_ex_create_qp_resp`
    ExCreateQpResp { base: CreateQpResp, comp_mask: u32, response_length: u32, }

    /// `ib_uverbs_qp_dest`
    QpDest {
        dgid: [u8; 16],
        flow_label: u32,
        dlid: u16,
        reserved: u16,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }

    /// `ib_uverbs_query_qp`
    QueryQp { response: u64, qp_handle: u32, attr_mask: u32, }

    /// `ib_uverbs_query_qp_resp`
    QueryQpResp {
        dest: QpDest,
        alt_dest: QpDest,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: u32,
        pkey_index: u16,
        alt_pkey_index: u16,
        qp_state: u8,
        cur_qp_state: u8,
        path_mtu: u8,
        path_mig_state: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        sq_sig_all: u8,
        reserved: [u8; 5],
    }

    /// `ib_uverbs_modify_qp`
    ModifyQp {
        dest: QpDest,
        alt_dest: QpDest,
        qp_handle: u32,
        attr_mask: u32,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: u32,
        pkey_index: u16,
        alt_pkey_index: u16,
        qp_state: u8,
        cur_qp_state: u8,
        path_mtu: u8,
        path_mig_state: u8,
        en_sqd_async_notify: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        reserved: [u8; 2],
    }

    /// `ib_uverbs_ex_modify_qp`
    ExModifyQp { base: ModifyQp, rate_limit: u32, reserved: u32, }

    /// `ib_uverbs_ex_modify_qp_resp`
    ExModifyQpResp { comp_mask: u32, response_length: u32, }

    /// `ib_uverbs_destroy_qp`
    DestroyQp { response: u64, qp_handle: u32, reserved: u32, }

    /// `ib_uverbs_destroy_qp_resp`
    DestroyQpResp { events_reported: u32, }

    /// `ib_uverbs_post_send`, without work requests: the rxe provider's doorbell.
    PostSend { response: u64, qp_handle: u32, wr_count: u32, sge_count: u32, wqe_size: u32, }

    /// `ib_uverbs_attach_mcast`, `ib_uverbs_detach_mcast`
    Mcast { gid: [u8; 16], qp_handle: u32, mlid: u16, reserved: u16, }
}

/// `IBV_QPT_*`
pub(in crate::uverbs) mod qp_type {
    pub(in crate::uverbs) const RC: u8 = 2;
    pub(in crate::uverbs) const UC: u8 = 3;
    pub(in crate::uverbs) const UD: u8 = 4;
    pub(in crate::uverbs) const RAW_PACKET: u8 = 8;
    pub(in crate::uverbs) const XRC_SEND: u8 = 9;
    pub(in crate::uverbs) const XRC_RECV: u8 = 10;
    pub(in crate::uverbs) const DRIVER: u8 = 0xFF;
}

/// `IB_UVERBS_CREATE_QP_MASK_IND_TABLE`
pub(in crate::uverbs) const CREATE_QP_IND_TABLE: u32 = 1;
/// All `IBV_QP_CREATE_*` flags that the kernel knows.
pub(in crate::uverbs) const CREATE_QP_FLAGS: u32 = 0x0F1E;

/// `IBV_QPS_*`
pub(in crate::uverbs) mod qp_state {
    pub(in crate::uverbs) const RESET: u8 = 0;
    pub(in crate::uverbs) const INIT: u8 = 1;
    pub(in crate::uverbs) const RTR: u8 = 2;
    pub(in crate::uverbs) const RTS: u8 = 3;
    pub(in crate::uverbs) const SQD: u8 = 4;
    pub(in crate::uverbs) const SQE: u8 = 5;
    pub(in crate::uverbs) const ERR: u8 = 6;
}

/// `IBV_QP_*` of `attr_mask`
pub(in crate::uverbs) mod qp_attr {
    pub(in crate::uverbs) const STATE: u32 = 1 << 0;
    pub(in crate::uverbs) const CUR_STATE: u32 = 1 << 1;
    pub(in crate::uverbs) const EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    pub(in crate::uverbs) const ACCESS_FLAGS: u32 = 1 << 3;
    pub(in crate::uverbs) const PKEY_INDEX: u32 = 1 << 4;
    pub(in crate::uverbs) const PORT: u32 = 1 << 5;
    pub(in crate::uverbs) const QKEY: u32 = 1 << 6;
    pub(in crate::uverbs) const AV: u32 = 1 << 7;
    pub(in crate::uverbs) const PATH_MTU: u32 = 1 << 8;
    pub(in crate::uverbs) const TIMEOUT: u32 = 1 << 9;
    pub(in crate::uverbs) const RETRY_CNT: u32 = 1 << 10;
    pub(in crate::uverbs) const RNR_RETRY: u32 = 1 << 11;
    pub(in crate::uverbs) const RQ_PSN: u32 = 1 << 12;
    pub(in crate::uverbs) const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub(in crate::uverbs) const ALT_PATH: u32 = 1 << 14;
    pub(in crate::uverbs) const MIN_RNR_TIMER: u32 = 1 << 15;
    pub(in crate::uverbs) const SQ_PSN: u32 = 1 << 16;
    pub(in crate::uverbs) const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub(in crate::uverbs) const PATH_MIG_STATE: u32 = 1 << 18;
    pub(in crate::uverbs) const DEST_QPN: u32 = 1 << 20;
    pub(in crate::uverbs) const RATE_LIMIT: u32 = 1 << 25;
    /// `IB_QP_ATTR_STANDARD_BITS`
    pub(in crate::uverbs) const STANDARD: u32 = (1 << 21) - 1;
}
