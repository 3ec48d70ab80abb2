//! The runtime's records of the objects that services create: below each [`Device`](rxe_proto::verbs::Device) as hooks.
//!
//! A service has one completion queue per worker. It is kept as deep as all that can complete to it: the send queues
//! of its queue pairs, their receive queues, and its shared receive queues. A work request counts as outstanding until the
//! service has seen its completion, so the queue cannot overflow.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use rxe_proto::verbs::{
    AhError, CqError, CqId, DeviceHooks, Engine, QpAttrChange, QpError, QpInit, QpTransition, Qpn, SrqAttr, SrqError,
    SrqId, SrqInit,
};
use rxe_proto::wire::{Gid, Path, PortId};

use crate::local_port::LocalPort;
use crate::messages::ToControl;
use crate::qp_map::QpMap;
use crate::service_latencies::ServiceLatencies;

/// The completion queue of one service, and how deep it must be.
#[derive(Debug)]
pub(crate) struct ServiceCq {
    pub(crate) cq: CqId,
    /// Completions that it must be able to hold.
    depth: usize,
    /// The part of `depth` of destroyed objects: their last completions may still wait in the queue.
    retired: usize,
}

impl ServiceCq {
    /// A queue of depth 1, the minimum.
    pub(crate) fn new(cq: CqId) -> ServiceCq {
        ServiceCq { cq, depth: 1, retired: 0 }
    }

    /// Completions that it must be able to hold.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Called when the queue is empty, so that it holds no completion of a destroyed object.
    pub(crate) fn drained(&mut self) {
        self.depth -= std::mem::take(&mut self.retired);
    }

    fn retire(&mut self, depth: usize) {
        self.retired += depth;
    }

    /// Makes the queue deep enough for `more` completions.
    ///
    /// # Errors
    /// The depth that this takes, and the limit.
    fn make_room(&self, engine: &mut Engine, more: usize) -> Result<(), (u32, u32)> {
        let depth = self.depth + more;
        engine.resize_cq(self.cq, depth).map_err(|error| {
            let limit = if let CqError::Depth(limit) = error { limit } else { engine.config().max_cqe };
            (u32::try_from(depth).unwrap_or(u32::MAX), limit)
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct Owned {
    service: usize,
    depth: usize,
    /// A queue pair's name in logs and reports, if it is not the service's.
    name: Option<&'static str>,
}

/// The objects that the services of one worker have created, by which completions and events find their service.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    qps: QpMap<Owned>,
    srqs: HashMap<SrqId, Owned>,
    /// The multicast groups with members here, as last reported to the control side.
    groups: BTreeSet<(PortId, Gid)>,
}

impl Objects {
    /// The service that created a queue pair.
    pub(crate) fn owner_of_qp(&self, qpn: Qpn) -> Option<usize> {
        self.qps.get(&qpn).map(|owned| owned.service)
    }

    /// The service that created a shared receive queue.
    pub(crate) fn owner_of_srq(&self, srq: SrqId) -> Option<usize> {
        self.srqs.get(&srq).map(|owned| owned.service)
    }

    /// The name that a queue pair was given.
    pub(crate) fn name_of(&self, qpn: Qpn) -> Option<&'static str> {
        self.qps.get(&qpn)?.name
    }

    /// Forgets a queue pair and releases its part of the completion queue.
    pub(crate) fn forget_qp(&mut self, qpn: Qpn, cq: &mut ServiceCq) {
        if let Some(owned) = self.qps.remove(&qpn) {
            cq.retire(owned.depth);
        }
    }
}

/// The hooks below the device of one service, for one call of the service.
pub(crate) struct Accounting<'a> {
    pub(crate) worker: usize,
    pub(crate) service: usize,
    pub(crate) cq: &'a mut ServiceCq,
    pub(crate) objects: &'a mut Objects,
    pub(crate) latencies: &'a ServiceLatencies,
    pub(crate) ports: &'a [LocalPort],
    pub(crate) outbox: &'a Sender<ToControl>,
}

impl Accounting<'_> {
    /// Whether a queue pair that completes to this queue still exists.
    #[inline]
    pub(crate) fn has_qp(&self, qpn: Qpn) -> bool {
        // As long as no object was destroyed, every completion is of one that exists.
        self.cq.retired == 0 || self.objects.owner_of_qp(qpn).is_some()
    }

    pub(crate) fn set_name(&mut self, engine: &mut Engine, qpn: Qpn, name: &'static str) {
        if let Some(owned) = self.objects.qps.get_mut(&qpn) {
            owned.name = Some(name);
            self.count_latencies(engine, qpn, Some(name));
        }
    }

    /// Counts the times of a queue pair's operations with those of its service.
    fn count_latencies(&self, engine: &mut Engine, qpn: Qpn, name: Option<&str>) {
        if let Some(latencies) = self.latencies.of(name) {
            // It exists.
            let _ = engine.set_latencies(qpn, Arc::clone(latencies));
        }
    }

    fn has_port(&self, port: PortId) -> bool {
        self.ports.get(usize::from(port.0)).is_some()
    }

