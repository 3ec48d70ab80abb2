//! Inline data: the bytes are taken when the work request is posted, need no key, and are the same whenever they are
//! sent.

use crate::harness::scripted_peer::ScriptedPeer;
use crate::harness::{Agreed, Rng, variants};
use rxe_proto::transport::{PostError, QpTransition, Qpn, SendFlags, SendOp, SendWr, Sge, WcStatus};
use rxe_proto::wire::{Frame, NakCode, Opcode, PathMtu, Psn, classify};

use crate::harness::ops::*;
use Opcode::*;
use WcStatus::{Success, WrFlushErr};

/// Path MTU 256, so that inline data of 512 bytes takes several packets.
fn agreed() -> Agreed {
    Agreed { mtu: PathMtu::Mtu256, sq_psn: Psn::new(0xFF_FFFE), ..Agreed::default() }
}

fn post_inline(peer: &mut ScriptedPeer, wr_id: u64, op: SendOp, data: &[u8]) -> Result<(), PostError> {
    let wr = SendWr { wr_id, op, sges: &[], flags: SendFlags::SIGNALED };
    peer.node.engine.post_send_inline(peer.node.qpn, &wr, data)
}

/// The packets that the engine writes now: opcode and payload of each.
fn payloads(peer: &mut ScriptedPeer) -> Vec<(Opcode, Vec<u8>)> {
    peer.transmit_at_most(None);
    let parse = |frame: &Vec<u8>| {
        let Ok(Frame::Roce(packet)) = classify(frame) else { panic!("not a RoCE frame") };
        (packet.opcode(), packet.payload().to_vec())
    };
    peer.frames.iter().map(parse).collect()
}

fn pattern(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng(len as u64).fill(&mut bytes);
    bytes
}

// [RC-REQ-INLINE]
#[test]
fn every_length_up_to_the_limit_and_none_beyond() {
    for max in [0, 1, 64, 512] {
        let mut peer = variants::rc(agreed(), max);
        for op in [SEND, WRITE, SendOp::SendInvalidate { rkey: 7 }, SendOp::Write { remote: REMOTE, imm: Some(1) }] {
            for len in [0, 1, 63, 64, 65, 255, 256, 257, 512, 513] {
                let mut data = pattern(len);
                let posted = post_inline(&mut peer, len as u64, op, &data);
                if len > max as usize {
                    assert_eq!(posted, Err(PostError::InlineTooLong), "{op:?} {len}");
                    continue;
                }
                posted.unwrap();
                let sent = data.clone();
                // The caller may reuse its buffer at once.
                data.fill(0xFF);
                let packets = payloads(&mut peer);
                assert_eq!(packets.len(), len.div_ceil(256).max(1));
                assert_eq!(packets.into_iter().flat_map(|(_, payload)| payload).collect::<Vec<_>>(), sent);
                let qp = peer.node.engine.query_qp(peer.node.qpn).unwrap();
                peer.ack(qp.next_psn.diff(peer.agreed.sq_psn) - 1);
                assert_eq!(completed(&mut peer), [(len as u64, Success)]);
            }
        }
        peer.expect([]);
    }
}

#[test]
fn operations_without_data_or_with_buffers_cannot_be_inline() {
    let mut peer = variants::rc(agreed(), 64);
    for op in [READ, FADD, SendOp::LocalInvalidate { key: 2 }] {
        assert_eq!(post_inline(&mut peer, 1, op, &[0; 8]), Err(PostError::InlineTooLong), "{op:?}");
    }
    let sges = [Sge::default()];
    let wr = SendWr { wr_id: 1, op: SEND, sges: &sges, flags: SendFlags::SIGNALED };
    assert_eq!(peer.node.engine.post_send_inline(peer.node.qpn, &wr, &[1]), Err(PostError::TooManySges));
    for wr_id in 0..8 {
        post_inline(&mut peer, wr_id, SEND, &[1]).unwrap();
    }
    assert_eq!(post_inline(&mut peer, 8, SEND, &[1]), Err(PostError::QueueFull));
    assert_eq!(
        peer.node.engine.post_send_inline(Qpn::new(0xFFFF), &wr, &[1]),
        Err(PostError::Unknown(Qpn::new(0xFFFF)))
    );
}

