//! Fault rules: an action, the frames that it applies to, a probability and a count.

use std::fmt;

use rxe_proto::Duration;
use rxe_proto::transport::{Qpn, RequestRefusal};
use rxe_proto::wire::{OpcodeSet, Psn, RocePacket};

/// Billionths in 1.
const WHOLE: u32 = 1_000_000_000;

/// A probability from 0 to 1, in billionths.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Probability(u32);

impl Probability {
    /// 0.
    pub const NEVER: Probability = Probability(0);
    /// 1.
    pub const ALWAYS: Probability = Probability(WHOLE);

    /// From a number between 0 and 1. `None` for a number outside, or above 0 but less than half a billionth.
    pub fn from_share(share: f64) -> Option<Probability> {
        let billionths = (share * f64::from(WHOLE)).round();
        let fits = (0.0..=1.0).contains(&share) && (share == 0.0 || billionths >= 1.0);
        // The cast is exact: a whole number from 0 to 10^9.
        fits.then_some(Probability(billionths as u32))
    }

    /// As a number from 0 to 1.
    pub fn share(self) -> f64 {
        f64::from(self.0) / f64::from(WHOLE)
    }

    /// Whether a frame with the random number `draw` is hit.
    pub(super) fn hits(self, draw: u32) -> bool {
        (u64::from(draw) * u64::from(WHOLE)) >> 32 < u64::from(self.0)
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.share())
    }
}

/// The direction of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Direction {
    /// From the wire.
    #[default]
    Rx,
    /// To the wire.
    Tx,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::Rx => "rx",
            Direction::Tx => "tx",
        })
    }
}

/// The effect of a rule on a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultAction {
    /// Drops the frame.
    Drop,
    /// Duplicates the frame, once even if several rules apply.
    Duplicate,
    /// Flips one bit behind the Ethernet header.
    Corrupt,
    /// Flips one bit of the payload. Does not apply to frames without payload.
    CorruptPayload,
    /// Flips one bit of the ICRC.
    CorruptIcrc,
    /// Marks the frame "congestion experienced".
    Ecn,
    /// Delays the frame.
    Delay {
        /// Minimum delay.
        delay: Duration,
        /// Maximum additional delay, chosen at random; it can reorder frames.
        jitter: Duration,
    },
    /// Holds the frame back until one to four later ones have passed, or a millisecond is over.
    Reorder,
    /// Answers the request by a NAK or RNR NAK instead of executing it. Applies to received requests of reliable connections,
    /// each when it has the expected PSN.
    Refuse(RequestRefusal),
}

impl FaultAction {
    /// The name in rules and reports.
    pub const fn name(self) -> &'static str {
        match self {
            FaultAction::Drop => "drop",
            FaultAction::Duplicate => "duplicate",
            FaultAction::Corrupt => "corrupt",
            FaultAction::CorruptPayload => "corrupt-payload",
            FaultAction::CorruptIcrc => "corrupt-icrc",
            FaultAction::Ecn => "ecn",
            FaultAction::Delay { .. } => "delay",
            FaultAction::Reorder => "reorder",
            FaultAction::Refuse(RequestRefusal::NotReady { .. }) => "rnr",
            FaultAction::Refuse(_) => "nak",
        }
    }

    /// Rules are applied to a frame in this order. It is also part of the seed, so that rules with one seed and different
    /// actions choose independently.
    pub(super) const fn order(self) -> u8 {
        match self {
            FaultAction::Drop => 0,
            FaultAction::Duplicate => 1,
            FaultAction::Corrupt => 2,
            FaultAction::CorruptPayload => 3,
            FaultAction::CorruptIcrc => 4,
            FaultAction::Ecn => 5,
            FaultAction::Delay { .. } => 6,
            FaultAction::Reorder => 7,
            FaultAction::Refuse(_) => 8,
        }
    }

    /// Whether it applies to RoCE packets only.
    pub const fn needs_roce(self) -> bool {
        matches!(
            self,
            FaultAction::CorruptPayload | FaultAction::CorruptIcrc | FaultAction::Ecn | FaultAction::Refuse(_)
        )
    }
}

/// The name of a NAK code.
pub const fn nak_name(refusal: RequestRefusal) -> Option<&'static str> {
    match refusal {
        RequestRefusal::NotReady { .. } => None,
        RequestRefusal::PsnSequence => Some("psn-sequence"),
        RequestRefusal::InvalidRequest => Some("invalid-request"),
        RequestRefusal::RemoteAccess => Some("remote-access"),
        RequestRefusal::RemoteOperational => Some("remote-operational"),
    }
}

impl fmt::Display for FaultAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match *self {
            FaultAction::Delay { delay, jitter } if jitter == Duration::ZERO => write!(f, " {delay:?}"),
            FaultAction::Delay { delay, jitter } => write!(f, " {delay:?} jitter {jitter:?}"),
            FaultAction::Refuse(RequestRefusal::NotReady { timer }) => write!(f, " timer {timer}"),
            FaultAction::Refuse(refusal) => write!(f, " {}", nak_name(refusal).unwrap_or_default()),
            _ => Ok(()),
        }
    }
}

/// The frames that a rule selects from.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum FaultScope {
    /// RoCEv2 packets, including those of the connection manager, but not ARP, ICMP and TCP.
    #[default]
    Roce,
    /// Every frame.
    All,
}

/// A range of PSNs. It wraps if the first is larger than the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PsnRange {
    /// The first one.
    pub first: Psn,
    /// The last one.
    pub last: Psn,
}

