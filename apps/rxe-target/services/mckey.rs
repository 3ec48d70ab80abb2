//! The peer of `mckey`, which sends to an IPv4 multicast group or waits for datagrams in it.
//!
//! mckey communicates with the group only. Its host reports the membership (IGMP); whether mckey will send or receive
//! cannot be known. So every host that joins a group gets datagrams as another mckey would
//! send them, some time after its report, since the program is not ready yet when its host says so; and the service joins
//! the group too and counts what comes, until nothing has come for a while. A mckey that got what it waits for leaves its
//! group at once, so one that stays is named in the log.

use std::collections::HashMap;
use std::net::IpAddr;

use rxe_adapter::multicast::multicast_mac;
use rxe_proto::Duration;
use rxe_proto::verbs::{
    Access, AddressHandle, Grh, MemoryRegion, PostError, ProtectionDomain, QpCaps, Qpn, QueuePair, RecvWr, Sge, Ud,
    WcOpcode, WcStatus, WorkCompletion, WorkRequest,
};
use rxe_proto::wire::mad::RDMA_UDP_QKEY;
use rxe_proto::wire::{Gid, Path, PathMtu, PortId, udp_source_port_ud};
use rxe_service::{Context, GroupListener, Listen, Service};

use super::factory::Factory;
use super::idle::{Idle, SWEEP};
use super::metrics::{MetricsRegistry, ServiceMetrics};
use super::out_of_band::{datagram_qp, give_back};
use crate::config::MckeyConfig;

/// The name that users select the service by.
pub const NAME: &str = "mckey";
/// Datagrams of a group that may wait for us.
const RECEIVES: u32 = 64;
/// Datagrams that leave at once, and the time to the next ones.
const BURST: u32 = 16;
const PAUSE: Duration = Duration::from_millis(1);
/// Length in bytes of a receive: a datagram behind its GRH.
const SLOT: usize = Grh::LEN + PathMtu::Mtu4096.bytes();
/// A host that is still in its group this long after its last datagram waits for other ones.
const STILL_THERE: Duration = Duration::from_secs(5);
/// Hop limit of datagrams.
const HOP_LIMIT: u8 = 64;
/// The timer that looks for silent groups; others are numbers of [`Parcel`]s.
const SWEEP_TOKEN: u64 = u64::MAX;
const CAPS: QpCaps =
    QpCaps { max_send_wr: 256, max_recv_wr: RECEIVES, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };

/// A group behind a port.
type Group = (PortId, IpAddr);

/// Our queue pair in all groups behind one port.
struct Member {
    port: PortId,
    pd: ProtectionDomain,
    qp: QueuePair<Ud>,
    path_mtu: PathMtu,
    /// Receives, one over the other, since they are not read; the message to send lies behind.
    region: MemoryRegion,
}

impl Member {
    fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge { addr: self.region.addr() + offset as u64, length: length as u32, lkey: self.region.lkey() }
    }

    fn post_recv(&self, cx: &mut Context<'_>) -> Result<(), PostError> {
        cx.device().post_recv(self.qp, RecvWr { wr_id: 0, sges: &[self.sge(0, SLOT)] })
    }

    /// A queue pair for a port.
    fn new(cx: &mut Context<'_>, port: PortId) -> Result<Member, String> {
        let path_mtu = cx.port(port).ok_or("no such port")?.path_mtu;
        let memory = cx.alloc_memory(2 * SLOT).map_err(|error| error.to_string())?;
        let pd = cx.device().alloc_pd();
        let region = match cx.device().reg_mr(pd, memory, Access::LOCAL_WRITE) {
            Ok(region) => region,
            Err(error) => {
                let _ = cx.device().dealloc_pd(pd);
                return Err(error.to_string());
            }
        };
        let opened = datagram_qp(cx, pd, CAPS, port).map_err(|error| error.to_string()).and_then(|qp| {
            let member = Member { port, pd, qp, path_mtu, region: region.clone() };
            match (0..RECEIVES).try_for_each(|_| member.post_recv(cx)) {
                Ok(()) => Ok(member),
                Err(error) => {
                    let _ = cx.device().destroy_qp(qp);
                    Err(error.to_string())
                }
            }
        });
        opened.inspect_err(|_| {
            let mut dev = cx.device();
            let _ = (dev.dereg_mr(&region), dev.dealloc_pd(pd));
        })
    }

    /// The way to a group.
    fn way_to(&self, cx: &Context<'_>, group: IpAddr) -> Result<Path, String> {
        let port = cx.port(self.port).ok_or("no such port")?;
        let source = port.addresses.iter().find(|ip| ip.is_ipv4() == group.is_ipv4());
        let source = source.ok_or("the port has no address of the group's family")?;
        Ok(Path {
            port: self.port,
            src_mac: port.mac,
            dst_mac: multicast_mac(group).ok_or("it is no group")?,
            vlan: port.vlan,
            src: Gid::from(*source),
            dst: Gid::from(group),
            udp_src_port: udp_source_port_ud(self.qp.qpn().get()),
            traffic_class: 0,
            flow_label: 0,
            hop_limit: HOP_LIMIT,
        })
    }
}

