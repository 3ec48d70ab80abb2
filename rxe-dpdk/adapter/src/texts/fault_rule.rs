//! Fault rules: `[[fault.rule]]` of the configuration file, and `rxe-ctl fault add`.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use rxe_proto::transport::{Qpn, RequestRefusal};
use rxe_proto::wire::{OpcodeSet, Psn, rnr_timer};
use serde::Deserialize;

use super::fault_values::{Frames, Seed, Share, Span};
use super::{Invalid, Text, invalid};
use crate::worker::{Direction, FaultAction, FaultMatch, FaultRule, FaultScope, Probability, PsnRange};

/// Default RNR timer: 0.64 ms.
const DEFAULT_TIMER: u8 = 12;

/// The fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Drop,
    Duplicate,
    Reorder,
    Corrupt,
    CorruptPayload,
    CorruptIcrc,
    Ecn,
    Delay,
    Nak,
    Rnr,
}

impl FromStr for Action {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Action, Invalid> {
        Ok(match text {
            "drop" => Action::Drop,
            "duplicate" => Action::Duplicate,
            "reorder" => Action::Reorder,
            "corrupt" => Action::Corrupt,
            "corrupt-payload" => Action::CorruptPayload,
            "corrupt-icrc" => Action::CorruptIcrc,
            "ecn" => Action::Ecn,
            "delay" => Action::Delay,
            "nak" => Action::Nak,
            "rnr" => Action::Rnr,
            _ => {
                return invalid!(
                    "'{text}' is not a fault: they are drop, duplicate, reorder, delay, corrupt, corrupt-payload, \
                     corrupt-icrc, ecn, nak and rnr"
                );
            }
        })
    }
}

/// Direction of the frames.
#[derive(Clone, Copy, Debug)]
struct DirectionKey(Direction);

impl FromStr for DirectionKey {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<DirectionKey, Invalid> {
        match text {
            "rx" => Ok(DirectionKey(Direction::Rx)),
            "tx" => Ok(DirectionKey(Direction::Tx)),
            _ => invalid!("'{text}' is not a direction: it is 'rx' (from the wire) or 'tx' (to the wire)"),
        }
    }
}

/// Opcodes.
#[derive(Clone, Debug)]
struct Opcodes(OpcodeSet);

impl FromStr for Opcodes {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Opcodes, Invalid> {
        text.parse().map(Opcodes).map_err(|error: rxe_proto::wire::UnknownOpcodeName| Invalid(error.to_string()))
    }
}

/// A number below 2^24, decimal or as 0x11.
fn number_of_24_bits(text: &str) -> Option<u32> {
    let number = match text.trim().strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.trim().parse(),
    };
    number.ok().filter(|number| *number < 1 << 24)
}

/// The number of a queue pair.
#[derive(Clone, Copy, Debug)]
struct QpNumber(Qpn);

impl FromStr for QpNumber {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<QpNumber, Invalid> {
        match number_of_24_bits(text) {
            Some(number) => Ok(QpNumber(Qpn::new(number))),
            None => invalid!("'{text}' is not a queue pair number: it goes from 0 to 0xffffff"),
        }
    }
}

/// PSNs.
#[derive(Clone, Copy, Debug)]
struct Psns(PsnRange);

impl FromStr for Psns {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Psns, Invalid> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (number_of_24_bits(first), number_of_24_bits(last)) {
            (Some(first), Some(last)) => Ok(Psns(PsnRange { first: Psn::new(first), last: Psn::new(last) })),
            _ => invalid!("'{text}' is not a range of PSNs: write it as FIRST-LAST, each from 0 to 0xffffff"),
        }
    }
}

/// Maximum number of hits.
#[derive(Clone, Copy, Debug)]
struct Count(u64);

impl FromStr for Count {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Count, Invalid> {
        match text.parse() {
            Ok(count) if count > 0 => Ok(Count(count)),
            _ => invalid!("'{text}' is not a count: it is a whole number from 1"),
        }
    }
}

/// NAK code.
#[derive(Clone, Copy, Debug)]
struct NakText(RequestRefusal);

impl FromStr for NakText {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<NakText, Invalid> {
        Ok(NakText(match text {
            "psn-sequence" => RequestRefusal::PsnSequence,
            "invalid-request" => RequestRefusal::InvalidRequest,
            "remote-access" => RequestRefusal::RemoteAccess,
            "remote-operational" => RequestRefusal::RemoteOperational,
            _ => {
                return invalid!(
                    "'{text}' is no NAK: it is psn-sequence, invalid-request, remote-access or remote-operational"
                );
            }
        }))
    }
}

/// The timer code of an RNR NAK.
#[derive(Clone, Copy, Debug)]
struct Timer(u8);

impl FromStr for Timer {
    type Err = Invalid;

