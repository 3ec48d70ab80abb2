//! Sizes and offsets, compared with those that a C compiler finds in the headers.

use std::fmt::Write;
use std::mem::offset_of;
use std::process::Command;

use super::*;

/// One C expression and the value that it must have.
struct Fact {
    expression: String,
    value: usize,
}

/// Size of a structure and offsets of its members. `C::member => rust_member` where the two differ.
macro_rules! layout {
    ($facts:ident, $c:literal => $rust:ident { $($field:ident $(= $member:literal)?),* $(,)? }) => {
        $facts.push(Fact { expression: format!("sizeof(struct {})", $c), value: size_of::<$rust>() });
        layout!(@members $facts, $c => $rust { $($field $(= $member)?),* });
    };
    ($facts:ident, prefix $c:literal => $rust:ident { $($field:ident $(= $member:literal)?),* $(,)? }) => {
        layout!(@members $facts, $c => $rust { $($field $(= $member)?),* });
    };
    (@members $facts:ident, $c:literal => $rust:ident { $($field:ident $(= $member:literal)?),* }) => {$(
        let member: &str = [$($member,)? stringify!($field)][0];
        $facts.push(Fact {
            expression: format!("offsetof(struct {}, {})", $c, member),
            value: offset_of!($rust, $field),
        });
    )*};
}

