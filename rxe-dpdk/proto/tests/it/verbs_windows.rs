//! The verbs as a user meets them: memory windows and fast regions.

use crate::verbs_support::{End, Link, REMOTE, connect, pair, settle};
use rxe_proto::verbs::{
    Access, DeregisterError, EngineConfig, FastRegMrError, KeyLayout, Memory, OutOfBounds, Payload, PostError,
    QueuePair, Rc, RecvWr, RegisterError, RemoteAddr, RenewError, Transition, Uc, UnknownKey, WcOpcode, WcStatus,
    WindowKind, WorkRequest,
};

const OK: WcStatus = WcStatus::Success;

#[test]
fn windows_come_and_go() {
    let mut link = Link::new(None);
    let a = End::new(&mut link, 0);
    let mut dev = link.device(0);
    let pd = dev.alloc_pd();
    for kind in [WindowKind::Type1, WindowKind::Type2] {
        let mw = dev.alloc_mw(pd, kind).unwrap();
        assert_eq!(mw.kind(), kind);
        let renewed = dev.renew_mw(mw).unwrap();
        assert_ne!(renewed.rkey(), mw.rkey());
        assert_eq!(dev.renew_mw(mw), Err(RenewError::Unknown), "the old handle");
        assert_eq!(dev.dealloc_mw(mw), Err(UnknownKey));
        assert!(dev.dealloc_pd(pd).is_err());
        dev.dealloc_mw(renewed).unwrap();
        assert_eq!(dev.dealloc_mw(renewed), Err(UnknownKey));
    }
    dev.dealloc_pd(pd).unwrap();
    assert_eq!(dev.alloc_mw(pd, WindowKind::Type1), Err(RegisterError::UnknownPd));

    let bind = a.mr.window(16..=31, Access::REMOTE_READ).unwrap();
    assert_eq!((bind.region_key, bind.addr, bind.len), (a.mr.lkey(), a.mr.addr() + 16, 16));
    assert_eq!(a.mr.window(..4097, Access::REMOTE_READ), Err(OutOfBounds));
}

#[test]
fn fast_reg_mrs_are_allocated_and_deregistered() {
    let mut link = Link::new(None);
    let mut dev = link.device(0);
    let pd = dev.alloc_pd();
    let region = dev.alloc_fast_reg_mr(pd, 64).unwrap();
    assert_eq!(region.lkey(), region.rkey());
    assert_eq!(dev.map_fast_reg_mr(region, Memory::heap(65)), Err(FastRegMrError::TooLong));
    dev.map_fast_reg_mr(region, Memory::heap(64)).unwrap();
    assert!(dev.query_fast_reg_mr(region).is_none(), "FREE");
    let renewed = dev.renew_fast_reg_mr(region).unwrap();
    assert_eq!(dev.map_fast_reg_mr(region, Memory::heap(64)), Err(FastRegMrError::Unknown), "the old handle");
    assert_eq!(dev.renew_fast_reg_mr(region), Err(RenewError::Unknown));
    dev.dereg_fast_reg_mr(renewed).unwrap();
    assert_eq!(dev.dereg_fast_reg_mr(renewed), Err(DeregisterError::Unknown));
    dev.dealloc_pd(pd).unwrap();
    assert_eq!(dev.alloc_fast_reg_mr(pd, 64), Err(RegisterError::UnknownPd));
}

