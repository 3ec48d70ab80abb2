//! The results of the initiator: measures, and records also what is not complete.

use rxe_proto::Instant;
use rxe_service::Context;

use super::{Initiator, Stage};
use crate::bulk::Bulk;
use crate::measurement::{Mark, Measurement};
use crate::outcome::{End, Outcome};
use crate::session::Ended;
use crate::work::Work;

impl Initiator {
    /// Completed messages of the present size.
    #[inline]
    pub(super) fn done(&self) -> u64 {
        self.work.as_ref().map_or(0, Work::done) * self.session.plan.messages_each()
    }

    fn mark(&self, now: Instant) -> Mark {
        self.session.mark(now, self.done(), self.bulk.as_ref().map_or(0, Bulk::done))
    }

    /// The present size, or the first one.
    fn size(&self) -> u32 {
        self.session.plan.sizes.get(self.next_size.saturating_sub(1)).copied().unwrap_or_default()
    }

    /// Starts the measurement.
    pub(super) fn measure(&mut self, cx: &mut Context<'_>) {
        let (start, size) = (self.mark(cx.now()), self.size());
        let plan = &self.session.plan;
        if let Some(work) = self.work.as_mut().filter(|_| plan.test.is_latency()) {
            work.measure_latency();
        }
        self.measurement = Some(Measurement::start(plan, size, self.path_mtu.bytes() as u32, start));
        self.stage = Stage::Measuring;
    }

    /// Notes progress; `true` when the measurement is over.
    pub(super) fn progress(&mut self, now: Instant) -> bool {
        let done = self.done();
        self.session.progress.set_done(done);
        let Some(measurement) = &mut self.measurement else { return false };
        measurement.sample(now, done);
        if measurement.is_interval_over(now) {
            let now = self.mark(now);
            if let (Some(measurement), Some(work)) = (&mut self.measurement, &mut self.work) {
                let outcome = measurement.interval(&self.session.plan, now, work.latency());
                self.session.progress.show(outcome);
            }
        }
        self.measurement.as_ref().is_some_and(|measurement| measurement.is_over(now))
    }

    /// Records the result of the present size, as measured until `now`.
    pub(super) fn record(&mut self, now: Instant, end: End) {
        let (size, now) = (self.size(), self.mark(now));
        let latencies = self.work.as_mut().and_then(|work| work.latency().take());
        let plan = &self.session.plan;
        match self.measurement.take() {
            Some(measurement) => self.outcomes.push(measurement.outcome(plan, now, latencies, end)),
            // It has ended before its measurement, or afterwards.
            None => match (self.stage, self.outcomes.last_mut()) {
                (Stage::Draining | Stage::Parting, Some(last)) => last.end = end,
                _ => self.outcomes.push(Outcome::nothing(plan, size, end)),
            },
        }
    }

    /// The results so far.
    pub(super) fn ended(&mut self) -> Ended {
        Ended { outcomes: std::mem::take(&mut self.outcomes), failure: self.failure.take() }
    }

    /// Ends the run after a signal. The adapter disconnects all connections when it stops.
    pub(super) fn interrupt(&mut self, now: Instant) {
        if self.stage != Stage::Disconnecting {
            self.record(now, End::Interrupted);
            self.stage = Stage::Disconnecting;
        }
        let ended = self.ended();
        self.session.end(ended);
    }
}
