//! The conditions that must hold after a program, whatever the link did.
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

use super::plan::{Op, Program, RecvTiming};
use super::test_env::{Conn, GRH, Placed, RECEIVE, Receive, TestEnv, immediate, number, swap_value, word};
use crate::harness::gid_of;

pub fn check(env: &mut TestEnv, program: &Program) {
    for end in 0..2 {
        let errors: Vec<_> = env.pair.nodes[end].take_events().into_iter().filter(is_error).collect();
        assert!(errors.is_empty(), "{errors:?}");
        let completions = env.pair.nodes[end].take_completions();
        assert!(completions.iter().all(|wc| wc.status == WcStatus::Success), "{completions:?}");
        let (received, sent): (Vec<_>, Vec<_>) = completions.into_iter().partition(|wc| wc.wr_id & RECEIVE != 0);
        for c in 0..env.connections.len() {
            check_sent(&env.connections[c], c, end, &sent);
        }
        check_receives(env, end, &received);
        check_datagrams(env, program, end, &received);
        for c in 0..env.connections.len() {
            match env.connections[c].plan.qp_type {
                QpType::Ud => {}
                qp_type => check_messages(env, program, c, end, &received, qp_type == QpType::Rc),
            }
        }
    }
    for end in 0..2 {
        effects(env, program, end);
        check_counter(env, end);
    }
    for end in 0..2 {
        let node = &env.pair.nodes[end];
        let memory = node.read(0, env.initial[end].len());
        let stray = memory.iter().zip(&env.initial[end]).position(|(is, should)| is != should);
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
fn check_receives(env: &TestEnv, end: usize, received: &[WorkCompletion]) {
    let mut done = vec![false; env.receives[end].len()];
    for wc in received {
        let index = (wc.wr_id & !RECEIVE) as usize;
        assert!(!std::mem::replace(&mut done[index], true), "a receive completed twice");
        let own = env.receives[end][index].own;
        let c = env.connections.iter().position(|conn| conn.qpns[end] == wc.qpn).unwrap();
        let fits = own.map_or(env.connections[c].plan.srq[end], |own| own == c);
        assert!(fits, "a receive of another queue pair");
    }
    let engine = &env.pair.nodes[end].engine;
    let mut queued = engine.srq_len(env.srqs[end]).unwrap();
    for conn in &env.connections {
        let info = engine.query_qp(conn.qpns[end]).unwrap();
        assert_eq!((info.state, info.send_queued), (QpState::Rts, 0));
        queued += info.recv_queued;
    }
    assert_eq!(received.len() + queued as usize, env.posted[end], "receives leaked");
}

/// The messages of a connection that `end` received.
fn check_messages(
    env: &mut TestEnv,
    program: &Program,
    c: usize,
    end: usize,
    completed: &[WorkCompletion],
    reliable: bool,
) {
    let peer = 1 - end;
    let conn = &env.connections[c];
    let qpn = conn.qpns[end];
    let mut expected: VecDeque<usize> =
        (0..conn.steps[peer].len()).filter(|&i| conn.steps[peer][i].step.op.takes_receive()).collect();
    let all = reliable || arrives(program);
    let mut written = Vec::new();
    for wc in completed.iter().filter(|wc| wc.qpn == qpn) {
        let receive = &env.receives[end][(wc.wr_id & !RECEIVE) as usize];
        loop {
            let Some(i) = expected.pop_front() else { panic!("nobody sent this, or not in this place: {wc:?}") };
            let placed = &conn.steps[peer][i];
            let fits = message_fits(env, c, i, end, placed, wc);
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
        let receives = env.receives[end].iter().enumerate();
        let held = receives.filter(|(index, receive)| own(receive) && !others(*index));
        written.extend(held.flat_map(|(_, receive)| receive.pieces.iter().copied()));
    }
    accept(env, end, &written);
}

/// Whether a completion is that of step `i`, its bytes included.
fn message_fits(env: &TestEnv, c: usize, i: usize, end: usize, placed: &Placed, wc: &WorkCompletion) -> bool {
    let (opcode, imm) = match placed.step.op {
        Op::Send { imm } => (WcOpcode::Recv, imm),
        Op::SendInvalidate => (WcOpcode::Recv, false),
        _ => (WcOpcode::RecvRdmaWithImm, true),
    };
    let receive = &env.receives[end][(wc.wr_id & !RECEIVE) as usize];
    let source = env.bytes(1 - end, &placed.local);
    let landed = match placed.step.op {
        Op::Send { .. } | Op::SendInvalidate => env.bytes(end, &clipped(&receive.pieces, placed.len)),
        _ => env.bytes(end, &[(placed.remote, placed.len)]),
    };
    (wc.opcode, wc.byte_len as usize, wc.imm) == (opcode, placed.len, imm.then_some(immediate(c, i)))
        && wc.invalidated_rkey == placed.invalidates
        && placed.invalidates.is_none_or(|key| env.pair.nodes[end].engine.keys().region(key).is_none())
        && wc.solicited == placed.step.flags.contains(SendFlags::SOLICITED)
        && landed == source
}

/// Whether everything arrives on the unreliable services, too.
fn arrives(program: &Program) -> bool {
    program.link.is_lossless() && program.link.is_in_order() && matches!(program.recv_timing, RecvTiming::Early)
}

/// A datagram to one queue pair: sender, immediate data, whether solicited, bytes.
type Datagram = (u32, Option<u32>, bool, Vec<u8>);

fn check_datagrams(env: &mut TestEnv, program: &Program, end: usize, received: &[WorkCompletion]) {
    let peer = 1 - end;
    let mut sent: HashMap<(usize, Datagram), usize> = HashMap::new();
    for (c, conn) in env.connections.iter().enumerate() {
        for (i, placed) in conn.steps[peer].iter().enumerate() {
            if let Op::Datagram { to, imm, .. } = placed.step.op {
                let solicited = placed.step.flags.contains(SendFlags::SOLICITED);
                let imm = imm.then_some(immediate(c, i));
                let datagram = (conn.qpns[peer].get(), imm, solicited, env.bytes(peer, &placed.local));
                *sent.entry((env.datagram_target(to), datagram)).or_default() += 1;
            }
        }
    }
    let copies = 1 + usize::from(program.link.duplicate > 0);
    let mut left: HashMap<_, _> = sent.iter().map(|(datagram, &n)| (datagram.clone(), n * copies)).collect();
    let mut written = Vec::new();
    for wc in received {
        let c = env.connections.iter().position(|conn| conn.qpns[end] == wc.qpn).unwrap();
        if env.connections[c].plan.qp_type != QpType::Ud {
            continue;
        }
        assert_eq!(wc.opcode, WcOpcode::Recv);
        let receive = &env.receives[end][(wc.wr_id & !RECEIVE) as usize];
        let pieces = clipped(&receive.pieces, wc.byte_len as usize);
        let bytes = env.bytes(end, &pieces);
        let (route, payload) = bytes.split_at(GRH);
        assert_eq!((&route[..20], route[20]), (&[0; 20][..], 0x45), "room, then the IPv4 header as it came");
        assert_eq!((&route[32..36], &route[36..40]), (&gid_of(peer as u8 + 1).0[12..], &gid_of(end as u8 + 1).0[12..]));
        let datagram = (wc.src_qpn.unwrap().get(), wc.imm, wc.solicited, payload.to_vec());
        let n = left.get_mut(&(c, datagram)).expect("a datagram that nobody sent here");
        *n = n.checked_sub(1).expect("a datagram received more often than it came");
        written.extend(pieces);
    }
    if program.link.is_lossless() && matches!(program.recv_timing, RecvTiming::Early) {
        for (datagram, n) in sent {
            assert!(left[&datagram] <= n * (copies - 1), "a datagram never arrived");
        }
    }
    accept(env, end, &written);
}

/// Applies the steps of `end` to memory, except for received messages. A new operation has its effect here.
fn effects(env: &mut TestEnv, program: &Program, end: usize) {
    let (peer, mtu) = (1 - end, program.mtu.bytes());
    for c in 0..env.connections.len() {
        let reliable = env.connections[c].plan.qp_type == QpType::Rc;
        let all = reliable || arrives(program);
        // The shared places as the order of steps has them.
        let mut places: HashMap<usize, Vec<u8>> = HashMap::new();
        for &at in &env.connections[c].places[end] {
            let len = super::plan::Size::MOST_PACKETS * mtu;
            places.insert(at, env.initial[peer][at..at + len].to_vec());
        }
        for i in 0..env.connections[c].steps[end].len() {
            let placed = &env.connections[c].steps[end][i];
            let (at, len) = (placed.remote, placed.len);
            let local = placed.local.clone();
            let bytes = env.bytes(end, &local);
            match placed.step.op {
                Op::Send { .. } | Op::SendInvalidate | Op::Datagram { .. } | Op::Flush => {}
                Op::Write { .. } | Op::AtomicWrite => {
                    let landed = env.bytes(peer, &[(at, len)]);
                    let before = &env.initial[peer][at..at + len];
                    // How many packets of it were executed.
                    let arrived = (0..=len).rev().filter(|&n| n % mtu == 0 || n == len);
                    let whole = landed == bytes;
                    let part = arrived.into_iter().any(|n| landed[..n] == bytes[..n] && landed[n..] == before[n..]);
                    assert!(whole || part && !all, "WRITE {i} of end {end} left other bytes");
                    accept(env, peer, &[(at, len)]);
                }
                Op::WriteShared { .. } => places.get_mut(&at).unwrap()[..len].copy_from_slice(&bytes),
                Op::Read => {
                    assert!(bytes == env.initial[peer][at..at + len], "READ {i} of end {end} brought other bytes");
                    accept(env, end, &local);
                }
                Op::ReadShared { .. } => {
                    check_shared_read(env, &env.connections[c], end, i, &places[&at]);
                    accept(env, end, &local);
                }
                Op::CompareSwap { equal, .. } => {
                    assert_eq!(word(&bytes, 0), placed.before, "compare-and-swap {i} of end {end}");
                    let after = if equal { swap_value(placed) } else { placed.before };
                    env.initial[peer][at..at + 8].copy_from_slice(&after.to_ne_bytes());
                    accept(env, end, &local);
                }
                Op::FetchAdd { add, .. } => {
                    assert_eq!(word(&bytes, 0), placed.before, "fetch-and-add {i} of end {end}");
                    let after = placed.before.wrapping_add(add);
                    env.initial[peer][at..at + 8].copy_from_slice(&after.to_ne_bytes());
                    accept(env, end, &local);
                }
                Op::Count { .. } => accept(env, end, &local),
            }
        }
        for (at, content) in places {
            env.initial[peer][at..at + content.len()].copy_from_slice(&content);
        }
    }
}

/// A READ of a place that others write: each byte as it was when the READ's turn came, or as a later WRITE made it that
/// no fence held back.
fn check_shared_read(env: &TestEnv, conn: &Conn, end: usize, i: usize, content: &[u8]) {
    let steps = &conn.steps[end];
    let read = env.bytes(end, &steps[i].local);
    let mut versions = vec![content[..read.len()].to_vec()];
    for later in steps[i + 1..].iter().take_while(|later| !later.step.flags.contains(SendFlags::FENCE)) {
        if matches!(later.step.op, Op::WriteShared { .. }) && later.remote == steps[i].remote {
            let mut version = versions.last().unwrap().clone();
            let n = later.len.min(version.len());
            version[..n].copy_from_slice(&env.bytes(end, &later.local)[..n]);
            versions.push(version);
        }
    }
    for (n, byte) in read.iter().enumerate() {
        let known = versions.iter().any(|version| version[n] == *byte);
        assert!(known, "READ {i} of end {end}: byte {n} is none of {} versions", versions.len());
    }
}

/// All queue pairs of `end` have added to one word, each once: every value returned is that of the one before it and
/// what that added.
fn check_counter(env: &mut TestEnv, end: usize) {
    let peer = 1 - end;
    let at = env.counter[peer];
    let start = word(&env.initial[peer], at);
    let mut added = Vec::new();
    for conn in &env.connections {
        for placed in &conn.steps[end] {
            if let Op::Count { add } = placed.step.op {
                let seen = word(&env.bytes(end, &placed.local), 0);
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
    env.initial[peer][at..at + 8].copy_from_slice(&start.wrapping_add(sum).to_ne_bytes());
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
fn accept(env: &mut TestEnv, end: usize, pieces: &[(usize, usize)]) {
    for &(offset, len) in pieces {
        let bytes = env.pair.nodes[end].read(offset, len);
        env.initial[end][offset..offset + len].copy_from_slice(&bytes);
    }
}
