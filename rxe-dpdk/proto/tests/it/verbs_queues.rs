//! The verbs as a user meets them: completion queues and shared receive queues.

use crate::verbs_support::{End, Link, connect, pair, settle};
use rxe_proto::verbs::{
    AsyncEvent, CqError, Payload, PostError, QpErrorCause, QpInitAttr, QueuePair, Rc, RecvWr, SharedReceiveQueue,
    SrqAttr, SrqError, SrqInfo, SrqInitAttr, Transition, WcOpcode, WcStatus, WorkRequest,
};

fn send<'a>(wr_id: u64) -> WorkRequest<'a, Rc> {
    WorkRequest::send(Payload::Inline(b"message")).wr_id(wr_id)
}

// [CQ-NOTIFY]
#[test]
fn each_request_notify_yields_one_notification() {
    let mut link = Link::new(None);
    let ([a, b], [qp, peer]) = pair::<Rc>(&mut link);
    for wr_id in 0..6 {
        link.device(1).post_recv(peer, RecvWr { wr_id, sges: &[b.sge(0, 64)] }).unwrap();
    }
    let deliver = |link: &mut Link, wr: WorkRequest<'_, Rc>| {
        link.device(0).post_send(qp, wr).unwrap();
        settle(link);
        link.device(1).get_cq_event()
    };
    assert_eq!(deliver(&mut link, send(0)), None, "nobody asked");
    link.device(1).req_notify_cq(b.cq, false).unwrap();
    assert_eq!(link.device(1).get_cq_event(), None, "what is there already does not count");
    assert_eq!(deliver(&mut link, send(1)), Some(b.cq));
    assert_eq!(deliver(&mut link, send(2)), None, "once");
    link.device(1).req_notify_cq(b.cq, true).unwrap();
    assert_eq!(deliver(&mut link, send(3)), None, "not solicited");
    assert_eq!(deliver(&mut link, send(4).solicited()), Some(b.cq));
    link.device(1).req_notify_cq(b.cq, true).unwrap();
    link.device(1).modify_qp(peer, Transition::to_error()).unwrap();
    assert_eq!(link.device(1).get_cq_event(), Some(b.cq), "a failure");
    assert_eq!(b.completions(&mut link).len(), 6);
    assert_eq!(a.completions(&mut link), [], "nothing was signalled");
}

#[test]
fn poll_ready_is_round_robin() {
    let mut link = Link::new(None);
    let a = End::new(&mut link, 0);
    let mut dev = link.device(0);
    let other = dev.create_cq(8).unwrap();
    let attr = QpInitAttr { send_cq: other, ..a.attr() };
    let qp: QueuePair<Rc> = dev.create_qp(a.pd, attr).unwrap();
    assert_eq!(dev.poll_ready(), None);
    dev.modify_qp(qp, Transition::to_error()).unwrap();
    for wr_id in 0..3 {
        dev.post_send(qp, send(wr_id)).unwrap();
        dev.post_recv(qp, RecvWr { wr_id, sges: &[] }).unwrap();
    }
    assert_eq!([(); 4].map(|()| dev.poll_ready()), [Some(other), Some(a.cq), Some(other), Some(a.cq)]);
    let mut out = Vec::new();
    assert_eq!(dev.poll_cq(other, &mut out, 2), 2, "no more than asked for");
    assert_eq!(dev.poll_cq(other, &mut out, 2), 1);
    assert_eq!(out.iter().map(|wc| (wc.wr_id, wc.opcode)).collect::<Vec<_>>(), [0, 1, 2].map(|n| (n, WcOpcode::Send)));
    assert_eq!((dev.poll_ready(), dev.poll_ready()), (Some(a.cq), Some(a.cq)));
    assert_eq!(dev.poll_cq_one(a.cq).map(|wc| (wc.wr_id, wc.success())), Some((0, Err(WcStatus::WrFlushErr))));
}

