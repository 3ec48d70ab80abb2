//! The retransmission timer of a queue pair, and the ACK timeout of its connection.
//!
//! Both run while the peer owes an answer: while a packet that asked for one (AckReq, a READ, an atomic) is not
//! acknowledged. Packets that did not ask are answered with the next one that does, and whenever sending stops, the last
//! packet written has asked; so nothing can be lost without a timer, and a packet that waits for other queue pairs, for the port
//! or for its rate before it can ask is not taken for lost.
//!
//! The retransmission timeout follows the measured round trip ([`RoundTrip`]): when it expires, everything from the first
//! unacknowledged PSN on is retransmitted, and that costs no retry. The ACK timeout (IBTA: "Local ACK Timeout") limits the
//! attempts: each whole one without progress uses up a retry. It stands still between a decision to retransmit and the first
//! packet of the retransmission, which may have to wait. So a connection ends no earlier than with the ACK timeout alone, and
//! a lost packet costs only a few round trips.
//!
//! A peer whose CPU is taken away answers late, and the timeout was spurious. An answer that comes sooner after a
//! retransmission than half of any round trip was for the first copy; one that comes later than the timeout would have allowed shows
//! that the timeout is too short. Both raise its minimum for a while.

use crate::time::{Duration, Instant};
use crate::transport::seq::Seq;
use crate::transport::{EngineConfig, TransportStats};

use super::rtt::RoundTrip;

/// The most to which spurious timeouts raise the shortest timeout, in nanoseconds; half of the ACK timeout if that is less.
const HIGHEST_FLOOR: u64 = 16_000_000;

/// Time without a spurious timeout after which the raised minimum is halved, in nanoseconds.
const FLOOR_AGE: u64 = 1_000_000_000;

/// Whether the peer owes an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// It owes none, or the retransmission is not written yet. Nanoseconds that are left of the ACK timeout.
    Stopped { left: u64 },
    Running {
        deadline: Instant,
        /// When the ACK timeout expires.
        expires: Instant,
    },
}

/// What an expired timer asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Expiry {
    /// To retransmit.
    Retransmission,
    /// The same, and a whole ACK timeout has passed without progress.
    AckTimeout,
}

/// See the module.
#[derive(Debug)]
pub(super) struct RetransmitTimer {
    state: State,
    round_trip: RoundTrip,
    /// One past the newest PSN that asked for an answer, since sending last went back.
    asked: Seq,
    /// The retransmission timeout in nanoseconds.
    timeout: u64,
    /// Nanoseconds without progress that use up a retry; `None` waits for ever.
    ack_timeout: Option<u64>,
    /// Packets below were retransmitted after a timeout. Either copy may be acknowledged, so no RTT sample is taken
    /// (Karn's rule).
    untimed: Seq,
    /// Retransmissions after timeouts, in a row, that nothing has answered; when the first packets of the first and of the last one
    /// were written, and whether that of the last one still has to be.
    repetitions: u8,
    is_due: bool,
    repeated_first: Instant,
    repeated_last: Instant,
    /// The shortest timeout that spurious ones have left, in nanoseconds, and when that last changed.
    floor: u32,
    floor_since: Instant,
    /// The last RTT sample in nanoseconds, until it is taken, or 0.
    sample: u64,
}

/// The local ACK timeout of the standard, in nanoseconds: 4.096 microseconds times 2 to the power of the code; 0 disables the timer.
fn ack_timeout(code: u8) -> Option<u64> {
    // compliance.md [RC-REQ-TIMER-0]: ACK timeout code 0 disables the timer.
    (code > 0).then_some(4096 << (code & 0x1F))
}

impl RetransmitTimer {
    pub(super) fn new(start: Seq) -> RetransmitTimer {
        RetransmitTimer {
            state: State::Stopped { left: 0 },
            round_trip: RoundTrip::default(),
            asked: start,
            timeout: 0,
            ack_timeout: None,
            untimed: start,
            repetitions: 0,
            is_due: false,
            repeated_first: Instant::ZERO,
            repeated_last: Instant::ZERO,
            floor: 0,
            floor_since: Instant::ZERO,
            sample: 0,
        }
    }

    /// For a connection that starts at `start`, with the code of its ACK timeout.
    pub(super) fn start(&mut self, start: Seq, code: u8, config: &EngineConfig) {
        *self = RetransmitTimer::new(start);
        self.ack_timeout = ack_timeout(code);
        self.state = self.stopped();
        self.set_timeout(config);
    }

    /// Changes the ACK timeout, which begins again. Everything before `una` is acknowledged.
    pub(super) fn set_ack_timeout(&mut self, now: Instant, una: Seq, code: u8, config: &EngineConfig) {
        self.ack_timeout = ack_timeout(code);
        self.set_timeout(config);
        self.state = self.stopped();
        if una < self.asked {
            self.run(now);
        }
    }

