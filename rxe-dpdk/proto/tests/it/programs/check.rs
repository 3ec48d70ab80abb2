//! What must hold after a program, whatever the link did.
//!
//! * RC: every message arrives once, in order, whole; every atomic happens once; every READ returns what was there when
//!   it was its turn (or was written later and not fenced off); work requests complete in order.
//! * UC: messages arrive whole and in order or not at all; of a WRITE that did not arrive only whole packets from its
//!   beginning on were written.
//! * UD: datagrams arrive whole, as often as the link delivered them: the transport has no PSN check there, so a frame
//!   that the link repeats is received twice.
//! * Receives: every one posted has completed once or is still queued.
//! * Memory: not a byte has changed but those that the program says.
//! * On a link that loses nothing and keeps the order, UC and UD arrive like RC.

use std::collections::{HashMap, VecDeque};

use rxe_proto::transport::{QpState, QpType, SendFlags, WcOpcode, WcStatus, WorkCompletion};

use super::plan::{Op, Program, Supply};
use super::world::{Conn, GRH, Placed, RECEIVE, Receive, World, immediate, number, swap_value, word};
use crate::harness::gid_of;

pub fn check(world: &mut World, program: &Program) {
    for end in 0..2 {
        let errors: Vec<_> = world.pair.nodes[end].take_events().into_iter().filter(is_error).collect();
        assert!(errors.is_empty(), "{errors:?}");
        let completions = world.pair.nodes[end].take_completions();
        assert!(completions.iter().all(|wc| wc.status == WcStatus::Success), "{completions:?}");
        let (received, sent): (Vec<_>, Vec<_>) = completions.into_iter().partition(|wc| wc.wr_id & RECEIVE != 0);
        for c in 0..world.connections.len() {
            check_sent(&world.connections[c], c, end, &sent);
        }
        check_receives(world, end, &received);
        check_datagrams(world, program, end, &received);
        for c in 0..world.connections.len() {
            match world.connections[c].plan.qp_type {
                QpType::Ud => {}
                qp_type => check_messages(world, program, c, end, &received, qp_type == QpType::Rc),
            }
        }
    }
    for end in 0..2 {
        effects(world, program, end);
        check_counter(world, end);
    }
    for end in 0..2 {
        let node = &world.pair.nodes[end];
        let memory = node.read(0, world.initial[end].len());
        let stray = memory.iter().zip(&world.initial[end]).position(|(is, should)| is != should);
        assert_eq!(stray, None, "end {end}: a byte that nobody should have written");
    }
}

fn is_error(event: &rxe_proto::transport::AsyncEvent) -> bool {
    matches!(event, rxe_proto::transport::AsyncEvent::QpError { .. })
}

/// Work requests of the send queue complete once and in order, on all types.
fn check_sent(conn: &Conn, c: usize, end: usize, sent: &[WorkCompletion]) {
    let steps = &conn.steps[end];
    let expected: Vec<_> = (0..)
        .zip(steps)
        .filter(|(_, placed)| conn.plan.sig_all || placed.step.flags.contains(SendFlags::SIGNALED))
        .map(|(i, placed)| (number(c, i), wc_opcode(placed.step.op), returned(placed)))
        .collect();
    let sent: Vec<_> =
        sent.iter().filter(|wc| wc.qpn == conn.qpns[end]).map(|wc| (wc.wr_id, wc.opcode, wc.byte_len)).collect();
    assert_eq!(sent, expected, "{}: completions of the send queue", conn.plan.qp_type);
}

fn wc_opcode(op: Op) -> WcOpcode {
    match op {
        Op::Send { .. } | Op::SendInvalidate | Op::Datagram { .. } => WcOpcode::Send,
        Op::Write { .. } | Op::WriteShared { .. } => WcOpcode::RdmaWrite,
        Op::Read | Op::ReadShared { .. } => WcOpcode::RdmaRead,
        Op::CompareSwap { .. } => WcOpcode::CompSwap,
        Op::FetchAdd { .. } | Op::Count { .. } => WcOpcode::FetchAdd,
        Op::AtomicWrite => WcOpcode::AtomicWrite,
        Op::Flush => WcOpcode::Flush,
    }
}

