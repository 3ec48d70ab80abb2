//! The peer of `udaddy`: sends every datagram back.
//!
//! A client asks for our queue pair (SIDR) and sends datagrams to it; nothing says when it has ended. Only
//! clients that have asked are answered, at the address that the request came from.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use rxe_proto::Duration;
use rxe_proto::cm::{MadPath, SidrRequest};
use rxe_proto::verbs::{
    Access, AddressHandle, Grh, Memory, MemoryRegion, PostError, ProtectionDomain, QpCaps, Qpn, QueuePair, RecvWr, Sge,
    Ud, WcOpcode, WcStatus, WorkCompletion, WorkRequest,
};
use rxe_proto::wire::cm::SidrStatus;
use rxe_proto::wire::mad::RDMA_UDP_QKEY;
use rxe_proto::wire::{Gid, Path, PathMtu, PortId, udp_source_port_ud};
use rxe_service::{BudgetId, Charge, Context, DatagramDecision, Listen, QpMap, Service, Shares, Standing};

use super::factory::Factory;
use super::idle::{Idle, SWEEP};
use super::metrics::{MetricsRegistry, ServiceMetrics};
use super::out_of_band::{datagram_qp, give_back};

/// The name that users select the service by.
pub const NAME: &str = "udaddy";
/// udaddy's port, in the UDP port space.
const PORT: u16 = 7174;
/// Datagrams that can wait for their way back.
const SLOTS: u32 = 256;
/// A datagram and the GRH in front of it.
const SLOT: usize = Grh::LEN + PathMtu::Mtu4096.bytes();
/// Clients of one lcore, each with an address handle.
const CLIENTS: usize = 16_384;
/// Hop limit of datagrams.
const HOP_LIMIT: u8 = 64;
const CAPS: QpCaps =
    QpCaps { max_send_wr: SLOTS, max_recv_wr: SLOTS, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };

/// A client: its address, behind a port.
type Client = (PortId, Gid);

/// The queue pair for one port's clients.
struct Echo {
    port: PortId,
    pd: ProtectionDomain,
    qp: QueuePair<Ud>,
    region: MemoryRegion,
}

impl Echo {
    fn sge(&self, slot: u64, from: usize, length: u32) -> Sge {
        Sge { addr: self.region.addr() + slot * SLOT as u64 + from as u64, length, lkey: self.region.lkey() }
    }

    fn post_recv(&self, cx: &mut Context<'_>, slot: u64) -> Result<(), PostError> {
        cx.device().post_recv(self.qp, RecvWr { wr_id: slot, sges: &[self.sge(slot, 0, SLOT as u32)] })
    }
}

/// What is kept of a client.
struct Known {
    path: MadPath,
    ah: AddressHandle,
    /// Nothing has come from its address before the first datagram, so that may be forged.
    has_sent: bool,
    charge: Charge,
}

/// The service on one lcore.
struct Udaddy {
    qps: QpMap<Echo>,
    clients: HashMap<Client, Known>,
    /// Clients that have sent no datagram, the oldest first, and some that have, or are gone.
    silent: VecDeque<Client>,
    /// Most clients, and what they hold once the service has started.
    most: usize,
    budget: Option<BudgetId>,
    idle: Idle<Client>,
    metrics: ServiceMetrics,
}

/// The way back.
fn way_to(path: &MadPath, qp: Qpn) -> Path {
    Path {
        port: path.port,
        src_mac: path.local_mac,
        dst_mac: path.peer_mac,
        vlan: path.vlan,
        src: path.local,
        dst: path.peer,
        udp_src_port: udp_source_port_ud(qp.get()),
        traffic_class: path.traffic_class,
        flow_label: 0,
        hop_limit: HOP_LIMIT,
    }
}

impl Udaddy {
    /// The queue pair for clients at `port`, and its protection domain.
    fn qp(&mut self, cx: &mut Context<'_>, port: PortId) -> Result<(QueuePair<Ud>, ProtectionDomain), String> {
        if let Some(echo) = self.qps.values().find(|echo| echo.port == port) {
            return Ok((echo.qp, echo.pd));
        }
        let memory = cx.alloc_memory(SLOTS as usize * SLOT).map_err(|error| error.to_string())?;
        let pd = cx.device().alloc_pd();
        let opened = Udaddy::open(cx, pd, port, memory);
        let echo = opened.inspect_err(|_| {
            let _ = cx.device().dealloc_pd(pd);
        })?;
        let qp = echo.qp;
        self.qps.insert(qp.qpn(), echo);
        Ok((qp, pd))
    }

