//! Fault injection: section `[fault]` of the configuration file and the option `--fault`, two spellings of the same rules.
//! [`RuleSpec`] has the general form of a rule.

use std::str::FromStr;
use std::time::Duration;

use rxe::{CliError, cli_error};
use rxe_adapter::texts::{Frames, RuleSpec, Seed, Share, Span, Text};
use rxe_adapter::worker::{Direction, FaultAction, FaultMatch, FaultRule, FaultScope, MAX_FAULTS, Probability};
use serde::Deserialize;

/// Probabilities and delays of one direction.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rates {
    drop: Option<Text<Share>>,
    duplicate: Option<Text<Share>>,
    reorder: Option<Text<Share>>,
    corrupt: Option<Text<Share>>,
    delay: Option<Text<Span>>,
    jitter: Option<Text<Span>>,
    delayed: Option<Text<Share>>,
}

/// The section or the option.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultSpec {
    seed: Option<Text<Seed>>,
    frames: Option<Text<Frames>>,
    #[serde(default)]
    rx: Rates,
    #[serde(default)]
    tx: Rates,
    #[serde(default)]
    rule: Vec<RuleSpec>,
}

impl Rates {
    /// The rules, without those that never hit.
    fn resolve(&self, direction: Direction, scope: FaultScope, seed: u64) -> Result<Vec<FaultRule>, CliError> {
        let span = |given: &Option<Text<Span>>| given.as_ref().map_or(Duration::ZERO, |text| text.0.0);
        let (delay, jitter) = (span(&self.delay), span(&self.jitter));
        let delays = delay + jitter > Duration::ZERO;
        if self.delayed.is_some() && !delays {
            return cli_error!("'delayed' of {direction} needs a time: add 'delay' or 'jitter'");
        }
        let rate = |given: &Option<Text<Share>>, default| given.as_ref().map_or(default, |text| text.0.0);
        let never = Probability::NEVER;
        let rates = [
            (FaultAction::Drop, rate(&self.drop, never)),
            (FaultAction::Duplicate, rate(&self.duplicate, never)),
            (FaultAction::Reorder, rate(&self.reorder, never)),
            (FaultAction::Corrupt, rate(&self.corrupt, never)),
            (
                FaultAction::Delay { delay, jitter },
                if delays { rate(&self.delayed, Probability::ALWAYS) } else { never },
            ),
        ];
        let some = rates.into_iter().filter(|(_, probability)| *probability != never);
        let matches = FaultMatch { scope, ..FaultMatch::default() };
        Ok(some
            .map(|(action, probability)| FaultRule {
                matches: matches.clone(),
                probability,
                seed,
                ..FaultRule::new(action, direction)
            })
            .collect())
    }
}

impl FaultSpec {
    /// The rules with the defaults filled in, without those that never hit.
    pub fn resolve(&self) -> Result<Vec<FaultRule>, CliError> {
        let seed = self.seed.as_ref().map_or(0, |text| text.0.0);
        let scope = self.frames.as_ref().map_or(FaultScope::Roce, |text| text.0.0);
        let mut rules = self.rx.resolve(Direction::Rx, scope, seed)?;
        rules.extend(self.tx.resolve(Direction::Tx, scope, seed)?);
        for rule in &self.rule {
            rules.push(rule.resolve(seed)?);
        }
        if rules.len() > MAX_FAULTS {
            return cli_error!("{} faults are too many: at most {MAX_FAULTS} can be in force", rules.len());
        }
        Ok(rules)
    }

    /// Sets one `KEY=VALUE` of the option.
    fn set(&mut self, key: &str, value: &str) -> Result<(), CliError> {
        fn once<T: FromStr>(slot: &mut Option<Text<T>>, key: &str, value: &str) -> Result<(), CliError>
        where
            CliError: From<T::Err>,
        {
            if slot.replace(Text(value.parse()?)).is_some() {
                return cli_error!("'{key}' is given twice: keep one of them");
            }
            Ok(())
        }
        let (rates, name) = match key.split_once('.') {
            None if key == "seed" => return once(&mut self.seed, key, value),
            None if key == "frames" => return once(&mut self.frames, key, value),
            Some(("rx", name)) => (&mut self.rx, name),
            Some(("tx", name)) => (&mut self.tx, name),
            _ => return unknown(key),
        };
        match name {
            "drop" => once(&mut rates.drop, key, value),
            "duplicate" => once(&mut rates.duplicate, key, value),
            "reorder" => once(&mut rates.reorder, key, value),
            "corrupt" => once(&mut rates.corrupt, key, value),
            "delay" => once(&mut rates.delay, key, value),
            "jitter" => once(&mut rates.jitter, key, value),
            "delayed" => once(&mut rates.delayed, key, value),
            _ => unknown(key),
        }
    }
}

