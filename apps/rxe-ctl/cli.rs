//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use rxe::Suggested;
use rxe::manual_pages::Sections;

use crate::address::AddressVerb;
use crate::capture::CaptureVerb;
use crate::config::ConfigVerb;
use crate::fault::FaultVerb;
use crate::nvmf::NvmfVerb;
use crate::region::RegionVerb;
use crate::service::{PeersVerb, ServiceVerb};
use crate::stat;
use crate::top::SortBy;
use crate::values::{qpn, seconds};

const AFTER_HELP: &str = "\
Queue pair numbers are decimal or hexadecimal (0x11). With --json every verb prints JSON; names that end in _ns are times \
in nanoseconds. Exit codes: 0 on success; 1 if the target closes the connection or ends, `link --check` finds a port DOWN or \
the target being drained, `drain` sees no end, `reload` is refused something, or `nvmf scrub` finds damaged blocks; 2 if \
the command line is wrong, no target can be reached, or the target refuses the request.";

/// The rest of the manual page.
pub const SECTIONS: Sections = Sections {
    examples: &[
        ("Whether the ports are up, and if not, why:", "rxe-ctl link"),
        ("Who is connected, and what a queue pair waits for:", "rxe-ctl connections\nrxe-ctl qp 0x11"),
        ("Which packets were dropped, and why:", "rxe-ctl drops"),
        ("Clients that come and go, until Ctrl-C:", "rxe-ctl events"),
        (
            "The packets of one client, for Wireshark:",
            "rxe-ctl capture start /tmp/rxe.pcapng --peer 10.77.0.2\nrxe-ctl capture stop",
        ),
        (
            "A disk of 1 GiB for hosts, until the target ends:",
            "rxe-ctl nvmf namespace add nqn.2026-01.org.example:disk --ram 1G",
        ),
        ("The counters of a program under rxe-run:", "rxe-run --list\nrxe-ctl --pid 4242 stat"),
        ("Answer the next three requests with an RNR NAK:", "rxe-ctl fault add rnr --count 3"),
    ],
    files: &[(
        "/var/run/rxe/PREFIX/ctl.sock",
        "The socket of a target of root; PREFIX is its --file-prefix. For other users it is below $XDG_RUNTIME_DIR/rxe or /tmp/rxe-UID.",
    )],
    see_also: &[("rxe-target", 1), ("rxe-bench", 1), ("rdma", 8)],
};

/// Inspect and control a running rxe-target
#[derive(Parser, Debug)]
#[command(name = "rxe-ctl", version, after_help = AFTER_HELP, disable_help_subcommand = true)]
pub struct Cli {
    /// Use the target with this --file-prefix [default: RXE_FILE_PREFIX in the environment, or the only target that is running]
    #[arg(long, global = true, value_name = "PREFIX")]
    pub file_prefix: Option<String>,

    /// Use the adapter of this process, a program that rxe-run has started; rxe-run --list shows them. It has no services, named regions,
    /// configuration and events
    #[arg(long, global = true, value_name = "PID", conflicts_with = "file_prefix")]
    pub pid: Option<u32>,

    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,

    #[command(subcommand)]
    pub verb: Verb,
}