// [RC-REQ-INLINE]
#[test]
fn a_retry_sends_the_same_bytes() {
    let mut peer = variants::rc(agreed(), 512);
    let (one, two) = (pattern(500), pattern(300));
    post_inline(&mut peer, 1, WRITE, &one).unwrap();
    post_inline(&mut peer, 2, SEND, &two).unwrap();
    let first = payloads(&mut peer);
    assert_eq!(
        first,
        [
            (WriteFirst, one[..256].to_vec()),
            (WriteLast, one[256..].to_vec()),
            (SendFirst, two[..256].to_vec()),
            (SendLast, two[256..].to_vec()),
        ]
    );
    peer.advance(TIMEOUT);
    assert_eq!(payloads(&mut peer), first);
    // From the middle of a message.
    peer.nak(1, NakCode::PsnSequence);
    assert_eq!(payloads(&mut peer), first[1..]);
    peer.nak(3, NakCode::PsnSequence);
    assert_eq!(payloads(&mut peer), first[3..]);
    peer.ack(3);
    assert_eq!(completed(&mut peer), [(1, Success), (2, Success)]);
}

#[test]
fn places_in_the_queue_are_used_again_beside_those_with_buffers() {
    let mut peer = variants::rc(agreed(), 64);
    let length = |round: u8, i: u8| (usize::from(round) * 7 + usize::from(i) * 9) % 65;
    let mut psn = 0;
    for round in 0..50u8 {
        // Eight at a time, none but the last acknowledged alone, of every length.
        for i in 0..8u8 {
            let len = length(round, i);
            if i % 3 == 1 {
                peer.node.write(64 * usize::from(i), &vec![round ^ i; len]);
                let sge = peer.node.sge(64 * usize::from(i), len);
                peer.node.post_send(u64::from(i), SEND, &[sge]);
            } else {
                post_inline(&mut peer, u64::from(i), SEND, &vec![round ^ i; len]).unwrap();
            }
        }
        for (i, (_, payload)) in (0..).zip(payloads(&mut peer)) {
            assert_eq!(payload, vec![round ^ i; length(round, i)]);
        }
        psn += 8;
        peer.ack(psn - 1);
        assert_eq!(completed(&mut peer).len(), 8);
    }
}

#[test]
fn on_an_unreliable_connection() {
    let mut peer = variants::uc(agreed(), 512);
    let mut data = pattern(400);
    post_inline(&mut peer, 1, WRITE, &data).unwrap();
    post_inline(&mut peer, 2, SEND, &data[..10]).unwrap();
    let sent = data.clone();
    data.fill(0);
    let packets = payloads(&mut peer);
    assert_eq!(
        packets,
        [(WriteFirst, sent[..256].to_vec()), (WriteLast, sent[256..].to_vec()), (SendOnly, sent[..10].to_vec())]
    );
    assert_eq!(completed(&mut peer), [(1, Success), (2, Success)]);
    assert_eq!(post_inline(&mut peer, 3, SEND, &[0; 513]), Err(PostError::InlineTooLong));
}

// [UD-REQ-LENGTH]
#[test]
fn in_datagrams() {
    let (mut peer, ah) = variants::ud(agreed(), 512);
    let op = SendOp::Datagram { ah, qpn: Qpn::new(0x11), qkey: 0x2222, imm: Some(5) };
    let mut data = pattern(256);
    post_inline(&mut peer, 1, op, &data).unwrap();
    let sent = data.clone();
    data.fill(0);
    assert_eq!(payloads(&mut peer), [(SendOnlyImm, sent)]);
    assert_eq!(completed(&mut peer), [(1, Success)]);
    // Inline or not, a datagram is one packet.
    assert_eq!(post_inline(&mut peer, 2, op, &[0; 257]), Err(PostError::MessageTooLong));
    assert_eq!(post_inline(&mut peer, 2, op, &[0; 513]), Err(PostError::InlineTooLong));
}

// [REQ-ERROR-POST]
#[test]
fn in_error_it_is_flushed() {
    let mut peer = variants::rc(agreed(), 64);
    post_inline(&mut peer, 1, SEND, &[1; 64]).unwrap();
    peer.node.engine.modify_qp(peer.node.qpn, QpTransition::ToError).unwrap();
    post_inline(&mut peer, 2, SEND, &[1; 64]).unwrap();
    assert_eq!(post_inline(&mut peer, 3, SEND, &[1; 65]), Err(PostError::InlineTooLong));
    assert_eq!(completed(&mut peer), [(1, WrFlushErr), (2, WrFlushErr)]);
    peer.expect([]);
}