#[test]
fn local_work_requests_take_no_buffers_and_are_flushed_like_others() {
    let mut link = Link::new(None);
    let a = End::new(&mut link, 0);
    let qp: QueuePair<Uc> = a.qp(&mut link);
    let mut dev = link.device(0);
    let mw = dev.alloc_mw(a.pd, WindowKind::Type2).unwrap();
    let region = dev.alloc_fast_reg_mr(a.pd, 64).unwrap();
    let bind = a.mr.window(.., Access::REMOTE_READ).unwrap();
    let wrs = [
        (WorkRequest::bind_mw(mw, bind), WcOpcode::BindMw),
        (WorkRequest::fast_reg_mr(region, 0, REMOTE), WcOpcode::RegMr),
        (WorkRequest::local_inv(mw.rkey()), WcOpcode::LocalInv),
    ];
    dev.modify_qp(qp, Transition::to_init(Access::empty())).unwrap();
    let (wr, _) = wrs[0];
    assert!(matches!(dev.post_send(qp, wr), Err(PostError::State(_))));
    dev.modify_qp(qp, Transition::to_error()).unwrap();
    for (wr, opcode) in wrs {
        dev.post_send(qp, wr).unwrap();
        let wc = dev.poll_cq_one(a.cq).unwrap();
        assert_eq!((wc.opcode, wc.status), (opcode, WcStatus::WrFlushErr));
    }
}

/// How a WRITE of end 0 to `to` ends.
fn write(link: &mut Link, a: &End, qp: QueuePair<Rc>, to: RemoteAddr) -> WcStatus {
    link.device(0).post_send(qp, WorkRequest::write(Payload::Inline(b"peer"), to).signaled()).unwrap();
    settle(link);
    let outcomes = a.outcomes(link);
    assert_eq!(outcomes.len(), 1);
    outcomes[0].2
}

/// Both ends of a failed connection, as new.
fn reconnect(link: &mut Link, ends: &[End; 2], qps: [QueuePair<Rc>; 2]) {
    for (end, qp) in ends.iter().zip(qps) {
        link.device(end.end).modify_qp(qp, Transition::to_reset()).unwrap();
        while link.device(end.end).get_async_event().is_some() {}
        end.completions(link);
    }
    connect(link, qps);
}

// [MEM-WINDOW-2]
#[test]
fn a_window_of_type_2_is_open_from_bind_to_invalidation() {
    let mut link = Link::new(None);
    let (ends, [qp, peer]) = pair::<Rc>(&mut link);
    let [a, b] = &ends;
    let mw = link.device(1).alloc_mw(b.pd, WindowKind::Type2).unwrap();
    let bind = b.mr.window(1024..1028, Access::REMOTE_WRITE).unwrap();
    let into = |offset: u64| RemoteAddr { addr: b.mr.addr() + offset, rkey: mw.rkey() };

    assert_eq!(write(&mut link, a, qp, into(1024)), WcStatus::RemAccessErr, "unbound");
    reconnect(&mut link, &ends, [qp, peer]);
    link.device(1).post_send(peer, WorkRequest::bind_mw(mw, bind).wr_id(1).signaled()).unwrap();
    settle(&mut link);
    assert_eq!(b.outcomes(&mut link), [(1, WcOpcode::BindMw, OK)]);
    assert_eq!(write(&mut link, a, qp, into(1024)), OK);
    assert_eq!(b.read(1024, 4), b"peer");

    // While it is bound its region stays, and its key.
    let mut dev = link.device(1);
    assert_eq!(dev.dereg_mr(&b.mr), Err(DeregisterError::WindowsBound));
    assert_eq!(dev.renew_mw(mw), Err(RenewError::Valid));
    dev.post_send(peer, WorkRequest::local_inv(mw.rkey()).wr_id(2).signaled()).unwrap();
    settle(&mut link);
    assert_eq!(b.outcomes(&mut link), [(2, WcOpcode::LocalInv, OK)]);
    assert_eq!(write(&mut link, a, qp, into(1024)), WcStatus::RemAccessErr);

    // A window ends at its requested end.
    reconnect(&mut link, &ends, [qp, peer]);
    link.device(1).post_send(peer, WorkRequest::bind_mw(mw, bind).wr_id(3).signaled()).unwrap();
    settle(&mut link);
    assert_eq!(b.outcomes(&mut link), [(3, WcOpcode::BindMw, OK)]);
    assert_eq!(write(&mut link, a, qp, into(1025)), WcStatus::RemAccessErr);
    link.device(1).dealloc_mw(mw).unwrap();
    link.device(1).dereg_mr(&b.mr).unwrap();
}

