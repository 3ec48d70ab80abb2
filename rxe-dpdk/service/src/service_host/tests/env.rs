//! A service host with an engine, under a control side with a scripted IP host and a peer.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};

use rxe_proto::cm::{ConnId, ConnectReply, ConnectRequest, SidrRequest};
use rxe_proto::mem::HeapAllocator;
use rxe_proto::verbs::{
    Access, AnyQueuePair, Connected, Engine, EngineConfig, Qpn, QueuePair, Rc, RecvWr, Uc, WorkCompletion,
};
use rxe_proto::wire::cm::Rej;
use rxe_proto::wire::{
    BthFields, BthOpcode, DEFAULT_PKEY, Frame, HeaderTemplate, Opcode, Path, PortId, Psn, Transport, classify,
};

use super::CAPS;
use crate::change::Change;
use crate::context::Context;
use crate::events::{EventReceiver, Listening, event_ring};
use crate::inspect::Question;
use crate::messages::{Connect, EndReason, StreamId, ToWorker};
use crate::service::{Accept, DatagramDecision, Decision, Listen, Service};
use crate::service_host::{ServiceHost, ServiceHostParts};
use crate::test_env::{OUR_IP, OUR_MAC, PEER_IP, PEER_MAC, TestEnv};

/// The CM port of the service, in both port spaces.
pub const PORT: u16 = 7174;
/// The TCP port of the service.
pub const TCP_PORT: u16 = 18_515;
/// The number of the service.
pub const SERVICE: usize = 0;

/// A call of the service.
#[derive(Debug, PartialEq)]
pub enum Call {
    Reply(ConnId, Qpn),
    Rejected(ConnId, Qpn),
    Connected(ConnId, Qpn),
    Completion(u64),
    Disconnected(Qpn, EndReason),
    Data(Vec<u8>),
    Closed(bool),
    /// A region was added; the names of all of them.
    Added(String, Vec<String>),
    /// The same for a region that was removed.
    Removed(String, Vec<String>),
}

/// The service's answer to requests.
pub enum Answer {
    Reliable,
    Unreliable,
    Refuse(Vec<u8>),
}

/// Reports every call, and answers as a test says.
struct Scripted {
    calls: Sender<Call>,
    answers: Receiver<Answer>,
}

/// A queue pair in INIT with one receive.
pub fn make_qp<T: Connected>(cx: &mut Context<'_>) -> QueuePair<T> {
    let attr = cx.qp_attr().with_caps(CAPS);
    let mut dev = cx.device();
    let pd = dev.alloc_pd();
    let qp = dev.create_qp_in_init(pd, attr, Access::empty()).unwrap();
    dev.post_recv(qp, RecvWr { wr_id: 1, sges: &[] }).unwrap();
    qp
}

fn region_names(cx: &Context<'_>) -> Vec<String> {
    cx.regions().iter().map(|region| region.name.clone()).collect()
}

impl Scripted {
    fn report(&self, call: Call) {
        self.calls.send(call).unwrap();
    }
}

impl Service for Scripted {
    fn connect_request(&mut self, cx: &mut Context<'_>, _request: &ConnectRequest) -> Decision {
        let qp: AnyQueuePair = match self.answers.try_recv().unwrap_or(Answer::Reliable) {
            Answer::Refuse(private_data) => {
                return Decision::Reject { reason: rxe_proto::wire::cm::RejReason::ConsumerDefined, private_data };
            }
            Answer::Reliable => make_qp::<Rc>(cx).into(),
            Answer::Unreliable => make_qp::<Uc>(cx).into(),
        };
        let private_data = b"welcome".to_vec();
        Decision::Accept(Accept { responder_resources: 1, initiator_depth: 1, private_data, ..Accept::new(qp) })
    }

    fn connect_reply(&mut self, _cx: &mut Context<'_>, conn: ConnId, qp: Qpn, _reply: &ConnectReply) {
        self.report(Call::Reply(conn, qp));
    }

    fn connect_rejected(&mut self, _cx: &mut Context<'_>, conn: ConnId, qp: Qpn, _rej: &Rej) {
        self.report(Call::Rejected(conn, qp));
    }

    fn connected(&mut self, _cx: &mut Context<'_>, conn: ConnId, qp: Qpn) {
        self.report(Call::Connected(conn, qp));
    }

    fn disconnected(&mut self, _cx: &mut Context<'_>, _conn: ConnId, qp: Qpn, reason: EndReason) {
        self.report(Call::Disconnected(qp, reason));
    }

    fn completion(&mut self, _cx: &mut Context<'_>, wc: &WorkCompletion) {
        self.report(Call::Completion(wc.wr_id));
    }

    fn datagram_request(&mut self, _cx: &mut Context<'_>, _request: &SidrRequest) -> DatagramDecision {
        DatagramDecision::Accept { qp: Qpn::new(0x77).into(), qkey: 5, private_data: vec![9; 200] }
    }

    fn stream_data(&mut self, _cx: &mut Context<'_>, _stream: StreamId, data: &[u8]) {
        self.report(Call::Data(data.to_vec()));
    }

    fn stream_closed(&mut self, _cx: &mut Context<'_>, _stream: StreamId, reset: bool) {
        self.report(Call::Closed(reset));
    }

    fn region_added(&mut self, cx: &mut Context<'_>, name: &str) {
        self.report(Call::Added(name.to_owned(), region_names(cx)));
    }

