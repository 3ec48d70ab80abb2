//! What a host needs that moves work requests from a program's rings to the engine: where receives come from, how many work
//! requests fit, and that each one completes, whatever the program wrote and whenever it is moved.

use crate::harness::ops::*;
use crate::harness::receives::statuses;
use crate::harness::scripted_peer::{AckReq, ScriptedPeer};
use crate::harness::variants;
use crate::harness::{Agreed, PORT};
use rxe_proto::transport::{
    EngineConfig, PostError, QpErrorCause, QpState, QpTransition, QpType, Qpn, RecvSource, RecvWr, SendFlags, SendOp,
    SendWr, SrqId, WcOpcode, WcStatus,
};
use rxe_proto::wire::{NakCode, Opcode};

use AckReq::Ack;
use WcStatus::{LocLenErr, LocQpOpErr, RemAccessErr, Success, WrFlushErr};

fn of(qp_type: QpType, shared: bool) -> ScriptedPeer {
    ScriptedPeer::of(qp_type, shared, Agreed::default(), EngineConfig::default())
}

fn step(peer: &mut ScriptedPeer, transition: QpTransition) {
    peer.node.engine.modify_qp(peer.node.qpn, transition).unwrap();
}

/// Room for sends and for receives.
fn room(peer: &ScriptedPeer) -> (u32, u32) {
    let (engine, qpn) = (&peer.node.engine, peer.node.qpn);
    (engine.send_room(qpn).unwrap(), engine.recv_room(qpn).unwrap())
}

/// Sends and receives that have not completed.
fn queued(peer: &ScriptedPeer) -> (u32, u32) {
    let (engine, qpn) = (&peer.node.engine, peer.node.qpn);
    (engine.send_queued(qpn).unwrap(), engine.recv_queued(qpn).unwrap())
}

fn recv(peer: &mut ScriptedPeer, wr_id: u64) -> Result<(), PostError> {
    let sges = [peer.node.sge(0x8000, 4096)];
    peer.node.engine.post_recv(peer.node.qpn, &RecvWr { wr_id, sges: &sges })
}

#[test]
fn a_host_learns_where_a_packet_takes_its_receive() {
    let own = of(QpType::Rc, false);
    assert_eq!(own.node.engine.recv_source(own.node.qpn), Some(RecvSource::Own));
    let shared = of(QpType::Uc, true);
    assert_eq!(shared.node.engine.recv_source(shared.node.qpn), Some(RecvSource::Shared(SrqId(0))));
    assert_eq!((room(&shared), shared.node.engine.srq_room(SrqId(0))), ((64, 0), Some(64)));
    let engine = &own.node.engine;
    let unknown = Qpn::new(0x77);
    assert_eq!((engine.recv_source(unknown), engine.recv_room(unknown), engine.send_room(unknown)), (None, None, None));
    assert_eq!(engine.srq_room(SrqId(0)), None);
    assert_eq!((engine.send_queued(unknown), engine.recv_queued(unknown)), (None, None));
    // A group's datagram takes one of each member.
    let mut datagrams = of(QpType::Ud, false);
    let group = rxe_proto::wire::Gid::from(std::net::Ipv4Addr::new(239, 0, 0, 1));
    let qpn = datagrams.node.qpn;
    datagrams.node.engine.attach_multicast(qpn, group).unwrap();
    assert_eq!(datagrams.node.engine.multicast_members(PORT, group), [qpn]);
}

#[test]
fn room_is_what_can_be_posted() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut peer = of(qp_type, false);
        for left in (0..64).rev() {
            post(&mut peer, 0, SEND, 1);
            recv(&mut peer, 0).unwrap();
            assert_eq!(room(&peer), (left, left));
            assert_eq!(queued(&peer), (64 - left, 64 - left));
        }
        assert_eq!(recv(&mut peer, 0), Err(PostError::QueueFull));
        let qpn = peer.node.qpn;
        let wr = SendWr { wr_id: 0, op: SEND, sges: &[], flags: SendFlags::empty() };
        assert_eq!(peer.node.engine.post_send(qpn, &wr), Err(PostError::QueueFull));
        // Completed work makes room, taken or not.
        peer.transmit();
        if qp_type == QpType::Rc {
            assert_eq!(room(&peer).0, 0);
            peer.ack(4);
            assert_eq!(room(&peer).0, 5);
        } else {
            assert_eq!(room(&peer).0, 64);
        }
        peer.request(Opcode::SendOnly, 0, AckReq::NoAck, b"x");
        assert_eq!(room(&peer).1, 1);
        assert_eq!(queued(&peer), (64 - room(&peer).0, 63));
        // In RESET there is room for nothing, but nothing is queued either.
        step(&mut peer, QpTransition::ToReset);
        assert_eq!((room(&peer), queued(&peer)), ((0, 0), (0, 0)));
    }
}