    /// A code, or a time, which is rounded up to the next timer.
    fn from_str(text: &str) -> Result<Timer, Invalid> {
        let code = match (text.parse(), text.parse::<Span>()) {
            (Ok(code), _) => Some(code).filter(|code| *code < 32),
            (_, Ok(Span(time))) => (0..32).filter(|code| rnr_timer(*code) >= time).min_by_key(|code| rnr_timer(*code)),
            _ => None,
        };
        match code {
            Some(code) => Ok(Timer(code)),
            None => {
                invalid!("'{text}' is not an RNR timer: it is a code from 0 to 31, or a time of at most 655 ms, as 1ms")
            }
        }
    }
}

/// A rule as the file has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleSpec {
    action: Text<Action>,
    direction: Option<Text<DirectionKey>>,
    frames: Option<Text<Frames>>,
    opcode: Option<Text<Opcodes>>,
    qpn: Option<Text<QpNumber>>,
    psn: Option<Text<Psns>>,
    probability: Option<Text<Share>>,
    count: Option<Text<Count>>,
    seed: Option<Text<Seed>>,
    delay: Option<Text<Span>>,
    jitter: Option<Text<Span>>,
    code: Option<Text<NakText>>,
    timer: Option<Text<Timer>>,
}

impl RuleSpec {
    /// The rule with the defaults filled in; `seed` is the default seed.
    /// The rule; `seed` is used where it has none of its own.
    ///
    /// # Errors
    /// Keys that do not fit each other.
    pub fn resolve(&self, seed: u64) -> Result<FaultRule, Invalid> {
        let action = self.action()?;
        let scope = self.frames.as_ref().map_or(FaultScope::Roce, |text| text.0.0);
        let roce_only = [
            ("opcode", self.opcode.is_some()),
            ("qpn", self.qpn.is_some()),
            ("psn", self.psn.is_some()),
            (action.name(), action.needs_roce()),
        ];
        if let (FaultScope::All, Some((what, _))) = (scope, roce_only.iter().find(|(_, given)| *given)) {
            return invalid!("'{what}' is for RoCE frames only: leave frames = \"all\" out");
        }
        let direction = self.direction.as_ref().map_or(Direction::Rx, |text| text.0.0);
        if matches!(action, FaultAction::Refuse(_)) && direction == Direction::Tx {
            return invalid!("'{}' answers requests from the wire: leave direction = \"tx\" out", action.name());
        }
        let probability = self.probability.as_ref().map_or(Probability::ALWAYS, |text| text.0.0);
        if probability == Probability::NEVER {
            return invalid!("a fault with the probability 0 never happens: leave it out");
        }
        Ok(FaultRule {
            action,
            direction,
            matches: FaultMatch {
                scope,
                opcodes: self.opcode.as_ref().map(|text| text.0.0.clone()),
                qpn: self.qpn.as_ref().map(|text| text.0.0),
                psn: self.psn.as_ref().map(|text| text.0.0),
            },
            probability,
            count: self.count.as_ref().map(|text| text.0.0),
            seed: self.seed.as_ref().map_or(seed, |text| text.0.0),
        })
    }

    fn action(&self) -> Result<FaultAction, Invalid> {
        let action = self.action.0;
        for (key, given, owner, name) in [
            ("delay", self.delay.is_some(), Action::Delay, "delay"),
            ("jitter", self.jitter.is_some(), Action::Delay, "delay"),
            ("code", self.code.is_some(), Action::Nak, "nak"),
            ("timer", self.timer.is_some(), Action::Rnr, "rnr"),
        ] {
            if given && action != owner {
                return invalid!("'{key}' belongs to the action '{name}': leave it out");
            }
        }
        let span = |given: &Option<Text<Span>>| given.as_ref().map_or(Duration::ZERO, |text| text.0.0);
        Ok(match action {
            Action::Drop => FaultAction::Drop,
            Action::Duplicate => FaultAction::Duplicate,
            Action::Reorder => FaultAction::Reorder,
            Action::Corrupt => FaultAction::Corrupt,
            Action::CorruptPayload => FaultAction::CorruptPayload,
            Action::CorruptIcrc => FaultAction::CorruptIcrc,
            Action::Ecn => FaultAction::Ecn,
            Action::Delay => {
                let (delay, jitter) = (span(&self.delay), span(&self.jitter));
                if delay + jitter == Duration::ZERO {
                    return invalid!("the action 'delay' needs a time: add 'delay' or 'jitter', as 2ms");
                }
                FaultAction::Delay { delay, jitter }
            }
            Action::Nak => match &self.code {
                Some(text) => FaultAction::Refuse(text.0.0),
                None => {
                    return invalid!(
                        "the action 'nak' needs a code: it is psn-sequence, invalid-request, remote-access or \
                         remote-operational"
                    );
                }
            },
            Action::Rnr => {
                let timer = self.timer.as_ref().map_or(DEFAULT_TIMER, |text| text.0.0);
                FaultAction::Refuse(RequestRefusal::NotReady { timer })
            }
        })
    }
}

