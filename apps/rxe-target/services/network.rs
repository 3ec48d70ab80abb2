//! Adapters with one worker and one service each on a virtual network, with a virtual clock.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use rxe_proto::cm::{Cm, CmConfig, GSI_UDP_SRC_PORT, Handshake, MadPath, write_mad};
use rxe_proto::mem::HeapAllocator;
use rxe_proto::verbs::{Engine, EngineConfig};
use rxe_proto::wire::mad::MAD_LEN;
use rxe_proto::wire::{Frame, MacAddr, PathMtu, PortId, Psn, TxFrames, classify};
use rxe_proto::{Duration, Instant};
use rxe_service::control::ip_host::{HostEvent, IpHost, Resolution};
use rxe_service::control::{Control, ControlParts, TrafficClassConfig};
use rxe_service::events::{Listening, event_ring};
use rxe_service::inspect::Question;
use rxe_service::mailbox::mailboxes;
use rxe_service::service_host::{ServiceHost, ServiceHostParts};
use rxe_service::{Listen, LocalPort, Restrictions, Service};
use rxe_testkit::rng::Rng;

const PORT: PortId = PortId(0);

/// The address of adapter number `number`.
pub fn address(number: u8) -> IpAddr {
    [10, 0, 0, number].into()
}

fn mac(ip: IpAddr) -> MacAddr {
    let IpAddr::V4(ip) = ip else { panic!("IPv4 only") };
    MacAddr([2, 0, 0, 0, 0, ip.octets()[3]])
}

/// A host that knows all others.
struct Link {
    local: LocalPort,
    events: VecDeque<HostEvent<u32>>,
}

impl IpHost for Link {
    type Output = TxFrames;
    type Stream = u32;
    type Error = Infallible;

    fn local_port(&self) -> LocalPort {
        self.local.clone()
    }

    fn is_broadcast(&self, _: IpAddr) -> bool {
        false
    }

    fn is_on_link(&self, _: IpAddr) -> bool {
        true
    }

    fn has_route(&self, _: IpAddr) -> bool {
        true
    }

    fn next_hop(&self, dst: IpAddr) -> IpAddr {
        dst
    }

    fn resolve(&mut self, _: Instant, dst: IpAddr) -> Resolution {
        Resolution::Ready { mac: mac(dst), source: self.local.addresses[0] }
    }

    fn same_station(&mut self, _: Instant, a: IpAddr, b: IpAddr) -> bool {
        a == b
    }

    fn note_peer(&mut self, _: Instant, _: IpAddr) {}

    fn learn(&mut self, _: Instant, _: IpAddr, _: MacAddr) {}

    fn listen(&mut self, _: u16) -> Result<(), Infallible> {
        Ok(())
    }

    fn watch_listeners(&mut self) -> Result<(), Infallible> {
        Ok(())
    }

    fn join_group(&mut self, _: Instant, _: IpAddr) -> Result<(), Infallible> {
        Ok(())
    }

    fn leave_group(&mut self, _: Instant, _: IpAddr) -> Result<(), Infallible> {
        Ok(())
    }

    fn recv(&mut self, _: u32, _: &mut [u8]) -> usize {
        0
    }

    fn send(&mut self, _: u32, _: &[u8]) -> usize {
        0
    }

    fn close(&mut self, _: u32) {}

    fn abort(&mut self, _: u32) {}

    fn stream_count(&self) -> usize {
        0
    }

    fn neighbour_count(&self) -> usize {
        0
    }

    fn poll(&mut self, _: Instant, _: &mut TxFrames) {}

    fn poll_event(&mut self) -> Option<HostEvent<u32>> {
        self.events.pop_front()
    }

    fn send_mad(&mut self, output: &mut TxFrames, path: &MadPath, mad: &[u8; MAD_LEN]) -> bool {
        write_mad(output, path, GSI_UDP_SRC_PORT, Psn::new(0), mad)
    }
}

/// An adapter.
pub struct Adapter {
    control: Control<Link>,
    pub engine: Engine,
    services: ServiceHost,
}

impl Adapter {
    fn new(now: Instant, number: u8, seed: u8, listens: Vec<(usize, Listen)>, service: Box<dyn Service>) -> Adapter {
        let ip = address(number);
        let local = LocalPort {
            id: PORT,
            mac: mac(ip),
            vlan: None,
            addresses: vec![ip],
            restrictions: Restrictions::default(),
            mtu: 4200,
            path_mtu: PathMtu::Mtu4096,
        };
        let (mailbox, mut workers) = mailboxes(1);
        let control = Control::new(
            vec![Link { local: local.clone(), events: VecDeque::new() }],
            ControlParts {
                cm: Cm::new(CmConfig::new(u64::from(number) << 8 | u64::from(seed), [seed; 32])),
                listens,
                factories: Arc::from(Vec::new()),
                allowed: Vec::new(),
                requests_per_second: 0,
                mailbox,
                traffic_class: TrafficClassConfig::default(),
            },
        );
        let control = control.unwrap_or_else(|never| match never {});
        let mut engine = Engine::new(EngineConfig { seed: [seed; 32], ..EngineConfig::default() });
        let parts = ServiceHostParts {
            worker: 0,
            services: vec![("test", service)],
            allocator: Arc::new(HeapAllocator),
            regions: Vec::new(),
            ports: Arc::from([local]),
            mailbox: workers.remove(0),
            events: event_ring(&Listening::default()).0,
            seed: [seed; 32],
        };
        let mut services = ServiceHost::new(parts, &mut engine).expect("a completion queue");
        services.start(now, &mut engine);
        Adapter { control, engine, services }
    }