    fn region_removed(&mut self, cx: &mut Context<'_>, name: &str) {
        self.report(Call::Removed(name.to_owned(), region_names(cx)));
    }

    fn manage(&mut self, _cx: &mut Context<'_>, request: &str) -> Result<String, String> {
        if request == "no" { Err("I refuse".to_owned()) } else { Ok(request.to_uppercase()) }
    }
}

/// [`TestEnv`] with a whole worker.
pub struct WorkerEnv {
    pub env: TestEnv,
    pub engine: Engine,
    pub host: ServiceHost,
    pub calls: Receiver<Call>,
    pub answers: Sender<Answer>,
    pub events: EventReceiver,
    inspector: crate::mailbox::WorkerInspector,
}

impl Deref for WorkerEnv {
    type Target = TestEnv;

    fn deref(&self) -> &TestEnv {
        &self.env
    }
}

impl DerefMut for WorkerEnv {
    fn deref_mut(&mut self) -> &mut TestEnv {
        &mut self.env
    }
}

impl WorkerEnv {
    pub fn new() -> WorkerEnv {
        let listens = [Listen::cm(PORT), Listen::datagrams(PORT), Listen::Tcp { port: TCP_PORT }];
        let mut env = TestEnv::new(1, listens.map(|listen| (SERVICE, listen)).into());
        let mut engine = Engine::new(EngineConfig::default());
        let ((reporter, calls), (answers, script)) = (mpsc::channel(), mpsc::channel());
        let listening = Listening::default();
        listening.set(true);
        let (sender, events) = event_ring(&listening);
        let parts = ServiceHostParts {
            worker: 0,
            services: vec![("scripted", Box::new(Scripted { calls: reporter, answers: script }))],
            allocator: Arc::new(HeapAllocator),
            regions: Vec::new(),
            ports: Arc::from([env.host().local.clone()]),
            mailbox: env.workers.remove(0),
            events: sender,
            seed: [7; 32],
        };
        let inspector = env.inspectors.remove(0);
        let mut host = ServiceHost::new(parts, &mut engine).unwrap();
        host.start(env.now, &mut engine);
        WorkerEnv { env, engine, host, calls, answers, events, inspector }
    }

    /// Runs control, worker and peer until nothing is left to do.
    pub fn run(&mut self) {
        // A worker without messages may still send some, which control answers.
        let mut idle = 0;
        while idle < 2 {
            self.env.exchange();
            let mut busy = self.host.read_mail(self.env.now, &mut self.engine);
            busy |= self.host.poll(self.env.now, &mut self.engine);
            idle = if busy { 0 } else { idle + 1 };
        }
    }

    pub fn calls(&mut self) -> Vec<Call> {
        self.calls.try_iter().collect()
    }

    /// The service requests a connection to `port` of the peer.
    pub fn connect(&mut self, port: u16) -> Qpn {
        self.connect_with(|qp| Connect::new((PEER_IP, port).into(), qp))
    }

    /// The service requests the connection that `connect` makes of a queue pair.
    pub fn connect_with(&mut self, connect: impl FnOnce(QueuePair<Rc>) -> Connect) -> Qpn {
        let qp = self.host.call(self.env.now, &mut self.engine, SERVICE, |_, cx| {
            let qp = make_qp(cx);
            cx.connect(connect(qp));
            qp.qpn()
        });
        self.run();
        qp
    }

    /// A SEND of the peer without payload arrives at `qp`.
    pub fn receive_send(&mut self, qp: Qpn, psn: Psn) {
        let template = HeaderTemplate::new(&Path {
            port: PortId(0),
            src_mac: PEER_MAC,
            dst_mac: OUR_MAC,
            vlan: None,
            src: std::net::IpAddr::from(PEER_IP).into(),
            dst: std::net::IpAddr::from(OUR_IP).into(),
            udp_src_port: 0xC000,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
        });
        let opcode = BthOpcode { transport: Transport::Rc, op: Opcode::SendOnly };
        let fields = BthFields { opcode, dest_qp: qp.get(), psn, solicited: false, ack_req: true, pkey: DEFAULT_PKEY };
        let mut frame = vec![0; template.frame_len(opcode, 0)];
        template.build(&mut frame, fields, 0).finish();
        let Ok(Frame::Roce(packet)) = classify(&frame) else { panic!("not a RoCE frame") };
        self.engine.receive(self.env.now, PortId(0), &packet);
        self.run();
    }

    /// Asks the worker, which answers.
    #[track_caller]
    pub fn ask<T>(&mut self, question: impl FnOnce(SyncSender<T>) -> Question) -> T {
        let (reply, answer) = mpsc::sync_channel(1);
        self.inspector.ask(question(reply)).unwrap();
        self.run();
        answer.try_recv().expect("no answer")
    }

    /// Changes the worker, which answers.
    #[track_caller]
    pub fn change<T>(&mut self, change: impl FnOnce(SyncSender<T>) -> Change) -> T {
        let (reply, answer) = mpsc::sync_channel(1);
        self.inspector.change(change(reply)).unwrap();
        self.run();
        answer.try_recv().expect("no answer")
    }

    /// A message that control does not send in this situation.
    pub fn inject(&mut self, message: ToWorker) {
        let (now, engine) = (self.env.now, &mut self.engine);
        self.host.handle_message(now, engine, message);
        self.run();
    }
}