/// The rule of a request to a running adapter, by the same keys.
///
/// # Errors
/// The error in the keys, as a sentence.
pub fn fault_rule(keys: &BTreeMap<String, String>) -> Result<FaultRule, Invalid> {
    let text = keys.iter().map(|(key, value)| (key.clone(), serde_json::Value::from(value.as_str()))).collect();
    match serde_json::from_value::<RuleSpec>(serde_json::Value::Object(text)) {
        Ok(spec) => spec.resolve(0),
        Err(error) => invalid!("{}", error.to_string().replace('`', "'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<String, String> {
        let keys = text.split(' ').map(|item| {
            let (key, value) = item.split_once('=').expect("KEY=VALUE");
            (key.to_owned(), value.replace('+', " "))
        });
        fault_rule(&keys.collect()).map(|rule| rule.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn every_action_and_key() {
        for (text, rule) in [
            ("action=drop", "rx drop"),
            ("action=duplicate direction=tx", "tx duplicate"),
            ("action=reorder frames=all", "rx reorder frames=all"),
            ("action=corrupt probability=0.5 seed=9", "rx corrupt probability=0.5 seed=9"),
            ("action=corrupt-payload count=3", "rx corrupt-payload count=3"),
            ("action=corrupt-icrc qpn=0x11", "rx corrupt-icrc qpn=0x11"),
            ("action=ecn qpn=17", "rx ecn qpn=0x11"),
            ("action=delay delay=2ms", "rx delay 2ms"),
            ("action=delay jitter=2ms", "rx delay 0ns jitter 2ms"),
            ("action=drop opcode=rc+send_only,CNP psn=0xfffffe-3", "rx drop opcode=rc send_only,CNP psn=16777214-3"),
            ("action=drop psn=7", "rx drop psn=7-7"),
            ("action=nak code=psn-sequence", "rx nak psn-sequence"),
            ("action=nak code=invalid-request", "rx nak invalid-request"),
            ("action=nak code=remote-access direction=rx", "rx nak remote-access"),
            ("action=nak code=remote-operational", "rx nak remote-operational"),
            ("action=rnr", "rx rnr timer 12"),
            ("action=rnr timer=0", "rx rnr timer 0"),
            ("action=rnr timer=31 frames=roce", "rx rnr timer 31"),
            ("action=rnr timer=640us", "rx rnr timer 12"),
            ("action=rnr timer=641us", "rx rnr timer 13"),
            ("action=rnr timer=600ms", "rx rnr timer 0"),
        ] {
            assert_eq!(read(text), Ok(rule.to_owned()), "{text}");
        }
    }

    #[test]
    fn errors_of_rules_name_the_key() {
        for (text, sentence) in [
            (
                "action=lose",
                "'lose' is not a fault: they are drop, duplicate, reorder, delay, corrupt, corrupt-payload, corrupt-icrc, ecn, nak and rnr",
            ),
            ("action=drop direction=up", "'up' is not a direction: it is 'rx' (from the wire) or 'tx' (to the wire)"),
            (
                "action=drop opcode=SEND_SOME",
                "'SEND_SOME' is no opcode: write it as RC SEND_ONLY, SEND_ONLY or READ_RESPONSE",
            ),
            ("action=drop qpn=0x1000000", "'0x1000000' is not a queue pair number: it goes from 0 to 0xffffff"),
            ("action=drop psn=3-", "'3-' is not a range of PSNs: write it as FIRST-LAST, each from 0 to 0xffffff"),
            ("action=drop count=0", "'0' is not a count: it is a whole number from 1"),
            ("action=drop probability=0", "a fault with the probability 0 never happens: leave it out"),
            ("action=drop delay=1ms", "'delay' belongs to the action 'delay': leave it out"),
            ("action=drop timer=1ms", "'timer' belongs to the action 'rnr': leave it out"),
            ("action=rnr code=remote-access", "'code' belongs to the action 'nak': leave it out"),
            (
                "action=rnr timer=32",
                "'32' is not an RNR timer: it is a code from 0 to 31, or a time of at most 655 ms, as 1ms",
            ),
            (
                "action=rnr timer=700ms",
                "'700ms' is not an RNR timer: it is a code from 0 to 31, or a time of at most 655 ms, as 1ms",
            ),
            ("action=delay", "the action 'delay' needs a time: add 'delay' or 'jitter', as 2ms"),
            (
                "action=nak",
                "the action 'nak' needs a code: it is psn-sequence, invalid-request, remote-access or remote-operational",
            ),
            (
                "action=nak code=no",
                "'no' is no NAK: it is psn-sequence, invalid-request, remote-access or remote-operational",
            ),
            ("action=rnr direction=tx", "'rnr' answers requests from the wire: leave direction = \"tx\" out"),
            ("action=drop frames=all qpn=1", "'qpn' is for RoCE frames only: leave frames = \"all\" out"),
            ("action=ecn frames=all", "'ecn' is for RoCE frames only: leave frames = \"all\" out"),
            ("direction=rx", "missing field 'action'"),
        ] {
            assert_eq!(read(text), Err(sentence.to_owned()), "{text}");
        }
        assert!(read("action=drop colour=red").is_err_and(|said| said.starts_with("unknown field 'colour'")));
    }
}