/// Bytes that came back.
fn returned(placed: &Placed) -> u32 {
    if placed.step.op.sends_data() { 0 } else { placed.len as u32 }
}

/// Each receive has completed at most once, on the queue pair that it was posted for; the others are still there.
fn check_receives(world: &World, end: usize, received: &[WorkCompletion]) {
    let mut done = vec![false; world.receives[end].len()];
    for wc in received {
        let index = (wc.wr_id & !RECEIVE) as usize;
        assert!(!std::mem::replace(&mut done[index], true), "a receive completed twice");
        let own = world.receives[end][index].own;
        let c = world.connections.iter().position(|conn| conn.qpns[end] == wc.qpn).unwrap();
        let fits = own.map_or(world.connections[c].plan.srq[end], |own| own == c);
        assert!(fits, "a receive of another queue pair");
    }
    let engine = &world.pair.nodes[end].engine;
    let mut queued = engine.srq_len(world.srqs[end]).unwrap();
    for conn in &world.connections {
        let info = engine.query_qp(conn.qpns[end]).unwrap();
        assert_eq!((info.state, info.send_queued), (QpState::Rts, 0));
        queued += info.recv_queued;
    }
    assert_eq!(received.len() + queued as usize, world.posted[end], "receives leaked");
}

/// The messages of a connection that `end` received.
fn check_messages(
    world: &mut World,
    program: &Program,
    c: usize,
    end: usize,
    completed: &[WorkCompletion],
    reliable: bool,
) {
    let peer = 1 - end;
    let conn = &world.connections[c];
    let qpn = conn.qpns[end];
    let mut expected: VecDeque<usize> =
        (0..conn.steps[peer].len()).filter(|&i| conn.steps[peer][i].step.op.takes_receive()).collect();
    let all = reliable || arrives(program);
    let mut written = Vec::new();
    for wc in completed.iter().filter(|wc| wc.qpn == qpn) {
        let receive = &world.receives[end][(wc.wr_id & !RECEIVE) as usize];
        loop {
            let Some(i) = expected.pop_front() else { panic!("nobody sent this, or not in this place: {wc:?}") };
            let placed = &conn.steps[peer][i];
            let fits = message_fits(world, c, i, end, placed, wc);
            assert!(fits || !all, "message {i} of end {peer} is not what was received: {wc:?}");
            if fits {
                if matches!(placed.step.op, Op::Send { .. } | Op::SendInvalidate) {
                    written.extend(clipped(&receive.pieces, placed.len));
                }
                break;
            }
        }
    }
    assert!(expected.is_empty() || !all, "messages {expected:?} of end {peer} never arrived");
    if !reliable {
        // Packets of a message that was never completed may have come to any receive that no other queue pair used.
        let own = |receive: &Receive| receive.own.map_or(conn.plan.srq[end], |own| own == c);
        let others = |index: usize| completed.iter().any(|wc| wc.wr_id == RECEIVE | index as u64 && wc.qpn != qpn);
        let receives = world.receives[end].iter().enumerate();
        let held = receives.filter(|(index, receive)| own(receive) && !others(*index));
        written.extend(held.flat_map(|(_, receive)| receive.pieces.iter().copied()));
    }
    accept(world, end, &written);
}

/// Whether a completion is that of step `i`, its bytes included.
fn message_fits(world: &World, c: usize, i: usize, end: usize, placed: &Placed, wc: &WorkCompletion) -> bool {
    let (opcode, imm) = match placed.step.op {
        Op::Send { imm } => (WcOpcode::Recv, imm),
        Op::SendInvalidate => (WcOpcode::Recv, false),
        _ => (WcOpcode::RecvRdmaWithImm, true),
    };
    let receive = &world.receives[end][(wc.wr_id & !RECEIVE) as usize];
    let source = world.bytes(1 - end, &placed.local);
    let landed = match placed.step.op {
        Op::Send { .. } | Op::SendInvalidate => world.bytes(end, &clipped(&receive.pieces, placed.len)),
        _ => world.bytes(end, &[(placed.remote, placed.len)]),
    };
    (wc.opcode, wc.byte_len as usize, wc.imm) == (opcode, placed.len, imm.then_some(immediate(c, i)))
        && wc.invalidated_rkey == placed.invalidates
        && placed.invalidates.is_none_or(|key| world.pair.nodes[end].engine.keys().region(key).is_none())
        && wc.solicited == placed.step.flags.contains(SendFlags::SOLICITED)
        && landed == source
}