// [MEM-WINDOW-1]
#[test]
fn a_window_of_type_1_is_rebound_and_unbound_by_an_empty_range() {
    let mut link = Link::new(None);
    let (ends, [qp, peer]) = pair::<Rc>(&mut link);
    let [a, b] = &ends;
    let mw = link.device(1).alloc_mw(b.pd, WindowKind::Type1).unwrap();
    let into = |offset: u64| RemoteAddr { addr: b.mr.addr() + offset, rkey: mw.rkey() };
    for start in [0, 512] {
        let bind = b.mr.window(start..start + 4, Access::REMOTE_WRITE).unwrap();
        link.device(1).post_send(peer, WorkRequest::bind_mw(mw, bind)).unwrap();
        settle(&mut link);
        assert_eq!(write(&mut link, a, qp, into(start as u64)), OK);
    }
    let nothing = b.mr.window(0..0, Access::empty()).unwrap();
    link.device(1).post_send(peer, WorkRequest::bind_mw(mw, nothing)).unwrap();
    assert_eq!(write(&mut link, a, qp, into(512)), WcStatus::RemAccessErr);
    link.device(1).dereg_mr(&b.mr).unwrap();
}

#[test]
fn a_bind_that_may_not_be_fails_its_work_request() {
    let mut link = Link::new(None);
    let ([_, b], [_, peer]) = pair::<Rc>(&mut link);
    let mut dev = link.device(1);
    let plain = dev.reg_mr(b.pd, Memory::heap(64), Access::LOCAL_WRITE).unwrap();
    let mw = dev.alloc_mw(b.pd, WindowKind::Type2).unwrap();
    let bind = plain.window(.., Access::REMOTE_READ).unwrap();
    dev.post_send(peer, WorkRequest::bind_mw(mw, bind).wr_id(4)).unwrap();
    settle(&mut link);
    assert_eq!(b.outcomes(&mut link), [(4, WcOpcode::BindMw, WcStatus::MwBindErr)]);
}

// [RC-RSP-INVALIDATE]
#[test]
fn a_fast_region_lives_from_registration_to_the_peers_invalidation() {
    let mut link = Link::new(None);
    let (ends, [qp, peer]) = pair::<Rc>(&mut link);
    let [a, b] = &ends;
    let memory = Memory::heap(64);
    let mut dev = link.device(1);
    let region = dev.alloc_fast_reg_mr(b.pd, 64).unwrap();
    dev.map_fast_reg_mr(region, memory.clone()).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    dev.post_send(peer, WorkRequest::fast_reg_mr(region, 0x5000, access).wr_id(1).signaled()).unwrap();
    settle(&mut link);
    assert_eq!(b.outcomes(&mut link), [(1, WcOpcode::RegMr, OK)]);
    let mr = link.device(1).query_fast_reg_mr(region).unwrap();
    assert_eq!((mr.addr(), mr.len(), mr.rkey()), (0x5000, 64, region.rkey()));
    assert_eq!(link.device(1).map_fast_reg_mr(region, Memory::heap(1)), Err(FastRegMrError::NotFree));
    assert_eq!(write(&mut link, a, qp, mr.remote(8).unwrap()), OK);
    let mut bytes = [0; 4];
    memory.read(8, &mut bytes).unwrap();
    assert_eq!(&bytes, b"peer");

    link.device(1).post_recv(peer, RecvWr { wr_id: 2, sges: &[mr.sge(..32).unwrap()] }).unwrap();
    let wr = WorkRequest::send_with_inv(Payload::Inline(b"done"), region.rkey()).signaled();
    link.device(0).post_send(qp, wr).unwrap();
    let wc = link.completion(1, b.cq).unwrap();
    assert_eq!((wc.wr_id, wc.byte_len, wc.invalidated_rkey), (2, 4, Some(region.rkey())));
    link.completion(0, a.cq).unwrap();
    assert!(link.device(1).query_fast_reg_mr(region).is_none());
    assert_eq!(write(&mut link, a, qp, mr.remote(8).unwrap()), WcStatus::RemAccessErr);
}

