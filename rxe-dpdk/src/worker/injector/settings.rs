//! What an injector is told: which frames, which faults, how often.

use std::fmt;

use rxe_proto::Duration;

/// Billionths in a whole.
const WHOLE: u32 = 1_000_000_000;

/// How often something happens to a frame: from never to always, in billionths.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Probability(u32);

impl Probability {
    /// To no frame.
    pub const NEVER: Probability = Probability(0);
    /// To every frame.
    pub const ALWAYS: Probability = Probability(WHOLE);

    /// From a share: 0 is never, 1 is always. `None` for what is not from 0 to 1, or is above 0 but less than half a
    /// billionth.
    pub fn from_share(share: f64) -> Option<Probability> {
        let billionths = (share * f64::from(WHOLE)).round();
        let fits = (0.0..=1.0).contains(&share) && (share == 0.0 || billionths >= 1.0);
        // The cast is exact: a whole number from 0 to 10^9.
        fits.then_some(Probability(billionths as u32))
    }

    /// As a share from 0 to 1.
    pub fn share(self) -> f64 {
        f64::from(self.0) / f64::from(WHOLE)
    }

    /// Whether it happens to the frame that drew `draw`.
    pub(super) fn hits(self, draw: u32) -> bool {
        (u64::from(draw) * u64::from(WHOLE)) >> 32 < u64::from(self.0)
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.share())
    }
}

/// Which frames faults happen to.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum FaultScope {
    /// RoCEv2 packets, those of the connection manager among them; ARP, ping and TCP are left alone.
    #[default]
    Roce,
    /// Every frame.
    All,
}

/// What happens to the frames of one direction. The choices for a frame are independent of each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultRates {
    /// Lost.
    pub drop: Probability,
    /// Sent or received twice.
    pub duplicate: Probability,
    /// Held back until one to four later ones have come, or a millisecond is over.
    pub reorder: Probability,
    /// One bit is flipped somewhere behind the Ethernet header.
    pub corrupt: Probability,
    /// How many frames `delay` and `jitter` are for.
    pub delayed: Probability,
    /// Late by this much, ...
    pub delay: Duration,
    /// ... and by up to this much more. Frames may overtake each other by it.
    pub jitter: Duration,
}

impl Default for FaultRates {
    /// Nothing happens; `delayed` is always, so that `delay` alone is enough to delay every frame.
    fn default() -> FaultRates {
        FaultRates {
            drop: Probability::NEVER,
            duplicate: Probability::NEVER,
            reorder: Probability::NEVER,
            corrupt: Probability::NEVER,
            delayed: Probability::ALWAYS,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
        }
    }
}

impl FaultRates {
    /// Whether frames can be late.
    pub fn delays(&self) -> bool {
        self.delayed != Probability::NEVER && self.delay + self.jitter != Duration::ZERO
    }

    /// Whether nothing ever happens.
    pub fn is_off(&self) -> bool {
        let never = [self.drop, self.duplicate, self.reorder, self.corrupt] == [Probability::NEVER; 4];
        never && !self.delays()
    }
}

impl fmt::Display for FaultRates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rates = [
            ("drop", self.drop),
            ("duplicate", self.duplicate),
            ("reorder", self.reorder),
            ("corrupt", self.corrupt),
            ("delayed", if self.delays() { self.delayed } else { Probability::NEVER }),
        ];
        let mut between = "";
        for (name, rate) in rates.into_iter().filter(|(_, rate)| *rate != Probability::NEVER) {
            write!(f, "{between}{name}={rate}")?;
            between = " ";
        }
        if self.delays() {
            write!(f, " delay={:?} jitter={:?}", self.delay, self.jitter)?;
        }
        Ok(())
    }
}

/// The faults of all ports of an adapter. Equal seeds and equal frames give equal faults, with one exception: what
/// waits for a time.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct FaultSettings {
    /// What all choices follow from.
    pub seed: u64,
    /// Which frames.
    pub scope: FaultScope,
    /// What happens to frames from the wire.
    pub rx: FaultRates,
    /// What happens to frames to the wire.
    pub tx: FaultRates,
}

impl FaultSettings {
    /// Whether nothing ever happens.
    pub fn is_off(&self) -> bool {
        self.rx.is_off() && self.tx.is_off()
    }
}

impl fmt::Display for FaultSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, rates) in [("rx", &self.rx), ("tx", &self.tx)] {
            if !rates.is_off() {
                write!(f, "{name} {rates}, ")?;
            }
        }
        let scope = match self.scope {
            FaultScope::Roce => "RoCE frames",
            FaultScope::All => "all frames",
        };
        write!(f, "{scope}, seed {}", self.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_become_probabilities() {
        assert_eq!(Probability::from_share(0.0), Some(Probability::NEVER));
        assert_eq!(Probability::from_share(1.0), Some(Probability::ALWAYS));
        assert_eq!(Probability::from_share(0.01).map(|p| p.to_string()), Some("0.01".to_owned()));
        for bad in [-0.1, 1.1, 1e-10, f64::NAN, f64::INFINITY] {
            assert_eq!(Probability::from_share(bad), None, "{bad}");
        }
        assert!(Probability::ALWAYS.hits(0) && Probability::ALWAYS.hits(u32::MAX));
        assert!(!Probability::NEVER.hits(0) && !Probability::NEVER.hits(u32::MAX));
    }

    #[test]
    fn settings_are_off_or_say_what_they_do() {
        let mut settings = FaultSettings { seed: 7, ..FaultSettings::default() };
        assert!(settings.is_off());
        settings.tx.delayed = Probability::NEVER;
        settings.tx.delay = Duration::from_millis(2);
        assert!(settings.is_off(), "a delay for no frame is none");
        settings.tx.delayed = Probability::ALWAYS;
        settings.rx.drop = Probability(WHOLE / 4);
        assert!(!settings.is_off());
        assert_eq!(settings.to_string(), "rx drop=0.25, tx delayed=1 delay=2ms jitter=0ns, RoCE frames, seed 7");
    }
}
