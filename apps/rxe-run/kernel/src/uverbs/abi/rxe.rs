//! Additions of the rxe provider: queues in mapped memory, and their entries.

use std::mem::offset_of;

use super::abi;

abi! {
    /// `mminfo`: where to map a queue.
    MmapInfo { offset: u64, size: u32, pad: u32, }

    /// `rxe_create_cq_resp`, `rxe_resize_cq_resp`
    RxeCqResp { mi: MmapInfo, }

    /// `rxe_create_qp_resp`
    RxeCreateQpResp { rq_mi: MmapInfo, sq_mi: MmapInfo, }

    /// `rxe_create_srq_resp`
    RxeCreateSrqResp { mi: MmapInfo, srq_num: u32, reserved: u32, }

    /// `rxe_modify_srq_cmd`
    RxeModifySrq { mmap_info_addr: u64, }

    /// `rxe_queue_buf`: the start of a queue; its entries follow.
    QueueBuf {
        log2_elem_size: u32,
        index_mask: u32,
        pad_1: [u32; 30],
        producer_index: u32,
        pad_2: [u32; 31],
        consumer_index: u32,
        pad_3: [u32; 31],
    }

    /// The first members of `rxe_send_wr` and its union.
    SendWrHead {
        wr_id: u64,
        reserved: u32,
        opcode: u32,
        send_flags: u32,
        /// Immediate data, big endian, or the key to invalidate.
        ex: [u8; 4],
        /// `wr`: one of [`RdmaWr`], [`AtomicWr`], [`UdWr`], [`MwWr`].
        wr: [u8; 32],
    }

    /// `rxe_send_wr.wr.rdma`
    RdmaWr { remote_addr: u64, rkey: u32, reserved: u32, }

    /// `rxe_send_wr.wr.atomic`
    AtomicWr { remote_addr: u64, compare_add: u64, swap: u64, rkey: u32, reserved: u32, }

    /// The first members of `rxe_send_wr.wr.ud`
    UdWr {
        remote_qpn: u32,
        remote_qkey: u32,
        pkey_index: u16,
        reserved: u16,
        /// Number of the address handle; 0 from a provider that fills in `av` instead.
        ah_num: u32,
    }

    /// `rxe_send_wr.wr.mw`
    MwWr { addr: u64, length: u64, mr_lkey: u32, mw_rkey: u32, rkey: u32, access: u32, }

    /// The members of `rxe_av` before the addresses.
    RxeAv { port_num: u8, network_type: u8, dmac: [u8; 6], grh: GlobalRouteAv, }

    /// `rxe_global_route`
    GlobalRouteAv {
        dgid: [u8; 16],
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
        padding: u8,
    }

    /// `rxe_dma_info`; buffers or inline data follow.
    DmaInfo {
        length: u32,
        resid: u32,
        cur_sge: u32,
        num_sge: u32,
        sge_offset: u32,
        reserved: u32,
    }

    /// `rxe_sge`
    RxeSge { addr: u64, length: u32, lkey: u32, }

    /// `rxe_recv_wqe`; buffers follow.
    RecvWqe { wr_id: u64, reserved: u32, padding: u32, dma: DmaInfo, }
}

/// Length of `rxe_send_wqe`.
pub(in crate::uverbs) const SEND_WQE_LEN: usize = 208;
/// Offset of `dma` in `rxe_send_wqe`.
pub(in crate::uverbs) const SEND_DMA_AT: usize = SEND_WQE_LEN - size_of::<DmaInfo>();
/// Offset of `wr.wr.ud.av` in `rxe_send_wqe`.
pub(in crate::uverbs) const SEND_AV_AT: usize = offset_of!(SendWrHead, wr) + size_of::<UdWr>() + 16;

/// `IBV_WR_*`
pub(in crate::uverbs) mod wr_opcode {
    pub(in crate::uverbs) const RDMA_WRITE: u32 = 0;
    pub(in crate::uverbs) const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub(in crate::uverbs) const SEND: u32 = 2;
    pub(in crate::uverbs) const SEND_WITH_IMM: u32 = 3;
    pub(in crate::uverbs) const RDMA_READ: u32 = 4;
    pub(in crate::uverbs) const ATOMIC_CMP_AND_SWP: u32 = 5;
    pub(in crate::uverbs) const ATOMIC_FETCH_AND_ADD: u32 = 6;
    pub(in crate::uverbs) const LOCAL_INV: u32 = 7;
    pub(in crate::uverbs) const BIND_MW: u32 = 8;
    pub(in crate::uverbs) const SEND_WITH_INV: u32 = 9;
    pub(in crate::uverbs) const ATOMIC_WRITE: u32 = 15;
}

/// `IBV_SEND_*`
pub(in crate::uverbs) mod send_flag {
    pub(in crate::uverbs) const FENCE: u32 = 1;
    pub(in crate::uverbs) const SIGNALED: u32 = 2;
    pub(in crate::uverbs) const SOLICITED: u32 = 4;
    pub(in crate::uverbs) const INLINE: u32 = 8;
}