    fn open(cx: &mut Context<'_>, pd: ProtectionDomain, port: PortId, memory: Memory) -> Result<Echo, String> {
        let region = cx.device().reg_mr(pd, memory, Access::LOCAL_WRITE).map_err(|error| error.to_string())?;
        let qp = match datagram_qp(cx, pd, CAPS, port) {
            Ok(qp) => qp,
            Err(error) => {
                let _ = cx.device().dereg_mr(&region);
                return Err(error.to_string());
            }
        };
        let echo = Echo { port, pd, qp, region };
        let posted = (0..u64::from(SLOTS)).try_for_each(|slot| echo.post_recv(cx, slot));
        if let Err(error) = posted {
            let mut dev = cx.device();
            let _ = (dev.destroy_qp(qp), dev.dereg_mr(&echo.region));
            return Err(error.to_string());
        }
        Ok(echo)
    }

    /// Gives back the queue pairs of ports that have no clients any more: a drain waits for the last queue pair.
    fn close_unused(&mut self, cx: &mut Context<'_>) {
        let unused = |echo: &&Echo| !self.clients.keys().any(|client| client.0 == echo.port);
        let unused: Vec<Qpn> = self.qps.values().filter(unused).map(|echo| echo.qp.qpn()).collect();
        for qpn in unused {
            if let Some(Echo { pd, qp, region, .. }) = self.qps.remove(&qpn) {
                give_back(cx, pd, qp, &region);
            }
        }
    }

    /// Takes note of a client, and returns the queue pair for it.
    fn admit(&mut self, cx: &mut Context<'_>, request: &SidrRequest) -> Result<QueuePair<Ud>, String> {
        let path = &request.path;
        let (qp, pd) = self.qp(cx, path.port)?;
        let client = (path.port, path.peer);
        if self.clients.get(&client).is_none_or(|known| known.path != *path) {
            self.forget(cx, client);
            let budget = self.budget.ok_or("the service has not started")?;
            let charge = cx.ledger().charge(budget, path.peer.ip(), 1, Standing::Unproven);
            let charge = charge.map_err(|refusal| format!("{refusal} address handles"))?;
            let ah = match cx.device().create_ah(pd, &way_to(path, qp.qpn())) {
                Ok(ah) => ah,
                Err(error) => {
                    cx.ledger().release(charge);
                    return Err(error.to_string());
                }
            };
            self.clients.insert(client, Known { path: path.clone(), ah, has_sent: false, charge });
            self.relieve(cx, client);
        }
        self.idle.heard(client, cx.now());
        Ok(qp)
    }

    /// Forgets the oldest client that has sent nothing, if such ones are most of those that may be. `new` is the newest one. A
    /// client that is there sends its datagrams right after our answer, and may ask again.
    fn relieve(&mut self, cx: &mut Context<'_>, new: Client) {
        while let Some(client) = self.silent.front()
            && self.clients.get(client).is_none_or(|known| known.has_sent)
        {
            self.silent.pop_front();
        }
        self.silent.push_back(new);
        if cx.is_crowded()
            && self.silent.len() > 1
            && let Some(oldest) = self.silent.pop_front()
        {
            self.metrics.evicted.inc();
            self.idle.forget(oldest);
            self.forget(cx, oldest);
        }
    }

    /// Gives back what is kept of a client.
    fn forget(&mut self, cx: &mut Context<'_>, client: Client) {
        if let Some(known) = self.clients.remove(&client) {
            // It exists: no other code has its handle.
            let _ = cx.device().destroy_ah(known.ah);
            cx.ledger().release(known.charge);
        }
    }

    /// Sends the datagram in a slot back; `false` if its sender is no client.
    fn send_back(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) -> bool {
        let (Some(echo), Some(sender)) = (self.qps.get(&wc.qpn), wc.src_qpn) else { return false };
        let Ok(grh) = Grh::read(echo.region.memory(), wc.wr_id as usize * SLOT) else { return false };
        let client = (echo.port, grh.src);
        let Some(known) = self.clients.get_mut(&client) else {
            self.metrics.strangers.inc();
            return false;
        };
        if !known.has_sent {
            // An address has one client per port: it never has its share before.
            let _ = cx.ledger().prove(&mut known.charge);
            known.has_sent = true;
        }
        let ah = known.ah;
        self.idle.heard(client, cx.now());
        // As in udaddy's own server, the immediate data names our queue pair, too.
        let sges = [echo.sge(wc.wr_id, Grh::LEN, wc.byte_len.saturating_sub(Grh::LEN as u32))];
        let wr = WorkRequest::datagram_with_imm(&sges, ah, sender, RDMA_UDP_QKEY, wc.qpn.get());
        match cx.device().post_send(echo.qp, wr.wr_id(wc.wr_id).signaled()) {
            Ok(()) => {
                self.metrics.exchanges.inc();
                true
            }
            Err(error) => {
                // It keeps its place: the next datagram may be answered.
                self.metrics.post_failures.inc();
                tracing::debug!(client = %grh.src.ip(), "udaddy's datagram stays unanswered: {error}");
                false
            }
        }
    }
}