impl PsnRange {
    /// Whether `psn` is in the range.
    pub fn contains(self, psn: Psn) -> bool {
        psn.sub(self.first.get()).get() <= self.last.sub(self.first.get()).get()
    }
}

impl fmt::Display for PsnRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first.get(), self.last.get())
    }
}

/// The frames that a rule applies to: those that match every given field. Any field besides the scope matches RoCE packets
/// only.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct FaultMatch {
    /// Whether frames that are no RoCE packets match too.
    pub scope: FaultScope,
    /// The opcode.
    pub opcodes: Option<OpcodeSet>,
    /// The destination queue pair: a local one in received packets, the peer's in sent ones.
    pub qpn: Option<Qpn>,
    /// The PSN.
    pub psn: Option<PsnRange>,
}

impl FaultMatch {
    /// Whether a frame matches; `None` is a frame that is no RoCE packet.
    pub(super) fn matches(&self, packet: Option<&RocePacket<'_>>) -> bool {
        let Some(packet) = packet else {
            return self.scope == FaultScope::All && self.opcodes.is_none() && self.qpn.is_none() && self.psn.is_none();
        };
        self.qpn.is_none_or(|qpn| qpn.get() == packet.dest_qp())
            && self.psn.is_none_or(|range| range.contains(packet.psn()))
            && self.opcodes.as_ref().is_none_or(|set| set.contains(packet.info().opcode))
    }
}

/// A fault rule. Rules choose independently of each other. Equal seeds and equal frames give equal faults, except for
/// what depends on time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FaultRule {
    /// Effect on a matching frame.
    pub action: FaultAction,
    /// The direction that it applies to.
    pub direction: Direction,
    /// The frames that it applies to.
    pub matches: FaultMatch,
    /// The probability for each of these frames.
    pub probability: Probability,
    /// Maximum number of hits, over all lcores and ports; `None` is unlimited.
    pub count: Option<u64>,
    /// Seed of its random choices.
    pub seed: u64,
}

impl FaultRule {
    /// `action` for every RoCE frame of a direction.
    pub fn new(action: FaultAction, direction: Direction) -> FaultRule {
        FaultRule {
            action,
            direction,
            matches: FaultMatch::default(),
            probability: Probability::ALWAYS,
            count: None,
            seed: 0,
        }
    }
}

/// Direction and action, then every field that is not the default.
impl fmt::Display for FaultRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.direction, self.action)?;
        if self.matches.scope == FaultScope::All {
            f.write_str(" frames=all")?;
        }
        if let Some(opcodes) = &self.matches.opcodes {
            write!(f, " opcode={opcodes}")?;
        }
        if let Some(qpn) = self.matches.qpn {
            write!(f, " qpn={qpn}")?;
        }
        if let Some(psn) = self.matches.psn {
            write!(f, " psn={psn}")?;
        }
        if self.probability != Probability::ALWAYS {
            write!(f, " probability={}", self.probability)?;
        }
        if let Some(count) = self.count {
            write!(f, " count={count}")?;
        }
        if self.seed != 0 {
            write!(f, " seed={}", self.seed)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_rounded_to_billionths() {
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
    fn psn_ranges_wrap() {
        let range = |first, last| PsnRange { first: Psn::new(first), last: Psn::new(last) };
        let inside = |range: PsnRange, psns: [u32; 6]| psns.map(|psn| range.contains(Psn::new(psn)));
        assert_eq!(inside(range(5, 7), [4, 5, 6, 7, 8, 0xFF_FFFF]), [false, true, true, true, false, false]);
        assert_eq!(
            inside(range(0xFF_FFFE, 1), [0xFF_FFFD, 0xFF_FFFE, 0xFF_FFFF, 0, 1, 2]),
            [false, true, true, true, true, false]
        );
        assert_eq!(inside(range(9, 9), [8, 9, 10, 0, 0x80_0009, 0xFF_FFFF]), [false, true, false, false, false, false]);
    }

    #[test]
    fn display_shows_only_fields_that_are_not_the_default() {
        let mut rule = FaultRule::new(FaultAction::Drop, Direction::Tx);
        assert_eq!(rule.to_string(), "tx drop");
        rule.matches = FaultMatch {
            scope: FaultScope::All,
            opcodes: Some("RC SEND_ONLY".parse().unwrap()),
            qpn: Some(Qpn::new(17)),
            psn: Some(PsnRange { first: Psn::new(3), last: Psn::new(9) }),
        };
        rule.probability = Probability(WHOLE / 4);
        (rule.count, rule.seed) = (Some(3), 7);
        assert_eq!(
            rule.to_string(),
            "tx drop frames=all opcode=RC SEND_ONLY qpn=0x11 psn=3-9 probability=0.25 count=3 seed=7"
        );
        let (delay, jitter) = (Duration::from_millis(2), Duration::from_micros(500));
        let said = |action: FaultAction| FaultRule::new(action, Direction::Rx).to_string();
        assert_eq!(said(FaultAction::Delay { delay, jitter }), "rx delay 2ms jitter 500µs");
        assert_eq!(said(FaultAction::Delay { delay, jitter: Duration::ZERO }), "rx delay 2ms");
        assert_eq!(said(FaultAction::Refuse(RequestRefusal::NotReady { timer: 12 })), "rx rnr timer 12");
        assert_eq!(said(FaultAction::Refuse(RequestRefusal::RemoteAccess)), "rx nak remote-access");
    }
}
