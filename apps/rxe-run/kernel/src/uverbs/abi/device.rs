//! Contexts, the device, its port.

use super::abi;

abi! {
    /// `ib_uverbs_get_context`
    GetContext { response: u64, }

    /// `ib_uverbs_get_context_resp`
    GetContextResp { async_fd: u32, num_comp_vectors: u32, }

    /// `ib_uverbs_query_device`
    QueryDevice { response: u64, }

    /// `ib_uverbs_query_device_resp`
    QueryDeviceResp {
        fw_ver: u64,
        /// Big endian.
        node_guid: [u8; 8],
        /// Big endian.
        sys_image_guid: [u8; 8],
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: u32,
        max_qp_wr: u32,
        device_cap_flags: u32,
        max_sge: u32,
        max_sge_rd: u32,
        max_cq: u32,
        max_cqe: u32,
        max_mr: u32,
        max_pd: u32,
        max_qp_rd_atom: u32,
        max_ee_rd_atom: u32,
        max_res_rd_atom: u32,
        max_qp_init_rd_atom: u32,
        max_ee_init_rd_atom: u32,
        atomic_cap: u32,
        max_ee: u32,
        max_rdd: u32,
        max_mw: u32,
        max_raw_ipv6_qp: u32,
        max_raw_ethy_qp: u32,
        max_mcast_grp: u32,
        max_mcast_qp_attach: u32,
        max_total_mcast_qp_attach: u32,
        max_ah: u32,
        max_fmr: u32,
        max_map_per_fmr: u32,
        max_srq: u32,
        max_srq_wr: u32,
        max_srq_sge: u32,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
        reserved: [u8; 4],
    }

    /// `ib_uverbs_ex_query_device`
    ExQueryDevice { comp_mask: u32, reserved: u32, }

    /// `ib_uverbs_ex_query_device_resp`; what rxe has nothing of is summed up.
    ExQueryDeviceResp {
        base: QueryDeviceResp,
        comp_mask: u32,
        response_length: u32,
        odp_general: u64,
        odp_rc: u32,
        odp_uc: u32,
        odp_ud: u32,
        reserved_odp: u32,
        /// `timestamp_mask`, `hca_core_clock`
        clock: [u64; 2],
        device_cap_flags_ex: u64,
        /// `rss_caps` to `reserved`
        offloads: [u64; 9],
    }

    /// `ib_uverbs_query_port`
    QueryPort { response: u64, port_num: u8, reserved: [u8; 7], }

    /// `ib_uverbs_query_port_resp`
    QueryPortResp {
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        gid_tbl_len: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        state: u8,
        max_mtu: u8,
        active_mtu: u8,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        reserved: u8,
    }

    /// `ib_uverbs_async_event_desc`
    AsyncEventDesc {
        /// The user handle of the object, or the number of the port.
        element: u64,
        event_type: u32,
        reserved: u32,
    }
}

/// `IBV_DEVICE_*`, as `device_cap_flags` and `device_cap_flags_ex` have them.
pub(in crate::uverbs) mod device_cap {
    pub(in crate::uverbs) const BAD_PKEY_CNTR: u64 = 1 << 1;
    pub(in crate::uverbs) const BAD_QKEY_CNTR: u64 = 1 << 2;
    pub(in crate::uverbs) const UD_AV_PORT_ENFORCE: u64 = 1 << 6;
    pub(in crate::uverbs) const PORT_ACTIVE_EVENT: u64 = 1 << 10;
    pub(in crate::uverbs) const SYS_IMAGE_GUID: u64 = 1 << 11;
    pub(in crate::uverbs) const RC_RNR_NAK_GEN: u64 = 1 << 12;
    pub(in crate::uverbs) const SRQ_RESIZE: u64 = 1 << 13;
    pub(in crate::uverbs) const MEM_WINDOW: u64 = 1 << 17;
    pub(in crate::uverbs) const MEM_MGT_EXTENSIONS: u64 = 1 << 21;
    pub(in crate::uverbs) const MEM_WINDOW_TYPE_2B: u64 = 1 << 24;
    /// In `device_cap_flags_ex` only.
    pub(in crate::uverbs) const ATOMIC_WRITE: u64 = 1 << 40;
}

/// On-demand paging: whether there is any, and which operations of a transport may use such regions.
pub(in crate::uverbs) mod odp {
    pub(in crate::uverbs) const SUPPORT: u64 = 1;
    pub(in crate::uverbs) const SEND: u32 = 1 << 0;
    pub(in crate::uverbs) const RECV: u32 = 1 << 1;
    pub(in crate::uverbs) const WRITE: u32 = 1 << 2;
    pub(in crate::uverbs) const READ: u32 = 1 << 3;
    pub(in crate::uverbs) const ATOMIC: u32 = 1 << 4;
    pub(in crate::uverbs) const SRQ_RECV: u32 = 1 << 5;
}

/// `IBV_EVENT_*`
pub(in crate::uverbs) mod event {
    pub(in crate::uverbs) const CQ_ERR: u32 = 0;
    pub(in crate::uverbs) const QP_FATAL: u32 = 1;
    pub(in crate::uverbs) const QP_REQ_ERR: u32 = 2;
    pub(in crate::uverbs) const QP_ACCESS_ERR: u32 = 3;
    pub(in crate::uverbs) const COMM_EST: u32 = 4;
    pub(in crate::uverbs) const SQ_DRAINED: u32 = 5;
    pub(in crate::uverbs) const PORT_ACTIVE: u32 = 9;
    pub(in crate::uverbs) const PORT_ERR: u32 = 10;
    pub(in crate::uverbs) const SRQ_LIMIT_REACHED: u32 = 15;
    pub(in crate::uverbs) const QP_LAST_WQE_REACHED: u32 = 16;
    pub(in crate::uverbs) const GID_CHANGE: u32 = 18;

    /// Whether an event is one of a queue pair.
    pub(in crate::uverbs) fn is_of_qp(number: u32) -> bool {
        matches!(number, QP_FATAL..=SQ_DRAINED | QP_LAST_WQE_REACHED)
    }
}
