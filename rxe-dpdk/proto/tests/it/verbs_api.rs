//! The verbs as a user meets them: connected queue pairs, memory, misuse.

use crate::verbs_support::{End, Link, REMOTE, connect, pair, settle};
use rxe_proto::verbs::{
    Access, Adapter, AddressHandle, AhError, AnyQueuePair, AsyncEvent, CompletionQueue, CqError, DeallocPdError,
    Device, DeviceHooks, Engine, EngineConfig, FlushLevel, FlushType, Memory, OutOfBounds, Payload, PostError,
    ProtectionDomain, QpCaps, QpError, QpErrorCause, QpInit, QpInitAttr, QpState, QpType, Qpn, QueuePair, Rc, RecvWr,
    RegisterError, RemoteAddr, ReregisterError, RtrAttr, RtsAttr, Sge, SharedReceiveQueue, SrqAttr, SrqError,
    SrqInitAttr, Transition, Uc, Ud, WcOpcode, WcStatus, WorkRequest,
};
use rxe_proto::{Duration, Instant};

const OK: WcStatus = WcStatus::Success;

#[test]
fn handles_cost_no_more_than_their_numbers() {
    assert_eq!(size_of::<QueuePair<Rc>>(), size_of::<Qpn>());
    assert_eq!(size_of::<CompletionQueue>(), 4);
    assert_eq!(size_of::<AddressHandle>(), 4);
    assert_eq!(size_of::<AnyQueuePair>(), size_of::<Qpn>());
    assert_eq!(size_of::<Adapter<'_>>(), size_of::<(&mut Engine, Instant, &mut dyn DeviceHooks)>());
}

#[test]
fn every_operation_of_a_reliable_connection() {
    let mut link = Link::new(None);
    let ([a, b], [qp, peer]) = pair::<Rc>(&mut link);
    a.write(0, b"12345678");
    b.write(512, &7u64.to_ne_bytes());
    for wr_id in 0..4 {
        let slot = 1024 + 64 * wr_id as usize;
        link.device(1).post_recv(peer, RecvWr { wr_id, sges: &[b.sge(slot, 32), b.sge(slot + 32, 32)] }).unwrap();
    }
    let there = |offset| b.mr.remote(offset).unwrap();
    let (eight, halves, sixteen) = ([a.sge(0, 8)], [a.sge(0, 4), a.sge(4, 4)], [a.sge(128, 16)]);
    let (old, older) = ([a.sge(64, 8)], [a.sge(72, 8)]);
    let requests: [(WorkRequest<'_, Rc>, WcOpcode); 9] = [
        (WorkRequest::send(&eight), WcOpcode::Send),
        (WorkRequest::send_with_imm(Payload::Inline(b"inline"), 0xABCD).solicited(), WcOpcode::Send),
        (WorkRequest::write(&halves, there(0)), WcOpcode::RdmaWrite),
        (WorkRequest::write_with_imm(&eight, there(8), 77), WcOpcode::RdmaWrite),
        (WorkRequest::read(&sixteen, there(0)), WcOpcode::RdmaRead),
        (WorkRequest::compare_swap(&old, there(512), 7, 40).fence(), WcOpcode::CompSwap),
        (WorkRequest::fetch_add(&older, there(512), 2), WcOpcode::FetchAdd),
        (WorkRequest::send(Payload::EMPTY), WcOpcode::Send),
        (WorkRequest::write(Payload::EMPTY, there(4096)), WcOpcode::RdmaWrite),
    ];
    for (wr_id, (wr, opcode)) in requests.into_iter().enumerate() {
        link.device(0).post_send(qp, wr.wr_id(wr_id as u64).signaled()).unwrap();
        let wc = link.completion(0, a.cq).unwrap();
        assert_eq!((wc.wr_id, wc.opcode, wc.qpn), (wr_id as u64, opcode, qp.qpn()), "{wr:?}");
    }

    let received = b.completions(&mut link);
    let seen: Vec<_> = received.iter().map(|wc| (wc.wr_id, wc.opcode, wc.byte_len, wc.imm, wc.solicited)).collect();
    assert_eq!(
        seen,
        [
            (0, WcOpcode::Recv, 8, None, false),
            (1, WcOpcode::Recv, 6, Some(0xABCD), true),
            (2, WcOpcode::RecvRdmaWithImm, 8, Some(77), false),
            (3, WcOpcode::Recv, 0, None, false),
        ]
    );
    assert_eq!(b.read(1024, 8), b"12345678");
    assert_eq!(b.read(1024 + 64, 6), b"inline");
    assert_eq!(b.read(0, 16), b"1234567812345678");
    assert_eq!(a.read(128, 16), b"1234567812345678");
    assert_eq!((a.read(64, 8), a.read(72, 8)), (7u64.to_ne_bytes().to_vec(), 40u64.to_ne_bytes().to_vec()));
    assert_eq!(b.read(512, 8), 42u64.to_ne_bytes());
}

/// The opcode of the completion of `wr` on a queue pair in ERROR, which flushes it at once.
fn flushed_as(wr: WorkRequest<'_, Rc>) -> WcOpcode {
    let mut link = Link::new(None);
    let a = End::new(&mut link, 0);
    let qp: QueuePair<Rc> = a.qp(&mut link);
    let mut dev = link.device(0);
    dev.modify_qp(qp, Transition::to_error()).unwrap();
    dev.post_send(qp, wr.wr_id(3)).unwrap();
    let wc = dev.poll_cq_one(a.cq).unwrap();
    assert_eq!((wc.wr_id, wc.status), (3, WcStatus::WrFlushErr));
    wc.opcode
}

#[test]
fn a_work_request_reports_its_opcode() {
    let remote = RemoteAddr { addr: 8, rkey: 9 };
    let range = WorkRequest::flush(remote, FlushType::Persistent, FlushLevel::Range { length: 64 });
    let wrs = [
        (WorkRequest::send_with_inv(Payload::EMPTY, 5), WcOpcode::Send, "SendInvalidate { rkey: 5 }"),
        (
            WorkRequest::flush(remote, FlushType::Global, FlushLevel::Region),
            WcOpcode::Flush,
            "whole_region: true, persistent: false",
        ),
        (range, WcOpcode::Flush, "length: 64, whole_region: false, persistent: true"),
        (WorkRequest::atomic_write(Payload::Inline(&[1; 8]), remote), WcOpcode::AtomicWrite, "inline_len: Some(8)"),
    ];
    for (wr, opcode, text) in wrs {
        assert_eq!(flushed_as(wr), opcode);
        assert!(format!("{wr:?}").contains(text), "{wr:?}");
    }
}

// [REQ-SIGNALED]
#[test]
fn only_signalled_successes_complete() {
    let mut link = Link::new(None);
    let ([a, b], [qp, _]) = pair::<Rc>(&mut link);
    let there = b.mr.remote(0).unwrap();
    for wr_id in 0..4 {
        let wr = WorkRequest::write(Payload::Inline(b"x"), there).wr_id(wr_id);
        link.device(0).post_send(qp, if wr_id % 2 == 1 { wr.signaled() } else { wr }).unwrap();
    }
    settle(&mut link);
    assert_eq!(a.outcomes(&mut link), [(1, WcOpcode::RdmaWrite, OK), (3, WcOpcode::RdmaWrite, OK)]);

    // With sq_sig_all every one does.
    let attr = QpInitAttr { sq_sig_all: true, ..a.attr() };
    let all = link.device(0).create_qp::<Rc>(a.pd, attr).unwrap();
    let other = b.qp(&mut link);
    connect(&mut link, [all, other]);
    link.device(0).post_send(all, WorkRequest::write(Payload::Inline(b"x"), there)).unwrap();
    settle(&mut link);
    assert_eq!(a.outcomes(&mut link), [(0, WcOpcode::RdmaWrite, OK)]);
}

#[test]
fn an_unreliable_connection_loses_whole_messages() {
    let mut link = Link::new(Some(3));
    let ([a, b], [qp, peer]) = pair::<Uc>(&mut link);
    for wr_id in 0..4 {
        link.device(1).post_recv(peer, RecvWr { wr_id, sges: &[b.sge(0, 8)] }).unwrap();
    }
    for imm in 0..4 {
        let wr = WorkRequest::send_with_imm(Payload::Inline(b"12345678"), imm).signaled();
        link.device(0).post_send(qp, wr).unwrap();
    }
    settle(&mut link);
    assert_eq!(a.outcomes(&mut link), [(0, WcOpcode::Send, OK); 4]);
    let imms: Vec<_> = b.completions(&mut link).iter().map(|wc| wc.imm).collect();
    assert_eq!(imms, [Some(0), Some(1), Some(3)], "the third frame is lost");
    assert_eq!(link.frames(), 4, "nothing is answered");

    link.device(0).post_send(qp, WorkRequest::write(Payload::Inline(b"written"), b.mr.remote(64).unwrap())).unwrap();
    settle(&mut link);
    assert_eq!(b.read(64, 7), b"written");
}

// [QP-STATE-WAYS]
#[test]
fn states_change_in_the_order_of_the_diagram() {
    let mut link = Link::new(None);
    let a = End::new(&mut link, 0);
    let qp: QueuePair<Rc> = a.qp(&mut link);
    let mut dev = link.device(0);
    let send = || WorkRequest::send(Payload::EMPTY);
    let recv = RecvWr { wr_id: 0, sges: &[] };
    let state = |dev: &Device<'_>| dev.query_qp(qp).unwrap().state;
    let wrong = |from, to| Err(QpError::Transition { from, to });

    assert_eq!(state(&dev), QpState::Reset);
    assert_eq!(dev.post_recv(qp, recv), Err(PostError::State(QpState::Reset)));
    assert_eq!(dev.modify_qp(qp, Transition::to_rtr(RtrAttr::default())), wrong(QpState::Reset, QpState::Rtr));
    dev.modify_qp(qp, Transition::to_init(REMOTE)).unwrap();
    assert_eq!(dev.query_qp(qp).unwrap().access, REMOTE);
    dev.post_recv(qp, recv).unwrap();
    assert_eq!(dev.post_send(qp, send()), Err(PostError::State(QpState::Init)));
    assert_eq!(dev.modify_qp(qp, Transition::to_rts(RtsAttr::default())), wrong(QpState::Init, QpState::Rts));
    let too_deep = RtrAttr { max_dest_rd_atomic: 200, ..RtrAttr::default() };
    let limit = QpError::Limit { name: "max_dest_rd_atomic", value: 200, limit: 128 };
    assert_eq!(qp.connect(&mut dev, REMOTE, too_deep, RtsAttr::default()), Err(limit));
    assert_eq!(state(&dev), QpState::Init, "as far as it got");

    // From INIT, with what was posted there.
    qp.connect(&mut dev, REMOTE, RtrAttr { path: Link::path(0), ..RtrAttr::default() }, RtsAttr::default()).unwrap();
    let info = dev.query_qp(qp).unwrap();
    assert_eq!((info.state, info.recv_queued, info.path), (QpState::Rts, 1, Some(Link::path(0))));
    let again = qp.connect(&mut dev, REMOTE, RtrAttr::default(), RtsAttr::default());
    assert_eq!(again, wrong(QpState::Rts, QpState::Init));

    dev.modify_qp(qp, Transition::to_sqd()).unwrap();
    assert_eq!(dev.get_async_event(), Some(AsyncEvent::SendQueueDrained { qpn: qp.qpn() }));
    dev.modify_qp(qp, Transition::resume()).unwrap();
    assert_eq!(state(&dev), QpState::Rts);
    dev.modify_qp(qp, Transition::to_error()).unwrap();
    dev.post_send(qp, send().wr_id(9)).unwrap();
    assert_eq!(dev.get_async_event(), None, "it was the owner's wish");
    let flushed = WcStatus::WrFlushErr;
    assert_eq!(a.outcomes(&mut link), [(0, WcOpcode::Recv, flushed), (9, WcOpcode::Send, flushed)]);
    link.device(0).modify_qp(qp, Transition::to_reset()).unwrap();
    assert_eq!(state(&link.device(0)), QpState::Reset);
    assert_eq!(Transition::<Ud>::to_sqd().target(), QpState::Sqd);
}

#[test]
fn a_connection_that_failed_can_be_made_again() {
    let mut link = Link::new(None);
    let ([a, b], qps) = pair::<Rc>(&mut link);
    let wr = WorkRequest::write(Payload::Inline(b"!"), RemoteAddr { addr: 0, rkey: 1 }).wr_id(5);
    link.device(0).post_send(qps[0], wr).unwrap();
    let error = link.completion(0, a.cq).unwrap_err();
    assert_eq!(error.to_string(), "end 0, work request 5: remote access error");
    let causes: Vec<_> = (0..2).map(|end| link.device(end).get_async_event()).collect();
    let failed = |end: usize, cause| Some(AsyncEvent::QpError { qpn: qps[end].qpn(), cause });
    assert_eq!(causes, [failed(0, QpErrorCause::PeerAccess), failed(1, QpErrorCause::RemoteKey)]);
    for (end, qp) in qps.into_iter().enumerate() {
        link.device(end).modify_qp(qp, Transition::to_reset()).unwrap();
    }
    connect(&mut link, qps);
    let wr = WorkRequest::write(Payload::Inline(b"!"), b.mr.remote(0).unwrap()).signaled();
    link.device(0).post_send(qps[0], wr).unwrap();
    link.completion(0, a.cq).unwrap();
    assert_eq!(b.read(0, 1), b"!");
}

#[test]
fn without_an_answer_all_retries_are_used_up() {
    let mut link = Link::new(Some(1));
    let ([a, _], [qp, _]) = pair::<Rc>(&mut link);
    link.device(0).post_send(qp, WorkRequest::send(Payload::EMPTY)).unwrap();
    let start = link.device(0).now();
    settle(&mut link);
    assert_eq!(a.outcomes(&mut link), [(0, WcOpcode::Send, WcStatus::RetryExcErr)]);
    // 8 times 67 ms.
    assert!(link.device(0).now() - start >= Duration::from_millis(500));
}

#[test]
fn parts_of_a_region_are_checked_when_they_are_named() {
    let mut link = Link::new(None);
    let mut dev = link.device(0);
    let pd = dev.alloc_pd();
    let mr = dev.reg_mr_iova(pd, Memory::heap(100), 0x1000, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let part = |sge: Result<Sge, OutOfBounds>| sge.map(|sge| (sge.addr, sge.length));
    assert_eq!(part(mr.sge(..)), Ok((0x1000, 100)));
    assert_eq!(part(mr.sge(10..)), Ok((0x100A, 90)));
    assert_eq!(part(mr.sge(10..=19)), Ok((0x100A, 10)));
    assert_eq!(part(mr.sge(100..100)), Ok((0x1064, 0)));
    assert_eq!(part(mr.sge(..101)), Err(OutOfBounds));
    assert_eq!(part(mr.sge(101..)), Err(OutOfBounds));
    assert_eq!(part(mr.sge(0..=usize::MAX)), Err(OutOfBounds));
    // A range that ends before it starts, on purpose.
    let (start, end) = (20, 10);
    assert_eq!(part(mr.sge(start..end)), Err(OutOfBounds));
    assert_eq!(mr.sge(..).unwrap().lkey, mr.lkey());
    let remote = mr.remote(100).unwrap();
    assert_eq!((remote.addr, remote.rkey), (0x1064, mr.rkey()));
    assert_eq!(mr.remote(101), Err(OutOfBounds));
    assert_eq!(mr.pd(), pd.id());

    // Without an address of one's own, that of the bytes.
    let memory = Memory::heap(64);
    let mr = dev.reg_mr(pd, memory.clone(), Access::empty()).unwrap();
    assert_eq!(mr.addr(), memory.as_ptr() as u64);
    let illegal = dev.reg_mr(pd, memory, Access::REMOTE_WRITE);
    assert_eq!(illegal.unwrap_err(), RegisterError::IllegalAccess);
}

#[test]
fn dropping_a_region_leaves_its_key_and_deregistering_takes_it() {
    let mut link = Link::new(None);
    let ([a, b], [qp, _]) = pair::<Rc>(&mut link);
    let memory = Memory::heap(64);
    let mr = link.device(1).reg_mr(b.pd, memory.clone(), Access::LOCAL_WRITE | REMOTE).unwrap();
    let there = mr.remote(0).unwrap();
    let copy = mr.clone();
    drop(mr);
    let wr = WorkRequest::write(Payload::Inline(b"still"), there).signaled();
    link.device(0).post_send(qp, wr).unwrap();
    link.completion(0, a.cq).unwrap();
    let mut bytes = [0; 5];
    memory.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"still");

    link.device(1).dereg_mr(&copy).unwrap();
    assert!(link.device(1).dereg_mr(&copy).is_err(), "once");
    link.device(0).post_send(qp, wr).unwrap();
    settle(&mut link);
    assert_eq!(a.outcomes(&mut link), [(0, WcOpcode::RdmaWrite, WcStatus::RemAccessErr)]);
}

#[test]
fn objects_in_use_cannot_be_destroyed() {
    let mut link = Link::new(None);
    let mut dev = link.device(0);
    let (pd, cq) = (dev.alloc_pd(), dev.create_cq(4).unwrap());
    let mr = dev.reg_mr(pd, Memory::heap(8), Access::empty()).unwrap();
    let srq = dev.create_srq(pd, SrqInitAttr::default()).unwrap();
    let ah = dev.create_ah(pd, &Link::path(0)).unwrap();
    let qp: QueuePair<Rc> = dev.create_qp(pd, QpInitAttr { srq: Some(srq), ..QpInitAttr::new(cq) }).unwrap();
    assert_eq!(dev.destroy_cq(cq), Err(CqError::InUse(2)));
    assert_eq!(dev.destroy_srq(srq), Err(SrqError::InUse(1)));
    dev.destroy_qp(qp).unwrap();
    dev.destroy_cq(cq).unwrap();
    assert_eq!(dev.dealloc_pd(pd), Err(DeallocPdError::InUse));
    dev.destroy_srq(srq).unwrap();
    assert_eq!(dev.dealloc_pd(pd), Err(DeallocPdError::InUse));
    dev.dereg_mr(&mr).unwrap();
    assert_eq!(dev.dealloc_pd(pd), Err(DeallocPdError::InUse));
    dev.destroy_ah(ah).unwrap();
    assert_eq!(dev.dealloc_pd(pd), Ok(()));
}

#[test]
fn stale_handles_are_refused() {
    let mut link = Link::new(None);
    let a = End::new(&mut link, 0);
    let qp: QueuePair<Rc> = a.qp(&mut link);
    let mut dev = link.device(0);
    let (pd, cq) = (dev.alloc_pd(), dev.create_cq(4).unwrap());
    let srq = dev.create_srq(pd, SrqInitAttr::default()).unwrap();
    let ah = dev.create_ah(pd, &Link::path(0)).unwrap();
    dev.destroy_qp(qp).unwrap();
    dev.destroy_cq(cq).unwrap();
    dev.destroy_srq(srq).unwrap();
    dev.destroy_ah(ah).unwrap();
    dev.dealloc_pd(pd).unwrap();

    let unknown = Err(QpError::Unknown(qp.qpn()));
    assert_eq!(dev.destroy_qp(qp), unknown);
    assert_eq!(dev.query_qp(qp).map(|_| ()), unknown);
    assert_eq!(dev.modify_qp(qp, Transition::to_error()), unknown);
    assert_eq!(dev.find_qp::<Rc>(qp.qpn()).map(|_| ()), unknown);
    let recv = RecvWr { wr_id: 0, sges: &[] };
    assert_eq!(dev.post_recv(qp, recv), Err(PostError::Unknown(qp.qpn())));
    assert_eq!(dev.post_send(qp, WorkRequest::send(Payload::EMPTY)), Err(PostError::Unknown(qp.qpn())));
    assert_eq!(dev.destroy_cq(cq), Err(CqError::Unknown));
    assert_eq!(dev.resize_cq(cq, 8), Err(CqError::Unknown));
    assert_eq!(dev.req_notify_cq(cq, false), Err(CqError::Unknown));
    assert_eq!((dev.poll_cq(cq, &mut Vec::new(), 1), dev.poll_cq_one(cq)), (0, None));
    assert_eq!(dev.destroy_srq(srq), Err(SrqError::Unknown));
    assert_eq!(dev.query_srq(srq), Err(SrqError::Unknown));
    assert_eq!(dev.modify_srq(srq, SrqAttr::limit(1)), Err(SrqError::Unknown));
    assert_eq!(dev.post_srq_recv(srq, recv), Err(PostError::UnknownSrq));
    assert_eq!(dev.destroy_ah(ah), Err(AhError::Unknown));
    assert_eq!(dev.dealloc_pd(pd), Err(DeallocPdError::Unknown));
    assert_eq!(dev.reg_mr(pd, Memory::heap(8), Access::empty()).unwrap_err(), RegisterError::UnknownPd);
    assert_eq!(dev.create_ah(pd, &Link::path(0)), Err(AhError::UnknownPd));
    assert_eq!(dev.create_srq(pd, SrqInitAttr::default()), Err(SrqError::UnknownPd));
    assert_eq!(dev.create_qp::<Rc>(pd, a.attr()), Err(QpError::UnknownPd));
    assert_eq!(dev.create_qp::<Rc>(a.pd, QpInitAttr::new(cq)), Err(QpError::UnknownCq));
    let attr = QpInitAttr { srq: Some(srq), ..a.attr() };
    assert_eq!(dev.create_qp::<Rc>(a.pd, attr), Err(QpError::UnknownSrq));
}

#[test]
fn too_much_is_refused_when_it_is_posted() {
    let mut link = Link::new(None);
    let ([a, b], [qp, _]) = pair::<Rc>(&mut link);
    let there = b.mr.remote(0).unwrap();
    let mut dev = link.device(0);
    let three = [a.sge(0, 1); 3];
    assert_eq!(dev.post_send(qp, WorkRequest::send(&three)), Err(PostError::TooManySges));
    assert_eq!(dev.post_recv(qp, RecvWr { wr_id: 0, sges: &three }), Err(PostError::TooManySges));
    assert_eq!(dev.post_send(qp, WorkRequest::send(Payload::Inline(&[0; 65]))), Err(PostError::InlineTooLong));
    assert_eq!(dev.post_send(qp, WorkRequest::fetch_add(&three[..1], there, 1)), Err(PostError::AtomicLength));
    for _ in 0..8 {
        dev.post_send(qp, WorkRequest::send(Payload::EMPTY)).unwrap();
        dev.post_recv(qp, RecvWr { wr_id: 0, sges: &[] }).unwrap();
    }
    assert_eq!(dev.post_send(qp, WorkRequest::send(Payload::EMPTY)), Err(PostError::QueueFull));
    assert_eq!(dev.post_recv(qp, RecvWr { wr_id: 0, sges: &[] }), Err(PostError::QueueFull));
    let caps = QpCaps { max_inline_data: 1 << 20, ..a.attr().caps };
    let limit = QpError::Limit { name: "max_inline_data", value: 1 << 20, limit: dev.query_device().max_inline_data };
    assert_eq!(dev.create_qp::<Rc>(a.pd, QpInitAttr { caps, ..a.attr() }), Err(limit));
}

#[test]
fn objects_of_the_engine_have_handles() {
    let mut engine = Engine::new(EngineConfig::default());
    let pd = engine.keys_mut().alloc_pd();
    let cq = engine.create_cq(4).unwrap();
    let init = QpInit {
        qp_type: QpType::Uc,
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        caps: QpCaps::default(),
        sq_sig_all: false,
    };
    let qpn = engine.create_qp(Instant::ZERO, &init).unwrap();
    let mut dev = Adapter::new(&mut engine, Instant::ZERO);
    assert_eq!(dev.find_qp::<Rc>(qpn), Err(QpError::WrongType(QpType::Uc)));
    let qp = dev.find_qp::<Uc>(qpn).unwrap();
    assert_eq!((qp.qpn(), qp.qp_type()), (qpn, QpType::Uc));
    assert_eq!(format!("{qp:?}"), format!("QueuePair<UC>({qpn})"));
    dev.modify_qp(qp, Transition::to_init(Access::empty())).unwrap();
    assert_eq!(dev.engine().query_qp(qpn).map(|info| info.state), Some(QpState::Init));
    let (pd, cq) = (ProtectionDomain::from(pd), CompletionQueue::from(cq));
    assert_eq!(dev.destroy_cq(cq), Err(CqError::InUse(2)));
    assert_eq!(dev.dealloc_pd(pd), Err(DeallocPdError::InUse));
    let srq = dev.create_srq(pd, SrqInitAttr::default()).unwrap();
    assert_eq!(SharedReceiveQueue::from(srq.id()), srq);
    assert_eq!(dev.engine_mut().srq_len(srq.id()), Some(0));
}

#[test]
fn statuses_have_the_names_and_numbers_of_libibverbs() {
    let table: Vec<_> =
        WcStatus::ALL.iter().map(|status| format!("{} {} {status}", *status as u8, status.constant())).collect();
    assert_eq!(
        table,
        [
            "0 IBV_WC_SUCCESS success",
            "1 IBV_WC_LOC_LEN_ERR local length error",
            "2 IBV_WC_LOC_QP_OP_ERR local QP operation error",
            "4 IBV_WC_LOC_PROT_ERR local protection error",
            "5 IBV_WC_WR_FLUSH_ERR Work Request Flushed Error",
            "6 IBV_WC_MW_BIND_ERR memory management operation error",
            "7 IBV_WC_BAD_RESP_ERR bad response error",
            "8 IBV_WC_LOC_ACCESS_ERR local access error",
            "9 IBV_WC_REM_INV_REQ_ERR remote invalid request error",
            "10 IBV_WC_REM_ACCESS_ERR remote access error",
            "11 IBV_WC_REM_OP_ERR remote operation error",
            "12 IBV_WC_RETRY_EXC_ERR transport retry counter exceeded",
            "13 IBV_WC_RNR_RETRY_EXC_ERR RNR retry counter exceeded",
            "19 IBV_WC_FATAL_ERR fatal error",
            "21 IBV_WC_GENERAL_ERR general error",
        ]
    );
}

// [MEM-REREGISTER]
#[test]
fn a_region_is_re_registered_under_its_key() {
    let mut link = Link::new(None);
    let ([a, b], [qp, _]) = pair::<Rc>(&mut link);
    let memory = Memory::heap(64);
    let mr = link.device(1).rereg_mr(&b.mr, Some((memory.clone(), 0x5000)), None, None).unwrap();
    assert_eq!((mr.addr(), mr.lkey(), mr.rkey()), (0x5000, b.mr.lkey(), b.mr.rkey()));
    let write = WorkRequest::write(Payload::Inline(b"moved"), mr.remote(8).unwrap()).signaled();
    link.device(0).post_send(qp, write).unwrap();
    settle(&mut link);
    assert_eq!(a.outcomes(&mut link), [(0, WcOpcode::RdmaWrite, OK)]);
    let mut bytes = [0; 5];
    memory.read(8, &mut bytes).unwrap();
    assert_eq!(&bytes, b"moved");

    let mut dev = link.device(1);
    assert_eq!(dev.rereg_mr(&mr, None, None, None).unwrap_err(), ReregisterError::NoChange);
    let other = dev.alloc_pd();
    let mr = dev.rereg_mr(&mr, None, Some(other), Some(Access::REMOTE_READ)).unwrap();
    assert_eq!((mr.pd(), mr.access()), (other.id(), Access::REMOTE_READ));
    link.device(0).post_send(qp, write).unwrap();
    settle(&mut link);
    assert_eq!(a.outcomes(&mut link), [(0, WcOpcode::RdmaWrite, WcStatus::RemAccessErr)]);
    link.device(1).dereg_mr(&mr).unwrap();
}
