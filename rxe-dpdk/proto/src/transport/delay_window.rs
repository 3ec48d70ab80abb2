//! Delay-based control: a window that grows while the round trip is short, and shrinks with what is beyond the target.
//!
//! The round trip is sampled once at a time, so a sample stands for a whole window: it adds one packet, or takes away the
//! share by which it is beyond the target, at most half. A window below one packet is one packet and a rate.

use crate::time::Instant;

use super::congestion_control::DelayControl;

/// One packet of a window.
const PACKET: u32 = 1 << 10;
/// The window of a queue pair that has measured nothing.
const INITIAL: u32 = 10 * PACKET;
/// The smallest window: a packet in this many round trips is still a sample of the round trip.
const SMALLEST: u32 = PACKET / 64;
/// The longest wait for a packet of a window below one, in nanoseconds: a single long round trip, of a peer that was stopped, would
/// otherwise hold it back for minutes.
const LONGEST_WAIT: u64 = 10_000_000;
/// The windows between which the target is scaled.
const SCALED: (u32, u32) = (PACKET / 10, 100 * PACKET);

/// A queue pair's window.
#[derive(Debug)]
pub(super) struct DelayWindow {
    /// In parts of [`PACKET`].
    window: u32,
    /// It doubles with each sample, until the first one beyond the target.
    starting: bool,
    /// When it last shrank.
    shrunk_at: Option<Instant>,
    /// The last round trip, in nanoseconds.
    round_trip: u64,
}

impl DelayWindow {
    pub(super) fn new() -> DelayWindow {
        DelayWindow { window: INITIAL, starting: true, shrunk_at: None, round_trip: 1 }
    }

    /// The packets that may be outstanding.
    #[inline]
    pub(super) fn packets(&self) -> u32 {
        (self.window / PACKET).max(1)
    }

    /// The rate in bytes per second of a window below one packet of `mtu` bytes.
    pub(super) fn rate(&self, mtu: u32) -> Option<u64> {
        let bytes = u64::from(self.window) * u64::from(mtu) / u64::from(PACKET);
        let least = u64::from(mtu) * 1_000_000_000 / LONGEST_WAIT;
        (self.window < PACKET).then(|| (bytes * 1_000_000_000 / self.round_trip).max(least))
    }

    /// Follows a measured round trip, in nanoseconds; `max` is the largest window, in packets.
    pub(super) fn measured(&mut self, settings: &DelayControl, now: Instant, round_trip: u64, max: u32) {
        // A clock may tell the same time twice.
        let round_trip = round_trip.max(1);
        self.round_trip = round_trip;
        let target = self.target(settings);
        if round_trip < target {
            let step = if self.starting { self.window } else { PACKET };
            self.window = self.window.saturating_add(step).min(max.saturating_mul(PACKET));
        } else {
            self.starting = false;
            // Four fifths of what is beyond the target.
            let beyond = u128::from(round_trip - target) * 4 * u128::from(self.window) / (5 * u128::from(round_trip));
            self.shrink(now, beyond as u32);
        }
    }

    /// A packet was lost.
    pub(super) fn lost(&mut self, now: Instant) {
        self.starting = false;
        self.shrink(now, self.window / 2);
    }

    /// Takes away `by`, at most half, and once per round trip.
    fn shrink(&mut self, now: Instant, by: u32) {
        if self.shrunk_at.is_none_or(|at| now >= at.after(self.round_trip)) {
            self.shrunk_at = Some(now);
            self.window = (self.window - by.min(self.window / 2)).max(SMALLEST);
        }
    }

    /// The target round trip of the present window, in nanoseconds: the smaller, the longer, with the inverse of its square
    /// root.
    fn target(&self, settings: &DelayControl) -> u64 {
        let nanos = |time: crate::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // 2^21 divided by the square root of the window in parts of 2^-10 packets.
        let inverse = |window: u32| (1 << 21) / u64::from(window.max(1)).isqrt();
        let (smallest, largest) = SCALED;
        let window = self.window.clamp(smallest, largest);
        let share = inverse(window) - inverse(largest);
        let whole = inverse(smallest) - inverse(largest);
        nanos(settings.target).saturating_add(nanos(settings.scaling).saturating_mul(share) / whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    const TARGET: u64 = 50_000;
    const MAX: u32 = 128;

    fn settings() -> DelayControl {
        DelayControl { target: Duration::from_nanos(TARGET), scaling: Duration::ZERO }
    }

    fn at(round_trips: u64) -> Instant {
        Instant::from_nanos(round_trips * 1_000_000)
    }

    fn after(samples: &[u64]) -> DelayWindow {
        let mut window = DelayWindow::new();
        for (n, &sample) in samples.iter().enumerate() {
            window.measured(&settings(), at(n as u64), sample, MAX);
        }
        window
    }

    #[test]
    fn a_round_trip_that_takes_no_time_is_one_of_a_nanosecond() {
        let settings = DelayControl { target: Duration::ZERO, scaling: Duration::ZERO };
        let mut window = DelayWindow::new();
        window.measured(&settings, at(1), 0, MAX);
        assert_eq!(window.packets(), 5);
    }

    #[test]
    fn the_window_doubles_until_the_first_long_round_trip_then_grows_by_a_packet() {
        assert_eq!(after(&[10_000; 2]).packets(), 40);
        assert_eq!(after(&[10_000; 20]).packets(), MAX);
        assert_eq!(after(&[10_000, TARGET, 10_000, 10_000]).packets(), 22);
    }

    #[test]
    fn the_window_shrinks_with_the_excess_at_most_by_half_once_per_round_trip() {
        // A tenth too long: four fifths of a tenth less.
        assert_eq!(after(&[10_000, TARGET * 10 / 9]).window, 20 * PACKET - 20 * PACKET * 8 / 100);
        assert_eq!(after(&[10_000, 100 * TARGET]).packets(), 10);
        let mut window = after(&[10_000, 100 * TARGET]);
        window.measured(&settings(), at(2), 100 * TARGET, MAX);
        window.lost(at(3));
        assert_eq!(window.packets(), 10, "within a round trip of 5 ms");
        window.lost(at(6));
        assert_eq!(window.packets(), 5);
    }

    #[test]
    fn a_window_below_a_packet_is_a_packet_and_a_rate() {
        let window = after(&[TARGET * 2; 40]);
        assert_eq!(window.packets(), 1);
        // The window is at its smallest: a 64th of a packet each 100 us.
        assert_eq!((window.window, window.rate(4096)), (SMALLEST, Some(640_000)));
        assert_eq!(after(&[10_000]).rate(4096), None);
        // A packet in 10 ms, not in 128 s.
        let mut stopped = window;
        stopped.measured(&settings(), at(50), 2_000_000_000, MAX);
        assert_eq!(stopped.rate(4096), Some(409_600));
    }

    #[test]
    fn small_windows_have_a_longer_target() {
        let settings = DelayControl { scaling: Duration::from_micros(30), ..settings() };
        let target = |window| DelayWindow { window, ..DelayWindow::new() }.target(&settings);
        assert_eq!(target(PACKET / 10), TARGET + 30_000);
        assert_eq!(target(100 * PACKET), TARGET);
        assert_eq!(target(u32::MAX), TARGET);
        let middle = target(PACKET);
        assert!(middle > TARGET + 5_000 && middle < TARGET + 10_000, "{middle}");
    }
}