/// Whether everything arrives on the unreliable services, too.
fn arrives(program: &Program) -> bool {
    program.link.is_lossless() && program.link.is_in_order() && matches!(program.supply, Supply::Early)
}

/// What was sent as a datagram to one queue pair: who sent it, immediate data, whether solicited, bytes.
type Datagram = (u32, Option<u32>, bool, Vec<u8>);

fn check_datagrams(world: &mut World, program: &Program, end: usize, received: &[WorkCompletion]) {
    let peer = 1 - end;
    let mut sent: HashMap<(usize, Datagram), usize> = HashMap::new();
    for (c, conn) in world.connections.iter().enumerate() {
        for (i, placed) in conn.steps[peer].iter().enumerate() {
            if let Op::Datagram { to, imm, .. } = placed.step.op {
                let solicited = placed.step.flags.contains(SendFlags::SOLICITED);
                let imm = imm.then_some(immediate(c, i));
                let datagram = (conn.qpns[peer].get(), imm, solicited, world.bytes(peer, &placed.local));
                *sent.entry((world.datagram_target(to), datagram)).or_default() += 1;
            }
        }
    }
    let copies = 1 + usize::from(program.link.duplicate > 0);
    let mut left: HashMap<_, _> = sent.iter().map(|(datagram, &n)| (datagram.clone(), n * copies)).collect();
    let mut written = Vec::new();
    for wc in received {
        let c = world.connections.iter().position(|conn| conn.qpns[end] == wc.qpn).unwrap();
        if world.connections[c].plan.qp_type != QpType::Ud {
            continue;
        }
        assert_eq!(wc.opcode, WcOpcode::Recv);
        let receive = &world.receives[end][(wc.wr_id & !RECEIVE) as usize];
        let pieces = clipped(&receive.pieces, wc.byte_len as usize);
        let bytes = world.bytes(end, &pieces);
        let (route, payload) = bytes.split_at(GRH);
        assert_eq!((&route[..20], route[20]), (&[0; 20][..], 0x45), "room, then the IPv4 header as it came");
        assert_eq!((&route[32..36], &route[36..40]), (&gid_of(peer as u8 + 1).0[12..], &gid_of(end as u8 + 1).0[12..]));
        let datagram = (wc.src_qpn.unwrap().get(), wc.imm, wc.solicited, payload.to_vec());
        let n = left.get_mut(&(c, datagram)).expect("a datagram that nobody sent here");
        *n = n.checked_sub(1).expect("a datagram received more often than it came");
        written.extend(pieces);
    }
    if program.link.is_lossless() && matches!(program.supply, Supply::Early) {
        for (datagram, n) in sent {
            assert!(left[&datagram] <= n * (copies - 1), "a datagram never arrived");
        }
    }
    accept(world, end, &written);
}

