//! Completion channels, completion queues, shared receive queues.

use super::abi;

abi! {
    /// `ib_uverbs_create_comp_channel`
    CreateCompChannel { response: u64, }

    /// `ib_uverbs_create_comp_channel_resp`
    CreateCompChannelResp { fd: u32, }

    /// `ib_uverbs_comp_event_desc`
    CompEventDesc {
        /// The user handle of the completion queue.
        cq_handle: u64,
    }

    /// `ib_uverbs_create_cq`
    CreateCq {
        response: u64,
        user_handle: u64,
        cqe: u32,
        comp_vector: u32,
        /// Descriptor of a completion channel; negative for none.
        comp_channel: i32,
        reserved: u32,
    }

    /// `ib_uverbs_ex_create_cq`
    ExCreateCq {
        user_handle: u64,
        cqe: u32,
        comp_vector: u32,
        comp_channel: i32,
        comp_mask: u32,
        flags: u32,
        reserved: u32,
    }

    /// `ib_uverbs_create_cq_resp`
    CreateCqResp { cq_handle: u32, cqe: u32, }

    /// `ib_uverbs_ex_create_cq_resp`
    ExCreateCqResp { base: CreateCqResp, comp_mask: u32, response_length: u32, }

    /// `ib_uverbs_resize_cq`
    ResizeCq { response: u64, cq_handle: u32, cqe: u32, }

    /// `ib_uverbs_resize_cq_resp`
    ResizeCqResp { cqe: u32, reserved: u32, }

    /// `ib_uverbs_req_notify_cq`
    ReqNotifyCq { cq_handle: u32, solicited_only: u32, }

    /// `ib_uverbs_destroy_cq`
    DestroyCq { response: u64, cq_handle: u32, reserved: u32, }

    /// `ib_uverbs_destroy_cq_resp`
    DestroyCqResp { comp_events_reported: u32, async_events_reported: u32, }

    /// `ib_uverbs_wc`: an entry of a completion queue.
    Wc {
        wr_id: u64,
        status: u32,
        opcode: u32,
        vendor_err: u32,
        byte_len: u32,
        /// Immediate data, big endian, or the invalidated key.
        ex: [u8; 4],
        qp_num: u32,
        src_qp: u32,
        wc_flags: u32,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
        port_num: u8,
        reserved: u8,
    }

    /// `ib_uverbs_create_srq`
    CreateSrq {
        response: u64,
        user_handle: u64,
        pd_handle: u32,
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    }

    /// `ib_uverbs_create_xsrq`
    CreateXsrq {
        response: u64,
        user_handle: u64,
        srq_type: u32,
        pd_handle: u32,
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
        max_num_tags: u32,
        xrcd_handle: u32,
        cq_handle: u32,
    }

    /// `ib_uverbs_create_srq_resp`
    CreateSrqResp { srq_handle: u32, max_wr: u32, max_sge: u32, srqn: u32, }

    /// `ib_uverbs_modify_srq`
    ModifySrq { srq_handle: u32, attr_mask: u32, max_wr: u32, srq_limit: u32, }

    /// `ib_uverbs_query_srq`
    QuerySrq { response: u64, srq_handle: u32, reserved: u32, }

    /// `ib_uverbs_query_srq_resp`
    QuerySrqResp { max_wr: u32, max_sge: u32, srq_limit: u32, reserved: u32, }

    /// `ib_uverbs_destroy_srq`
    DestroySrq { response: u64, srq_handle: u32, reserved: u32, }

    /// `ib_uverbs_destroy_srq_resp`
    DestroySrqResp { events_reported: u32, }
}

/// `IBV_WC_*` of `wc_flags`.
pub(in crate::uverbs) mod wc_flag {
    pub(in crate::uverbs) const GRH: u32 = 1;
    pub(in crate::uverbs) const WITH_IMM: u32 = 2;
    pub(in crate::uverbs) const WITH_INV: u32 = 8;
}

/// `IBV_SRQT_BASIC`
pub(in crate::uverbs) const SRQ_BASIC: u32 = 0;

/// `IBV_SRQ_*` of `attr_mask`.
pub(in crate::uverbs) mod srq_attr {
    pub(in crate::uverbs) const MAX_WR: u32 = 1;
    pub(in crate::uverbs) const LIMIT: u32 = 2;
}
