//! State that the services of the bench share with the program, and helpers for their connections.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rxe::adapter::Adapter;
use rxe::{CliError, cli_error};
use rxe_adapter::build::StopHandle;
use rxe_proto::Instant;
use rxe_proto::cm::ConnectFailure;
use rxe_proto::transport::TransportStats;
use rxe_proto::verbs::{QueuePair, Rc, WcStatus, WorkCompletion};
use rxe_proto::wire::PathMtu;
use rxe_proto::wire::cm::{Rej, RejReason};
use rxe_service::{Connect, EndReason};

use crate::measurement::Mark;
use crate::outcome::Outcome;
use crate::plan::Plan;
use crate::progress::Progress;
use crate::retransmissions::Retransmissions;

/// Timeout for the answer to a REQ: 4.096 us * 2^16, a quarter of a second.
pub const RESPONSE_TIMEOUT: u8 = 16;

/// Retransmissions of a REQ without an answer: the most that there can be, 39 s, as Linux has; and on a UDP socket 12 s.
const MAX_CM_RETRIES: u8 = 15;
const MAX_CM_RETRIES_UDP: u8 = 4;
/// Connections whose REQs a UDP socket's buffer has room for at the same time, with their retransmissions.
const FEW: u32 = 64;

/// The end of a run: what was measured until then, and why it failed.
#[derive(Debug)]
pub struct Ended<O = Outcome> {
    pub outcomes: Vec<O>,
    pub failure: Option<CliError>,
}

impl<O> Default for Ended<O> {
    fn default() -> Ended<O> {
        Ended { outcomes: Vec::new(), failure: None }
    }
}

/// The state of a run of plan `P` with results `O`.
pub struct Session<P = Plan, O = Outcome> {
    pub plan: P,
    pub progress: Progress<O>,
    /// Set by the first signal.
    interrupted: Arc<AtomicBool>,
    adapter: OnceLock<(StopHandle, Vec<Arc<TransportStats>>)>,
    result: Mutex<Option<Ended<O>>>,
}

impl<P: Clone, O> Session<P, O> {
    /// A run that has not started.
    pub fn new(plan: &P, progress: Progress<O>, interrupted: Arc<AtomicBool>) -> Arc<Session<P, O>> {
        let (adapter, result) = (OnceLock::new(), Mutex::default());
        Arc::new(Session { plan: plan.clone(), progress, interrupted, adapter, result })
    }

    /// Sets the adapter, before it runs.
    pub fn set_adapter(&self, adapter: &Adapter) {
        let transport = adapter.telemetry().workers.into_iter().map(|worker| worker.transport).collect();
        // It is set once.
        let _ = self.adapter.set((adapter.stop_handle(), transport));
    }

    /// Whether a signal has asked for the end of the run.
    #[inline]
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Now, with `done` completed messages, and `bulk` of the additional load.
    pub fn mark(&self, at: Instant, done: u64, bulk: u64) -> Mark {
        Mark { at, done, bulk, lost: None, retransmissions: self.retransmissions() }
    }

    /// What the adapter has sent again so far.
    pub fn retransmissions(&self) -> Option<Retransmissions> {
        self.adapter.get().map(|(_, workers)| Retransmissions::read(workers))
    }

    /// The results, after the adapter has ended.
    pub fn take(&self) -> Ended<O> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default()
    }

    /// Ends the run and stops the adapter. The first result is kept.
    pub fn end(&self, result: Ended<O>) {
        self.result.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(result);
        if let Some((stop, _)) = self.adapter.get() {
            stop.stop();
        }
    }
}

/// An error after the start.
pub fn broken(why: impl std::fmt::Display) -> CliError {
    CliError::failed(why.to_string())
}

/// Retransmissions of a REQ, with this number of connections that are requested at the same time.
///
/// A target on a UDP socket most likely runs on this machine: REQs are lost only if there are too many, and a missing target is
/// reported soon.
pub fn max_cm_retries(udp: bool, connections: u32) -> u8 {
    if udp && connections <= FEW { MAX_CM_RETRIES_UDP } else { MAX_CM_RETRIES }
}

/// The connection request from `qp` to the peer.
pub fn connect(plan: &Plan, qp: QueuePair<Rc>, private_data: &[u8]) -> Connect {
    Connect {
        initiator_depth: plan.reads,
        path_mtu: plan.path_mtu,
        response_timeout: RESPONSE_TIMEOUT,
        max_cm_retries: max_cm_retries(plan.udp, plan.connections()),
        private_data: private_data.to_vec(),
        ..Connect::new(plan.peer, qp)
    }
}

/// Maximum length of headers and ICRC of a packet.
pub const OVERHEAD: usize = 84;

/// The path MTU of a run: `asked`, that of the plan, or `carried`, the largest that the port supports.
///
/// # Errors
/// The port does not support the path MTU of the plan.
pub fn path_mtu(asked: Option<PathMtu>, carried: PathMtu) -> Result<PathMtu, CliError> {
    match asked {
        Some(asked) if asked > carried => {
            let (asked, carried) = (asked.bytes(), carried.bytes());
            cli_error!(
                "--mtu {asked}: the port of the bench supports a path MTU of {carried} at most: use that, or give the port's \
                 device an IP MTU of {} or more",
                asked + OVERHEAD
            )
        }
        asked => Ok(asked.unwrap_or(carried)),
    }
}

