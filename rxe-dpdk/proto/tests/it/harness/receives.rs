//! What the tests of the responder set up and look at.

use rxe_proto::transport::{AsyncEvent, QpErrorCause, WcStatus, WorkCompletion};

use super::solo::Solo;

/// A solo engine with `n` receives of 4096 bytes at offset 0x8000, numbered from 0.
pub fn with_receives(n: u64) -> Solo {
    let mut solo = Solo::new();
    post_receives(&mut solo, n);
    solo
}

pub fn post_receives(solo: &mut Solo, n: u64) {
    for wr_id in 0..n {
        let sge = solo.node.sge(0x8000, 4096);
        solo.node.post_recv(wr_id, &[sge]);
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