// [MEM-CONSUMER-BYTE]
#[test]
fn a_bind_sets_the_lowest_byte_of_the_key_and_shuts_out_the_old_one() {
    let config = EngineConfig { key_layout: KeyLayout::ConsumerByte, ..EngineConfig::default() };
    let mut link = Link::with_config(None, &config);
    let (ends, qps) = pair::<Rc>(&mut link);
    let ([a, b], [qp, peer]) = (&ends, qps);
    let bind = b.mr.window(64..128, Access::REMOTE_WRITE).unwrap();
    let into = |rkey: u32| RemoteAddr { addr: b.mr.addr() + 64, rkey };
    for kind in [WindowKind::Type1, WindowKind::Type2] {
        let mut mw = link.device(1).alloc_mw(b.pd, kind).unwrap();
        for _ in 0..2 {
            let byte = (mw.rkey() as u8).wrapping_add(1);
            link.device(1).post_send(peer, WorkRequest::bind_mw_as(mw, byte, bind).signaled()).unwrap();
            settle(&mut link);
            assert_eq!(b.outcomes(&mut link), [(0, WcOpcode::BindMw, OK)]);
            let old = mw;
            mw = old.with_key_byte(byte);
            assert_ne!(mw.rkey(), old.rkey());
            assert_eq!(write(&mut link, a, qp, into(mw.rkey())), OK);
            assert_eq!(write(&mut link, a, qp, into(old.rkey())), WcStatus::RemAccessErr);
            reconnect(&mut link, &ends, qps);
            // A reset unbinds windows of type 2, so a bind is possible without an invalidation.
        }
        link.device(1).dealloc_mw(mw).unwrap();
    }

    // The present key is what a window is invalidated by, at this end and by the peer.
    let mw = link.device(1).alloc_mw(b.pd, WindowKind::Type2).unwrap();
    let bound = mw.with_key_byte(0x77);
    link.device(1).post_send(peer, WorkRequest::bind_mw_as(mw, 0x77, bind)).unwrap();
    link.device(1).post_send(peer, WorkRequest::local_inv(bound.rkey()).wr_id(1).signaled()).unwrap();
    link.device(1).post_send(peer, WorkRequest::bind_mw_as(bound, 0x78, bind).wr_id(2).signaled()).unwrap();
    settle(&mut link);
    assert_eq!(b.outcomes(&mut link), [(1, WcOpcode::LocalInv, OK), (2, WcOpcode::BindMw, OK)]);
    let bound = bound.with_key_byte(0x78);
    link.device(1).post_recv(peer, RecvWr { wr_id: 3, sges: &[b.sge(0, 32)] }).unwrap();
    let wr = WorkRequest::send_with_inv(Payload::Inline(b"done"), bound.rkey());
    link.device(0).post_send(qp, wr).unwrap();
    assert_eq!(link.completion(1, b.cq).unwrap().invalidated_rkey, Some(bound.rkey()));
    assert_eq!(write(&mut link, a, qp, into(bound.rkey())), WcStatus::RemAccessErr);
    link.device(1).dealloc_mw(bound).unwrap();
}

#[test]
fn a_bind_that_names_a_key_fails_where_keys_are_fixed() {
    let mut link = Link::new(None);
    let ([_, b], [_, peer]) = pair::<Rc>(&mut link);
    let mut dev = link.device(1);
    let mw = dev.alloc_mw(b.pd, WindowKind::Type1).unwrap();
    let bind = b.mr.window(.., Access::REMOTE_READ).unwrap();
    dev.post_send(peer, WorkRequest::bind_mw_as(mw, 1, bind)).unwrap();
    settle(&mut link);
    assert_eq!(b.outcomes(&mut link), [(0, WcOpcode::BindMw, WcStatus::MwBindErr)]);
    assert_eq!(link.device(1).dealloc_mw(mw), Ok(()), "the key is as before");
}
