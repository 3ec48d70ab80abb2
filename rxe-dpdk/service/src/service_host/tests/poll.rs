//! Services that are polled.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use rxe_proto::transport::{RtrAttr, RtsAttr};
use rxe_proto::verbs::{Payload, QueuePair, Transition, Uc, WorkRequest};
use rxe_proto::wire::{Path, PathMtu, Psn};

use super::*;
use crate::inspect::Question;
use crate::test_env::{PEER_IP, PEER_MAC};

/// Settings and recorded calls of a service.
#[derive(Default)]
struct Script {
    wants_poll: AtomicBool,
    outstanding: AtomicUsize,
    calls: Mutex<Vec<&'static str>>,
}

impl Script {
    fn calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    fn call(&self, call: &'static str) {
        self.calls.lock().unwrap().push(call);
    }
}

/// Has a UC queue pair in RTS with a receive, and sends a message from each poll.
struct Polled {
    script: Arc<Script>,
    qp: Option<QueuePair<Uc>>,
}

impl Service for Polled {
    fn start(&mut self, cx: &mut Context<'_>) {
        let path = Path {
            src_mac: OUR_MAC,
            dst_mac: PEER_MAC,
            src: std::net::IpAddr::from(OUR_IP).into(),
            dst: std::net::IpAddr::from(PEER_IP).into(),
            ..Path::default()
        };
        let attr = cx.qp_attr().with_caps(CAPS);
        let mut dev = cx.device();
        let pd = dev.alloc_pd();
        let qp: QueuePair<Uc> = dev.create_qp_in_init(pd, attr, Access::empty()).unwrap();
        dev.post_recv(qp, RecvWr { wr_id: 0, sges: &[] }).unwrap();
        let rtr = RtrAttr {
            path,
            path_mtu: PathMtu::Mtu1024,
            dest_qpn: Qpn::new(0x11),
            rq_psn: Psn::default(),
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
        };
        dev.modify_qp(qp, Transition::to_rtr(rtr)).unwrap();
        let rts = RtsAttr { sq_psn: Psn::default(), timeout: 0, retry_cnt: 0, rnr_retry: 0, max_rd_atomic: 0 };
        dev.modify_qp(qp, Transition::to_rts(rts)).unwrap();
        self.qp = Some(qp);
        // Read after this call only.
        self.script.wants_poll.store(true, Relaxed);
    }

    fn wants_poll(&self) -> bool {
        self.script.wants_poll.load(Relaxed)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Outstanding {
        self.script.call("poll");
        // A queue pair in error takes no work.
        let _ = cx.device().post_send(self.qp.unwrap(), WorkRequest::send(Payload::EMPTY));
        Outstanding(self.script.outstanding.load(Relaxed))
    }

    fn completion(&mut self, _cx: &mut Context<'_>, _wc: &WorkCompletion) {
        self.script.call("completion");
    }

    fn timer(&mut self, _cx: &mut Context<'_>, _token: u64) {
        self.script.call("timer");
    }
}

/// Does not want to be polled.
struct Unpolled;

impl Service for Unpolled {
    fn poll(&mut self, _cx: &mut Context<'_>) -> Outstanding {
        panic!("polled");
    }
}

/// Two services that are polled, numbers 0 and 2, around one that is not.
fn polled(engine: &mut Engine) -> (ServiceHost, [Arc<Script>; 2]) {
    let scripts: [Arc<Script>; 2] = Default::default();
    let [first, last] = scripts.clone().map(|script| -> Box<dyn Service> { Box::new(Polled { script, qp: None }) });
    let mut host = host_of(engine, vec![first, Box::new(Unpolled), last], mailboxes(1).1.remove(0));
    assert!(!host.poll(Instant::ZERO, engine), "not before the start");
    host.start(Instant::ZERO, engine);
    (host, scripts)
}

#[test]
fn services_that_want_it_are_polled_once_per_turn() {
    let mut engine = Engine::new(EngineConfig::default());
    let (mut host, scripts) = polled(&mut engine);
    for _ in 0..3 {
        assert!(!host.poll(Instant::ZERO, &mut engine), "a poll is no work");
        assert_eq!(scripts.each_ref().map(|script| script.calls()), [["poll"], ["poll"]]);
    }
}

#[test]
fn a_poll_follows_all_other_calls_of_the_turn() {
    let mut engine = Engine::new(EngineConfig::default());
    let (mut host, scripts) = polled(&mut engine);
    host.call(Instant::ZERO, &mut engine, 0, |_, cx| cx.set_timer(rxe_proto::Duration::ZERO, 0));
    let qpn = engine.qps().next().unwrap().qpn;
    engine.modify_qp(qpn, QpTransition::ToError).unwrap();
    assert!(host.poll(Instant::ZERO, &mut engine));
    let calls = scripts.each_ref().map(|script| script.calls());
    let failed = calls.iter().find(|calls| calls.contains(&"completion")).unwrap();
    assert_eq!((failed.first(), failed.last()), (Some(&"completion"), Some(&"poll")));
    assert!(calls[0].ends_with(&["timer", "poll"]), "{calls:?}");
}

#[test]
fn work_requests_of_a_poll_are_transmitted_in_the_same_turn() {
    let mut engine = Engine::new(EngineConfig::default());
    let (mut host, _) = polled(&mut engine);
    assert!(!engine.wants_transmit());
    host.poll(Instant::ZERO, &mut engine);
    assert!(engine.wants_transmit());
}

#[test]
fn outstanding_operations_of_all_services_add_up() {
    let mut engine = Engine::new(EngineConfig::default());
    let (mut host, scripts) = polled(&mut engine);
    let mut turn = |counts: [usize; 2]| {
        scripts.iter().zip(counts).for_each(|(script, count)| script.outstanding.store(count, Relaxed));
        let busy = host.poll(Instant::ZERO, &mut engine);
        let (reply, answer) = mpsc::sync_channel(1);
        Question::Counts { reply }.answer(Instant::ZERO, &mut engine, &mut host);
        assert_eq!(answer.try_recv().unwrap().operations, host.outstanding().0);
        (host.outstanding().0, busy)
    };
    assert_eq!(turn([0, 0]), (0, false));
    assert_eq!(turn([3, 4]), (7, false));
    assert_eq!(turn([3, 4]), (7, false), "waiting is no work");
    assert_eq!(turn([3, 2]), (5, true), "operations have completed");
    assert_eq!(turn([usize::MAX, 2]), (usize::MAX, false));
    assert_eq!(turn([0, 5]), (5, true));
    host.count_left(&engine);
    assert_eq!(host.stats().operations_left.get(), 5);
}
