//! What every service of the bench has: its way to the rest of the program, and to the peer.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rxe::{CliError, cli_error};
use rxe_dpdk::runtime::StopHandle;
use rxe_dpdk::service::{Connect, EndReason};
use rxe_proto::cm::ConnectFailure;
use rxe_proto::verbs::{QueuePair, Rc, WcStatus, WorkCompletion};
use rxe_proto::wire::PathMtu;
use rxe_proto::wire::cm::{Rej, RejReason};

use crate::plan::Plan;
use crate::progress::Progress;
use crate::report::Outcome;

/// How long the peer may take to answer a REQ: 4.096 us * 2^16, a quarter of a second.
const RESPONSE_TIMEOUT: u8 = 16;
/// One run, as all see it.
pub struct Session {
    pub plan: Plan,
    pub progress: Progress,
    stop: OnceLock<StopHandle>,
    result: Mutex<Option<Result<Vec<Outcome>, CliError>>>,
}

impl Session {
    /// Nothing has happened yet.
    pub fn new(plan: &Plan, progress: Progress) -> Arc<Session> {
        Arc::new(Session { plan: plan.clone(), progress, stop: OnceLock::new(), result: Mutex::default() })
    }

    /// What ends the adapter. To be called before it runs.
    pub fn set_stop(&self, stop: StopHandle) {
        // Set once.
        let _ = self.stop.set(stop);
    }

    /// The results, when the adapter has ended.
    pub fn take(&self) -> Result<Vec<Outcome>, CliError> {
        let result = self.result.lock().unwrap_or_else(PoisonError::into_inner).take();
        result.unwrap_or_else(|| Err(CliError::failed("stopped by a signal before all was measured")))
    }

    /// It is over, and the adapter stops. The first result counts.
    pub fn end(&self, result: Result<Vec<Outcome>, CliError>) {
        self.result.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(result);
        if let Some(stop) = self.stop.get() {
            stop.stop();
        }
    }
}

/// Why it cannot be done, when something of ours does not work.
pub fn broken(why: impl std::fmt::Display) -> CliError {
    CliError::failed(why.to_string())
}

/// A connection from `qp` to the peer.
pub fn connect(plan: &Plan, qp: QueuePair<Rc>, private_data: &[u8]) -> Connect {
    Connect {
        initiator_depth: plan.reads,
        path_mtu: plan.path_mtu,
        response_timeout: RESPONSE_TIMEOUT,
        private_data: private_data.to_vec(),
        ..Connect::new(plan.peer, qp)
    }
}

/// Bytes of headers and ICRC that a packet may have beside its payload.
pub const OVERHEAD: usize = 84;

/// The path MTU of a run over a port that carries at most `carried`: the one asked for, or the largest.
///
/// # Errors
/// The port does not carry what was asked for.
pub fn path_mtu(plan: &Plan, carried: PathMtu) -> Result<PathMtu, CliError> {
    match plan.path_mtu {
        Some(asked) if asked > carried => {
            let (asked, carried) = (asked.bytes(), carried.bytes());
            cli_error!(
                "--mtu {asked}: our port carries a path MTU of {carried} at most: ask for that, or give the port's device \
                 an IP MTU of {} or more",
                asked + OVERHEAD
            )
        }
        asked => Ok(asked.unwrap_or(carried)),
    }
}

/// Whether a work request has done its work.
///
/// # Errors
/// In words, why not.
#[inline]
pub fn succeeded(wc: &WorkCompletion) -> Result<bool, String> {
    match wc.status {
        WcStatus::Success => Ok(true),
        // The connection is over, and the runtime says why.
        WcStatus::WrFlushErr => Ok(false),
        status => Err(why_failed(status)),
    }
}

#[cold]
fn why_failed(status: WcStatus) -> String {
    match status {
        WcStatus::RetryExcErr => "the peer does not acknowledge a message any more".to_owned(),
        WcStatus::RnrRetryExcErr => "the peer has no receives for our SENDs".to_owned(),
        WcStatus::RemAccessErr => "the peer does not let us at its memory".to_owned(),
        WcStatus::RemInvReqErr => "the peer calls a message invalid: it may be too long for it".to_owned(),
        status => format!("a message failed: {status}"),
    }
}

