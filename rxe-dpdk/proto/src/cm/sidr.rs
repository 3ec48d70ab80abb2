//! SIDR, the passive side: which datagram queue pair serves a port.
//!
//! There is no connection: one request, one reply. The reply is kept for a while, because a request whose reply was
//! lost is retransmitted and must get the same reply.

use std::collections::{BTreeMap, BTreeSet};

use super::connection::{Mad, decrement};
use super::path::is_host;
use super::timers::{TimerKey, Timers};
use super::{Cm, CmConfig, CmError, CmEvent, LocalAddresses, MadPath, SidrId, SidrReply, SidrRequest};
use crate::Instant;
use crate::wire::cm::{CmMessage, PortSpace, ServiceId, SidrRep, SidrReq, SidrStatus};
use crate::wire::{DropReason, Gid, PKEY_FULL_MEMBER};

/// Identifies a request: the peer's address, and its request id.
type RequestKey = (Gid, u32);

/// A SIDR request of a peer.
#[derive(Debug)]
struct Entry {
    request_key: RequestKey,
    transaction_id: u64,
    service_id: ServiceId,
    path: MadPath,
    /// `None` while the user has not answered.
    answer: Option<Mad>,
    deadline: Option<Instant>,
}

/// Whether the table takes another request.
enum Room {
    Free,
    Replace(SidrId),
    /// All requests of the peer wait for their answer.
    PeerLimit,
    /// All requests wait for their answer.
    Limit,
}

/// All SIDR requests of peers.
#[derive(Debug, Default)]
pub(super) struct SidrTable {
    entries: BTreeMap<SidrId, Entry>,
    by_request: BTreeMap<RequestKey, SidrId>,
    /// Ids grow, so the first is the oldest.
    answered: BTreeSet<SidrId>,
    /// Keys of the answered requests by address, to find those of one peer.
    answered_of: BTreeSet<(Gid, SidrId)>,
    /// Number of requests by address.
    of_peer: BTreeMap<Gid, usize>,
}

impl SidrTable {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn forget(&mut self, timers: &mut Timers, id: SidrId) {
        let Some(mut entry) = self.entries.remove(&id) else { return };
        timers.set(TimerKey::Sidr(id), &mut entry.deadline, None);
        self.by_request.remove(&entry.request_key);
        self.answered.remove(&id);
        let (peer, _) = entry.request_key;
        self.answered_of.remove(&(peer, id));
        decrement(&mut self.of_peer, peer);
    }

    fn insert(&mut self, id: SidrId, entry: Entry) {
        self.by_request.insert(entry.request_key, id);
        *self.of_peer.entry(entry.request_key.0).or_default() += 1;
        self.entries.insert(id, entry);
    }

    fn set_answered(&mut self, id: SidrId, peer: Gid) {
        self.answered.insert(id);
        self.answered_of.insert((peer, id));
    }

    /// The request to replace by a new one of `peer`: its own oldest answered one when it has its share, the oldest answered
    /// one of all when the table is full. That reply has most likely arrived.
    fn make_room(&self, peer: Gid, config: &CmConfig) -> Room {
        if self.of_peer.get(&peer).is_some_and(|&count| count >= config.max_sidr_per_peer) {
            let own = self.answered_of.range((peer, SidrId(0))..).next().filter(|(gid, _)| *gid == peer);
            return own.map_or(Room::PeerLimit, |&(_, id)| Room::Replace(id));
        }
        if self.len() >= config.max_sidr {
            return self.answered.first().map_or(Room::Limit, |&id| Room::Replace(id));
        }
        Room::Free
    }

    fn set_deadline(&mut self, timers: &mut Timers, id: SidrId, at: Instant) {
        if let Some(entry) = self.entries.get_mut(&id) {
            timers.set(TimerKey::Sidr(id), &mut entry.deadline, Some(at));
        }
    }
}

impl Cm {
    /// Answers a SIDR request. Repetitions of the request get the same reply for
    /// [`CmConfig::sidr_memory`](super::CmConfig).
    ///
    /// # Errors
    ///
    /// [`CmError`]: the request is gone, was answered before, or the private data is too long.
    pub fn reply_sidr(&mut self, now: Instant, id: SidrId, reply: SidrReply) -> Result<(), CmError> {
        let private_data = crate::wire::cm::private_data(&reply.private_data).ok_or(CmError::TooLong)?;
        let entry = self.sidr.entries.get(&id).ok_or(CmError::Unknown)?;
        if entry.answer.is_some() {
            return Err(CmError::WrongState);
        }
        let rep = CmMessage::SidrRep(SidrRep {
            request_id: entry.request_key.1,
            status: reply.status,
            qpn: reply.qpn.get(),
            service_id: entry.service_id,
            qkey: reply.qkey,
            private_data,
            ..SidrRep::default()
        });
        let (path, transaction_id) = (entry.path.clone(), entry.transaction_id);
        let mad = self.send(&path, transaction_id, &rep);
        if let Some(entry) = self.sidr.entries.get_mut(&id) {
            // compliance.md [CM-SIDR]: A SIDR request is answered by queue pair and Q_Key or by a status.
            entry.answer = Some(mad);
        }
        self.sidr.set_answered(id, path.peer);
        self.sidr.set_deadline(&mut self.timers, id, now + self.config.sidr_memory);
        Ok(())
    }

