//! The verb `fault`.

use std::collections::BTreeMap;

use clap::{Args, Subcommand, ValueEnum};
use rxe::{CliError, Suggested};
use rxe_inspect::client::Client;
use rxe_inspect::fault::Fault;
use rxe_inspect::protocol::Request;

use crate::output::{done, json_or_text};
use crate::table::{Align, Table};

/// The verbs of `fault`.
#[derive(Subcommand, Debug)]
pub enum FaultVerb {
    /// Add a fault and print its number
    Add(Box<AddFault>),
    /// List the active faults: rule, frames matched, and frames hit
    List,
    /// Remove a fault
    Remove {
        /// Number of the fault
        id: u32,
    },
    /// Remove all faults, those of the configuration file and of --fault included
    Clear,
}

/// The fault.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Drop the frame
    Drop,
    /// Deliver the frame twice
    Duplicate,
    /// Hold the frame back until one to four later frames have passed, or for a millisecond
    Reorder,
    /// Delay the frame by VALUE, for example 500us
    Delay,
    /// Flip one bit after the Ethernet header
    Corrupt,
    /// Flip one bit of the payload
    CorruptPayload,
    /// Flip one bit of the ICRC
    CorruptIcrc,
    /// Mark the frame as Congestion Experienced
    Ecn,
    /// Refuse the request with a NAK: VALUE is psn-sequence, invalid-request, remote-access or remote-operational
    Nak,
    /// Refuse the request with an RNR NAK: VALUE is its timer, a time or a timer code [default: 640us]
    Rnr,
}

/// A fault to add.
#[derive(Args, Debug)]
pub struct AddFault {
    /// The fault
    #[arg(value_enum)]
    action: Action,

    /// Parameter of delay, nak and rnr
    #[arg(value_parser = Suggested::new(["psn-sequence", "invalid-request", "remote-access", "remote-operational"]), hide_possible_values = true)]
    value: Option<String>,

    /// Match frames from the wire (rx) or to the wire (tx) [default: rx]
    #[arg(long, value_name = "rx|tx", value_parser = Suggested::new(["rx", "tx"]), hide_possible_values = true)]
    direction: Option<String>,

    /// Match frames with this opcode, for example "RC SEND_ONLY". Without the transport: the opcode of every transport. The
    /// start of a name matches all opcodes that begin with it, for example READ_RESPONSE. Separate several with commas
    #[arg(long, value_name = "NAME[,NAME]...")]
    opcode: Option<String>,

    /// Match frames with this destination queue pair: the target's for rx, the peer's for tx
    #[arg(long)]
    qpn: Option<String>,

    /// Match frames with a PSN in this range, which wraps if FIRST is larger than LAST
    #[arg(long, value_name = "FIRST-LAST")]
    psn: Option<String>,

    /// Probability for each matched frame, from 0 to 1 [default: 1]
    #[arg(long, value_name = "SHARE")]
    probability: Option<String>,

    /// Maximum number of hits [default: unlimited]
    #[arg(long)]
    count: Option<String>,

    /// Seed of the random choices: the same seed and frames give the same faults [default: 0]
    #[arg(long)]
    seed: Option<String>,

    /// Random additional delay, up to this time (delay only)
    #[arg(long, value_name = "TIME")]
    jitter: Option<String>,

    /// Match RoCE frames only, or all frames [default: roce]
    #[arg(long, value_name = "roce|all", value_parser = Suggested::new(["roce", "all"]), hide_possible_values = true)]
    frames: Option<String>,
}

impl AddFault {
    /// The keys of the rule and their values.
    fn keys(&self) -> Result<BTreeMap<String, String>, CliError> {
        let name = self.action.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let value_key = match self.action {
            Action::Delay => Some("delay"),
            Action::Nak => Some("code"),
            Action::Rnr => Some("timer"),
            _ => None,
        };
        if let (None, Some(value)) = (value_key, &self.value) {
            return Err(CliError::new(format!("the fault '{name}' takes no value: leave '{value}' out")));
        }
        let given = [
            ("action", Some(&name)),
            (value_key.unwrap_or_default(), self.value.as_ref()),
            ("direction", self.direction.as_ref()),
            ("opcode", self.opcode.as_ref()),
            ("qpn", self.qpn.as_ref()),
            ("psn", self.psn.as_ref()),
            ("probability", self.probability.as_ref()),
            ("count", self.count.as_ref()),
            ("seed", self.seed.as_ref()),
            ("jitter", self.jitter.as_ref()),
            ("frames", self.frames.as_ref()),
        ];
        Ok(given.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.clone()))).collect())
    }
}

