//! `connect-rate`: connections are established and closed at once, a number of them concurrently.

use std::collections::HashMap;
use std::sync::Arc;

use hdrhistogram::Histogram;
use rxe::CliError;
use rxe_dpdk::service::{Context, EndReason, Listen, Service, ServiceFactory};
use rxe_proto::cm::{ConnId, DisconnectReason};
use rxe_proto::verbs::{Access, ProtectionDomain, QpCaps, Qpn};
use rxe_proto::wire::PathMtu;
use rxe_proto::wire::cm::Rej;
use rxe_proto::{Duration, Instant};

use crate::load::LONGEST;
use crate::plan::Length;
use crate::report::{Latency, Outcome};
use crate::session::{Session, broken, connect, path_mtu, why_not, words_of};

/// Minimum size of a queue pair.
const CAPS: QpCaps = QpCaps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
/// Interval of the timer.
const TICK: Duration = Duration::from_millis(1);

/// Makes the service.
pub struct ConnectRateFactory(pub Arc<Session>);

impl ServiceFactory for ConnectRateFactory {
    fn name(&self) -> &'static str {
        "bench"
    }

    fn listen(&self) -> Vec<Listen> {
        Vec::new()
    }

    fn create(&self, _worker: usize) -> Box<dyn Service> {
        Box::new(ConnectRate {
            session: Arc::clone(&self.0),
            pd: None,
            asked: HashMap::new(),
            ended: 0,
            measured: None,
            times: None,
            refusal: None,
            path_mtu: PathMtu::Mtu256,
            over: false,
        })
    }
}

/// The service on one lcore.
struct ConnectRate {
    session: Arc<Session>,
    pd: Option<ProtectionDomain>,
    /// When each open connection was requested.
    asked: HashMap<Qpn, Instant>,
    /// Connections established and closed.
    ended: u64,
    /// Start of the measurement, and the number of closed connections at that time.
    measured: Option<(Instant, u64)>,
    /// Times from the request to the established connection.
    times: Option<Histogram<u64>>,
    refusal: Option<String>,
    path_mtu: PathMtu,
    over: bool,
}

impl ConnectRate {
    fn ask(&mut self, cx: &mut Context<'_>) -> Result<(), CliError> {
        let Some(pd) = self.pd else { return Ok(()) };
        let plan = &self.session.plan;
        let attr = cx.qp_attr().with_caps(CAPS);
        let qp = cx.device().create_qp_in_init(pd, attr, Access::empty()).map_err(broken)?;
        self.asked.insert(qp.qpn(), cx.now());
        cx.connect(connect(plan, qp, plan.region.as_bytes()));
        Ok(())
    }

    fn measure(&mut self, cx: &Context<'_>) {
        self.measured = Some((cx.now(), self.ended));
        self.times = Histogram::new_with_bounds(1, LONGEST, 3).ok();
    }

    /// Ends the run when the measurement is complete.
    fn look(&mut self, cx: &Context<'_>) {
        let Some((since, before)) = self.measured else { return };
        let (plan, count) = (&self.session.plan, self.ended - before);
        let time = cx.now().saturating_since(since);
        let enough = match plan.length {
            Length::Messages(each) => count >= each * u64::from(plan.qps),
            Length::Time(length) => time >= length,
        };
        if enough && !self.over {
            self.over = true;
            let outcome = Outcome::new(plan, 0, self.path_mtu.bytes() as u32, count, time.as_secs_f64());
            let lat_us = self.times.as_ref().map(Latency::of);
            self.session.end(Ok(vec![Outcome { lat_us, ..outcome }]));
        }
    }

    fn fail(&mut self, failure: CliError) {
        self.over = true;
        self.session.end(Err(failure));
    }
}

impl Service for ConnectRate {
    fn start(&mut self, cx: &mut Context<'_>) {
        if cx.worker() != 0 {
            return;
        }
        let carried = cx.ports().first().map_or(PathMtu::Mtu1024, |port| port.path_mtu);
        match path_mtu(&self.session.plan, carried) {
            Ok(mtu) => self.path_mtu = mtu,
            Err(failure) => return self.fail(failure),
        }
        self.pd = Some(cx.device().alloc_pd());
        for _ in 0..self.session.plan.qps {
            if let Err(failure) = self.ask(cx) {
                return self.fail(failure);
            }
        }
        cx.set_timer(self.session.plan.warm_up, 0);
    }

    fn connect_rejected(&mut self, _cx: &mut Context<'_>, _conn: ConnId, _qp: Qpn, rej: &Rej) {
        self.refusal = words_of(rej);
    }

    fn connected(&mut self, cx: &mut Context<'_>, conn: ConnId, qp: Qpn) {
        if let (Some(times), Some(asked)) = (&mut self.times, self.asked.get(&qp)) {
            times.saturating_record(cx.now().saturating_since(*asked).as_nanos() as u64);
        }
        cx.disconnect(conn);
    }

    fn disconnected(&mut self, cx: &mut Context<'_>, _conn: ConnId, qp: Qpn, reason: EndReason) {
        self.asked.remove(&qp);
        if self.over {
            return;
        }
        if reason != EndReason::Disconnected(DisconnectReason::Local) {
            return self.fail(why_not(&self.session.plan, reason, self.refusal.as_deref()));
        }
        self.ended += 1;
        self.session.progress.set_done(self.ended);
        self.look(cx);
        if !self.over
            && let Err(failure) = self.ask(cx)
        {
            self.fail(failure);
        }
    }

    fn timer(&mut self, cx: &mut Context<'_>, _token: u64) {
        if self.measured.is_none() {
            self.measure(cx);
        }
        self.look(cx);
        cx.set_timer(TICK, 0);
    }
}