    /// The code of the ACK timeout.
    pub(super) fn code(&self) -> u8 {
        self.ack_timeout.map_or(0, |nanos| (nanos / 4096).trailing_zeros() as u8)
    }

    /// The ACK timeout; `None` waits for ever.
    pub(super) fn ack_timeout(&self) -> Option<Duration> {
        self.ack_timeout.map(Duration::from_nanos)
    }

    /// The retransmission timeout.
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_nanos(self.timeout)
    }

    /// The smoothed round trip in nanoseconds; 0 before the first one.
    pub(super) fn mean(&self) -> u64 {
        self.round_trip.mean()
    }

    /// The shortest round trip that was measured, in nanoseconds; 0 before the first one.
    pub(super) fn shortest(&self) -> u64 {
        self.round_trip.shortest()
    }

    /// The last RTT sample in nanoseconds, if it was not taken before.
    #[inline]
    pub(super) fn take_sample(&mut self) -> Option<u64> {
        let sample = std::mem::take(&mut self.sample);
        (sample > 0).then_some(sample)
    }

    /// When it expires, if it runs.
    #[inline]
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Running { deadline, .. } => Some(deadline),
            State::Stopped { .. } => None,
        }
    }

    /// Retransmissions after timeouts, in a row, that nothing has answered.
    #[inline]
    pub(super) fn repetitions(&self) -> u8 {
        self.repetitions
    }

    /// Packets before `cursor` that were written after the last one that asked, and are not acknowledged.
    #[inline]
    pub(super) fn unasked(&self, una: Seq, cursor: Seq) -> u64 {
        cursor.since(self.asked.max(una))
    }

    /// Packets before `cursor` that were written after the last one that asked.
    #[inline]
    pub(super) fn since_asked(&self, cursor: Seq) -> u64 {
        cursor.since(self.asked)
    }

    fn stopped(&self) -> State {
        State::Stopped { left: self.ack_timeout.unwrap_or(0) }
    }

    /// A packet is written that asks for an answer: `psn` is its first PSN, `end` one past its last.
    #[inline]
    pub(super) fn ask(&mut self, now: Instant, psn: Seq, end: Seq) {
        self.asked = end;
        if psn >= self.untimed {
            // compliance.md [RC-REQ-RTT-KARN]: One packet at a time is timed, none that was retransmitted after a
            // timeout.
            self.round_trip.begin(psn, now);
        }
        if let State::Stopped { .. } = self.state {
            self.run(now);
        }
    }

    /// Starts it, with what is left of the ACK timeout.
    fn run(&mut self, now: Instant) {
        if self.is_due {
            self.is_due = false;
            self.repeated_last = now;
            if self.repetitions == 1 {
                self.repeated_first = now;
            }
        }
        if let (Some(_), State::Stopped { left }) = (self.ack_timeout, self.state) {
            self.schedule(now, now.after(left));
        }
    }

    fn schedule(&mut self, now: Instant, expires: Instant) {
        // compliance.md [RC-REQ-EARLY-RETRY]: The requester retransmits before the ACK timeout of the connection has expired,
        // when the measured round trip shows that the answer is lost.
        let early = now.after(self.timeout);
        // Leave time for an answer to the retransmission before the ACK timeout.
        let is_late = early.after(self.timeout) > expires;
        self.state = State::Running { deadline: if is_late { expires } else { early }, expires };
    }

    /// A response has acknowledged everything before `una`, if only one packet of a long READ.
    /// Returns whether a round trip was measured.
    #[inline]
    pub(super) fn progressed(&mut self, now: Instant, una: Seq, stats: &TransportStats, config: &EngineConfig) -> bool {
        if self.repetitions > 0 && self.was_spurious(now, config) {
            stats.spurious_timeouts.inc();
        }
        let is_measured = self.measure(now, una, stats, config);
        // compliance.md [RC-REQ-PROGRESS]: Any progress restores all retries and restarts both timers.
        match self.ack_timeout {
            Some(ack_timeout) if una < self.asked => self.schedule(now, now.after(ack_timeout)),
            ack_timeout => self.state = State::Stopped { left: ack_timeout.unwrap_or(0) },
        }
        is_measured
    }

    /// Takes an RTT sample, if the packet that is timed was acknowledged. Returns whether it was.
    #[inline]
    pub(super) fn measure(&mut self, now: Instant, una: Seq, stats: &TransportStats, config: &EngineConfig) -> bool {
        let sample = self.round_trip.answered(una, now);
        if let Some(sample) = sample {
            stats.rtt_samples.inc();
            self.sample = sample.max(1);
            if self.floor > 0 {
                self.lower_floor(now);
            }
            self.set_timeout(config);
        }
        sample.is_some()
    }

    /// The first answer after a retransmission: tells whether the timeout was too short.
    #[cold]
    fn was_spurious(&mut self, now: Instant, config: &EngineConfig) -> bool {
        // An answer may come before the first packet was sent again.
        let since = if self.is_due { 0 } else { now.nanos_since(self.repeated_last) };
        let since_first = if self.is_due && self.repetitions == 1 { 0 } else { now.nanos_since(self.repeated_first) };
        self.forget_repetitions();
        let shortest = self.round_trip.shortest();
        if !config.early_retransmission || shortest == 0 {
            return false;
        }
        // Without backoff: when even the answer to the last copy takes longer than that, the timeout is too short.
        let once = self.round_trip.timeout_once(self.shortest_timeout(config), config.initial_timeout);
        let once = u64::try_from(once.as_nanos()).unwrap_or(u64::MAX);
        // compliance.md [RC-REQ-SPURIOUS]: An answer that comes sooner after a retransmission than half of any round trip was for
        // the first copy. It raises the shortest timeout of the queue pair for a while.

        // Half: what was measured may have been so with other packets on the way, and the way is free after a timeout.
        let spurious = 2 * since < shortest || since > once;
        if spurious {
            self.floor = self.highest_floor().min(once.max(since_first).saturating_mul(2)) as u32;
            self.floor_since = now;
            self.set_timeout(config);
        }
        spurious
    }

    fn highest_floor(&self) -> u64 {
        self.ack_timeout.map_or(HIGHEST_FLOOR, |ack_timeout| HIGHEST_FLOOR.min(ack_timeout / 2))
    }

    /// Halves the raised minimum for each second since it last changed.
    #[cold]
    fn lower_floor(&mut self, now: Instant) {
        let halvings = now.nanos_since(self.floor_since) / FLOOR_AGE;
        if halvings > 0 {
            self.floor = self.floor.checked_shr(halvings.min(64) as u32).unwrap_or(0);
            self.floor_since = self.floor_since.after(halvings * FLOOR_AGE);
        }
    }

    fn shortest_timeout(&self, config: &EngineConfig) -> Duration {
        config.min_timeout.max(Duration::from_nanos(self.floor.into()))
    }

    /// Recomputes the retransmission timeout.
    fn set_timeout(&mut self, config: &EngineConfig) {
        let longest = self.ack_timeout.map_or(Duration::MAX, Duration::from_nanos);
        let timeout = if config.early_retransmission {
            self.round_trip.timeout(self.shortest_timeout(config), config.initial_timeout).min(longest)
        } else {
            longest
        };
        self.timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
    }

    /// Sending goes back to `una`; `sent` is one past the newest PSN written. `known_lost`: a NAK or a gap shows that it was not
    /// received, otherwise a timeout suggests it. Nothing that asked is under way any more; the ACK timeout goes on with the
    /// first packet of the retransmission.
    pub(super) fn go_back(&mut self, now: Instant, una: Seq, sent: Seq, known_lost: bool) {
        self.round_trip.forget();
        self.asked = una;
        self.untimed = if known_lost { una } else { sent };
        if known_lost {
            self.forget_repetitions();
        } else {
            self.repetitions = self.repetitions.saturating_add(1);
            self.is_due = true;
        }
        if let State::Running { expires, .. } = self.state {
            self.state = State::Stopped { left: expires.nanos_since(now) };
        }
    }

    /// The ACK timeout begins again.
    pub(super) fn expect_progress(&mut self, now: Instant) {
        let Some(ack_timeout) = self.ack_timeout else { return };
        match &mut self.state {
            State::Stopped { left } => *left = ack_timeout,
            State::Running { expires, .. } => *expires = now.after(ack_timeout),
        }
    }

    /// The peer still answers requests from before the last retry: the retransmission timeout begins again, the ACK timeout
    /// does not.
    #[inline]
    pub(super) fn still_answering(&mut self, now: Instant) {
        // compliance.md [RC-REQ-STILL-ANSWERING]: Responses to requests from before the last retry restart the
        // retransmission timeout, but not the ACK timeout.
        if let State::Running { expires, .. } = self.state {
            self.schedule(now, expires);
        }
    }

    /// Nothing is outstanding any more.
    pub(super) fn stop(&mut self) {
        self.state = self.stopped();
        self.forget_repetitions();
    }

    fn forget_repetitions(&mut self) {
        (self.repetitions, self.is_due) = (0, false);
    }

    /// The deadline has come. The caller then [goes back](Self::go_back).
    pub(super) fn expire(&mut self, now: Instant, config: &EngineConfig) -> Expiry {
        self.round_trip.double();
        self.lower_floor(now);
        self.set_timeout(config);
        match self.state {
            State::Running { expires, .. } if now < expires => Expiry::Retransmission,
            _ => Expiry::AckTimeout,
        }
    }
}