    /// One turn of its loop. Returns whether there was something to do.
    fn turn(&mut self, now: Instant, tx: &mut TxFrames) -> bool {
        let mut busy = self.control.poll(now, tx);
        busy |= self.services.read_mail(now, &mut self.engine);
        self.engine.handle_timeout(now);
        busy |= self.services.poll(now, &mut self.engine);
        busy | (self.engine.transmit(now, tx) > 0)
    }

    fn receive(&mut self, now: Instant, frame: &[u8]) {
        let Ok(Frame::Roce(packet)) = classify(frame) else { panic!("not a RoCE frame") };
        if packet.dest_qp() == 1 {
            self.control.handle_gsi(now, PORT, &packet);
        } else {
            self.engine.receive(now, PORT, &packet);
        }
    }
}

/// The adapters by number, and the time.
pub struct Network {
    pub now: Instant,
    adapters: BTreeMap<u8, Adapter>,
    /// Loses one of this number of frames; 0 loses none.
    pub loss: u64,
    rng: Rng,
    started: u8,
    /// Keeps the frames that adapters send.
    pub sent: Option<Vec<Vec<u8>>>,
}

impl Network {
    pub fn new(seed: u64) -> Network {
        let now = Instant::from_nanos(1_000_000_000);
        Network { now, adapters: BTreeMap::new(), loss: 0, rng: Rng(seed), started: 0, sent: None }
    }

    /// Starts an adapter, in the place of one that is cut off, if there is one.
    pub fn start(&mut self, number: u8, listens: Vec<(usize, Listen)>, service: Box<dyn Service>) {
        self.started += 1;
        let adapter = Adapter::new(self.now, number, self.started, listens, service);
        self.adapters.insert(number, adapter);
    }

    /// An adapter vanishes: nothing comes from it and nothing reaches it.
    pub fn cut(&mut self, number: u8) -> Option<Adapter> {
        self.adapters.remove(&number)
    }

    /// A cut adapter comes back as it was.
    pub fn join(&mut self, number: u8, adapter: Adapter) {
        self.adapters.insert(number, adapter);
    }

    /// Something happens to the host of an adapter.
    #[allow(dead_code)] // It is in two modules, and not used in both.
    pub fn host_event(&mut self, number: u8, event: HostEvent<u32>) {
        let host = self.adapters.get_mut(&number).and_then(|adapter| adapter.control.host_mut(PORT));
        host.expect("a port").events.push_back(event);
    }

    pub fn adapter(&self, number: u8) -> &Adapter {
        &self.adapters[&number]
    }

    /// One turn of all adapters, and the delivery of their frames. Returns whether there was something to do.
    pub fn turn(&mut self) -> bool {
        let mut tx = TxFrames::default();
        let mut busy = false;
        for adapter in self.adapters.values_mut() {
            busy |= adapter.turn(self.now, &mut tx);
        }
        for (_, frame) in std::mem::take(&mut tx.frames) {
            if self.loss > 0 && self.rng.below(self.loss) == 0 {
                continue;
            }
            if let Some(sent) = &mut self.sent {
                sent.push(frame.clone());
            }
            // The last byte of the destination's MAC address.
            if let Some(adapter) = self.adapters.get_mut(&frame[5]) {
                adapter.receive(self.now, &frame);
            }
        }
        busy
    }

    /// The messages that made the connections of an adapter, as management asks for them.
    pub fn handshakes(&mut self, number: u8) -> Vec<Handshake> {
        let (reply, answer) = sync_channel(1);
        let adapter = self.adapters.get_mut(&number).expect("an adapter");
        Question::Handshakes { from: 0, reply }.answer(self.now, &mut adapter.engine, &mut adapter.services);
        self.settle();
        answer.try_recv().expect("the answer").items
    }

    /// Turns until all adapters are idle.
    pub fn settle(&mut self) {
        let mut idle = 0;
        for _ in 0..10_000 {
            idle = if self.turn() { 0 } else { idle + 1 };
            if idle == 3 {
                return;
            }
        }
        panic!("the adapters are never idle");
    }

    /// Lets time pass, in steps of 10 ms or a fiftieth of the time.
    pub fn advance(&mut self, time: Duration) {
        let end = self.now + time;
        let step = (time / 50).max(Duration::from_millis(10));
        while self.now < end {
            self.now += step;
            self.settle();
        }
    }
}
