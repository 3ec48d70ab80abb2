//! Faults made on purpose: what `rxe-ctl fault` is told, asks for, and shows.

use std::collections::BTreeMap;

use clap::{Args, Subcommand, ValueEnum};
use rxe_inspect::client::Client;
use rxe_inspect::fault::Fault;
use rxe_inspect::protocol::Request;

use crate::Failure;
use crate::table::{Align, Table};
use crate::verbs::{done, either};

/// What to do about faults.
#[derive(Subcommand, Debug)]
pub enum FaultVerb {
    /// Make a fault from now on; prints its number
    Add(Box<AddFault>),
    /// The faults in force: what each says, how many frames it was for, and to how many of these it happened
    List,
    /// End a fault
    Remove {
        /// Its number
        id: u32,
    },
    /// End all faults, those of the configuration file and of --fault too
    Clear,
}

/// What happens.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The frame is lost
    Drop,
    /// It comes twice
    Duplicate,
    /// It is held back until one to four later ones have come, or a millisecond is over
    Reorder,
    /// It is late by VALUE, as 500us
    Delay,
    /// One bit behind the Ethernet header is flipped
    Corrupt,
    /// One bit of its payload is flipped
    CorruptPayload,
    /// One bit of its ICRC is flipped
    CorruptIcrc,
    /// It is marked as having met congestion
    Ecn,
    /// The request is refused: VALUE is psn-sequence, invalid-request, remote-access or remote-operational
    Nak,
    /// The request is refused for now: VALUE is how long, as a time or the code of the timer [default: 640us]
    Rnr,
}

/// A fault to make.
#[derive(Args, Debug)]
pub struct AddFault {
    /// What happens
    #[arg(value_enum)]
    action: Action,

    /// What there is to say of delay, nak and rnr
    value: Option<String>,

    /// To frames from the wire (rx) or to it (tx) [default: rx]
    #[arg(long, value_name = "rx|tx")]
    direction: Option<String>,

    /// To frames with this opcode, as "RC SEND_ONLY"; without the transport to all of that name, and to several by how
    /// their names begin, as READ_RESPONSE. More than one separated by commas
    #[arg(long, value_name = "NAME[,NAME]...")]
    opcode: Option<String>,

    /// To frames for this queue pair: from the wire it is ours, to the wire the peer's
    #[arg(long)]
    qpn: Option<String>,

    /// To frames with these PSNs, across the wrap if the first is the larger one
    #[arg(long, value_name = "FIRST-LAST")]
    psn: Option<String>,

    /// How often, from 0 to 1 [default: 1]
    #[arg(long, value_name = "SHARE")]
    probability: Option<String>,

    /// How many times at most [default: without end]
    #[arg(long)]
    count: Option<String>,

    /// What the choices follow from: the same frames meet the same fault again [default: 0]
    #[arg(long)]
    seed: Option<String>,

    /// Of delay: and late by up to this much more
    #[arg(long, value_name = "TIME")]
    jitter: Option<String>,

    /// To RoCE frames only, or to all [default: roce]
    #[arg(long, value_name = "roce|all")]
    frames: Option<String>,
}

impl AddFault {
    /// The keys of the rule and their values.
    fn keys(&self) -> Result<BTreeMap<String, String>, Failure> {
        let name = self.action.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let value_key = match self.action {
            Action::Delay => Some("delay"),
            Action::Nak => Some("code"),
            Action::Rnr => Some("timer"),
            _ => None,
        };
        if let (None, Some(value)) = (value_key, &self.value) {
            return Err(Failure::Mistake(format!("there is nothing to say of '{name}': leave '{value}' out")));
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

/// Does what the command line says; returns what is to be printed.
pub fn run(target: &mut Client, verb: &FaultVerb, json: bool) -> Result<String, Failure> {
    match verb {
        FaultVerb::Add(fault) => {
            let id: u32 = target.ask(&Request::AddFault { rule: fault.keys()? })?;
            either(json, &id, |id| format!("{id}\n"))
        }
        FaultVerb::List => {
            let faults: Vec<Fault> = target.ask(&Request::Faults)?;
            either(json, &faults, |faults| show(faults))
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
    use crate::cli::{Cli, Verb};

    fn keys(line: &str) -> Result<String, String> {
        let cli = Cli::try_parse_from(["rxe-ctl", "fault", "add"].into_iter().chain(line.split(' ')));
        let Verb::Fault { what: FaultVerb::Add(fault) } = cli.map_err(|error| error.to_string())?.verb else {
            panic!("{line}");
        };
        let keys = fault.keys().map_err(|failure| failure.to_string())?;
        Ok(keys.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn what_is_given_is_asked_for() {
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
        assert_eq!(keys("drop it"), Err("there is nothing to say of 'drop': leave 'it' out".to_owned()));
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