/// Datagrams to send to one host. When none is left, the host is about to leave its group.
struct Parcel {
    group: Group,
    host: IpAddr,
    left: u32,
}

/// What to say of a host that stays in its group after `count` datagrams of `length` bytes.
fn still_there(count: u32, length: usize) -> String {
    format!(
        "the host is still in the group after {count} datagrams of {length} bytes: for a receiving mckey, set count and size \
         of [service.mckey] to its -C and -S"
    )
}

/// The service on one lcore.
struct Mckey {
    config: MckeyConfig,
    members: Vec<Member>,
    /// The groups that we are in, and the way to them.
    groups: HashMap<Group, AddressHandle>,
    parcels: HashMap<u64, Parcel>,
    next: u64,
    idle: Idle<Group>,
    metrics: ServiceMetrics,
}

impl Mckey {
    fn new(config: MckeyConfig, metrics: ServiceMetrics) -> Mckey {
        let idle = Idle::new(config.idle_timeout);
        let (groups, parcels) = (HashMap::new(), HashMap::new());
        Mckey { config, members: Vec::new(), groups, parcels, next: 0, idle, metrics }
    }

    /// Our queue pair behind a port.
    fn member(&mut self, cx: &mut Context<'_>, port: PortId) -> Result<usize, String> {
        if let Some(index) = self.members.iter().position(|member| member.port == port) {
            return Ok(index);
        }
        self.members.push(Member::new(cx, port)?);
        Ok(self.members.len() - 1)
    }

    /// Joins a group, unless we are in it.
    fn join(&mut self, cx: &mut Context<'_>, group: Group) -> Result<(), String> {
        let index = self.member(cx, group.0)?;
        if !self.groups.contains_key(&group) {
            let member = &self.members[index];
            let way = member.way_to(cx, group.1)?;
            let ah = cx.device().create_ah(member.pd, &way).map_err(|error| error.to_string())?;
            if let Err(error) = cx.device().attach_mcast(member.qp, way.dst) {
                // Made above, so it exists.
                let _ = cx.device().destroy_ah(ah);
                return Err(error.to_string());
            }
            if self.metrics.admits(cx.now()) {
                tracing::info!(group = %group.1, "{NAME}: joined");
            }
            self.groups.insert(group, ah);
        }
        self.idle.heard(group, cx.now());
        Ok(())
    }

    fn leave(&mut self, cx: &mut Context<'_>, group: Group) {
        let Some(ah) = self.groups.remove(&group) else { return };
        // Both exist: no other code has their handles.
        let _ = cx.device().destroy_ah(ah);
        if let Some(member) = self.members.iter().find(|member| member.port == group.0) {
            let _ = cx.device().detach_mcast(member.qp, Gid::from(group.1));
        }
    }

    /// Gives back the queue pairs of ports behind which we are in no group any more: a drain waits for the last queue pair.
    fn close_unused(&mut self, cx: &mut Context<'_>) {
        let groups = &self.groups;
        let unused = |member: &mut Member| !groups.keys().any(|group| group.0 == member.port);
        for Member { pd, qp, region, .. } in self.members.extract_if(.., unused) {
            give_back(cx, pd, qp, &region);
        }
    }

    /// Makes the way to a group again, from an address that the port has now.
    fn renew_way(&mut self, cx: &mut Context<'_>, group: Group) -> Result<(), String> {
        let member = self.members.iter().find(|member| member.port == group.0).ok_or("no such port")?;
        let way = member.way_to(cx, group.1)?;
        let ah = cx.device().create_ah(member.pd, &way).map_err(|error| error.to_string())?;
        if let Some(old) = self.groups.insert(group, ah) {
            // No other code has its handle.
            let _ = cx.device().destroy_ah(old);
        }
        Ok(())
    }

    /// Sends some of what a host is to get, or looks whether it has left. Returns the time to the next call; `None` when
    /// that was the last.
    fn proceed(&mut self, cx: &mut Context<'_>, number: u64) -> Option<Duration> {
        let parcel = self.parcels.get_mut(&number)?;
        let member = self.members.iter().find(|member| member.port == parcel.group.0)?;
        let length = self.config.size.min(member.path_mtu.bytes());
        if parcel.left == 0 {
            if self.metrics.admits(cx.now()) {
                let (host, group) = (parcel.host, parcel.group.1);
                tracing::info!(%host, %group, "{NAME}: {}", still_there(self.config.count, length));
            }
            return None;
        }
        let ah = *self.groups.get(&parcel.group)?;
        self.idle.heard(parcel.group, cx.now());
        // As in mckey, the immediate data names our queue pair.
        let (sges, imm) = ([member.sge(SLOT, length)], member.qp.qpn().get());
        let wr = WorkRequest::datagram_with_imm(&sges, ah, Qpn::MULTICAST, RDMA_UDP_QKEY, imm).signaled();
        for _ in 0..parcel.left.min(BURST) {
            if let Err(error) = cx.device().post_send(member.qp, wr) {
                self.metrics.fail(cx.now(), parcel.host, error);
                return None;
            }
            parcel.left -= 1;
            self.metrics.exchanges.inc();
        }
        Some(if parcel.left > 0 { PAUSE } else { STILL_THERE })
    }
}

