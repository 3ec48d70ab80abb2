//! Set-up: creating, modifying, querying and destroying objects.

use std::ops::Range;
use std::sync::Arc;

use crate::mem::{KeyTable, PdId};
use crate::time::Instant;
use crate::transport::qp::Qp;
use crate::transport::{
    AhError, AhId, CqError, CqId, Latencies, MulticastError, QpError, QpErrorCause, QpInfo, QpInit, QpType, Qpn,
    SrqAttr, SrqError, SrqId, SrqInfo, SrqInit,
};
use crate::wire::{Gid, MacAddr, Path, PathMtu, PortId};

use super::Engine;

impl Engine {
    /// The regions, windows and protection domains of this engine's queue pairs.
    pub fn keys(&self) -> &KeyTable {
        &self.cx.keys
    }

    /// For registering and deregistering regions.
    pub fn keys_mut(&mut self) -> &mut KeyTable {
        &mut self.cx.keys
    }

    /// Makes a completion queue of `depth` entries.
    ///
    /// A queue that overflows takes the queue pair that completes to it into error, so make it as deep as all work
    /// requests that may complete to it together.
    ///
    /// # Errors
    /// [`CqError::TooMany`], [`CqError::Depth`].
    pub fn create_cq(&mut self, depth: usize) -> Result<CqId, CqError> {
        self.cx.cqs.create(depth)
    }

