//! Which services take new clients, and of which peers: the configuration says so, and management changes it.

use std::collections::HashSet;

use rxe_proto::Instant;
use rxe_proto::wire::{Gid, PrefixList};

use super::Control;
use super::ip_host::IpHost;
use crate::change::ControlChange;

/// Why a new client is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// The target is being drained.
    Draining,
    /// Management has stopped the service.
    Stopped,
    /// The service does not serve the client's address.
    PeerNotAllowed,
}

/// The peers that services accept.
pub(super) struct Admission {
    /// By service number: the allowed peers, `None` for everyone.
    pub(super) allowed: Vec<Option<PrefixList>>,
    stopped: HashSet<usize>,
    /// New clients are refused.
    draining: bool,
}

impl Admission {
    pub(super) fn new(allowed: Vec<Option<PrefixList>>) -> Admission {
        Admission { allowed, stopped: HashSet::new(), draining: false }
    }

    /// Why a client of `service` is refused.
    fn refusal(&self, service: usize, peer: Gid) -> Option<Refusal> {
        if self.draining {
            Some(Refusal::Draining)
        } else if self.stopped.contains(&service) {
            Some(Refusal::Stopped)
        } else if !self.allows(service, peer) {
            Some(Refusal::PeerNotAllowed)
        } else {
            None
        }
    }

    /// Whether the peer is among the allowed peers of `service`.
    pub(super) fn allows(&self, service: usize, peer: Gid) -> bool {
        !matches!(self.allowed.get(service), Some(Some(allowed)) if !allowed.contains(peer))
    }
}

impl<H: IpHost> Control<H> {
    /// Refuses new clients from now on; those that there are go on.
    pub fn begin_drain(&mut self) {
        self.admission.draining = true;
    }

    /// Makes a change and answers. Management may have given up waiting, which is no loss.
    #[cold]
    pub(super) fn change(&mut self, change: ControlChange) {
        let reply = match change {
            ControlChange::SetStopped { service, stopped, reply } => {
                if stopped {
                    self.admission.stopped.insert(service);
                } else {
                    self.admission.stopped.remove(&service);
                }
                reply
            }
            ControlChange::SetAllowed { service, peers, reply } => {
                if self.admission.allowed.len() <= service {
                    self.admission.allowed.resize(service + 1, None);
                }
                self.admission.allowed[service] = peers;
                reply
            }
        };
        let _ = reply.try_send(());
    }

    /// Whether a new client of `service` is refused, and why; counts and logs it.
    pub(super) fn refuses(&mut self, now: Instant, service: usize, peer: Gid) -> Option<Refusal> {
        let refusal = self.admission.refusal(service, peer)?;
        match refusal {
            Refusal::Draining => self.stats.drain_refused.inc(),
            Refusal::Stopped => self.stats.stopped_refused.inc(),
            Refusal::PeerNotAllowed => {
                self.stats.peers_refused.inc();
                if self.events.admits(now) {
                    tracing::info!(peer = %peer.ip(), "a client is refused: the service does not serve its address");
                }
            }
        }
        Some(refusal)
    }
}
