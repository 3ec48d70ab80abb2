mod change;
mod connections;
mod env;
mod instances;
mod poll;
mod streams;

use std::sync::mpsc::{self, Receiver};

use rxe_proto::mem::{HeapAllocator, PdId};
use rxe_proto::verbs::{Access, AnyQueuePair, EngineConfig, QpCaps, QpInit, QpTransition, QpType, Rc, RecvWr};

use super::*;
use crate::events::{Listening, event_ring};
use crate::mailbox::{WorkerMailbox, mailboxes};
use crate::test_env::{OUR_IP, OUR_MAC, ScriptedHost};

const CAPS: QpCaps = QpCaps { max_send_wr: 1, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };

/// Posts a receive for each completion, and sets a timer for now in each timer callback.
struct Restless {
    calls: mpsc::Sender<u64>,
    qp: Option<AnyQueuePair>,
}

impl Service for Restless {
    fn start(&mut self, cx: &mut Context<'_>) {
        let attr = cx.qp_attr().with_caps(CAPS);
        let mut dev = cx.device();
        let pd = dev.alloc_pd();
        let qp = dev.create_qp_in_init::<Rc>(pd, attr, Access::empty()).unwrap();
        for wr_id in 0..8 {
            dev.post_recv(qp, RecvWr { wr_id, sges: &[] }).unwrap();
        }
        self.qp = Some(qp.into());
    }

    fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) {
        self.calls.send(wc.wr_id).unwrap();
        cx.device().post_recv(wc.qp(), RecvWr { wr_id: wc.wr_id, sges: &[] }).unwrap();
    }

    fn timer(&mut self, cx: &mut Context<'_>, token: u64) {
        self.calls.send(token).unwrap();
        cx.set_timer(rxe_proto::Duration::ZERO, token);
    }
}

fn host(engine: &mut Engine) -> (ServiceHost, Receiver<u64>) {
    let (calls, called) = mpsc::channel();
    let host = host_of(engine, vec![Box::new(Restless { calls, qp: None })], mailboxes(1).1.remove(0));
    (host, called)
}

/// Worker 0 with these services.
fn host_of(engine: &mut Engine, services: Vec<Box<dyn Service>>, mailbox: WorkerMailbox) -> ServiceHost {
    worker_of(0, engine, services, mailbox)
}

fn worker_of(
    worker: usize,
    engine: &mut Engine,
    services: Vec<Box<dyn Service>>,
    mailbox: WorkerMailbox,
) -> ServiceHost {
    let port = ScriptedHost::new(0, OUR_IP, OUR_MAC).local;
    let parts = ServiceHostParts {
        worker,
        services: services.into_iter().map(|service| ("test", service)).collect(),
        allocator: Arc::new(HeapAllocator),
        regions: Vec::new(),
        ports: Arc::from([port]),
        mailbox,
        events: event_ring(&Listening::default()).0,
        seed: [1; 32],
    };
    ServiceHost::new(parts, engine).unwrap()
}

#[test]
fn posting_to_a_queue_pair_in_error_does_not_block_the_worker() {
    let mut engine = Engine::new(EngineConfig::default());
    let (mut host, called) = host(&mut engine);
    let now = Instant::ZERO;
    host.start(now, &mut engine);
    let qpn = engine.qps().next().unwrap().qpn;
    engine.modify_qp(qpn, QpTransition::ToError).unwrap();
    assert!(host.poll(now, &mut engine));
    let calls = called.try_iter().count();
    // The depth of its completion queue.
    assert_eq!(calls, 1 + 8 + 1);
    assert!(host.poll(now, &mut engine), "there is more in the next turn");
    assert_eq!(called.try_iter().count(), calls);
}

#[test]
fn a_timer_set_for_now_in_a_timer_callback_fires_in_the_next_turn() {
    let mut engine = Engine::new(EngineConfig::default());
    let (mut host, called) = host(&mut engine);
    let now = Instant::ZERO;
    for token in [5, 6] {
        host.call(now, &mut engine, 0, |_, cx| cx.set_timer(rxe_proto::Duration::ZERO, token));
    }
    for _ in 0..3 {
        assert!(host.poll(now, &mut engine));
        assert_eq!(called.try_iter().count(), 2);
    }
}

#[test]
fn completions_of_a_queue_without_a_service_are_discarded() {
    let mut engine = Engine::new(EngineConfig::default());
    let (mut host, called) = host(&mut engine);
    let (now, cq) = (Instant::ZERO, engine.create_cq(64).unwrap());
    let pd: PdId = engine.keys_mut().alloc_pd();
    let (send_cq, recv_cq) = (cq, cq);
    let init = QpInit { qp_type: QpType::Rc, pd, send_cq, recv_cq, srq: None, caps: CAPS, sq_sig_all: false };
    let qpn = engine.create_qp(now, &init).unwrap();
    engine.modify_qp(qpn, QpTransition::ToInit { access: Access::empty() }).unwrap();
    for wr_id in 0..8 {
        engine.post_recv(qpn, &RecvWr { wr_id, sges: &[] }).unwrap();
    }
    engine.modify_qp(qpn, QpTransition::ToError).unwrap();
    for _ in 0..9 {
        host.poll(now, &mut engine);
    }
    assert!(!host.poll(now, &mut engine));
    assert_eq!((called.try_iter().count(), host.stats.completions_unclaimed.get()), (0, 8));
    assert_eq!(host.stats.completions.get(), 0);
}
