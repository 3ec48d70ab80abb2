//! The peer of `udaddy`: sends every datagram back.
//!
//! A client asks for our queue pair (SIDR) and sends datagrams to it; nothing says when it has ended. Only who has
//! asked is answered, at the address that the question came from.

use std::collections::HashMap;
use std::net::SocketAddr;

use rxe_dpdk::service::{Context, DatagramDecision, Listen, QpMap, QpSpec, Service};
use rxe_dpdk::worker::QpCaps;
use rxe_proto::Duration;
use rxe_proto::cm::{MadPath, SidrRequest};
use rxe_proto::mem::{Access, MemoryRegion};
use rxe_proto::transport::{
    AhId, PostError, Qpn, RecvWr, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus, WorkCompletion,
};
use rxe_proto::verbs::Grh;
use rxe_proto::wire::cm::SidrStatus;
use rxe_proto::wire::mad::RDMA_UDP_QKEY;
use rxe_proto::wire::{Gid, Path, PathMtu, PortId, udp_source_port_ud};

use super::factory::Factory;
use super::idle::{Idle, SWEEP};
use super::tally::{Book, Tally};

/// The name that users select the service by.
pub const NAME: &str = "udaddy";
/// udaddy's port, in the UDP port space.
const PORT: u16 = 7174;
/// Datagrams that can wait for their way back.
const SLOTS: u32 = 256;
/// A datagram and what stands in front of it.
const SLOT: usize = Grh::LEN + PathMtu::Mtu4096.bytes();
/// How long a datagram lives.
const HOP_LIMIT: u8 = 64;
const CAPS: QpCaps =
    QpCaps { max_send_wr: SLOTS, max_recv_wr: SLOTS, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };

/// Who has asked: an address seen from a port.
type Client = (PortId, Gid);

/// The queue pair for one port's clients.
struct Echo {
    port: PortId,
    region: MemoryRegion,
}

impl Echo {
    fn sge(&self, slot: u64, from: usize, length: u32) -> Sge {
        Sge { addr: self.region.addr() + slot * SLOT as u64 + from as u64, length, lkey: self.region.lkey() }
    }

    fn post_recv(&self, cx: &mut Context<'_>, qp: Qpn, slot: u64) -> Result<(), PostError> {
        cx.post_recv(qp, &RecvWr { wr_id: slot, sges: &[self.sge(slot, 0, SLOT as u32)] })
    }
}