fn unknown(key: &str) -> Result<(), CliError> {
    cli_error!(
        "'{key}' is not a fault: they are drop, duplicate, reorder, corrupt, delay, jitter and delayed, each with rx. or \
         tx. in front, besides seed and frames"
    )
}

/// `KEY=VALUE[,KEY=VALUE]...`
impl FromStr for FaultSpec {
    type Err = CliError;

    fn from_str(text: &str) -> Result<FaultSpec, CliError> {
        let mut spec = FaultSpec::default();
        for item in text.split(',') {
            let Some((key, value)) = item.split_once('=') else {
                return cli_error!("'{item}' is not KEY=VALUE: write it as rx.drop=0.01,tx.delay=2ms,seed=7");
            };
            spec.set(key, value)?;
        }
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rules, one line each.
    fn read(text: &str) -> Result<Vec<String>, String> {
        let rules = text.parse::<FaultSpec>().and_then(|spec| spec.resolve()).map_err(|error| error.to_string());
        Ok(rules?.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn every_key_of_the_option() {
        let all = "seed=7,frames=all,rx.drop=0.01,rx.duplicate=0.02,rx.reorder=0.03,rx.corrupt=1e-3,\
                   tx.drop=1,tx.delay=2ms,tx.jitter=500us,tx.delayed=0.5";
        let rx = ["drop", "duplicate", "reorder", "corrupt"].into_iter().zip(["0.01", "0.02", "0.03", "0.001"]);
        let mut rules: Vec<String> =
            rx.map(|(action, share)| format!("rx {action} frames=all probability={share} seed=7")).collect();
        rules.push("tx drop frames=all seed=7".to_owned());
        rules.push("tx delay 2ms jitter 500µs frames=all probability=0.5 seed=7".to_owned());
        assert_eq!(read(all), Ok(rules));
        assert_eq!(read("tx.delay=10s"), Ok(vec!["tx delay 10s".to_owned()]));
        assert_eq!(read("rx.jitter=250ns"), Ok(vec!["rx delay 0ns jitter 250ns".to_owned()]));
        assert_eq!(read("seed=7,rx.drop=0,tx.delay=1s,tx.delayed=0"), Ok(Vec::new()), "nothing would ever happen");
    }

    #[test]
    fn errors_name_the_value() {
        for (text, sentence) in [
            ("rx.drop", "'rx.drop' is not KEY=VALUE: write it as rx.drop=0.01,tx.delay=2ms,seed=7"),
            ("", "'' is not KEY=VALUE: write it as rx.drop=0.01,tx.delay=2ms,seed=7"),
            ("rx.drop=0.1,rx.drop=0.2", "'rx.drop' is given twice: keep one of them"),
            (
                "tx.drop=1.5",
                "'1.5' is not a probability: it goes from 0 (never) to 1 (always) in billionths, as 0.01 for one frame in a hundred",
            ),
            ("tx.delay=5", "'5' is not a time: write a whole number with ns, us, ms or s, as 500us"),
            ("tx.delay=11s", "'11s' is too long: the most is 10 s"),
            ("seed=-1", "'-1' is not a seed: it is a whole number from 0 to 18446744073709551615"),
            ("frames=arp", "'arp' is not a kind of frames: it is 'roce' or 'all'"),
            (
                "drop=0.1",
                "'drop' is not a fault: they are drop, duplicate, reorder, corrupt, delay, jitter and delayed, each with rx. or tx. in front, besides seed and frames",
            ),
            ("rx.delayed=0.1", "'delayed' of rx needs a time: add 'delay' or 'jitter'"),
        ] {
            assert_eq!(read(text), Err(sentence.to_owned()));
        }
        for text in ["rx.drop=nan", "rx.drop=-0.1", "rx.drop=1%", "rx.drop=1e-10", "rx.drop="] {
            assert!(read(text).is_err_and(|sentence| sentence.contains("is not a probability")), "{text}");
        }
        for text in ["tx.x=1", "zx.drop=1", "rx=1", "rx..drop=1"] {
            assert!(read(text).is_err_and(|sentence| sentence.contains("is not a fault")), "{text}");
        }
        assert!(read("tx.delay=99999999999999999999s").is_err_and(|sentence| sentence.contains("is not a time")));
    }
}
