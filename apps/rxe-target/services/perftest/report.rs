//! The answer to a client's report of a bidirectional test: our own bandwidth, which the client adds to its own.
//!
//! No message names the client's unit, MiB/s or Gb/s. Its own figures show it: the two ends' rates differ by far less than
//! the two units do.

use rxe_proto::{Duration, Instant};

/// Number, bytes and time span of the messages that one end sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Meter {
    messages: u64,
    bytes: u64,
    span: Option<(Instant, Instant)>,
}

/// Bytes per second in one unit of bandwidth.
const MIB: f64 = 1_048_576.0;
const GBIT: f64 = 125_000_000.0;

impl Meter {
    /// Counts a message of `length` bytes that has arrived at the peer.
    pub fn count(&mut self, now: Instant, length: u32) {
        self.messages += 1;
        self.bytes += u64::from(length);
        self.span = Some((self.span.map_or(now, |(first, _)| first), now));
    }

    /// The sum of both.
    pub fn plus(&self, other: &Meter) -> Meter {
        let span = match (self.span, other.span) {
            (Some((a, b)), Some((c, d))) => Some((a.min(c), b.max(d))),
            (one, another) => one.or(another),
        };
        Meter { messages: self.messages + other.messages, bytes: self.bytes + other.bytes, span }
    }

    /// `count` per second; 0 if all messages arrived at the same time.
    fn rate(&self, count: u64) -> f64 {
        let time = self.span.map_or(Duration::ZERO, |(first, last)| last.saturating_since(first));
        if time == Duration::ZERO { 0.0 } else { count as f64 * 1e9 / time.as_nanos() as f64 }
    }

    /// The answer to field `field` (0: size, 1: iterations, 2: peak, 3: average bandwidth, 4: million messages per
    /// second), in which the client sent `value`. We measure no peak and send the average in its place.
    pub fn answer(&self, field: u8, value: [u8; 8]) -> [u8; 8] {
        let theirs = f64::from_bits(u64::from_be_bytes(value));
        let ours = match field {
            0 | 1 => return value,
            2 | 3 if theirs <= 0.0 || theirs.is_nan() => 0.0,
            2 | 3 => {
                let rate = self.rate(self.bytes);
                let distance = |unit: f64| (rate / unit / theirs).ln().abs();
                rate / if distance(GBIT) < distance(MIB) { GBIT } else { MIB }
            }
            _ => self.rate(self.messages) / 1e6,
        };
        ours.to_bits().to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn double(value: [u8; 8]) -> f64 {
        f64::from_bits(u64::from_be_bytes(value))
    }

    fn bytes(value: f64) -> [u8; 8] {
        value.to_bits().to_be_bytes()
    }

    #[test]
    fn the_client_s_unit_is_used() {
        let mut one = Meter::default();
        let mut other = Meter::default();
        for n in 0..=1000 {
            one.count(at(n), 1 << 20);
            other.count(at(n + 1), 1 << 20);
        }
        let sum = one.plus(&other).plus(&Meter::default());
        // 2002 MiB in 1.001 s.
        assert!((double(sum.answer(3, bytes(1500.0))) - 2000.0).abs() < 1e-6);
        assert!((double(sum.answer(2, bytes(5000.0))) - 2000.0).abs() < 1e-6);
        assert!((double(sum.answer(3, bytes(12.0))) - 2000.0 * MIB / GBIT).abs() < 1e-6);
        assert!((double(sum.answer(4, bytes(0.001))) - 0.002).abs() < 1e-9);
        assert_eq!(sum.answer(2, bytes(0.0)), bytes(0.0), "a client that measures no peak");
        assert_eq!(sum.answer(3, bytes(f64::NAN)), bytes(0.0));
    }

    #[test]
    fn size_and_iterations_are_the_same() {
        let value = 65536u64.to_be_bytes();
        assert_eq!((Meter::default().answer(0, value), Meter::default().answer(1, value)), (value, value));
        for field in 2..5 {
            assert_eq!(Meter::default().answer(field, bytes(77.0)), bytes(0.0), "nothing sent");
        }
    }
}