impl Service for Udaddy {
    fn start(&mut self, cx: &mut Context<'_>) {
        self.budget = Some(cx.open_budget("udaddy address handles", self.most, Shares::HALF));
        cx.set_timer(SWEEP, 0);
    }

    fn datagram_request(&mut self, cx: &mut Context<'_>, request: &SidrRequest) -> DatagramDecision {
        match self.admit(cx, request) {
            Ok(qp) => {
                self.metrics.connections.inc();
                DatagramDecision::Accept { qp: qp.into(), qkey: RDMA_UDP_QKEY, private_data: Vec::new() }
            }
            Err(error) => {
                self.metrics.refuse(cx.now(), SocketAddr::from(request.source), "a datagram queue pair", error);
                DatagramDecision::Refuse { status: SidrStatus::NoQp }
            }
        }
    }

    fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) {
        // Also a datagram that was not sent, as its client had gone, gives its slot back.
        let goes_back = wc.status == WcStatus::Success && wc.opcode == WcOpcode::Recv && self.send_back(cx, wc);
        if let Some(echo) = self.qps.get(&wc.qpn)
            && !goes_back
            && echo.post_recv(cx, wc.wr_id).is_err()
        {
            self.metrics.post_failures.inc();
        }
    }

    fn timer(&mut self, cx: &mut Context<'_>, _token: u64) {
        for client in self.idle.give_up(cx.now(), &self.metrics, |client: Client| Some(client.1.ip())) {
            self.forget(cx, client);
        }
        self.close_unused(cx);
        cx.set_timer(SWEEP, 0);
    }
}

/// Makes the service. A client that is silent for `idle_timeout` has to ask again.
pub fn factory(idle_timeout: Duration, registry: &MetricsRegistry) -> Factory {
    factory_for(CLIENTS, idle_timeout, registry)
}

/// The same with at most `most` clients on an lcore.
fn factory_for(most: usize, idle_timeout: Duration, registry: &MetricsRegistry) -> Factory {
    let create = move |metrics| -> Box<dyn Service> {
        let (qps, clients, silent, idle) = (QpMap::default(), HashMap::new(), VecDeque::new(), Idle::new(idle_timeout));
        Box::new(Udaddy { qps, clients, silent, most, budget: None, idle, metrics })
    };
    Factory::new(NAME, vec![Listen::datagrams(PORT)], create, registry)
}

#[cfg(test)]
mod tests {
    use rxe_proto::wire::MacAddr;

    use super::*;
    use crate::services::floods;

    #[test]
    fn addresses_that_ask_and_send_nothing_are_a_share_of_all_clients() {
        let registry = MetricsRegistry::default();
        let factory = factory_for(64, Duration::from_secs(60), &registry);
        let mut network = floods::network(&factory);
        floods::flood(&mut network, 2..102, PORT, 1);
        let (_, _, handles) = floods::held(&network);
        assert!((8..=16).contains(&handles), "{handles} address handles for 100 addresses");
        assert_eq!(floods::ask(&mut network, 200, PORT, 1), 1);
        network.advance(Duration::from_secs(70));
        assert_eq!(floods::held(&network), (0, 0, 0), "nor the queue pair that they shared");
        assert_eq!(floods::ask(&mut network, 201, PORT, 1), 1, "a later client gets another one");
    }

    #[test]
    fn answers_go_where_the_question_came_from() {
        let (ours, peers) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let gid = |ip: [u8; 4]| Gid::from(std::net::Ipv4Addr::from(ip));
        let asked = MadPath {
            port: PortId(3),
            local_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            peer_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            vlan: Some(7),
            local: gid(ours),
            peer: gid(peers),
            traffic_class: 0x28,
        };
        let way = way_to(&asked, Qpn::new(5));
        assert_eq!((way.port, way.vlan, way.traffic_class), (PortId(3), Some(7), 0x28));
        assert_eq!((way.src_mac, way.src), (asked.local_mac, gid(ours)));
        assert_eq!((way.dst_mac, way.dst), (asked.peer_mac, gid(peers)));
    }
}
