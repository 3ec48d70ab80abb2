//! Protection domains, memory regions, memory windows, address handles.

use super::abi;

abi! {
    /// `ib_uverbs_alloc_pd`
    AllocPd { response: u64, }

    /// `ib_uverbs_alloc_pd_resp`
    AllocPdResp { pd_handle: u32, }

    /// `ib_uverbs_dealloc_pd`
    DeallocPd { pd_handle: u32, }

    /// `ib_uverbs_reg_mr`
    RegMr {
        response: u64,
        start: u64,
        length: u64,
        /// The address that peers and work requests give for `start`.
        hca_va: u64,
        pd_handle: u32,
        access_flags: u32,
    }

    /// `ib_uverbs_reg_mr_resp`
    RegMrResp { mr_handle: u32, lkey: u32, rkey: u32, }

    /// `ib_uverbs_rereg_mr`
    ReregMr {
        response: u64,
        mr_handle: u32,
        /// `IB_MR_REREG_*`: what changes.
        flags: u32,
        start: u64,
        length: u64,
        hca_va: u64,
        pd_handle: u32,
        access_flags: u32,
    }

    /// `ib_uverbs_rereg_mr_resp`
    ReregMrResp { lkey: u32, rkey: u32, }

    /// `ib_uverbs_dereg_mr`
    DeregMr { mr_handle: u32, }

    /// `ib_uverbs_alloc_mw`
    AllocMw { response: u64, pd_handle: u32, mw_type: u8, reserved: [u8; 3], }

    /// `ib_uverbs_alloc_mw_resp`
    AllocMwResp { mw_handle: u32, rkey: u32, }

    /// `ib_uverbs_dealloc_mw`
    DeallocMw { mw_handle: u32, }

    /// `ib_uverbs_global_route`
    GlobalRoute {
        dgid: [u8; 16],
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
        reserved: u8,
    }

    /// `ib_uverbs_ah_attr`
    AhAttr {
        grh: GlobalRoute,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
        reserved: u8,
    }

    /// `ib_uverbs_create_ah`
    CreateAh { response: u64, user_handle: u64, pd_handle: u32, reserved: u32, attr: AhAttr, }

    /// `ib_uverbs_create_ah_resp`
    CreateAhResp { ah_handle: u32, }

    /// `rxe_create_ah_resp`
    RxeCreateAhResp { ah_num: u32, reserved: u32, }

    /// `ib_uverbs_destroy_ah`
    DestroyAh { ah_handle: u32, }
}

/// `IB_MR_REREG_*`
pub(in crate::uverbs) mod rereg {
    pub(in crate::uverbs) const TRANS: u32 = 1;
    pub(in crate::uverbs) const PD: u32 = 2;
    pub(in crate::uverbs) const ACCESS: u32 = 4;
    /// `IB_MR_REREG_SUPPORTED`
    pub(in crate::uverbs) const ALL: u32 = TRANS | PD | ACCESS;
}

/// `IB_ACCESS_ON_DEMAND`
pub(in crate::uverbs) const ACCESS_ON_DEMAND: u32 = 1 << 6;
/// `IB_ACCESS_HUGETLB`
pub(in crate::uverbs) const ACCESS_HUGETLB: u32 = 1 << 7;
/// `IB_ACCESS_OPTIONAL`: flags that a device may ignore.
pub(in crate::uverbs) const ACCESS_OPTIONAL: u32 = 0x3FF0_0000;
/// All flags that the kernel knows: those up to `IB_ACCESS_FLUSH_PERSISTENT`, and the optional ones.
pub(in crate::uverbs) const ACCESS_KNOWN: u32 = 0x3FF | ACCESS_OPTIONAL;