#[test]
fn structures_are_laid_out_as_in_the_c_headers() {
    let mut facts = Vec::new();
    commands(&mut facts);
    queue_pairs(&mut facts);
    queues(&mut facts);

    let mut program = String::from(
        "#include <stdio.h>\n#include <stddef.h>\n#include <rdma/ib_user_verbs.h>\n#include <rdma/rdma_user_rxe.h>\n\
         int main(void) {\n",
    );
    for fact in &facts {
        writeln!(program, "printf(\"%zu\\n\", (size_t)({}));", fact.expression).unwrap();
    }
    program += "return 0; }\n";
    let folder = std::env::temp_dir().join(format!("rxe-uverbs-abi-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, binary) = (folder.join("abi.c"), folder.join("abi"));
    std::fs::write(&source, program).unwrap();
    let compiled = Command::new("cc").arg("-o").arg(&binary).arg(&source).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(&binary).output().unwrap().stdout;
    std::fs::remove_dir_all(&folder).unwrap();

    let values: Vec<usize> = String::from_utf8(output).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(values.len(), facts.len());
    for (fact, value) in facts.iter().zip(values) {
        assert_eq!(fact.value, value, "{}", fact.expression);
    }
}

fn commands(facts: &mut Vec<Fact>) {
    layout!(facts, "ib_uverbs_cmd_hdr" => CommandHeader { command, in_words, out_words });
    layout!(facts, "ib_uverbs_ex_cmd_hdr" => ExtendedHeader { response, provider_in_words, provider_out_words });
    layout!(facts, "ib_uverbs_get_context" => GetContext { response });
    layout!(facts, "ib_uverbs_get_context_resp" => GetContextResp { async_fd, num_comp_vectors });
    layout!(facts, "ib_uverbs_query_device" => QueryDevice { response });
    layout!(facts, "ib_uverbs_query_device_resp" => QueryDeviceResp {
        node_guid, page_size_cap, max_qp, device_cap_flags, max_sge, max_cq, max_mr, max_pd, max_qp_rd_atom,
        max_res_rd_atom, atomic_cap, max_mw, max_mcast_grp, max_ah, max_srq, max_srq_sge, max_pkeys, phys_port_cnt,
    });
    layout!(facts, "ib_uverbs_ex_query_device" => ExQueryDevice { comp_mask, reserved });
    layout!(facts, "ib_uverbs_ex_query_device_resp" => ExQueryDeviceResp {
        comp_mask, response_length, odp_general = "odp_caps.general_caps",
        odp_rc = "odp_caps.per_transport_caps.rc_odp_caps", odp_uc = "odp_caps.per_transport_caps.uc_odp_caps",
        odp_ud = "odp_caps.per_transport_caps.ud_odp_caps", clock = "timestamp_mask", device_cap_flags_ex,
        offloads = "rss_caps",
    });
    layout!(facts, "ib_uverbs_query_port" => QueryPort { response, port_num });
    layout!(facts, "ib_uverbs_query_port_resp" => QueryPortResp {
        port_cap_flags, max_msg_sz, gid_tbl_len, pkey_tbl_len, state, max_mtu, active_mtu, max_vl_num, active_width,
        active_speed, phys_state, link_layer, flags,
    });
    layout!(facts, "ib_uverbs_async_event_desc" => AsyncEventDesc { element, event_type });
    layout!(facts, "ib_uverbs_alloc_pd" => AllocPd { response });
    layout!(facts, "ib_uverbs_alloc_pd_resp" => AllocPdResp { pd_handle });
    layout!(facts, "ib_uverbs_dealloc_pd" => DeallocPd { pd_handle });
    layout!(facts, "ib_uverbs_reg_mr" => RegMr { response, start, length, hca_va, pd_handle, access_flags });
    layout!(facts, "ib_uverbs_reg_mr_resp" => RegMrResp { mr_handle, lkey, rkey });
    layout!(facts, "ib_uverbs_rereg_mr" => ReregMr {
        response, mr_handle, flags, start, length, hca_va, pd_handle, access_flags,
    });
    layout!(facts, "ib_uverbs_rereg_mr_resp" => ReregMrResp { lkey, rkey });
    layout!(facts, "ib_uverbs_dereg_mr" => DeregMr { mr_handle });
    layout!(facts, "ib_uverbs_alloc_mw" => AllocMw { response, pd_handle, mw_type });
    layout!(facts, "ib_uverbs_alloc_mw_resp" => AllocMwResp { mw_handle, rkey });
    layout!(facts, "ib_uverbs_dealloc_mw" => DeallocMw { mw_handle });
    layout!(facts, "ib_uverbs_global_route" => GlobalRoute { dgid, flow_label, sgid_index, hop_limit, traffic_class });
    layout!(facts, "ib_uverbs_ah_attr" => AhAttr { grh, dlid, sl, static_rate, is_global, port_num });
    layout!(facts, "ib_uverbs_create_ah" => CreateAh { response, user_handle, pd_handle, attr });
    layout!(facts, "ib_uverbs_create_ah_resp" => CreateAhResp { ah_handle });
    layout!(facts, "rxe_create_ah_resp" => RxeCreateAhResp { ah_num, reserved });
    layout!(facts, "ib_uverbs_destroy_ah" => DestroyAh { ah_handle });
}

fn queue_pairs(facts: &mut Vec<Fact>) {
    layout!(facts, "ib_uverbs_create_qp" => CreateQp {
        response, user_handle, pd_handle, send_cq_handle, recv_cq_handle, srq_handle, max_send_wr, max_recv_wr,
        max_send_sge, max_recv_sge, max_inline_data, sq_sig_all, qp_type, is_srq,
    });
    layout!(facts, "ib_uverbs_ex_create_qp" => ExCreateQp {
        user_handle, pd_handle, max_inline_data, is_srq, comp_mask, create_flags, rwq_ind_tbl_handle, source_qpn,
    });
    layout!(facts, "ib_uverbs_create_qp_resp" => CreateQpResp {
        qp_handle, qpn, max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data,
    });
    layout!(facts, "ib_uverbs_ex_create_qp_resp" => ExCreateQpResp { base, comp_mask, response_length });
    layout!(facts, "ib_uverbs_qp_dest" => QpDest {
        dgid, flow_label, dlid, sgid_index, hop_limit, traffic_class, sl, is_global, port_num,
    });
    layout!(facts, "ib_uverbs_query_qp" => QueryQp { response, qp_handle, attr_mask });
    layout!(facts, "ib_uverbs_query_qp_resp" => QueryQpResp {
        dest, alt_dest, max_send_wr, max_inline_data, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, pkey_index,
        qp_state, path_mtu, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt,
        rnr_retry, sq_sig_all,
    });
    layout!(facts, "ib_uverbs_modify_qp" => ModifyQp {
        dest, alt_dest, qp_handle, attr_mask, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, pkey_index, qp_state,
        cur_qp_state, path_mtu, path_mig_state, en_sqd_async_notify, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer,
        port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout,
    });
    layout!(facts, "ib_uverbs_ex_modify_qp" => ExModifyQp { base, rate_limit });
    layout!(facts, "ib_uverbs_ex_modify_qp_resp" => ExModifyQpResp { comp_mask, response_length });
    layout!(facts, "ib_uverbs_destroy_qp" => DestroyQp { response, qp_handle });
    layout!(facts, "ib_uverbs_destroy_qp_resp" => DestroyQpResp { events_reported });
    layout!(facts, "ib_uverbs_post_send" => PostSend { response, qp_handle, wr_count, sge_count, wqe_size });
    layout!(facts, "ib_uverbs_attach_mcast" => Mcast { gid, qp_handle, mlid });
    layout!(facts, "ib_uverbs_detach_mcast" => Mcast { gid, qp_handle, mlid });
}

fn queues(facts: &mut Vec<Fact>) {
    layout!(facts, "ib_uverbs_create_comp_channel" => CreateCompChannel { response });
    layout!(facts, "ib_uverbs_create_comp_channel_resp" => CreateCompChannelResp { fd });
    layout!(facts, "ib_uverbs_comp_event_desc" => CompEventDesc { cq_handle });
    layout!(facts, "ib_uverbs_create_cq" => CreateCq { response, user_handle, cqe, comp_vector, comp_channel });
    layout!(facts, "ib_uverbs_ex_create_cq" => ExCreateCq {
        user_handle, cqe, comp_vector, comp_channel, comp_mask, flags, reserved,
    });
    layout!(facts, "ib_uverbs_create_cq_resp" => CreateCqResp { cq_handle, cqe });
    layout!(facts, "ib_uverbs_ex_create_cq_resp" => ExCreateCqResp { base, comp_mask, response_length });
    layout!(facts, "ib_uverbs_resize_cq" => ResizeCq { response, cq_handle, cqe });
    layout!(facts, "ib_uverbs_resize_cq_resp" => ResizeCqResp { cqe });
    layout!(facts, "ib_uverbs_req_notify_cq" => ReqNotifyCq { cq_handle, solicited_only });
    layout!(facts, "ib_uverbs_destroy_cq" => DestroyCq { response, cq_handle });
    layout!(facts, "ib_uverbs_destroy_cq_resp" => DestroyCqResp { comp_events_reported, async_events_reported });
    layout!(facts, "ib_uverbs_wc" => Wc {
        wr_id, status, opcode, vendor_err, byte_len, ex, qp_num, src_qp, wc_flags, pkey_index, slid, sl,
        dlid_path_bits, port_num,
    });
    layout!(facts, "ib_uverbs_create_srq" => CreateSrq {
        response, user_handle, pd_handle, max_wr, max_sge, srq_limit,
    });
    layout!(facts, "ib_uverbs_create_xsrq" => CreateXsrq {
        response, user_handle, srq_type, pd_handle, max_wr, max_sge, srq_limit, max_num_tags, xrcd_handle, cq_handle,
    });
    layout!(facts, "ib_uverbs_create_srq_resp" => CreateSrqResp { srq_handle, max_wr, max_sge, srqn });
    layout!(facts, "ib_uverbs_modify_srq" => ModifySrq { srq_handle, attr_mask, max_wr, srq_limit });
    layout!(facts, "ib_uverbs_query_srq" => QuerySrq { response, srq_handle });
    layout!(facts, "ib_uverbs_query_srq_resp" => QuerySrqResp { max_wr, max_sge, srq_limit });
    layout!(facts, "ib_uverbs_destroy_srq" => DestroySrq { response, srq_handle });
    layout!(facts, "ib_uverbs_destroy_srq_resp" => DestroySrqResp { events_reported });

    layout!(facts, "mminfo" => MmapInfo { offset, size });
    layout!(facts, "rxe_create_cq_resp" => RxeCqResp { mi });
    layout!(facts, "rxe_resize_cq_resp" => RxeCqResp { mi });
    layout!(facts, "rxe_create_qp_resp" => RxeCreateQpResp { rq_mi, sq_mi });
    layout!(facts, "rxe_create_srq_resp" => RxeCreateSrqResp { mi, srq_num });
    layout!(facts, "rxe_modify_srq_cmd" => RxeModifySrq { mmap_info_addr });
    layout!(facts, "rxe_queue_buf" => QueueBuf { log2_elem_size, index_mask, producer_index, consumer_index });
    layout!(facts, prefix "rxe_send_wr" => SendWrHead { wr_id, opcode, send_flags, ex, wr });
    // The unions have no names; the offsets are those behind `wr`.
    let union = |facts: &mut Vec<Fact>, member: &str, offset: usize| {
        facts.push(Fact {
            expression: format!("offsetof(struct rxe_send_wr, wr.{member})"),
            value: offset_of!(SendWrHead, wr) + offset,
        });
    };
    union(facts, "rdma.remote_addr", offset_of!(RdmaWr, remote_addr));
    union(facts, "rdma.rkey", offset_of!(RdmaWr, rkey));
    union(facts, "atomic.remote_addr", offset_of!(AtomicWr, remote_addr));
    union(facts, "atomic.compare_add", offset_of!(AtomicWr, compare_add));
    union(facts, "atomic.swap", offset_of!(AtomicWr, swap));
    union(facts, "atomic.rkey", offset_of!(AtomicWr, rkey));
    union(facts, "ud.remote_qpn", offset_of!(UdWr, remote_qpn));
    union(facts, "ud.remote_qkey", offset_of!(UdWr, remote_qkey));
    union(facts, "ud.ah_num", offset_of!(UdWr, ah_num));
    union(facts, "ud.av", SEND_AV_AT - offset_of!(SendWrHead, wr));
    union(facts, "mw.addr", offset_of!(MwWr, addr));
    union(facts, "mw.length", offset_of!(MwWr, length));
    union(facts, "mw.mr_lkey", offset_of!(MwWr, mr_lkey));
    union(facts, "mw.mw_rkey", offset_of!(MwWr, mw_rkey));
    union(facts, "mw.rkey", offset_of!(MwWr, rkey));
    union(facts, "mw.access", offset_of!(MwWr, access));
    layout!(facts, prefix "rxe_av" => RxeAv { port_num, network_type, dmac, grh });
    layout!(facts, "rxe_global_route" => GlobalRouteAv { dgid, flow_label, sgid_index, hop_limit, traffic_class });
    layout!(facts, "rxe_dma_info" => DmaInfo { length, resid, cur_sge, num_sge, sge_offset });
    layout!(facts, "rxe_sge" => RxeSge { addr, length, lkey });
    layout!(facts, "rxe_recv_wqe" => RecvWqe { wr_id, dma });
    facts.push(Fact { expression: "sizeof(struct rxe_send_wqe)".into(), value: SEND_WQE_LEN });
    facts.push(Fact { expression: "offsetof(struct rxe_send_wqe, dma)".into(), value: SEND_DMA_AT });
}