#[test]
fn a_full_queue_takes_its_queue_pair_down_and_can_be_made_deeper_before() {
    let mut link = Link::new(None);
    let (a, b) = (End::new(&mut link, 0), End::new(&mut link, 1));
    let small = link.device(1).create_cq(1).unwrap();
    assert_eq!(link.device(1).create_cq(0), Err(CqError::Depth(link.device(1).query_device().max_cqe)));
    let attr = QpInitAttr { recv_cq: small, ..b.attr() };
    let (qp, peer) = (a.qp(&mut link), link.device(1).create_qp(b.pd, attr).unwrap());
    connect(&mut link, [qp, peer]);
    for wr_id in 0..4 {
        link.device(1).post_recv(peer, RecvWr { wr_id, sges: &[b.sge(0, 64)] }).unwrap();
    }
    link.device(1).resize_cq(small, 2).unwrap();
    for wr_id in 0..2 {
        link.device(0).post_send(qp, send(wr_id)).unwrap();
    }
    settle(&mut link);
    assert_eq!(link.device(1).resize_cq(small, 1), Err(CqError::Occupied(2)));
    assert_eq!(link.device(1).get_async_event(), Some(AsyncEvent::CommunicationEstablished { qpn: peer.qpn() }));
    assert_eq!(link.device(1).get_async_event(), None);
    link.device(0).post_send(qp, send(2)).unwrap();
    settle(&mut link);
    let event = AsyncEvent::QpError { qpn: peer.qpn(), cause: QpErrorCause::CqOverflow };
    assert_eq!(link.device(1).get_async_event(), Some(AsyncEvent::CqError { cq: small.id() }));
    assert_eq!(link.device(1).get_async_event(), Some(event));
}

/// Two connections whose receives at end 1 come from one queue.
fn shared(link: &mut Link, attr: SrqInitAttr) -> ([End; 2], SharedReceiveQueue, [[QueuePair<Rc>; 2]; 2]) {
    let ends = [End::new(link, 0), End::new(link, 1)];
    let srq = link.device(1).create_srq(ends[1].pd, attr).unwrap();
    let qps = [(); 2].map(|()| {
        let shared = QpInitAttr { srq: Some(srq), ..ends[1].attr() };
        let qps = [ends[0].qp(link), link.device(1).create_qp(ends[1].pd, shared).unwrap()];
        connect(link, qps);
        qps
    });
    (ends, srq, qps)
}

#[test]
fn queue_pairs_share_receives_and_raise_last_wqe_events() {
    let mut link = Link::new(None);
    let ([_, b], srq, [[one, peer_one], [two, peer_two]]) = shared(&mut link, SrqInitAttr::default());
    let recv = |wr_id| RecvWr { wr_id, sges: &[] };
    assert_eq!(link.device(1).post_recv(peer_one, recv(0)), Err(PostError::SharedReceiveQueue));
    for wr_id in 0..4 {
        let slot = b.sge(64 * wr_id as usize, 64);
        link.device(1).post_srq_recv(srq, RecvWr { wr_id, sges: &[slot] }).unwrap();
    }
    link.device(1).modify_srq(srq, SrqAttr::limit(2)).unwrap();
    assert_eq!(link.device(1).query_srq(srq).map(|info| info.queued), Ok(4));
    for (qp, wr_id) in [(one, 0), (two, 1), (one, 2)] {
        link.device(0).post_send(qp, send(wr_id)).unwrap();
        settle(&mut link);
    }
    let taken: Vec<_> = b.completions(&mut link).iter().map(|wc| (wc.wr_id, wc.qpn)).collect();
    assert_eq!(taken, [(0, peer_one.qpn()), (1, peer_two.qpn()), (2, peer_one.qpn())]);
    assert_eq!(b.read(128, 7), b"message");
    assert_eq!(link.device(1).query_srq(srq).map(|info| info.queued), Ok(1));
    let mut events = Vec::new();
    while let Some(event) = link.device(1).get_async_event() {
        if !matches!(event, AsyncEvent::CommunicationEstablished { .. }) {
            events.push(event);
        }
    }
    assert_eq!(events, [AsyncEvent::SrqLimitReached { srq: srq.id() }]);

    link.device(1).modify_qp(peer_one, Transition::to_error()).unwrap();
    let last = AsyncEvent::LastWqeReached { qpn: peer_one.qpn() };
    assert_eq!(link.device(1).get_async_event(), Some(last));
    assert_eq!(link.device(1).query_srq(srq).map(|info| info.queued), Ok(1), "what was not taken stays");
    link.device(1).modify_srq(srq, SrqAttr::limit(3)).unwrap();
    let low = AsyncEvent::SrqLimitReached { srq: srq.id() };
    assert_eq!(link.device(1).get_async_event(), Some(low), "at once when it is low already");
}