    pub(super) fn on_sidr_req(
        &mut self,
        now: Instant,
        path: &MadPath,
        transaction_id: u64,
        req: &SidrReq,
        local: &impl LocalAddresses,
    ) -> Result<(), DropReason> {
        self.stats.rx_sidr_req.inc();
        let request_key = (path.peer, req.request_id);
        if let Some(&id) = self.sidr.by_request.get(&request_key)
            && let Some(entry) = self.sidr.entries.get(&id)
        {
            // compliance.md [CM-SIDR]: A SIDR request is answered by queue pair and Q_Key or by a status.
            if entry.transaction_id == transaction_id && entry.service_id == req.service_id {
                let Some(answer) = entry.answer.clone() else {
                    self.stats.sidr_duplicate.inc();
                    return Err(DropReason::CmDuplicate);
                };
                self.stats.tx_sidr_rep_retry.inc();
                self.queue(path, answer);
                return Ok(());
            }
            // The request id is reused for another request.
            self.sidr.forget(&mut self.timers, id);
        }
        let request = match check(path, req, local, self.config.ib_port_space) {
            Ok(request) => request,
            Err(status) => {
                self.stats.sidr_refused.inc();
                let (request_id, service_id) = (req.request_id, req.service_id);
                let rep = SidrRep { request_id, service_id, status, ..SidrRep::default() };
                self.send(path, transaction_id, &CmMessage::SidrRep(rep));
                return Ok(());
            }
        };
        if self.events_full() {
            self.stats.event_queue_full.inc();
            return Err(DropReason::CmLimit);
        }
        match self.sidr.make_room(path.peer, &self.config) {
            Room::Free => {}
            Room::Replace(oldest) => self.sidr.forget(&mut self.timers, oldest),
            Room::PeerLimit => {
                self.stats.sidr_peer_limit.inc();
                return Err(DropReason::CmLimit);
            }
            Room::Limit => {
                self.stats.sidr_limit.inc();
                return Err(DropReason::CmLimit);
            }
        }
        let id = self.ids.sidr();
        let entry = Entry {
            request_key,
            transaction_id,
            service_id: req.service_id,
            path: path.clone(),
            answer: None,
            deadline: None,
        };
        self.sidr.insert(id, entry);
        self.sidr.set_deadline(&mut self.timers, id, now + self.config.answer_timeout);
        self.stats.sidr_requests.inc();
        self.events.push_back(CmEvent::SidrRequest(Box::new(SidrRequest { id, ..request })));
        Ok(())
    }
}

/// Checks a request; the error is the status that refuses it. The caller sets the id.
fn check(
    path: &MadPath,
    req: &SidrReq,
    local: &impl LocalAddresses,
    ib_port_space: bool,
) -> Result<SidrRequest, SidrStatus> {
    // compliance.md [CM-SIDR-REFUSE]: A SIDR request for a service id other than a datagram port gets status 1.
    match req.service_id.port_space() {
        Some(PortSpace::Udp) => {}
        Some(PortSpace::Ib) if ib_port_space => {}
        _ => return Err(SidrStatus::ServiceIdNotSupported),
    }
    let ip = req.ip_addressing();
    let (Some(source), Some(dest)) = (ip.source(), ip.destination()) else { return Err(SidrStatus::Rejected) };
    if req.pkey & PKEY_FULL_MEMBER == 0 && local.serves_full_members_only(path.port) {
        return Err(SidrStatus::Rejected);
    }
    if req.pkey & 0x7FFF != 0x7FFF || !is_host(source.0) || !local.is_local(path.port, Gid::from(dest)) {
        return Err(SidrStatus::Rejected);
    }
    Ok(SidrRequest {
        id: SidrId(0),
        path: path.clone(),
        service_id: req.service_id,
        source,
        dest: (dest, req.service_id.port()),
        private_data: req.ulp_data(),
    })
}
