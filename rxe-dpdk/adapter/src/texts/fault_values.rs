//! The single values of fault rules, as `--fault`, the configuration file and `rxe-ctl fault` write them.

use std::str::FromStr;
use std::time::Duration;

use super::{Invalid, invalid};
use crate::worker::{FaultScope, Probability};

/// Longest delay: with a longer one, every connection would fail.
const MAX_DELAY: Duration = Duration::from_secs(10);

/// Whole-number seed.
#[derive(Clone, Copy, Debug)]
pub struct Seed(pub u64);

impl FromStr for Seed {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Seed, Invalid> {
        match text.parse() {
            Ok(seed) => Ok(Seed(seed)),
            Err(_) => invalid!("'{text}' is not a seed: it is a whole number from 0 to {}", u64::MAX),
        }
    }
}

/// Frames that a fault applies to.
#[derive(Clone, Copy, Debug)]
pub struct Frames(pub FaultScope);

impl FromStr for Frames {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Frames, Invalid> {
        match text {
            "roce" => Ok(Frames(FaultScope::Roce)),
            "all" => Ok(Frames(FaultScope::All)),
            _ => invalid!("'{text}' is not a kind of frames: it is 'roce' or 'all'"),
        }
    }
}

/// Probability.
#[derive(Clone, Copy, Debug)]
pub struct Share(pub Probability);

impl FromStr for Share {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Share, Invalid> {
        match text.parse().ok().and_then(Probability::from_share) {
            Some(probability) => Ok(Share(probability)),
            None => invalid!(
                "'{text}' is not a probability: it goes from 0 (never) to 1 (always) in billionths, as 0.01 for one \
                 frame in a hundred"
            ),
        }
    }
}

/// A length of time, with its unit.
#[derive(Clone, Copy, Debug)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Span, Invalid> {
        // "s" last: the others end in it.
        let units = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
        let split = units.iter().find_map(|(unit, nanos)| Some((text.strip_suffix(unit)?, nanos)));
        let nanos = split.and_then(|(digits, nanos)| digits.trim_end().parse::<u64>().ok()?.checked_mul(*nanos));
        match nanos.map(Duration::from_nanos) {
            Some(span) if span <= MAX_DELAY => Ok(Span(span)),
            Some(_) => invalid!("'{text}' is too long: the most is {} s", MAX_DELAY.as_secs()),
            None => invalid!("'{text}' is not a time: write a whole number with ns, us, ms or s, as 500us"),
        }
    }
}