    fn check_port(&self, port: PortId) -> Result<(), QpError> {
        // At most 65,536 ports.
        let limit = (self.ports.len() as u32).saturating_sub(1);
        if self.has_port(port) { Ok(()) } else { Err(QpError::Limit { name: "port_num", value: port.0.into(), limit }) }
    }
}

/// Completions that a queue pair can have outstanding. A shared receive queue is counted by itself; each queue pair that
/// takes from it can have one more receive in use.
fn depth(init: &QpInit) -> usize {
    let receives = if init.srq.is_some() { 1 } else { init.caps.max_recv_wr };
    init.caps.max_send_wr as usize + receives as usize
}

/// The resource that runs out when a completion queue would become too deep.
const CQ_DEPTH: &str = "completion queue depth";

impl DeviceHooks for Accounting<'_> {
    fn before_create_qp(&mut self, engine: &mut Engine, init: &QpInit) -> Result<(), QpError> {
        if (init.send_cq, init.recv_cq) != (self.cq.cq, self.cq.cq) {
            return Err(QpError::UnknownCq);
        }
        let room = self.cq.make_room(engine, depth(init));
        room.map_err(|(value, limit)| QpError::Limit { name: CQ_DEPTH, value, limit })
    }

    fn qp_created(&mut self, engine: &mut Engine, qpn: Qpn, init: &QpInit) {
        self.count_latencies(engine, qpn, None);
        let depth = depth(init);
        self.cq.depth += depth;
        self.objects.qps.insert(qpn, Owned { service: self.service, depth, name: None });
    }

    fn before_modify_qp(&mut self, _qpn: Qpn, transition: &QpTransition) -> Result<(), QpError> {
        match transition {
            QpTransition::ToRtr(rtr) => self.check_port(rtr.path.port),
            QpTransition::ToInitDatagram { port, .. } => self.check_port(*port),
            _ => Ok(()),
        }
    }

    fn before_modify_attributes(&mut self, _qpn: Qpn, change: &QpAttrChange) -> Result<(), QpError> {
        let path = change.path.as_ref().map(|path| path.port);
        [change.port, path].into_iter().flatten().try_for_each(|port| self.check_port(port))
    }

    fn before_destroy_qp(&mut self, qpn: Qpn) -> Result<(), QpError> {
        self.objects.owner_of_qp(qpn).map(|_| ()).ok_or(QpError::Unknown(qpn))
    }

    fn qp_destroyed(&mut self, qpn: Qpn) {
        self.objects.forget_qp(qpn, self.cq);
    }

    fn before_create_srq(&mut self, engine: &mut Engine, init: &SrqInit) -> Result<(), SrqError> {
        let room = self.cq.make_room(engine, init.max_wr as usize);
        room.map_err(|(value, limit)| SrqError::Limit { name: CQ_DEPTH, value, limit })
    }

    fn srq_created(&mut self, srq: SrqId, init: &SrqInit) {
        let depth = init.max_wr as usize;
        self.cq.depth += depth;
        self.objects.srqs.insert(srq, Owned { service: self.service, depth, name: None });
    }

    fn before_modify_srq(&mut self, engine: &mut Engine, srq: SrqId, attr: &SrqAttr) -> Result<(), SrqError> {
        let Some(owned) = self.objects.srqs.get(&srq) else { return Err(SrqError::Unknown) };
        let Some(more) = attr.max_wr.and_then(|max_wr| (max_wr as usize).checked_sub(owned.depth)) else {
            return Ok(());
        };
        let room = self.cq.make_room(engine, more);
        room.map_err(|(value, limit)| SrqError::Limit { name: CQ_DEPTH, value, limit })
    }

    fn srq_modified(&mut self, srq: SrqId, attr: &SrqAttr) {
        if let (Some(owned), Some(max_wr)) = (self.objects.srqs.get_mut(&srq), attr.max_wr) {
            let before = std::mem::replace(&mut owned.depth, max_wr as usize);
            self.cq.depth += owned.depth.saturating_sub(before);
            // The queue may still hold the completions of receives that were outstanding before.
            self.cq.retire(before.saturating_sub(owned.depth));
        }
    }

    fn srq_destroyed(&mut self, srq: SrqId) {
        if let Some(owned) = self.objects.srqs.remove(&srq) {
            self.cq.retire(owned.depth);
        }
    }

    fn before_create_ah(&mut self, path: &Path) -> Result<(), AhError> {
        if self.has_port(path.port) { Ok(()) } else { Err(AhError::UnknownPort(path.port)) }
    }

    /// Reports changes of the groups with members here to the control side, which joins them on the network.
    fn multicast_changed(&mut self, engine: &Engine) {
        let groups: BTreeSet<(PortId, Gid)> = engine.multicast_groups().collect();
        for &(port, group) in groups.symmetric_difference(&self.objects.groups) {
            let joined = groups.contains(&(port, group));
            // The control side outlives the workers' loops; after it no recipient is left.
            let _ = self.outbox.send(ToControl::GroupMember { worker: self.worker, port, group, joined });
        }
        self.objects.groups = groups;
    }
}

#[cfg(test)]
mod tests;
