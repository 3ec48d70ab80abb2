//! Set-up and checks for tests of the responder.

use rxe_proto::transport::{AsyncEvent, QpErrorCause, WcStatus, WorkCompletion};

use super::scripted_peer::ScriptedPeer;

/// A peer engine with `n` receives of 4096 bytes at offset 0x8000, numbered from 0.
pub fn with_receives(n: u64) -> ScriptedPeer {
    let mut peer = ScriptedPeer::new();
    post_receives(&mut peer, n);
    peer
}

pub fn post_receives(peer: &mut ScriptedPeer, n: u64) {
    for wr_id in 0..n {
        let sge = peer.node.sge(0x8000, 4096);
        peer.node.post_recv(wr_id, &[sge]);
    }
}

pub fn statuses(completions: &[WorkCompletion]) -> Vec<(u64, WcStatus)> {
    completions.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

/// Why queue pairs went to error.
pub fn errors(events: &[AsyncEvent]) -> Vec<QpErrorCause> {
    events
        .iter()
        .filter_map(|event| if let AsyncEvent::QpError { cause, .. } = event { Some(*cause) } else { None })
        .collect()
}
