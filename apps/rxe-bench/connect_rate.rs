//! `connect-rate`: connections are established and closed at once, a number of them concurrently.

use std::collections::HashMap;
use std::sync::Arc;

use hdrhistogram::Histogram;
use rxe::CliError;
use rxe_proto::cm::{ConnId, DisconnectReason};
use rxe_proto::verbs::{Access, ProtectionDomain, QpCaps, Qpn};
use rxe_proto::wire::PathMtu;
use rxe_proto::wire::cm::Rej;
use rxe_proto::{Duration, Instant};
use rxe_service::{Context, EndReason, Listen, Service, ServiceFactory};

use crate::measurement::{Mark, Measurement, latencies};
use crate::outcome::{End, Outcome};
use crate::session::{Ended, Session, broken, connect, path_mtu, why_not, words_of};

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
            measurement: None,
            warm_until: Instant::ZERO,
            heard: Instant::ZERO,
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
    /// End of the warm-up.
    warm_until: Instant,
    /// From the end of the warm-up on.
    measurement: Option<Measurement>,
    /// When the last connection was closed.
    heard: Instant,
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

    fn measure(&mut self, now: Instant) {
        let start = self.mark(now);
        self.measurement = Some(Measurement::start(&self.session.plan, 0, self.path_mtu.bytes() as u32, start));
        (self.times, self.heard) = (latencies(), now);
    }

    fn mark(&self, now: Instant) -> Mark {
        // Connections have no packets of queue pairs.
        Mark { retransmissions: None, ..self.session.mark(now, self.ended, 0) }
    }

    /// Notes progress, and ends the run when the measurement is complete.
    fn look(&mut self, now: Instant) {
        let mark = self.mark(now);
        let Some(measurement) = &mut self.measurement else { return };
        measurement.sample(now, self.ended);
        if measurement.is_interval_over(now) {
            let outcome = measurement.interval(&self.session.plan, mark, &mut self.times);
            self.session.progress.show(outcome);
        }
        if measurement.has_enough(self.ended) || measurement.is_over(now) {
            self.end(now, End::Complete, None);
        }
    }

    /// Ends the run with what was measured until `now`.
    fn end(&mut self, now: Instant, end: End, failure: Option<CliError>) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        let (plan, now) = (&self.session.plan, self.mark(now));
        let outcome = match self.measurement.take() {
            Some(measurement) => measurement.outcome(plan, now, self.times.take(), end),
            None => Outcome::nothing(plan, 0, end),
        };
        self.session.end(Ended { outcomes: vec![outcome], failure });
    }

    fn fail(&mut self, failure: CliError) {
        self.end(self.heard, End::Failed, Some(failure));
    }
}

impl Service for ConnectRate {
    fn start(&mut self, cx: &mut Context<'_>) {
        if cx.worker() != 0 {
            return;
        }
        let carried = cx.ports().first().map_or(PathMtu::Mtu1024, |port| port.path_mtu);
        match path_mtu(self.session.plan.path_mtu, carried) {
            Ok(mtu) => self.path_mtu = mtu,
            Err(failure) => return self.fail(failure),
        }
        self.pd = Some(cx.device().alloc_pd());
        for _ in 0..self.session.plan.qps {
            if let Err(failure) = self.ask(cx) {
                return self.fail(failure);
            }
        }
        self.warm_until = cx.now() + self.session.plan.warm_up;
        cx.set_timer(TICK, 0);
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
            return self.fail(why_not(self.session.plan.peer, reason, self.refusal.as_deref()));
        }
        self.ended += 1;
        self.heard = cx.now();
        self.session.progress.set_done(self.ended);
        self.look(cx.now());
        if !self.over
            && let Err(failure) = self.ask(cx)
        {
            self.fail(failure);
        }
    }

    fn timer(&mut self, cx: &mut Context<'_>, _token: u64) {
        let now = cx.now();
        if self.session.is_interrupted() {
            self.end(now, End::Interrupted, None);
        }
        if self.measurement.is_none() && !self.over && now >= self.warm_until {
            self.measure(now);
        }
        self.look(now);
        cx.set_timer(TICK, 0);
    }
}