/// Carries out the verb; returns the text to print.
pub fn run(target: &mut Client, verb: &FaultVerb, json: bool) -> Result<String, CliError> {
    match verb {
        FaultVerb::Add(fault) => {
            let id: u32 = target.ask(&Request::AddFault { rule: fault.keys()? })?;
            Ok(json_or_text(json, &id, |id| format!("{id}\n")))
        }
        FaultVerb::List => {
            let faults: Vec<Fault> = target.ask(&Request::Faults)?;
            Ok(json_or_text(json, &faults, |faults| show(faults)))
        }
        FaultVerb::Remove { id } => {
            target.tell(&Request::RemoveFault { id: *id })?;
            Ok(done(json))
        }
        FaultVerb::Clear => {
            target.tell(&Request::ClearFaults)?;
            Ok(done(json))
        }
    }
}

fn show(faults: &[Fault]) -> String {
    let columns = [
        ("ID", Align::Right),
        ("MATCHED", Align::Right),
        ("HITS", Align::Right),
        ("LEFT", Align::Right),
        ("FAULT", Align::Left),
    ];
    let mut table = Table::new("", &columns);
    table.rows = faults
        .iter()
        .map(|fault| {
            let left = fault.count.map_or("-".to_owned(), |count| count.saturating_sub(fault.hits).to_string());
            vec![fault.id.to_string(), fault.matched.to_string(), fault.hits.to_string(), left, fault.rule.clone()]
        })
        .collect();
    table.text()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        fault: AddFault,
    }

    fn keys(line: &str) -> Result<String, String> {
        let line = Line::try_parse_from(["add"].into_iter().chain(line.split(' ')));
        let keys = line.map_err(|error| error.to_string())?.fault.keys().map_err(|error| error.to_string())?;
        Ok(keys.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn options_become_the_keys_of_a_rule() {
        for (line, asked) in [
            ("drop", "action=drop"),
            ("corrupt-icrc --direction tx --count 3", "action=corrupt-icrc count=3 direction=tx"),
            ("nak remote-access --qpn 0x11 --psn 1-5", "action=nak code=remote-access psn=1-5 qpn=0x11"),
            ("rnr", "action=rnr"),
            (
                "rnr 1ms --opcode SEND --probability 0.5 --seed 7",
                "action=rnr opcode=SEND probability=0.5 seed=7 timer=1ms",
            ),
            ("delay 2ms --jitter 1ms --frames all", "action=delay delay=2ms frames=all jitter=1ms"),
        ] {
            assert_eq!(keys(line), Ok(asked.to_owned()));
        }
        assert_eq!(keys("drop it"), Err("the fault 'drop' takes no value: leave 'it' out".to_owned()));
        assert!(keys("lose").is_err_and(|said| said.contains("corrupt-payload")));
    }

    #[test]
    fn faults_are_a_table() {
        let fault = |id, count, hits| Fault {
            id,
            direction: "rx".to_owned(),
            action: "drop".to_owned(),
            rule: "rx drop".to_owned(),
            frames: "roce".to_owned(),
            opcode: None,
            qpn: None,
            psn: None,
            probability: 1.0,
            count,
            seed: 0,
            delay_ns: None,
            jitter_ns: None,
            code: None,
            timer: None,
            matched: 1000,
            hits,
        };
        let (endless, counted) = (fault(1, None, 1000), fault(12, Some(5), 3));
        let text =
            "ID  MATCHED  HITS  LEFT  FAULT\n 1     1000  1000     -  rx drop\n12     1000     3     2  rx drop\n";
        assert_eq!(show(&[endless, counted]), text);
    }
}
