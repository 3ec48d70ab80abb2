//! The device and its port, as queries report them.

use nix::errno::Errno;
use rxe_proto::wire::PathMtu;
use zerocopy::FromZeros;

use super::abi::{
    ExQueryDevice, ExQueryDeviceResp, QueryDevice, QueryDeviceResp, QueryPort, QueryPortResp, device_cap, odp,
};
use super::command::Command;
use super::{PORT, Uverbs};

/// Linux rxe has none and reports this.
const VENDOR_ID: u32 = 0xFF_FFFF;
/// `IB_ATOMIC_HCA`: atomics are atomic among those of this device.
const ATOMIC_HCA: u32 = 1;
/// Sizes of pages that memory may have: all from 4 KiB.
const PAGE_SIZES: u64 = 0xFFFF_F000;
/// `IB_PORT_CM_SUP`, as Linux' rxe reports.
const PORT_CAPABILITIES: u32 = 1 << 16;
/// `IBV_PORT_DOWN` and `IBV_PORT_ACTIVE`
const PORT_DOWN: u8 = 1;
const PORT_ACTIVE: u8 = 4;
/// `IB_WIDTH_1X` and `IB_SPEED_FDR10`: 10 Gb/s, which says nothing of what passes.
const WIDTH_1X: u8 = 1;
const SPEED_FDR10: u8 = 8;
/// `IB_PORT_PHYS_STATE_DISABLED` and `IB_PORT_PHYS_STATE_LINK_UP`
const LINK_DISABLED: u8 = 3;
const LINK_UP: u8 = 5;
/// `IBV_LINK_LAYER_ETHERNET`
const LINK_LAYER_ETHERNET: u8 = 2;
/// `IB_UVERBS_QPF_GRH_REQUIRED`
const GRH_REQUIRED: u8 = 1;

impl Uverbs {
    fn capabilities(&self) -> u64 {
        use device_cap::*;
        let all = BAD_PKEY_CNTR
            | BAD_QKEY_CNTR
            | UD_AV_PORT_ENFORCE
            | PORT_ACTIVE_EVENT
            | SYS_IMAGE_GUID
            | RC_RNR_NAK_GEN
            | SRQ_RESIZE
            | MEM_WINDOW
            | MEM_WINDOW_TYPE_2B
            | MEM_MGT_EXTENSIONS;
        if self.limits.atomic_write { all | ATOMIC_WRITE } else { all }
    }

    fn device_attributes(&self) -> QueryDeviceResp {
        let guid = self.local.node_guid.to_be_bytes();
        let limits = &self.limits;
        let mut attributes = QueryDeviceResp::new_zeroed();
        attributes.node_guid = guid;
        attributes.sys_image_guid = guid;
        attributes.max_mr_size = isize::MAX as u64;
        attributes.page_size_cap = PAGE_SIZES;
        attributes.vendor_id = VENDOR_ID;
        attributes.max_qp = limits.qps;
        attributes.max_qp_wr = limits.qp_wr;
        attributes.device_cap_flags = self.capabilities() as u32;
        attributes.max_sge = limits.sge;
        attributes.max_sge_rd = limits.sge;
        attributes.max_cq = limits.cqs;
        attributes.max_cqe = limits.cqe;
        attributes.max_mr = limits.mrs;
        attributes.max_pd = limits.pds;
        attributes.max_qp_rd_atom = limits.rd_atomic;
        attributes.max_res_rd_atom = limits.rd_atomic.saturating_mul(limits.qps);
        attributes.max_qp_init_rd_atom = limits.rd_atomic;
        attributes.atomic_cap = ATOMIC_HCA;
        attributes.max_mw = limits.mws;
        attributes.max_mcast_grp = limits.mcast_groups;
        attributes.max_mcast_qp_attach = limits.mcast_qps;
        attributes.max_total_mcast_qp_attach = limits.mcast_groups.saturating_mul(limits.mcast_qps);
        attributes.max_ah = limits.ahs;
        attributes.max_srq = limits.srqs;
        attributes.max_srq_wr = limits.srq_wr;
        attributes.max_srq_sge = limits.sge;
        attributes.max_pkeys = 1;
        attributes.local_ca_ack_delay = 15;
        attributes.phys_port_cnt = PORT;
        attributes
    }

    /// QUERY_DEVICE
    pub(super) fn query_device(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        command.call.request::<QueryDevice>()?;
        command.call.respond(&self.device_attributes())
    }

    /// EX_QUERY_DEVICE
    pub(super) fn ex_query_device(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        let request = command.call.request::<ExQueryDevice>()?;
        if request.comp_mask != 0 || request.reserved != 0 {
            return Err(Errno::EINVAL);
        }
        let mut response = ExQueryDeviceResp::new_zeroed();
        response.base = self.device_attributes();
        response.odp_general = odp::SUPPORT;
        response.odp_rc = odp::SEND | odp::RECV | odp::WRITE | odp::READ | odp::ATOMIC | odp::SRQ_RECV;
        response.odp_uc = odp::SEND | odp::RECV | odp::WRITE | odp::SRQ_RECV;
        response.odp_ud = odp::SEND | odp::RECV | odp::SRQ_RECV;
        response.device_cap_flags_ex = self.capabilities();
        response.response_length = command.call.response_length::<ExQueryDeviceResp>();
        command.call.respond(&response)
    }

    /// QUERY_PORT
    pub(super) fn query_port(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        let request = command.call.request::<QueryPort>()?;
        if request.port_num != PORT {
            return Err(Errno::EINVAL);
        }
        let mut port = QueryPortResp::new_zeroed();
        port.port_cap_flags = PORT_CAPABILITIES;
        port.max_msg_sz = 1 << 31;
        port.gid_tbl_len = self.local.gids.len() as u32;
        port.pkey_tbl_len = 1;
        (port.state, port.phys_state) =
            if self.port_is_up { (PORT_ACTIVE, LINK_UP) } else { (PORT_DOWN, LINK_DISABLED) };
        port.max_mtu = PathMtu::Mtu4096.code();
        port.active_mtu = self.local.path_mtu.code();
        port.max_vl_num = 1;
        port.active_width = WIDTH_1X;
        port.active_speed = SPEED_FDR10;
        port.link_layer = LINK_LAYER_ETHERNET;
        port.flags = GRH_REQUIRED;
        command.call.respond(&port)
    }
}
