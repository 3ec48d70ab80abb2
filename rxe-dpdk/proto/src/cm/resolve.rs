//! SIDR, the active side: which datagram queue pair of a peer serves a port.

use std::collections::BTreeMap;

use super::connection::Mad;
use super::path::is_host;
use super::timers::{TimerKey, Timers, time_of};
use super::{Cm, CmError, CmEvent, DatagramReply, MadPath, ResolveFailure, ResolveParams, SidrId};
use crate::transport::Qpn;
use crate::wire::cm::{CmMessage, IpAddressing, ServiceId, SidrRep, SidrReq, SidrStatus, private_data};
use crate::wire::{DEFAULT_PKEY, DropReason};
use crate::{Duration, Instant};

/// An outstanding SIDR request of ours.
#[derive(Debug)]
struct Resolve {
    id: SidrId,
    path: MadPath,
    mad: Mad,
    resends: u8,
    resend_after: Duration,
    deadline: Option<Instant>,
}

/// All outstanding SIDR requests of ours, by request id.
#[derive(Debug, Default)]
pub(super) struct ResolveTable(BTreeMap<u32, Resolve>);

impl ResolveTable {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    fn remove(&mut self, timers: &mut Timers, request_id: u32) -> Option<SidrId> {
        let mut request = self.0.remove(&request_id)?;
        timers.set(TimerKey::Resolve(request_id), &mut request.deadline, None);
        Some(request.id)
    }
}

impl Cm {
    /// Asks a peer which of its datagram queue pairs serves a port: sends the SIDR_REQ, and retransmits it until the
    /// peer answers or the retries are used up. `DatagramResolved` or `ResolveFailed` follows.
    ///
    /// # Errors
    ///
    /// [`CmError`]: addresses or private data that cannot be sent, or too many requests.
    pub fn resolve_datagram(&mut self, now: Instant, params: ResolveParams) -> Result<SidrId, CmError> {
        let (source, dest) = (params.path.local.ip(), params.path.peer.ip());
        let addressing = IpAddressing::new((source, params.source_port), dest)
            .filter(|_| is_host(source) && is_host(dest))
            .ok_or(CmError::Address)?;
        let ulp_data: [u8; SidrReq::ULP_DATA_LEN] = private_data(&params.private_data).ok_or(CmError::TooLong)?;
        if self.resolves.len() >= self.config.max_sidr {
            return Err(CmError::Limit);
        }
        let request_id = self.ids.sidr_request(|id| self.resolves.0.contains_key(&id));
        let mut req = SidrReq {
            request_id,
            pkey: DEFAULT_PKEY,
            service_id: ServiceId::new(params.port_space, params.dest_port),
            ..SidrReq::default()
        };
        let (head, tail) = req.private_data.split_at_mut(addressing.to_bytes().len());
        head.copy_from_slice(&addressing.to_bytes());
        tail.copy_from_slice(&ulp_data);
        let id = self.ids.sidr();
        let transaction_id = self.ids.transaction();
        // The low two bits are ECN bits, set per packet.
        let path = MadPath { traffic_class: params.path.traffic_class & !3, ..params.path };
        let mad = self.send(&path, transaction_id, &CmMessage::SidrReq(req));
        let resend_after = time_of(params.response_timeout).clamp(self.config.min_resend, self.config.max_resend);
        let resends = params.max_cm_retries.min(15);
        let request = Resolve { id, path, mad, resends, resend_after, deadline: None };
        let request = self.resolves.0.entry(request_id).or_insert(request);
        self.timers.set(TimerKey::Resolve(request_id), &mut request.deadline, Some(now + resend_after));
        self.stats.resolves.inc();
        Ok(id)
    }

    /// Forgets a SIDR request: no event follows.
    pub fn cancel_resolve(&mut self, id: SidrId) {
        let outstanding = self.resolves.0.iter().find(|(_, request)| request.id == id);
        if let Some((&request_id, _)) = outstanding {
            self.resolves.remove(&mut self.timers, request_id);
        }
    }

    /// Handles a SIDR_REP. Its event needs no check of the event queue: there is at most one per request of the user.
    pub(super) fn on_sidr_rep(&mut self, rep: &SidrRep) -> Result<(), DropReason> {
        self.stats.rx_sidr_rep.inc();
        let Some(id) = self.resolves.remove(&mut self.timers, rep.request_id) else { return Err(self.unknown_id()) };
        // compliance.md [CM-SIDR-ASK]: Our SIDR request is retransmitted until it is answered or its retries are used
        // up.
        self.events.push_back(match rep.status {
            SidrStatus::Valid => {
                self.stats.resolved.inc();
                let (qpn, private_data) = (Qpn::new(rep.qpn), rep.private_data);
                CmEvent::DatagramResolved(Box::new(DatagramReply { id, qpn, qkey: rep.qkey, private_data }))
            }
            status => {
                self.stats.resolve_refused.inc();
                let private_data = Some(Box::new(rep.private_data));
                CmEvent::ResolveFailed { id, reason: ResolveFailure::Refused(status), private_data }
            }
        });
        Ok(())
    }

    /// Retransmits the SIDR_REQ, or gives up.
    pub(super) fn resolve_timeout(&mut self, now: Instant, request_id: u32) {
        let Some(request) = self.resolves.0.get_mut(&request_id) else { return };
        request.deadline = None;
        // compliance.md [CM-SIDR-ASK]: Our SIDR request is retransmitted until it is answered or its retries are used
        // up.
        if request.resends > 0 {
            request.resends -= 1;
            let (path, mad) = (request.path.clone(), request.mad.clone());
            let deadline = now + request.resend_after;
            self.timers.set(TimerKey::Resolve(request_id), &mut request.deadline, Some(deadline));
            self.stats.tx_sidr_req_retry.inc();
            self.queue(&path, mad);
            return;
        }
        if let Some(id) = self.resolves.remove(&mut self.timers, request_id) {
            self.stats.resolve_timeout.inc();
            self.events.push_back(CmEvent::ResolveFailed { id, reason: ResolveFailure::Timeout, private_data: None });
        }
    }
}