#[test]
fn a_queue_pair_has_room_in_the_states_in_which_work_can_be_posted() {
    let mut peer = of(QpType::Rc, false);
    step(&mut peer, QpTransition::ToReset);
    let check = |peer: &mut ScriptedPeer, sends: bool, recvs: bool| {
        let state = peer.node.state();
        assert_eq!(room(peer), (if sends { 64 } else { 0 }, if recvs { 64 } else { 0 }), "{state}");
        let wr = SendWr { wr_id: 0, op: SEND, sges: &[], flags: SendFlags::SIGNALED };
        let posted = peer.node.engine.post_send(peer.node.qpn, &wr);
        assert_eq!(posted, if sends { Ok(()) } else { Err(PostError::State(state)) });
        assert_eq!(recv(peer, 0), if recvs { Ok(()) } else { Err(PostError::State(state)) });
    };
    check(&mut peer, false, false);
    let access = peer.agreed.access;
    step(&mut peer, QpTransition::ToInit { access });
    check(&mut peer, false, true);
    step(&mut peer, QpTransition::ToError);
    check(&mut peer, true, true);
    check(&mut peer, true, true);
    // One receive of INIT, then in ERROR two of each.
    assert_eq!(completed(&mut peer), [(0, WrFlushErr); 5]);
}

// [REQ-ERROR-POST] [REQ-ERROR-FLUSH]
#[test]
fn work_posted_around_an_error_completes_in_the_order_of_posting() {
    let mut peer = of(QpType::Rc, false);
    for wr_id in [11, 12] {
        recv(&mut peer, wr_id).unwrap();
    }
    for wr_id in [1, 2, 3] {
        post(&mut peer, wr_id, WRITE, 8);
    }
    peer.transmit();
    // The queue pair fails by itself, because of the second WRITE, and its owner has not noticed.
    peer.nak(1, NakCode::RemoteAccess);
    assert_eq!(peer.node.state(), QpState::Error);
    for wr_id in [4, 5] {
        post(&mut peer, wr_id, WRITE, 8);
    }
    recv(&mut peer, 13).unwrap();
    let done = peer.node.take_completions();
    let (recvs, sends): (Vec<_>, Vec<_>) = done.into_iter().partition(|wc| wc.opcode == WcOpcode::Recv);
    let flushed = |wr_id| (wr_id, WrFlushErr);
    assert_eq!(statuses(&sends), [(1, Success), (2, RemAccessErr), flushed(3), flushed(4), flushed(5)]);
    assert_eq!(statuses(&recvs), [11, 12, 13].map(flushed));
}

// [REQ-LOCAL-FAIL]
#[test]
fn a_work_request_that_cannot_be_posted_fails_after_everything_before_it() {
    let mut peer = of(QpType::Rc, false);
    post(&mut peer, 1, WRITE, 8);
    peer.node.post_send(2, SendOp::Invalid { status: LocLenErr }, &[]);
    post(&mut peer, 3, WRITE, 8);
    // What is behind it is not sent.
    assert_eq!(peer.transmit().len(), 1);
    assert_eq!((completed(&mut peer), peer.node.state()), (vec![], QpState::Rts));
    peer.ack(0);
    peer.expect([]);
    assert_eq!(completed(&mut peer), [(1, Success), (2, LocLenErr), (3, WrFlushErr)]);
    assert_eq!((peer.node.state(), errors(&mut peer)), (QpState::Error, vec![QpErrorCause::LocalOperation]));
    peer.node.post_send(4, SendOp::Invalid { status: LocLenErr }, &[]);
    assert_eq!(completed(&mut peer), [(4, WrFlushErr)]);
}

// [UNREL-SQE]
#[test]
fn a_work_request_that_cannot_be_posted_stops_an_unreliable_send_queue() {
    let mut peer = of(QpType::Uc, false);
    post(&mut peer, 1, SEND, 8);
    peer.node.post_flags(2, SendOp::Invalid { status: Success }, &[], SendFlags::empty());
    post(&mut peer, 3, SEND, 8);
    assert_eq!(peer.transmit().len(), 1);
    // Success is no status of a failure.
    assert_eq!(completed(&mut peer), [(1, Success), (2, LocQpOpErr), (3, WrFlushErr)]);
    assert_eq!(peer.node.state(), QpState::Sqe);
    let (mut peer, _) = variants::ud(Agreed::default(), 0);
    peer.node.post_send(1, SendOp::Invalid { status: LocLenErr }, &[]);
    peer.expect([]);
    assert_eq!((completed(&mut peer), peer.node.state()), (vec![(1, LocLenErr)], QpState::Sqe));
    step(&mut peer, QpTransition::Resume);
    assert_eq!(peer.node.state(), QpState::Rts);
}

#[test]
fn receives_moved_just_before_a_packet_are_used_by_it() {
    let mut peer = of(QpType::Rc, false);
    peer.request(Opcode::SendOnly, 0, Ack, b"too early");
    peer.expect(["RNR_NAK 0 timer 1 msn 0"]);
    for (psn, wr_id) in [(0, 7), (1, 8)] {
        assert_eq!(room(&peer).1, 64);
        recv(&mut peer, wr_id).unwrap();
        peer.request(Opcode::SendOnly, psn, Ack, b"x");
    }
    peer.expect(["ACK 1 msn 2"]);
    assert_eq!(completed(&mut peer), [(7, Success), (8, Success)]);
}
