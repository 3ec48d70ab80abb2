//! Outbound connections: one adapter with two ports on one veth pair, whose service requests connections, datagram queue
//! pairs and paths from itself over the wire; requests are accepted, rejected or not answered. Two lcores, so that the ends
//! are on different ones. Needs root, for a network namespace.

use std::sync::{Arc, Mutex, OnceLock};

use rxe_dpdk::prelude::*;
use rxe_dpdk::rxe_proto::wire::cm::{Rej, SidrStatus};
use rxe_dpdk::worker::IdlePolicy;

use rxe_testkit::child::{self, ip};

/// Serves connections and datagrams.
const SERVES: u16 = 7000;
/// Rejects connections and SIDR requests.
const REFUSES: u16 = 7001;
const BUFFER: usize = 256;
/// Content of the server's memory, for READs.
const TREASURE: &[u8; 16] = b"a treasure chest";

/// The requests, one after the other. The connection of the last one stays until the adapter stops.
const STEPS: [Step; 14] = [
    Step::Path("10.77.0.2"),
    Step::Path("10.77.0.99"),
    Step::Connect("10.77.0.2:7000", 5),
    Step::Connect("[fd77::2]:7000", 5),
    Step::Connect("10.77.0.2:7001", 5),
    Step::Connect("10.77.0.2:9", 5),
    Step::Connect("10.77.0.99:7000", 5),
    Step::Connect("192.0.2.1:7000", 5),
    Step::Connect("10.77.0.2:7000", 57),
    Step::Datagram("10.77.0.2:7000"),
    Step::Datagram("10.77.0.2:7001"),
    Step::Datagram("10.77.0.2:9"),
    Step::Datagram("192.0.2.1:7000"),
    Step::Stay("10.77.0.2:7000"),
];