/// Whether a work request has succeeded; `false` if it was flushed.
///
/// # Errors
/// Why it failed.
#[inline]
pub fn succeeded(wc: &WorkCompletion) -> Result<bool, String> {
    match wc.status {
        WcStatus::Success => Ok(true),
        // The runtime reports why the connection is closed.
        WcStatus::WrFlushErr => Ok(false),
        status => Err(why_failed(status)),
    }
}

#[cold]
fn why_failed(status: WcStatus) -> String {
    match status {
        WcStatus::RetryExcErr => "the peer no longer acknowledges packets".to_owned(),
        WcStatus::RnrRetryExcErr => "the peer has posted no receives for the SENDs".to_owned(),
        WcStatus::RemAccessErr => "the peer denies access to its memory".to_owned(),
        WcStatus::RemInvReqErr => "the peer rejects a message as invalid: it may be too long for the peer".to_owned(),
        status => format!("a message failed: {status}"),
    }
}

/// The text of a rejection by the peer's service.
pub fn words_of(rej: &Rej) -> Option<String> {
    let text = String::from_utf8_lossy(&rej.private_data);
    let text = text.trim_end_matches('\0');
    (!text.is_empty()).then(|| text.to_owned())
}

/// Why there is no connection to `peer`, or no longer one.
pub fn why_not(peer: SocketAddr, reason: EndReason, refusal: Option<&str>) -> CliError {
    match (reason, refusal) {
        (_, Some(text)) => CliError::new(format!("{peer} refuses: {text}")),
        (EndReason::NoPath, _) => CliError::new(format!(
            "no host answers at {}: check --peer and --address, and that the target runs at the other end of the port",
            peer.ip()
        )),
        (EndReason::NotEstablished(ConnectFailure::PeerRejected(RejReason::InvalidServiceId)), _) => {
            CliError::new(format!("no service listens at {peer}: check the port, and which services the target runs"))
        }
        (EndReason::NotEstablished(ConnectFailure::PeerRejected(RejReason::InvalidMtu)), _) => CliError::new(format!(
            "{peer} does not support this path MTU: choose a smaller one with --mtu, or raise the MTU of the target's port"
        )),
        (EndReason::NotEstablished(ConnectFailure::Timeout), _) => {
            CliError::new(format!("{peer} does not answer connection requests: does a RoCE target run there?"))
        }
        (reason, _) => CliError::failed(format!("the connection to {peer} is closed: {reason}")),
    }
}

#[cfg(test)]
mod tests {
    use rxe_proto::cm::DisconnectReason;

    use super::*;
    use crate::plan::tests::plan;

    #[test]
    fn a_path_mtu_above_that_of_the_port_is_refused() {
        let chosen = |asked| path_mtu(asked, PathMtu::Mtu2048).ok();
        assert_eq!(chosen(None), Some(PathMtu::Mtu2048));
        assert_eq!(chosen(Some(PathMtu::Mtu1024)), Some(PathMtu::Mtu1024));
        let refused = path_mtu(Some(PathMtu::Mtu4096), PathMtu::Mtu1024).expect_err("too large");
        assert_eq!(
            refused.to_string(),
            "--mtu 4096: the port of the bench supports a path MTU of 1024 at most: use that, or give the port's device an \
             IP MTU of 4180 or more"
        );
        let reason = EndReason::NotEstablished(ConnectFailure::PeerRejected(RejReason::InvalidMtu));
        assert!(why_not(plan().peer, reason, None).to_string().contains("choose a smaller one with --mtu"));
    }

    #[test]
    fn only_few_requests_on_a_udp_socket_are_given_up_soon() {
        let retries = [(true, 1), (true, 64), (true, 65), (false, 1)].map(|(udp, count)| max_cm_retries(udp, count));
        assert_eq!(retries, [4, 4, 15, 15]);
    }

    #[test]
    fn the_error_names_why_a_connection_was_closed() {
        let said = |reason| why_not(plan().peer, reason, None).to_string();
        assert_eq!(
            said(EndReason::Disconnected(DisconnectReason::Peer)),
            "the connection to 10.0.0.1:4792 is closed: the peer disconnected"
        );
        assert_eq!(
            said(EndReason::Stopping),
            "the connection to 10.0.0.1:4792 is closed: no request was sent: the adapter stops"
        );
        assert_eq!(
            said(EndReason::NotEstablished(ConnectFailure::PeerRejected(RejReason::NoResources))),
            "the connection to 10.0.0.1:4792 is closed: it was not established: the peer rejected it (no resources available)"
        );
        assert_eq!(why_failed(WcStatus::RemOpErr), "a message failed: remote operation error");
    }

    #[test]
    fn the_error_of_a_rejection_carries_the_peers_text() {
        let mut rej = Rej::default();
        assert_eq!(words_of(&rej), None);
        rej.private_data[..15].copy_from_slice(b"unknown region!");
        let words = words_of(&rej);
        let reason = EndReason::NotEstablished(ConnectFailure::PeerRejected(RejReason::ConsumerDefined));
        let error = why_not(plan().peer, reason, words.as_deref());
        assert_eq!((error.to_string().as_str(), error.exit_code()), ("10.0.0.1:4792 refuses: unknown region!", 2));
        assert_eq!(why_not(plan().peer, EndReason::Unacceptable, None).exit_code(), 1);
    }
}