/// What the peer's service says when it refuses.
pub fn words_of(rej: &Rej) -> Option<String> {
    let text = String::from_utf8_lossy(&rej.private_data);
    let text = text.trim_end_matches('\0');
    (!text.is_empty()).then(|| text.to_owned())
}

/// Why there is no connection (any more), in a sentence.
pub fn why_not(plan: &Plan, reason: EndReason, refusal: Option<&str>) -> CliError {
    let peer = plan.peer;
    match (reason, refusal) {
        (_, Some(text)) => CliError::new(format!("{peer} refuses: {text}")),
        (EndReason::NoPath, _) => CliError::new(format!(
            "nobody at {} answers: check --peer, --address and that the target runs on the other end of the port",
            peer.ip()
        )),
        (EndReason::NotEstablished(ConnectFailure::PeerRejected(RejReason::InvalidServiceId)), _) => {
            CliError::new(format!("nobody listens at {peer}: check the port, and which services the target runs"))
        }
        (EndReason::NotEstablished(ConnectFailure::PeerRejected(RejReason::InvalidMtu)), _) => CliError::new(format!(
            "{peer} does not carry our path MTU: choose a smaller one with --mtu, or raise the MTU of the target's port"
        )),
        (EndReason::NotEstablished(ConnectFailure::Timeout), _) => {
            CliError::new(format!("{peer} does not answer connection requests: does a RoCE target run there?"))
        }
        (reason, _) => CliError::failed(format!("the connection to {peer} is over: {reason}")),
    }
}

#[cfg(test)]
mod tests {
    use rxe_proto::cm::DisconnectReason;

    use super::*;
    use crate::plan::tests::plan;

    #[test]
    fn a_path_mtu_that_the_port_does_not_carry_is_refused() {
        let asked = |mtu| Plan { path_mtu: mtu, ..plan() };
        let chosen = |asked: &Plan| path_mtu(asked, PathMtu::Mtu2048).ok();
        assert_eq!(chosen(&asked(None)), Some(PathMtu::Mtu2048));
        assert_eq!(chosen(&asked(Some(PathMtu::Mtu1024))), Some(PathMtu::Mtu1024));
        let refused = path_mtu(&asked(Some(PathMtu::Mtu4096)), PathMtu::Mtu1024).expect_err("too large");
        assert_eq!(
            refused.to_string(),
            "--mtu 4096: our port carries a path MTU of 1024 at most: ask for that, or give the port's device an IP MTU \
             of 4180 or more"
        );
        let reason = EndReason::NotEstablished(ConnectFailure::PeerRejected(RejReason::InvalidMtu));
        assert!(why_not(&plan(), reason, None).to_string().contains("choose a smaller one with --mtu"));
    }

    #[test]
    fn the_end_of_a_connection_is_told_in_words() {
        let said = |reason| why_not(&plan(), reason, None).to_string();
        assert_eq!(
            said(EndReason::Disconnected(DisconnectReason::Peer)),
            "the connection to 10.0.0.1:4792 is over: the peer disconnected"
        );
        assert_eq!(
            said(EndReason::Stopping),
            "the connection to 10.0.0.1:4792 is over: no request was sent: the adapter stops"
        );
        assert_eq!(
            said(EndReason::NotEstablished(ConnectFailure::PeerRejected(RejReason::NoResources))),
            "the connection to 10.0.0.1:4792 is over: it was not established: the peer rejected it (no resources available)"
        );
        assert_eq!(why_failed(WcStatus::RemOpErr), "a message failed: remote operation error");
    }

    #[test]
    fn a_refusal_is_said_in_the_peer_s_words() {
        let mut rej = Rej::default();
        assert_eq!(words_of(&rej), None);
        rej.private_data[..15].copy_from_slice(b"unknown region!");
        let words = words_of(&rej);
        let reason = EndReason::NotEstablished(ConnectFailure::PeerRejected(RejReason::ConsumerDefined));
        let error = why_not(&plan(), reason, words.as_deref());
        assert_eq!((error.to_string().as_str(), error.exit_code()), ("10.0.0.1:4792 refuses: unknown region!", 2));
        assert_eq!(why_not(&plan(), EndReason::Unacceptable, None).exit_code(), 1);
    }
}