/// The service on one lcore.
struct Udaddy {
    qps: QpMap<Echo>,
    clients: HashMap<Client, (MadPath, AhId)>,
    idle: Idle<Client>,
    tally: Tally,
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
    /// The queue pair for clients at `port`.
    fn qp(&mut self, cx: &mut Context<'_>, port: PortId) -> Result<Qpn, String> {
        if let Some((qp, _)) = self.qps.iter().find(|(_, echo)| echo.port == port) {
            return Ok(*qp);
        }
        let path_mtu = cx.port(port).ok_or("no such port")?.path_mtu;
        let memory = cx.alloc_memory(SLOTS as usize * SLOT).map_err(|error| error.to_string())?;
        let pd = cx.alloc_pd();
        let region = cx.register(pd, memory, Access::LOCAL_WRITE).map_err(|error| error.to_string());
        let made = region.and_then(|region| {
            let echo = Echo { port, region };
            let open = |cx: &mut Context<'_>, qp| -> Result<(), String> {
                cx.open_datagram_qp(qp, path_mtu).map_err(|error| error.to_string())?;
                (0..u64::from(SLOTS)).try_for_each(|slot| echo.post_recv(cx, qp, slot)).map_err(|e| e.to_string())
            };
            let spec = QpSpec::ud(pd, CAPS, port, RDMA_UDP_QKEY);
            let qp = cx.create_qp(&spec).map_err(|error| error.to_string());
            let opened = qp.and_then(|qp| open(cx, qp).map(|()| qp).inspect_err(|_| cx.destroy_qp(qp)));
            match opened {
                Ok(qp) => Ok((qp, echo)),
                Err(error) => {
                    cx.deregister(&echo.region);
                    Err(error)
                }
            }
        });
        match made {
            Ok((qp, echo)) => {
                self.qps.insert(qp, echo);
                Ok(qp)
            }
            Err(error) => {
                cx.dealloc_pd(pd);
                Err(error)
            }
        }
    }

    /// Takes note of a client, and returns the queue pair for it.
    fn admit(&mut self, cx: &mut Context<'_>, request: &SidrRequest) -> Result<Qpn, String> {
        let path = &request.path;
        let qp = self.qp(cx, path.port)?;
        let client = (path.port, path.peer);
        if self.clients.get(&client).is_none_or(|(known, _)| known != path) {
            let pd = self.qps.get(&qp).ok_or("no queue pair")?.region.pd();
            let ah = cx.create_ah(pd, &way_to(path, qp)).map_err(|error| error.to_string())?;
            if let Some((_, old)) = self.clients.insert(client, (path.clone(), ah)) {
                // It exists: nobody else knows it.
                let _ = cx.destroy_ah(old);
            }
        }
        self.idle.heard(client, cx.now());
        Ok(qp)
    }

    /// Sends the datagram in a slot back; false when nobody is to get it.
    fn send_back(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) -> bool {
        let (Some(echo), Some(sender)) = (self.qps.get(&wc.qpn), wc.src_qpn) else { return false };
        let Ok(grh) = Grh::read(echo.region.memory(), wc.wr_id as usize * SLOT) else { return false };
        let client = (echo.port, grh.src);
        let Some((_, ah)) = self.clients.get(&client) else {
            self.tally.strangers.inc();
            return false;
        };
        self.idle.heard(client, cx.now());
        // As udaddy's own server: who we are is in the immediate data, too.
        let op = SendOp::Datagram { ah: *ah, qpn: sender, qkey: RDMA_UDP_QKEY, imm: Some(wc.qpn.get()) };
        let sge = echo.sge(wc.wr_id, Grh::LEN, wc.byte_len.saturating_sub(Grh::LEN as u32));
        let wr = SendWr { wr_id: wc.wr_id, op, sges: &[sge], flags: SendFlags::SIGNALED };
        match cx.post_send(wc.qpn, &wr) {
            Ok(()) => {
                self.tally.exchanges.inc();
                true
            }
            Err(error) => {
                // It keeps its place: the next datagram may be answered.
                self.tally.post_failures.inc();
                tracing::debug!(client = %grh.src.ip(), "udaddy's datagram stays unanswered: {error}");
                false
            }
        }
    }
}

impl Service for Udaddy {
    fn start(&mut self, cx: &mut Context<'_>) {
        cx.set_timer(SWEEP, 0);
    }

    fn datagram_request(&mut self, cx: &mut Context<'_>, request: &SidrRequest) -> DatagramDecision {
        match self.admit(cx, request) {
            Ok(qp) => {
                self.tally.connections.inc();
                DatagramDecision::Accept { qp, qkey: RDMA_UDP_QKEY, private_data: Vec::new() }
            }
            Err(error) => {
                self.tally.refuse(cx.now(), SocketAddr::from(request.source), "a datagram queue pair", error);
                DatagramDecision::Refuse { status: SidrStatus::NoQp }
            }
        }
    }

    fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) {
        // Also a datagram that was not sent, as its client had gone, gives its slot back.
        let goes_back = wc.status == WcStatus::Success && wc.opcode == WcOpcode::Recv && self.send_back(cx, wc);
        if let Some(echo) = self.qps.get(&wc.qpn)
            && !goes_back
            && echo.post_recv(cx, wc.qpn, wc.wr_id).is_err()
        {
            self.tally.post_failures.inc();
        }
    }

    fn timer(&mut self, cx: &mut Context<'_>, _token: u64) {
        for client in self.idle.give_up(cx.now(), &self.tally, |client: Client| Some(client.1.ip())) {
            if let Some((_, ah)) = self.clients.remove(&client) {
                // It exists: nobody else knows it.
                let _ = cx.destroy_ah(ah);
            }
        }
        cx.set_timer(SWEEP, 0);
    }
}

/// Makes the service. A client that is silent for `idle_timeout` has to ask again.
pub fn factory(idle_timeout: Duration, book: &Book) -> Factory {
    let create = move |tally| -> Box<dyn Service> {
        let idle = Idle::new(idle_timeout);
        Box::new(Udaddy { qps: QpMap::default(), clients: HashMap::new(), idle, tally })
    };
    Factory::new(NAME, vec![Listen::datagrams(PORT)], create, book)
}

#[cfg(test)]
mod tests {
    use rxe_proto::wire::MacAddr;

    use super::*;

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