#[derive(Clone, Copy)]
enum Step {
    Path(&'static str),
    /// With this many bytes of private data.
    Connect(&'static str, usize),
    Datagram(&'static str),
    /// A connection that stays.
    Stay(&'static str),
}

/// Log lines of the client and the server.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<[Vec<String>; 2]>>, Arc<Mutex<Vec<Qpn>>>);

impl Log {
    fn client(&self, line: impl Into<String>) {
        self.0.lock().unwrap()[0].push(line.into());
    }

    /// The server has answered with this datagram queue pair.
    fn answered(&self, qp: QueuePair<Ud>) {
        self.1.lock().unwrap().push(qp.qpn());
    }

    fn has_answered(&self, qpn: Qpn) -> bool {
        self.1.lock().unwrap().contains(&qpn)
    }

    fn server(&self, line: impl Into<String>) {
        self.0.lock().unwrap()[1].push(line.into());
    }
}

struct Both {
    log: Log,
    stop: Arc<OnceLock<StopHandle>>,
}

impl ServiceFactory for Both {
    fn name(&self) -> &'static str {
        "both"
    }

    fn listen(&self) -> Vec<Listen> {
        vec![Listen::cm(SERVES), Listen::cm(REFUSES), Listen::datagrams(SERVES), Listen::datagrams(REFUSES)]
    }

    fn create(&self, _worker: usize) -> Box<dyn Service> {
        let (log, stop) = (self.log.clone(), Arc::clone(&self.stop));
        Box::new(Instance { log, stop, memory: None, step: 0, client: None, conn: None })
    }

    /// The client is on the first worker; in turn it would be the first one's part to refuse.
    fn worker_for(&self, request: &ConnectRequest, workers: usize) -> Option<usize> {
        (request.dest.1 == REFUSES || request.private_data.starts_with(b"stay!")).then_some(workers - 1)
    }
}

struct Instance {
    log: Log,
    stop: Arc<OnceLock<StopHandle>>,
    memory: Option<MemoryRegion>,
    /// The next of [`STEPS`].
    step: usize,
    /// The client's queue pair.
    client: Option<Qpn>,
    conn: Option<ConnId>,
}

impl Instance {
    fn buffer(&self, length: usize) -> Sge {
        let memory = self.memory.as_ref().unwrap();
        Sge { addr: memory.addr(), length: length as u32, lkey: memory.lkey() }
    }

    fn queue_pair(&self, cx: &mut Context<'_>) -> QueuePair<Rc> {
        let attr = cx.qp_attr();
        let mut dev = cx.device();
        let pd = self.memory.as_ref().unwrap().pd().into();
        let qp = dev.create_qp_in_init(pd, attr, Access::REMOTE_READ).unwrap();
        dev.post_recv(qp, RecvWr { wr_id: 0, sges: &[self.buffer(BUFFER)] }).unwrap();
        qp
    }

    /// Starts the next step.
    fn next_step(&mut self, cx: &mut Context<'_>) {
        let Some(&step) = STEPS.get(self.step) else { return };
        self.step += 1;
        match step {
            Step::Path(remote) => cx.resolve_path(remote.parse().unwrap(), self.step as u64),
            Step::Datagram(remote) => {
                cx.resolve_datagram(remote.parse().unwrap(), self.step as u64, b"service?".to_vec());
            }
            Step::Connect(remote, _) | Step::Stay(remote) => {
                let private_data = match step {
                    Step::Connect(_, length) => b"knock".iter().copied().cycle().take(length).collect(),
                    _ => b"stay!".to_vec(),
                };
                let qp = self.queue_pair(cx);
                self.client = Some(qp.qpn());
                cx.connect(Connect {
                    private_data,
                    initiator_depth: 200,
                    responder_resources: 1,
                    // Ours only: the peer must not use it.
                    rnr_retry_count: 1,
                    ..Connect::new(remote.parse().unwrap(), qp)
                });
            }
        }
    }
}

/// The part of `bytes` in front of the zeros.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

impl Service for Instance {
    fn start(&mut self, cx: &mut Context<'_>) {
        let memory = cx.alloc_memory(BUFFER).unwrap();
        let mut dev = cx.device();
        let pd = dev.alloc_pd();
        self.memory = Some(dev.reg_mr(pd, memory, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap());
        if cx.worker() == 0 {
            self.next_step(cx);
        }
    }

    fn connect_request(&mut self, cx: &mut Context<'_>, request: &ConnectRequest) -> Decision {
        let said = text(&request.private_data);
        if request.dest.1 == REFUSES {
            self.log.server(format!("refuses {said} on worker {}", cx.worker()));
            return Decision::refuse("go away");
        }
        self.log.server(format!("asked by {}: {said}, {}", request.source.0, request.path_mtu.bytes()));
        let memory = self.memory.as_ref().unwrap();
        memory.memory().write(0, TREASURE).unwrap();
        // Address and key for the READ of the client.
        let private_data = [&memory.addr().to_be_bytes()[..], &memory.rkey().to_be_bytes()].concat();
        let qp = self.queue_pair(cx);
        Decision::Accept(Accept { responder_resources: 4, initiator_depth: 1, private_data, ..Accept::new(qp) })
    }

    fn connect_reply(&mut self, cx: &mut Context<'_>, conn: ConnId, qp: Qpn, reply: &ConnectReply) {
        assert_eq!(self.client, Some(qp));
        let depths = (reply.responder_resources, reply.initiator_depth);
        self.log.client(format!("granted {depths:?}"));
        self.conn = Some(conn);
        let [a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, ..] = reply.private_data;
        let addr = u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]);
        let remote = RemoteAddr { addr, rkey: u32::from_be_bytes([k0, k1, k2, k3]) };
        let mut dev = cx.device();
        let qp = dev.find_qp::<Rc>(qp).unwrap();
        dev.post_send(qp, WorkRequest::read(&[self.buffer(TREASURE.len())], remote).wr_id(2).signaled()).unwrap();
    }

    fn connect_rejected(&mut self, _cx: &mut Context<'_>, _conn: ConnId, qp: Qpn, rej: &Rej) {
        assert_eq!(self.client, Some(qp));
        self.log.client(format!("rejected: {}", text(&rej.private_data)));
    }

    fn connected(&mut self, cx: &mut Context<'_>, _conn: ConnId, qp: Qpn) {
        // The default of both sides: retry without limit.
        assert_eq!(cx.device().query_qp(AnyQueuePair::from(qp)).map(|info| info.sends.rnr_retry), Ok(7));
        if self.client == Some(qp) { self.log.client("connected") } else { self.log.server("connected") }
    }

    fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) {
        let client = self.client == Some(wc.qpn);
        if wc.status != WcStatus::Success {
            return;
        }
        match wc.opcode {
            WcOpcode::RdmaRead if client => {
                let mut read = [0; TREASURE.len()];
                self.memory.as_ref().unwrap().memory().read(0, &mut read).unwrap();
                self.log.client(format!("read {}", text(&read)));
                let message = [self.buffer(8)];
                let send = WorkRequest::<Rc>::send(&message).wr_id(1).signaled();
                cx.device().post_send(wc.qp(), send.into()).unwrap();
            }
            WcOpcode::Recv => self.log.server(format!("got {} bytes", wc.byte_len)),
            WcOpcode::Send if client => match STEPS[self.step - 1] {
                Step::Stay(_) => self.stop.get().unwrap().stop(),
                _ => cx.disconnect(self.conn.unwrap()),
            },
            other => panic!("{other:?}"),
        }
    }

    fn disconnected(&mut self, cx: &mut Context<'_>, _conn: ConnId, qp: Qpn, reason: EndReason) {
        if self.client.take_if(|client| *client == qp).is_some() {
            self.log.client(format!("{reason:?}"));
            self.next_step(cx);
        } else {
            self.log.server("over");
        }
    }

    fn datagram_request(&mut self, cx: &mut Context<'_>, request: &SidrRequest) -> DatagramDecision {
        self.log.server(format!("datagrams: {}", text(&request.private_data)));
        if request.dest.1 == REFUSES {
            return DatagramDecision::Refuse { status: SidrStatus::NoQp };
        }
        let attr = cx.qp_attr();
        let qp = cx.device().create_qp(self.memory.as_ref().unwrap().pd().into(), attr).unwrap();
        self.log.answered(qp);
        DatagramDecision::Accept { qp: qp.into(), qkey: 0x0123_4567, private_data: b"this one".to_vec() }
    }

    fn datagram_resolved(&mut self, cx: &mut Context<'_>, token: u64, result: Result<&DatagramPeer, ResolveError>) {
        assert_eq!(token, self.step as u64);
        self.log.client(match result {
            Ok(peer) => {
                assert!(self.log.has_answered(peer.qpn));
                format!("{:#x} {} at {}", peer.qkey, text(&peer.private_data), peer.path.path.dst.ip())
            }
            Err(error) => format!("{error:?}"),
        });
        self.next_step(cx);
    }

    fn path_resolved(&mut self, cx: &mut Context<'_>, token: u64, path: Option<&PeerPath>) {
        assert_eq!(token, self.step as u64);
        self.log.client(match path {
            Some(PeerPath { path, path_mtu }) => {
                assert_ne!(path.src_mac, path.dst_mac);
                format!("port {}: {} to {}, {}", path.port.0, path.src.ip(), path.dst.ip(), path_mtu.bytes())
            }
            None => "no path".to_owned(),
        });
        self.next_step(cx);
    }
}

#[test]
fn service_connects_resolves_and_is_rejected_over_the_wire() {
    child::in_namespace(inside);
}

fn inside() {
    ip("link add t0 type veth peer name t1");
    ip("link set t0 addrgenmode none up");
    ip("link set t1 addrgenmode none up");
    let args = "--no-huge -m 512 --no-pci --no-telemetry --no-shconf -l 0,1 --vdev=net_af_packet0,iface=t0 \
                --vdev=net_af_packet1,iface=t1";
    let args: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
    let port = |addresses: [&str; 2]| {
        let addresses = addresses.map(|address| address.parse().unwrap()).into();
        PortSettings { addresses, mtu: Some(1500), ..PortSettings::default() }
    };
    let config = RuntimeConfig {
        ports: vec![port(["10.77.0.1/24", "fd77::1/64"]), port(["10.77.0.2/24", "fd77::2/64"])],
        idle: IdlePolicy::Sleep(Duration::from_micros(50)),
        ..RuntimeConfig::default()
    };
    let (log, stop) = (Log::default(), Arc::new(OnceLock::new()));
    let both = Both { log: log.clone(), stop: Arc::clone(&stop) };
    let runtime = Runtime::new(Eal::init(&args).unwrap(), config, vec![Box::new(both)]).unwrap();
    stop.set(runtime.stop_handle()).unwrap();
    // Stops the adapter when a step does not end.
    let (handle, (done, ended)) = (runtime.stop_handle(), std::sync::mpsc::channel::<()>());
    let watcher = std::thread::spawn(move || {
        let _ = ended.recv_timeout(Duration::from_secs(60));
        handle.stop();
    });
    let summary = runtime.run().unwrap();
    drop(done);
    watcher.join().unwrap();
    println!("{summary}");

    let [client, server] = std::mem::take(&mut *log.0.lock().unwrap());
    println!("{client:#?}\n{server:#?}");
    let good = ["granted (4, 1)", "connected", "read a treasure chest", "Disconnected(Local)"];
    let expected: Vec<&str> = [
        &["port 0: 10.77.0.1 to 10.77.0.2, 1024", "no path"][..],
        &good,
        &good,
        &["rejected: go away", "NotEstablished(PeerRejected(ConsumerDefined))"],
        &["rejected: ", "NotEstablished(PeerRejected(InvalidServiceId))"],
        &["NoPath", "NoPath", "ReqNotSent(TooLong)"],
        &["0x1234567 this one at 10.77.0.2", "Refused(NoQp)", "Refused(ServiceIdNotSupported)", "NoPath"],
        &good[..3],
    ]
    .concat();
    // The end of the last connection is reported only if it precedes the end of the adapter.
    let (in_order, rest) = client.split_at(expected.len());
    assert_eq!(in_order, expected);
    assert!(rest.iter().all(|line| line.starts_with("Disconnected(")) && rest.len() <= 1, "{rest:?}");
    let count = |line: &str| server.iter().filter(|said| *said == line).count();
    assert_eq!(count("asked by 10.77.0.1: knock, 1024"), 1);
    assert_eq!(count("asked by fd77::1: knock, 1024"), 1);
    assert_eq!(count("asked by 10.77.0.1: stay!, 1024"), 1);
    assert_eq!((count("connected"), count("got 8 bytes")), (3, 3));
    assert!((2..=3).contains(&count("over")));
    assert_eq!((count("refuses knock on worker 1"), count("datagrams: service?")), (1, 2));

    let get = |group: &str, name: &str| summary.counters.get(group, name);
    assert_eq!(get("control", "connect_asked"), Some(5));
    assert_eq!(get("control", "path_unresolved"), Some(4));
    assert_eq!(get("service", "connections_asked"), Some(8));
    assert_eq!((get("service", "datagrams_accepted"), get("service", "datagrams_refused")), (Some(1), Some(1)));
    assert_eq!((get("cm", "req_timeout"), get("cm", "rx_rep_unknown")), (Some(0), Some(0)));
    assert_eq!(summary.mbufs_leaked, 0);
}