    /// Removes a completion queue, with the completions in it.
    ///
    /// # Errors
    /// [`CqError::InUse`] while queue pairs complete to it, [`CqError::Unknown`].
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), CqError> {
        self.cx.cqs.destroy(cq)
    }

    /// Changes the depth of a completion queue.
    ///
    /// # Errors
    /// [`CqError::Occupied`] when more completions wait than `depth`; [`CqError::Depth`], [`CqError::Unknown`].
    pub fn resize_cq(&mut self, cq: CqId, depth: usize) -> Result<(), CqError> {
        self.cx.cqs.resize(cq, depth)
    }

    /// Makes a queue pair in state RESET.
    ///
    /// # Errors
    /// [`QpError::TooMany`], [`QpError::Limit`], [`QpError::UnknownCq`], [`QpError::UnknownPd`],
    /// [`QpError::UnknownSrq`].
    pub fn create_qp(&mut self, now: Instant, init: &QpInit) -> Result<Qpn, QpError> {
        init.caps.check(&self.cx.config)?;
        let qpn = self.qps.allocate(now).ok_or(QpError::TooMany(self.cx.config.max_qp))?;
        let (recv_pd, srq_sges) = self.hold_parts(init)?;
        if !self.destroyed.is_empty() {
            self.destroyed.remove(qpn);
        }
        let latencies = Arc::clone(&self.cx.latencies);
        self.qps.insert(Box::new(Qp::new(qpn, init, recv_pd, srq_sges, latencies)));
        self.cx.stats.qpn_rests_cut.add(self.qps.take_quarantines_cut());
        // The data path does not allocate: what it keeps per queue pair is reserved here.
        self.cx.timers.grow(self.qps.slots(), self.qps.len());
        self.cx.scheduler.reserve(self.qps.len());
        Ok(qpn)
    }

    /// Counts the times of a queue pair's operations in `latencies` from now on.
    ///
    /// # Errors
    /// [`QpError::Unknown`].
    pub fn set_latencies(&mut self, qpn: Qpn, latencies: Arc<Latencies>) -> Result<(), QpError> {
        self.qps.get_mut(qpn).ok_or(QpError::Unknown(qpn))?.common.latencies = latencies;
        Ok(())
    }

    /// Takes a reference to everything that the queue pair uses, or to nothing on error. Returns the protection domain
    /// of its receives, and the most buffers of one receive of its shared receive queue.
    fn hold_parts(&mut self, init: &QpInit) -> Result<(PdId, u32), QpError> {
        let cx = &mut self.cx;
        if !cx.cqs.attach(init.send_cq) {
            return Err(QpError::UnknownCq);
        }
        if !cx.cqs.attach(init.recv_cq) {
            cx.cqs.detach(init.send_cq);
            return Err(QpError::UnknownCq);
        }
        let refused = if !cx.keys.hold_pd(init.pd) {
            QpError::UnknownPd
        } else if let Some(srq) = init.srq {
            match cx.srqs.attach(srq) {
                Some(parts) => return Ok(parts),
                None => {
                    cx.keys.release_pd(init.pd);
                    QpError::UnknownSrq
                }
            }
        } else {
            return Ok((init.pd, 0));
        };
        cx.cqs.detach(init.send_cq);
        cx.cqs.detach(init.recv_cq);
        Err(refused)
    }

    /// Removes a queue pair. Its outstanding work is dropped; completions in the completion queue stay. Pending replies
    /// (ACKs, READ responses, the NAK that ended the connection) are still sent within half a second, as long as the
    /// memory of READs stays registered. Its number is not reused for ten seconds.
    ///
    /// # Errors
    /// [`QpError::Unknown`].
    pub fn destroy_qp(&mut self, now: Instant, qpn: Qpn) -> Result<(), QpError> {
        let mut qp = self.qps.remove(now, qpn).ok_or(QpError::Unknown(qpn))?;
        qp.leave_limit(&mut self.cx, now);
        self.cx.cqs.detach(qp.common.send_cq);
        self.cx.cqs.detach(qp.common.recv_cq);
        self.cx.keys.release_pd(qp.common.pd);
        if let Some(srq) = qp.common.srq {
            self.cx.srqs.detach(srq);
        }
        // compliance.md [MEM-WINDOW-QP-END]: The type 2 windows of a queue pair are unbound when it is reset or
        // destroyed.
        self.cx.keys.unbind_windows_of(qpn.get());
        if qp.common.qp_type == QpType::Ud {
            self.groups.remove(qpn);
        }
        self.cx.timers.remove(u32::from(qpn.slot()));
        self.cx.scheduler.remove(qpn.slot());
        self.keep_replies(now, qp);
        self.cx.stats.qpn_rests_cut.add(self.qps.take_quarantines_cut());
        Ok(())
    }

    /// Detects the peer's transport service. The queue pair is in RTR or RTS as RC with an assumed path MTU; the peer's
    /// first packet makes it RC, UC or UD, and raises the path MTU to the peer's. As UD it takes datagrams with Q_Key
    /// `qkey` of up to
    /// `path_mtu` bytes from any address.
    ///
    /// Work posted before that is sent as RC; while it is outstanding, packets of other transport services are dropped.
    ///
    /// # Errors
    /// [`QpError::Unknown`], [`QpError::NoPath`] before RTR.
    pub fn detect_peer_type(&mut self, qpn: Qpn, qkey: u32, path_mtu: PathMtu) -> Result<(), QpError> {
        self.qps.get_mut(qpn).ok_or(QpError::Unknown(qpn))?.detect_peer_type(qkey, path_mtu)
    }

    /// Changes the type of a queue pair in RESET.
    ///
    /// # Errors
    /// [`QpError::Unknown`], [`QpError::Transition`] in other states.
    pub fn set_qp_type(&mut self, qpn: Qpn, qp_type: QpType) -> Result<(), QpError> {
        self.qps.get_mut(qpn).ok_or(QpError::Unknown(qpn))?.set_type(qp_type)?;
        // Only datagram queue pairs are in groups.
        self.groups.remove(qpn);
        Ok(())
    }

    /// The transport service of a queue pair.
    #[inline]
    pub fn qp_type(&self, qpn: Qpn) -> Option<QpType> {
        self.qps.get(qpn).map(|qp| qp.common.qp_type)
    }

    /// Attributes and progress of a queue pair.
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpInfo> {
        self.qps.get(qpn).map(|qp| qp.info(&self.cx))
    }

    /// Every queue pair, in no particular order.
    pub fn qps(&self) -> impl Iterator<Item = QpInfo> + '_ {
        self.qps.iter().map(|qp| qp.info(&self.cx))
    }

    /// The queue pairs at these indices of the list of all, for iterating over many of them in parts. The list has
    /// [`qp_slots`](Engine::qp_slots) entries, and a queue pair keeps its index.
    pub fn qps_in(&self, places: Range<usize>) -> impl Iterator<Item = QpInfo> + '_ {
        self.qps.iter_places(places).map(|qp| qp.info(&self.cx))
    }

    /// Length of the list of queue pairs: the most that existed at the same time.
    pub fn qp_slots(&self) -> usize {
        self.qps.places()
    }

    /// Completion queues in use.
    pub fn cq_count(&self) -> usize {
        self.cx.cqs.len()
    }

    /// Queue pairs with an armed timer.
    pub fn timer_count(&self) -> usize {
        self.cx.timers.len()
    }

    /// Shared receive queues in use.
    pub fn srq_count(&self) -> usize {
        self.cx.srqs.count()
    }

    /// Address handles in use.
    pub fn ah_count(&self) -> usize {
        self.cx.ahs.len()
    }

    /// Takes a queue pair to the error state at an administrator's request. Its consumer gets a
    /// [`QpError`](crate::transport::AsyncEvent::QpError) event, as for any other error.
    ///
    /// # Errors
    /// [`QpError::Unknown`].
    pub fn abort_qp(&mut self, qpn: Qpn) -> Result<(), QpError> {
        let qp = self.qps.get_mut(qpn).ok_or(QpError::Unknown(qpn))?;
        qp.fail(&mut self.cx, QpErrorCause::Administrative, None, None);
        Ok(())
    }

    /// Takes the text of the packet that made a queue pair go to error. `None` when no packet was the cause, or when it
    /// was displaced by those of later errors.
    pub fn take_error_packet(&mut self, qpn: Qpn) -> Option<String> {
        let at = self.cx.error_packets.iter().position(|(of, _)| *of == qpn)?;
        self.cx.error_packets.remove(at).map(|(_, packet)| packet)
    }

    /// Queue pairs in use.
    pub fn qp_count(&self) -> usize {
        self.qps.len()
    }

    /// Changes the next hop of a connection, as when a neighbour's Ethernet address has changed.
    ///
    /// # Errors
    /// [`QpError::Unknown`], [`QpError::NoPath`] before RTR.
    pub fn set_path(&mut self, qpn: Qpn, dst_mac: MacAddr) -> Result<(), QpError> {
        let qp = self.qps.get_mut(qpn).ok_or(QpError::Unknown(qpn))?;
        qp.link.as_mut().ok_or(QpError::NoPath)?.set_dst_mac(dst_mac);
        Ok(())
    }

    /// The consumer knows that communication is established: suppresses
    /// [`CommunicationEstablished`](crate::transport::AsyncEvent::CommunicationEstablished).
    pub fn established(&mut self, qpn: Qpn) {
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.established = true;
        }
    }

    /// Makes a shared receive queue.
    ///
    /// # Errors
    /// [`SrqError::TooMany`], [`SrqError::Limit`], [`SrqError::UnknownPd`].
    pub fn create_srq(&mut self, init: &SrqInit) -> Result<SrqId, SrqError> {
        let config = &self.cx.config;
        for (name, value, least, limit) in [
            ("max_wr", init.max_wr, 1, config.max_srq_wr),
            ("max_sge", init.max_sge, 1, config.max_sge),
            ("srq_limit", init.limit, 0, init.max_wr),
        ] {
            if value < least || value > limit {
                return Err(SrqError::Limit { name, value, limit });
            }
        }
        if !self.cx.keys.hold_pd(init.pd) {
            return Err(SrqError::UnknownPd);
        }
        self.cx.srqs.create(init).inspect_err(|_| self.cx.keys.release_pd(init.pd))
    }

    /// Changes the size of a shared receive queue, and its limit.
    ///
    /// # Errors
    /// [`SrqError::Occupied`] when more receives are posted than the new size holds; [`SrqError::Limit`],
    /// [`SrqError::Unknown`]. The queue is unchanged then.
    pub fn modify_srq(&mut self, srq: SrqId, attr: SrqAttr) -> Result<(), SrqError> {
        if self.cx.srqs.modify(srq, attr, self.cx.config.max_srq_wr)? {
            self.cx.srq_below_limit(srq);
        }
        Ok(())
    }

    /// Attributes and fill of a shared receive queue.
    pub fn query_srq(&self, srq: SrqId) -> Option<SrqInfo> {
        self.cx.srqs.info(srq)
    }

    /// Receives posted to a shared receive queue and not taken yet.
    pub fn srq_len(&self, srq: SrqId) -> Option<u32> {
        self.cx.srqs.info(srq).map(|info| info.queued)
    }

    /// Removes a shared receive queue, with the receives in it.
    ///
    /// # Errors
    /// [`SrqError::InUse`] while queue pairs use it, [`SrqError::Unknown`].
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), SrqError> {
        let pd = self.cx.srqs.destroy(srq)?;
        self.cx.keys.release_pd(pd);
        Ok(())
    }

    /// Makes an address handle: where datagrams of queue pairs in `pd` may go. For a multicast group, `path.dst` is the
    /// group and `path.dst_mac` its Ethernet address.
    ///
    /// # Errors
    /// [`AhError::TooMany`], [`AhError::UnknownPd`].
    pub fn create_ah(&mut self, pd: PdId, path: &Path) -> Result<AhId, AhError> {
        if !self.cx.keys.hold_pd(pd) {
            return Err(AhError::UnknownPd);
        }
        let path = self.cx.config.bind_path(path.clone());
        self.cx.ahs.create(pd, &path).inspect_err(|_| self.cx.keys.release_pd(pd))
    }

    /// Removes an address handle. Datagrams posted with it and not yet sent fail.
    ///
    /// # Errors
    /// [`AhError::Unknown`].
    pub fn destroy_ah(&mut self, ah: AhId) -> Result<(), AhError> {
        let pd = self.cx.ahs.destroy(ah)?;
        self.cx.keys.release_pd(pd);
        Ok(())
    }

    /// Attaches a datagram queue pair (in INIT or later) to a multicast group of its port: it gets a copy of every
    /// datagram to the group. Joining the group on the network is up to the caller.
    ///
    /// # Errors
    /// [`MulticastError`]; nothing is changed then.
    pub fn attach_multicast(&mut self, qpn: Qpn, group: Gid) -> Result<(), MulticastError> {
        let port = self.multicast_port(qpn)?;
        // compliance.md [UD-MULTICAST-ATTACH]: Only datagram queue pairs with a port can be attached, to multicast
        // addresses only.
        if !group.ip().is_multicast() {
            return Err(MulticastError::NotMulticast);
        }
        let config = &self.cx.config;
        self.groups.attach(port, group, qpn, config.max_mcast_grp, config.max_mcast_qp_attach)
    }

    /// Detaches a queue pair from a multicast group.
    ///
    /// # Errors
    /// [`MulticastError::NotAttached`], and those of a queue pair that cannot be attached.
    pub fn detach_multicast(&mut self, qpn: Qpn, group: Gid) -> Result<(), MulticastError> {
        let port = self.multicast_port(qpn)?;
        self.groups.detach(port, group, qpn)
    }

    /// Every multicast group with a queue pair of this engine.
    pub fn multicast_groups(&self) -> impl Iterator<Item = (PortId, Gid)> + '_ {
        self.groups.groups()
    }

    /// The queue pairs that receive a datagram to `group` on `port`.
    #[inline]
    pub fn multicast_members(&self, port: PortId, group: Gid) -> &[Qpn] {
        self.groups.members(port, group)
    }

    fn multicast_port(&self, qpn: Qpn) -> Result<PortId, MulticastError> {
        let common = &self.qps.get(qpn).ok_or(MulticastError::Unknown(qpn))?.common;
        if common.qp_type != QpType::Ud {
            return Err(MulticastError::NotDatagram);
        }
        common.port.ok_or(MulticastError::NoPort)
    }
}