impl Service for Mckey {
    fn start(&mut self, cx: &mut Context<'_>) {
        cx.set_timer(SWEEP, SWEEP_TOKEN);
    }

    fn group_listener(&mut self, cx: &mut Context<'_>, listener: &GroupListener) {
        let GroupListener { port, group: ip, host, joined } = *listener;
        let group = (port, ip);
        if !joined {
            self.parcels.retain(|_, parcel| parcel.group != group || parcel.host != host);
            return;
        }
        if let Err(why) = self.join(cx, group) {
            self.metrics.refuse(cx.now(), host, format_args!("datagrams of group {ip}"), why);
            return;
        }
        self.metrics.connections.inc();
        let number = self.next;
        self.next += 1;
        self.parcels.insert(number, Parcel { group, host, left: self.config.count });
        cx.set_timer(self.config.send_after, number);
    }

    fn port_changed(&mut self, cx: &mut Context<'_>, port: PortId) {
        let groups: Vec<Group> = self.groups.keys().filter(|group| group.0 == port).copied().collect();
        for group in groups {
            if let Err(why) = self.renew_way(cx, group) {
                tracing::info!(group = %group.1, "{NAME}: left, as the port's addresses changed: {why}");
                self.leave(cx, group);
            }
        }
    }

    fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) {
        if wc.opcode != WcOpcode::Recv || wc.status != WcStatus::Success {
            return;
        }
        let Some(member) = self.members.iter().find(|member| member.qp.qpn() == wc.qpn) else { return };
        // It names the group; the last receive's bytes are good enough, as all lie in one place.
        if let Ok(grh) = Grh::read(member.region.memory(), 0) {
            let group = (member.port, grh.dst.ip());
            if self.groups.contains_key(&group) {
                self.idle.heard(group, cx.now());
            }
        }
        self.metrics.group_datagrams.inc();
        if member.post_recv(cx).is_err() {
            self.metrics.post_failures.inc();
        }
    }

    fn timer(&mut self, cx: &mut Context<'_>, token: u64) {
        if token != SWEEP_TOKEN {
            match self.proceed(cx, token) {
                Some(after) => cx.set_timer(after, token),
                None => drop(self.parcels.remove(&token)),
            }
            return;
        }
        // Datagrams that are still to be sent keep us there.
        for parcel in self.parcels.values().filter(|parcel| parcel.left > 0) {
            self.idle.heard(parcel.group, cx.now());
        }
        for group in self.idle.take_expired(cx.now()) {
            self.metrics.idle_ended.inc();
            if self.metrics.admits(cx.now()) {
                let seconds = self.idle.limit().as_millis() / 1000;
                tracing::info!(group = %group.1, "{NAME}: left, as nothing came for {seconds} s");
            }
            self.leave(cx, group);
        }
        self.close_unused(cx);
        cx.set_timer(SWEEP, SWEEP_TOKEN);
    }
}

/// Makes the service.
pub fn factory(config: MckeyConfig, registry: &MetricsRegistry) -> Factory {
    let create = move |metrics| -> Box<dyn Service> { Box::new(Mckey::new(config.clone(), metrics)) };
    Factory::new(NAME, vec![Listen::GroupListeners], create, registry)
}

#[cfg(test)]
mod tests {
    use rxe_service::control::ip_host::HostEvent;

    use super::*;
    use crate::services::{floods, network};

    #[test]
    fn the_last_group_takes_the_queue_pair_with_it() {
        let config = MckeyConfig { idle_timeout: Duration::from_secs(20), ..MckeyConfig::default() };
        let mut network = floods::network(&factory(config, &MetricsRegistry::default()));
        let joined =
            |group: [u8; 4]| HostEvent::GroupListener { group: group.into(), host: network::address(2), joined: true };
        network.host_event(1, joined([239, 1, 2, 3]));
        network.host_event(1, joined([239, 1, 2, 4]));
        network.advance(Duration::from_secs(10));
        let (qps, _, handles) = floods::held(&network);
        assert_eq!((qps, handles), (1, 2));
        network.advance(Duration::from_secs(30));
        assert_eq!(floods::held(&network), (0, 0, 0));
        network.host_event(1, joined([239, 1, 2, 3]));
        network.settle();
        assert_eq!(floods::held(&network).0, 1, "a later one gets another queue pair");
    }

    #[test]
    fn a_host_that_stays_is_named_with_the_settings() {
        assert_eq!(
            still_there(10, 100),
            "the host is still in the group after 10 datagrams of 100 bytes: for a receiving mckey, set count and size of \
             [service.mckey] to its -C and -S"
        );
    }
}
