//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

use crate::capture::CaptureVerb;
use crate::fault::FaultVerb;

const AFTER_HELP: &str = "\
Queue pair numbers may be written decimal or as 0x11. With --json every verb prints JSON instead, times in nanoseconds \
where the name ends in _ns. Exit codes: 0, 1 when the target breaks off or `link --check` finds a port DOWN, 2 when it cannot be asked or says no.";

/// Look inside a running rxe-target
#[derive(Parser, Debug)]
#[command(name = "rxe-ctl", version, after_help = AFTER_HELP, disable_help_subcommand = true)]
pub struct Cli {
    /// The target with this --file-prefix [default: the only one that is running]
    #[arg(long, global = true, value_name = "PREFIX")]
    pub file_prefix: Option<String>,

    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,

    #[command(subcommand)]
    pub verb: Verb,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Verb {
    /// The device, as ibv_devices lists it
    Devices,
    /// The device and its ports, as ibv_devinfo prints them
    Devinfo {
        /// Limits and addresses too
        #[arg(short, long)]
        verbose: bool,
    },
    /// The state of the ports, as `rdma link` prints it
    Link {
        /// Addresses, MTU, driver and counters of the device too
        #[arg(short, long)]
        details: bool,

        /// Exit with 1 when a port is not ACTIVE, and say why
        #[arg(long)]
        check: bool,
    },
    /// How many objects there are, as `rdma resource` prints it
    Resource {
        /// Lcore by lcore
        #[arg(short, long)]
        details: bool,
    },
    /// Queue pairs, or all about one: state, peer, PSNs, what is outstanding, retries, what it waits for
    Qp {
        /// Its number
        #[arg(value_name = "QPN", value_parser = number)]
        qpn: Option<u32>,
    },
    /// Memory regions and windows. Keys are secrets: who knows one may reach the memory
    ///
    /// Numbered regions, of which a target may have very many, share a row; with --json each has its own entry.
    Mr,
    /// Connections of the connection manager
    Connections,
    /// Counters: those of Linux' soft-RoCE (rdma_rxe) under their names, then ours
    Stat {
        /// Those that are zero too
        #[arg(short, long)]
        all: bool,
    },
    /// Dropped packets by reason
    Drops {
        /// Reasons that never were too
        #[arg(short, long)]
        all: bool,
    },
    /// The services, where they listen and what they have done
    Services,
    /// Rates per lcore, service and queue pair, again and again; q quits
    ///
    /// BUSY% is the part of an lcore's turns that found work. Packets of a queue pair are those of requests, READ responses
    /// included, that are done with: RX of the peer's requests, TX of ours.
    Top {
        /// Print one interval as text, and exit
        #[arg(long)]
        once: bool,

        /// How long an interval is, in seconds
        #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
        interval: Duration,

        /// What queue pairs are sorted by
        #[arg(long, value_enum, default_value_t = SortBy::Packets)]
        sort: SortBy,
    },
    /// End the connection of a queue pair; one without a connection goes to the error state
    Disconnect {
        /// Its number
        #[arg(value_name = "QPN", value_parser = number)]
        qpn: u32,
    },
    /// Write frames to a file, with what came of each, for Wireshark or tshark
    ///
    /// The target writes it: give it a place that the target may write to. Frames that were dropped say why in their
    /// packet comment.
    Capture {
        #[command(subcommand)]
        what: CaptureVerb,
    },
    /// Faults made on purpose, to see how an initiator takes them
    Fault {
        #[command(subcommand)]
        what: FaultVerb,
    },
    /// Change a setting while the target runs
    Set {
        #[command(subcommand)]
        what: Setting,
    },
    /// Write manual pages and shell completions into a folder
    #[command(hide = true)]
    Generate {
        /// The folder
        folder: PathBuf,
    },
}

/// What can be changed.
#[derive(Subcommand, Debug)]
pub enum Setting {
    /// What is logged from now on
    Log {
        /// The least important messages: error, warn, info, debug or trace
        level: String,
    },
}

/// What queue pairs are sorted by, the most first.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum SortBy {
    /// Packets in both directions
    Packets,
    /// Retries
    Retries,
    /// Packets without an answer
    Outstanding,
}

/// A queue pair number.
pub fn number(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    match number {
        Ok(number) if number < 1 << 24 => Ok(number),
        _ => Err("queue pair numbers go from 0 to 0xffffff".to_owned()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("it goes from 0.1 to 3600".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn numbers_come_in_both_spellings() {
        assert_eq!((number("17"), number("0x11")), (Ok(17), Ok(17)));
        assert!(number("0x1000000").is_err() && number("x").is_err());
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert!(seconds("0").is_err() && seconds("NaN").is_err());
    }
}