/// The verbs.
#[derive(Subcommand, Debug)]
pub enum Verb {
    /// The device, as ibv_devices lists it
    Devices,
    /// The device and its ports, as ibv_devinfo prints them
    Devinfo {
        /// Show limits and addresses
        #[arg(short, long)]
        verbose: bool,
    },
    /// The state of the ports, as `rdma link` prints it
    Link {
        /// Show addresses, MTU, driver and the device's counters
        #[arg(short, long)]
        details: bool,

        /// Exit with code 1 if a port is not ACTIVE, or the target is being drained, and say which
        #[arg(long)]
        check: bool,
    },
    /// Number of objects, as `rdma resource` prints it
    Resource {
        /// Show each lcore
        #[arg(short, long)]
        details: bool,
    },
    /// List queue pairs, or show one in detail: state, peer, PSNs, outstanding packets, retries, what it waits for
    Qp {
        /// Queue pair number
        #[arg(value_name = "QPN", value_parser = qpn)]
        qpn: Option<u32>,
    },
    /// Memory regions and windows. Keep the keys secret: a peer that knows a key may access the memory
    ///
    /// Numbered regions, of which a target may have very many, share a row; with --json each has its own entry.
    ///
    /// --digest NAME prints the CRC-32C (Castagnoli) of a region's bytes, for comparison with what a peer has written or
    /// read. The target computes it while peers may write: for a stable digest, wait until they are done.
    Mr {
        /// Print the CRC-32C of this region instead of the list; NAME is a name of --region, for a numbered region with its
        /// number
        #[arg(long, value_name = "NAME")]
        digest: Option<String>,

        /// First byte of the digest, counted from the start of the region
        #[arg(long, value_name = "BYTES", default_value_t = 0, requires = "digest")]
        offset: u64,

        /// Length of the digest in bytes [default: up to the end of the region]
        #[arg(long, value_name = "BYTES", requires = "digest")]
        length: Option<u64>,
    },
    /// Named regions: list them, add and remove them while the target runs
    Region {
        #[command(subcommand)]
        what: RegionVerb,
    },
    /// Disks for NVMe over Fabrics, and the hosts that use them: list and change them while the target runs
    Nvmf {
        #[command(subcommand)]
        what: NvmfVerb,
    },
    /// Addresses of the ports: list them, add and remove them while the target runs
    Address {
        #[command(subcommand)]
        what: AddressVerb,
    },
    /// The configuration of the running target
    Config {
        #[command(subcommand)]
        what: ConfigVerb,
    },
    /// Apply the configuration file of the target as it is now, and print what changed and what needs a restart
    ///
    /// Afterwards the target runs as the file says, as far as that is possible: what rxe-ctl has changed and the file does not
    /// say is undone too. Options of the target's command line keep their precedence. Regions and addresses that clients use are
    /// not removed. SIGHUP does the same, and the result is in the target's log. Exit code 1 if something was refused.
    Reload,
    /// Connections of the connection manager
    Connections,
    /// Counters: those of Linux' soft-RoCE (rdma_rxe) under the same names, then the target's other counters, and times of turns
    /// and operations
    Stat {
        /// Show this group only
        #[arg(value_name = "GROUP", value_parser = Suggested::new(stat::GROUPS))]
        group: Option<String>,

        /// Include counters that are zero
        #[arg(short, long)]
        all: bool,

        /// Wait for this time, and show by how much the counters have grown
        #[arg(long, value_name = "SECONDS", value_parser = seconds)]
        delta: Option<Duration>,
    },
    /// Dropped packets by reason
    Drops {
        /// Include reasons with a zero count
        #[arg(short, long)]
        all: bool,
    },
    /// The services, their listeners and counters
    Services,
    /// Services: list, stop and start them while the target runs
    Service {
        #[command(subcommand)]
        what: ServiceVerb,
    },
    /// Allowed peers of ports, services and regions: list and change them while the target runs
    Peers {
        #[command(subcommand)]
        what: PeersVerb,
    },
    /// Rates per lcore, service and queue pair, updated at an interval; q quits
    ///
    /// BUSY% is the share of an lcore's poll loop iterations that found work. A queue pair's packets are those of completed
    /// requests, READ responses included: RX for requests of the peer, TX for requests of the target.
    Top {
        /// Print the rates of one interval as text, and exit
        #[arg(long)]
        once: bool,

        /// Interval in seconds
        #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
        interval: Duration,

        /// Order of the queue pairs, largest first
        #[arg(long, value_enum, default_value_t = SortBy::Packets)]
        sort: SortBy,
    },
    /// Print events as they happen: connections, queue pairs in error, links, address conflicts, captures, fault rules
    ///
    /// Ctrl-C ends it with exit code 0, the end of the target with 1. A reader that is too slow loses events; `lost` says how
    /// many. With --json each event is one line.
    Events {
        /// End after this number of events
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        count: Option<u64>,
    },
    /// Disconnect a queue pair; one without a connection goes to the error state
    Disconnect {
        /// Queue pair number
        #[arg(value_name = "QPN", value_parser = qpn)]
        qpn: u32,
    },
    /// End the target without cutting off its clients: new ones are refused, and it ends when the last one is gone
    ///
    /// Waits for the end. Clients that are left at the deadline are disconnected, as on SIGTERM.
    Drain {
        /// Longest time to wait for clients, in seconds: 1 to 86400
        #[arg(value_name = "DEADLINE", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
        deadline: u64,
    },
    /// Capture frames and their outcome in a file for Wireshark or tshark
    ///
    /// The target writes the file, so its user needs write access there. The packet comment of a dropped frame names the
    /// reason.
    Capture {
        #[command(subcommand)]
        what: CaptureVerb,
    },
    /// Inject faults, to test how an initiator handles them
    Fault {
        #[command(subcommand)]
        what: FaultVerb,
    },
    /// Change a setting while the target runs
    Set {
        #[command(subcommand)]
        what: Setting,
    },
    /// Write manual pages and shell completions to a folder
    #[command(hide = true)]
    Generate {
        /// The folder
        folder: PathBuf,
    },
}

/// The settings that can be changed.
#[derive(Subcommand, Debug)]
pub enum Setting {
    /// Log level
    Log {
        /// Minimum severity
        #[arg(value_parser = Suggested::new(["error", "warn", "info", "debug", "trace"]))]
        level: String,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