#[test]
fn an_empty_shared_queue_makes_the_peer_come_again() {
    let mut link = Link::new(None);
    let ([a, b], srq, [[one, _], _]) = shared(&mut link, SrqInitAttr::default());
    link.device(0).post_send(one, send(1).signaled()).unwrap();
    for _ in 0..10 {
        link.turn();
    }
    assert_eq!((a.completions(&mut link), b.completions(&mut link)), (vec![], vec![]));
    link.device(1).post_srq_recv(srq, RecvWr { wr_id: 9, sges: &[b.sge(0, 64)] }).unwrap();
    settle(&mut link);
    assert_eq!(b.outcomes(&mut link), [(9, WcOpcode::Recv, WcStatus::Success)]);
    assert_eq!(a.outcomes(&mut link), [(1, WcOpcode::Send, WcStatus::Success)]);
}

#[test]
fn sizes_of_a_shared_queue_have_limits() {
    let mut link = Link::new(None);
    let b = End::new(&mut link, 1);
    let mut dev = link.device(1);
    let limit = |name, value, limit| Err(SrqError::Limit { name, value, limit });
    let attr = SrqInitAttr { max_wr: 2, max_sge: 1, srq_limit: 0 };
    assert_eq!(dev.create_srq(b.pd, SrqInitAttr { srq_limit: 3, ..attr }), limit("srq_limit", 3, 2));
    let most = dev.query_device().max_sge;
    assert_eq!(dev.create_srq(b.pd, SrqInitAttr { max_sge: 99, ..attr }), limit("max_sge", 99, most));
    let most = dev.query_device().max_srq_wr;
    assert_eq!(dev.create_srq(b.pd, SrqInitAttr { max_wr: 0, ..attr }), limit("max_wr", 0, most));
    let srq = dev.create_srq(b.pd, attr).unwrap();
    assert_eq!(dev.modify_srq(srq, SrqAttr::limit(3)).map(|()| srq), limit("srq_limit", 3, 2));
    let two = [b.sge(0, 1); 2];
    assert_eq!(dev.post_srq_recv(srq, RecvWr { wr_id: 0, sges: &two }), Err(PostError::TooManySges));
    for wr_id in 0..2 {
        dev.post_srq_recv(srq, RecvWr { wr_id, sges: &[] }).unwrap();
    }
    assert_eq!(dev.post_srq_recv(srq, RecvWr { wr_id: 2, sges: &[] }), Err(PostError::QueueFull));
    assert_eq!(dev.modify_srq(srq, SrqAttr::size(1)), Err(SrqError::Occupied(2)));
    dev.modify_srq(srq, SrqAttr::size(3)).unwrap();
    dev.post_srq_recv(srq, RecvWr { wr_id: 2, sges: &[] }).unwrap();
    let info = SrqInfo { pd: b.pd.id(), max_wr: 3, max_sge: 1, srq_limit: 0, queued: 3 };
    assert_eq!(dev.query_srq(srq), Ok(info));
}