/// What the steps of `end` did to memory, but for what was received. A new operation has its effect here.
fn effects(world: &mut World, program: &Program, end: usize) {
    let (peer, mtu) = (1 - end, program.mtu.bytes());
    for c in 0..world.connections.len() {
        let reliable = world.connections[c].plan.qp_type == QpType::Rc;
        let all = reliable || arrives(program);
        // The shared places as the order of steps has them.
        let mut places: HashMap<usize, Vec<u8>> = HashMap::new();
        for &at in &world.connections[c].places[end] {
            let len = super::plan::Size::MOST_PACKETS * mtu;
            places.insert(at, world.initial[peer][at..at + len].to_vec());
        }
        for i in 0..world.connections[c].steps[end].len() {
            let placed = &world.connections[c].steps[end][i];
            let (at, len) = (placed.remote, placed.len);
            let local = placed.local.clone();
            let bytes = world.bytes(end, &local);
            match placed.step.op {
                Op::Send { .. } | Op::SendInvalidate | Op::Datagram { .. } | Op::Flush => {}
                Op::Write { .. } | Op::AtomicWrite => {
                    let landed = world.bytes(peer, &[(at, len)]);
                    let before = &world.initial[peer][at..at + len];
                    // How many packets of it were executed.
                    let arrived = (0..=len).rev().filter(|&n| n % mtu == 0 || n == len);
                    let whole = landed == bytes;
                    let part = arrived.into_iter().any(|n| landed[..n] == bytes[..n] && landed[n..] == before[n..]);
                    assert!(whole || part && !all, "WRITE {i} of end {end} left other bytes");
                    accept(world, peer, &[(at, len)]);
                }
                Op::WriteShared { .. } => places.get_mut(&at).unwrap()[..len].copy_from_slice(&bytes),
                Op::Read => {
                    assert!(bytes == world.initial[peer][at..at + len], "READ {i} of end {end} brought other bytes");
                    accept(world, end, &local);
                }
                Op::ReadShared { .. } => {
                    check_shared_read(world, &world.connections[c], end, i, &places[&at]);
                    accept(world, end, &local);
                }
                Op::CompareSwap { equal, .. } => {
                    assert_eq!(word(&bytes, 0), placed.before, "compare-and-swap {i} of end {end}");
                    let after = if equal { swap_value(placed) } else { placed.before };
                    world.initial[peer][at..at + 8].copy_from_slice(&after.to_ne_bytes());
                    accept(world, end, &local);
                }
                Op::FetchAdd { add, .. } => {
                    assert_eq!(word(&bytes, 0), placed.before, "fetch-and-add {i} of end {end}");
                    let after = placed.before.wrapping_add(add);
                    world.initial[peer][at..at + 8].copy_from_slice(&after.to_ne_bytes());
                    accept(world, end, &local);
                }
                Op::Count { .. } => accept(world, end, &local),
            }
        }
        for (at, content) in places {
            world.initial[peer][at..at + content.len()].copy_from_slice(&content);
        }
    }
}

/// A READ of a place that others write: each byte as it was when the READ's turn came, or as a later WRITE made it that no
/// fence held back.
fn check_shared_read(world: &World, conn: &Conn, end: usize, i: usize, content: &[u8]) {
    let steps = &conn.steps[end];
    let read = world.bytes(end, &steps[i].local);
    let mut versions = vec![content[..read.len()].to_vec()];
    for later in steps[i + 1..].iter().take_while(|later| !later.step.flags.contains(SendFlags::FENCE)) {
        if matches!(later.step.op, Op::WriteShared { .. }) && later.remote == steps[i].remote {
            let mut version = versions.last().unwrap().clone();
            let n = later.len.min(version.len());
            version[..n].copy_from_slice(&world.bytes(end, &later.local)[..n]);
            versions.push(version);
        }
    }
    for (n, byte) in read.iter().enumerate() {
        let known = versions.iter().any(|version| version[n] == *byte);
        assert!(known, "READ {i} of end {end}: byte {n} is none of {} versions", versions.len());
    }
}

/// All queue pairs of `end` have added to one word, each once: every value returned is that of the one before it and what
/// that added.
fn check_counter(world: &mut World, end: usize) {
    let peer = 1 - end;
    let at = world.counter[peer];
    let start = word(&world.initial[peer], at);
    let mut added = Vec::new();
    for conn in &world.connections {
        for placed in &conn.steps[end] {
            if let Op::Count { add } = placed.step.op {
                let seen = word(&world.bytes(end, &placed.local), 0);
                added.push((seen.wrapping_sub(start), u64::from(add)));
            }
        }
    }
    added.sort_unstable();
    let mut sum = 0;
    for (seen, add) in added {
        assert_eq!(seen, sum, "an atomic of the shared word");
        sum += add;
    }
    world.initial[peer][at..at + 8].copy_from_slice(&start.wrapping_add(sum).to_ne_bytes());
}

/// The first `len` bytes of buffers.
fn clipped(pieces: &[(usize, usize)], len: usize) -> Vec<(usize, usize)> {
    let mut left = len;
    let mut clipped = Vec::new();
    for &(offset, length) in pieces {
        let n = length.min(left);
        clipped.push((offset, n));
        left -= n;
    }
    clipped
}

/// These bytes have been looked at.
fn accept(world: &mut World, end: usize, pieces: &[(usize, usize)]) {
    for &(offset, len) in pieces {
        let bytes = world.pair.nodes[end].read(offset, len);
        world.initial[end][offset..offset + len].copy_from_slice(&bytes);
    }
}
