//! The command line: EAL's arguments and the options of the target.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{CommandFactory, Parser};
use rxe::command_line::{CommandLine, is_eal};
use rxe::manual_pages::Sections;
use rxe::{CliError, Suggested, cli_error};

use crate::config::{
    CaptureFile, FaultSpec, FilePrefix, Gateway, HostAddress, Idle, LogFormat, LogLevel, MetricsAddress, Mtu, OnPort,
    Origin, Pcp, PeerNetwork, RegionSpec, RouteSpec, ServicePort, Settings, Source, Sourced, TrafficClass, UdpAddress,
    Vlan,
};

/// The definition of the command line, for manual pages and completions.
pub fn command() -> clap::Command {
    Args::command()
}

/// The action that the command line selects.
#[derive(Debug)]
pub enum Command {
    /// Check this configuration file.
    Check(PathBuf, Box<Settings>),
    /// Run the target, with the settings of a file if there is a source.
    Serve(Box<Settings>, Option<Box<Source>>),
    /// Write the manual page and shell completions to this folder.
    Generate(PathBuf),
}

const USAGE: &str = "rxe-target [EAL OPTIONS] -- --address IP/PREFIX [OPTIONS]
       rxe-target --udp ADDRESS [OPTIONS]
       rxe-target --config FILE [OPTIONS]
       rxe-target --check-config FILE";

const AFTER_HELP: &str = "\
The arguments before the first `--` are those of DPDK's EAL. They may also be in `[eal] args` of the configuration file; \
then the `--` is not needed. Without `-l` the target uses one CPU; `-l 0-3` gives it four. With several ports, put `portN:` \
in front of the value of a port's option (port1:10.0.0.1/24); without it the option is for port 0. An option replaces the \
setting of the configuration file. With --udp there is no DPDK, and there are no arguments for EAL.

  rxe-target -l 0 --vdev=net_af_packet0,iface=veth1 -- --address 10.0.0.1/24 --service rping
  rxe-target --udp 127.0.0.2

Standard output gets a line that starts with `ready ` once clients can connect, the text of watched regions, and counters \
at the end; everything else goes to standard error. With --config, SIGHUP applies the file as it is now, as `rxe-ctl reload` \
does. Exit codes: 0 after SIGINT or SIGTERM, 1 if the target fails after the \
start, 2 if it cannot start.";

/// The rest of the manual page.
pub const SECTIONS: Sections = Sections {
    examples: &[
        (
            "A target on the interface veth1, with all services:",
            "rxe-target -l 0 --no-pci --vdev=net_af_packet0,iface=veth1 -- --address 10.77.0.1/24",
        ),
        (
            "The same without hugepages:",
            "rxe-target -l 0 --no-huge --no-shconf -m 512 --no-pci --vdev=net_af_packet0,iface=veth1 -- --address 10.77.0.1/24",
        ),
        ("On an ordinary UDP socket, without DPDK, hugepages or root:", "rxe-target --udp 127.0.0.2"),
        (
            "Check a configuration, then use it:",
            "rxe-target --check-config target.toml\nrxe-target --config target.toml",
        ),
    ],
    files: &[
        ("/etc/rxe/target.toml", "The configuration of the systemd unit; every key is explained in it."),
        (
            "/var/run/rxe/PREFIX/ctl.sock",
            "The socket of rxe-ctl; PREFIX is the --file-prefix. Without root the folder is below $XDG_RUNTIME_DIR.",
        ),
    ],
    see_also: &[("target.toml", 5), ("rxe-ctl", 1), ("rxe-bench", 1), ("rxe-host-setup", 8)],
};

/// A RoCEv2 target in userspace on DPDK: RDMA clients connect to it as to any RoCE adapter.
#[derive(Parser, Debug)]
#[command(name = "rxe-target", version = rxe::VERSION, no_binary_name = true, override_usage = USAGE, after_help = AFTER_HELP)]
struct Args {
    /// Read this configuration file; options of the command line replace its settings
    #[arg(long, value_name = "FILE", help_heading = "Configuration")]
    config: Option<PathBuf>,

    /// Check a configuration file, and exit
    #[arg(long, value_name = "FILE", help_heading = "Configuration", conflicts_with = "config")]
    check_config: Option<PathBuf>,

    /// Write the manual page and shell completions to a folder, and exit
    #[arg(long, value_name = "DIR", hide = true, conflicts_with_all = ["config", "check_config"])]
    generate: Option<PathBuf>,

    /// Serve at this address of the machine, on an ordinary UDP socket: without DPDK, EAL's arguments, hugepages or root
    #[arg(long, value_name = "ADDRESS", help_heading = "Network", conflicts_with_all = ["address", "gateway", "route", "vlan", "mtu", "pcp"])]
    udp: Option<UdpAddress>,

    /// An address of the target, IPv4 or IPv6, with its on-link prefix; may repeat
    #[arg(long, value_name = "[portN:]IP/PREFIX", help_heading = "Network")]
    address: Vec<OnPort<HostAddress>>,

    /// Default router; one per port and address family
    #[arg(long, value_name = "[portN:]IP", help_heading = "Network")]
    gateway: Vec<OnPort<Gateway>>,

    /// Route to a network behind another router; may repeat
    #[arg(long, value_name = "[portN:]NETWORK/PREFIX=ROUTER", help_heading = "Network")]
    route: Vec<OnPort<RouteSpec>>,

    /// Serve only peers of this network, or this address; may repeat [default: everyone]
    #[arg(long, value_name = "[portN:]NETWORK[/PREFIX]", help_heading = "Network")]
    peer: Vec<OnPort<PeerNetwork>>,

    /// VLAN of the port: 1 to 4094
    #[arg(long, value_name = "[portN:]ID", help_heading = "Network")]
    vlan: Vec<OnPort<Vlan>>,

    /// IP MTU: 1280 to 9216. It limits the path MTU: 4200 allows 4096, 1500 allows 1024 [default: 4200, or the largest that
    /// the device supports]
    #[arg(long, value_name = "[portN:]BYTES", help_heading = "Network")]
    mtu: Vec<OnPort<Mtu>>,

    /// DSCP and ECN bits of transmitted packets: 0 to 255, or `mirror` for the peer's [default: mirror]
    #[arg(long, value_name = "N|mirror", help_heading = "Network")]
    traffic_class: Option<TrafficClass>,

    /// VLAN priority of transmitted frames: 0 to 7 [default: 0]
    #[arg(long, value_name = "N", help_heading = "Network")]
    pcp: Option<Pcp>,

    /// Run this service; may repeat [default: all services]
    #[arg(
        long,
        value_name = "NAME",
        help_heading = "Services",
        value_parser = Suggested::new(crate::services::names())
    )]
    service: Vec<String>,

    /// Export a memory region of SIZE bytes, or with K, M or G; may repeat. COUNT exports numbered regions: NAME0, NAME1 and
    /// so on. `watch` prints the region's text whenever its first byte changes, until that is a 'q'. With `read-only` clients
    /// may only READ it. Regions with the same `domain` share a protection domain; the others have one each. `file` places the
    /// region in a file that other local processes may map [default: default=1M]
    #[arg(
        long,
        value_name = "NAME=SIZE[*COUNT][,watch][,read-only][,domain=NAME][,file=PATH]",
        help_heading = "Services"
    )]
    region: Vec<RegionSpec>,

    /// CM port of the region service [default: 4792]
    #[arg(long, value_name = "PORT", help_heading = "Services")]
    region_port: Option<ServicePort>,

    /// Name of a target with --udp on this machine, by which rxe-ctl finds it [default: udp-ADDRESS]
    #[arg(long, value_name = "NAME", help_heading = "Running")]
    file_prefix: Option<FilePrefix>,

    /// Idle policy of the lcores: `spin` has the lowest latency, `pause` leaves more to a hyperthread sibling, `sleep` frees
    /// the CPU for MICROSECONDS (50) at a time [default: pause]
    #[arg(long, value_name = "spin|pause|sleep[:MICROSECONDS]", help_heading = "Running")]
    idle: Option<Idle>,

    /// Inject faults, to test how both ends handle them. KEY is drop, duplicate, reorder or corrupt (a probability, 0 to 1),
    /// delay or jitter (a time, for example 500us) or delayed (the probability of these two), each with rx. or tx. in front;
    /// or seed; or frames, which is `roce` or `all`. For more kinds of faults see [[fault.rule]] of the configuration file
    /// and rxe-ctl fault [default: no faults, seed=0, frames=roce]
    #[arg(long, value_name = "KEY=VALUE[,KEY=VALUE]...", help_heading = "Running")]
    fault: Option<FaultSpec>,

    /// Capture all frames and their outcome in this pcapng file; for filters see `[capture]` of the configuration file and
    /// `rxe-ctl capture` [default: none]
    #[arg(long, value_name = "FILE", help_heading = "Running")]
    capture: Option<CaptureFile>,

    /// Minimum severity of the log: error, warn, info, debug or trace [default: info]
    #[arg(long, value_name = "LEVEL", help_heading = "Running")]
    log: Option<LogLevel>,

    /// Format of the log: `text`, or `json` for one object per line [default: text]
    #[arg(long, value_name = "FORMAT", help_heading = "Running")]
    log_format: Option<LogFormat>,

    /// Serve metrics for Prometheus at http://ADDR:PORT/metrics, where the address is one of the machine's kernel interfaces, not
    /// the target's; or on the Unix socket PATH, as unix:PATH [default: none]
    #[arg(long, value_name = "ADDR:PORT|unix:PATH", help_heading = "Running")]
    metrics: Option<MetricsAddress>,
}

/// Parses the command line, without the program's name, and reads the configuration file.
pub fn parse(argv: impl IntoIterator<Item = OsString>) -> Result<Command, CliError> {
    let (eal_args, ours) = match CommandLine::split(argv)? {
        CommandLine { before, behind: Some(ours) } => {
            let name = before.iter().filter(|arg| is_ours(arg)).filter_map(|arg| arg.split('=').next());
            if let Some(name) = name.filter(|name| name.starts_with("--")).find(|name| !is_eal(name)) {
                return cli_error!("{name} is an option of the target: it belongs behind `--`");
            }
            (before, ours)
        }
        CommandLine { before, behind: None } => (Vec::new(), without_separator(before)?),
    };
    let args = Args::try_parse_from(ours).map_err(rxe::command_line::explain)?;
    if let Some(folder) = args.generate {
        return Ok(Command::Generate(folder));
    }
    let (config, check) = (args.config.clone(), args.check_config.clone());
    let mut settings = args.into_settings()?;
    if !eal_args.is_empty() {
        settings.eal_args = Some(eal_args);
    }
    match (check, config) {
        (Some(file), _) => {
            let settings = Source { file: file.clone(), flags: settings }.read()?;
            Ok(Command::Check(file, Box::new(settings)))
        }
        (None, Some(file)) => {
            let source = Source { file, flags: settings };
            Ok(Command::Serve(Box::new(source.read()?), Some(Box::new(source))))
        }
        (None, None) => Ok(Command::Serve(Box::new(settings), None)),
    }
}

/// Whether `arg` is one of our options, with or without `=VALUE`.
fn is_ours(arg: &str) -> bool {
    let Some(name) = arg.strip_prefix("--").map(|a| a.split('=').next().unwrap_or(a)) else {
        return arg == "-h" || arg == "-V";
    };
    name == "help" || name == "version" || Args::command().get_arguments().any(|a| a.get_long() == Some(name))
}

/// Checks a command line without `--`: it must have no arguments for EAL, and EAL's arguments must come from the file or
/// not be needed.
fn without_separator(argv: Vec<String>) -> Result<Vec<String>, CliError> {
    let has = |names: &[&str]| argv.iter().any(|arg| names.contains(&arg.split('=').next().unwrap_or(arg)));
    let foreign = argv.iter().any(|arg| arg.starts_with('-') && !is_ours(arg));
    if has(&["--check-config", "--generate"])
        || (!foreign && has(&["--config", "--udp", "--help", "-h", "--version", "-V"]))
    {
        return Ok(argv);
    }
    if has(&["--udp"]) {
        let foreign: Vec<String> = argv.iter().filter(|arg| arg.starts_with('-') && !is_ours(arg)).cloned().collect();
        return cli_error!(
            "{} is no option of the target: --udp needs no DPDK, so leave EAL's arguments out",
            foreign.join(" ")
        );
    }
    if argv.is_empty() {
        return cli_error!("the command line is empty: give the target a port and an address (see rxe-target --help)");
    }
    // Suggests the most likely place.
    let at = argv.iter().position(|arg| is_ours(arg)).unwrap_or(argv.len());
    let mut words: Vec<String> = argv.iter().map(|arg| quote(arg)).collect();
    words.insert(at, "--".to_owned());
    if at == argv.len() {
        words.push("--address IP/PREFIX".to_owned());
    }
    cli_error!(
        "there is no `--` on the command line: put it between EAL's arguments and the options of the target, try: rxe-target {}",
        words.join(" ")
    )
}

/// `arg`, quoted for a shell.
fn quote(arg: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_=,.:/@+%[]".contains(c);
    if !arg.is_empty() && arg.chars().all(plain) { arg.to_owned() } else { format!("'{}'", arg.replace('\'', r"'\''")) }
}

fn sourced<T>(flag: &'static str, value: T) -> Sourced<T> {
    Sourced { value, origin: Origin::Flag(flag) }
}

fn list<T>(flag: &'static str, values: Vec<T>) -> Option<Vec<Sourced<T>>> {
    (!values.is_empty()).then(|| values.into_iter().map(|value| sourced(flag, value)).collect())
}

impl Args {
    fn into_settings(self) -> Result<Settings, CliError> {
        let mut settings = Settings {
            services: list("--service", self.service),
            regions: list("--region", self.region),
            region_port: self.region_port.map(|p| sourced("--region-port", p)),
            idle: self.idle.map(|i| sourced("--idle", i)),
            log: self.log.map(|l| sourced("--log", l)),
            log_format: self.log_format.map(|f| sourced("--log-format", f)),
            metrics: self.metrics.map(|m| sourced("--metrics", m)),
            traffic_class: self.traffic_class.map(|t| sourced("--traffic-class", t)),
            pcp: self.pcp.map(|p| sourced("--pcp", p)),
            fault: self.fault.map(|f| sourced("--fault", f)),
            capture_file: self.capture.map(|file| sourced("--capture", file)),
            file_prefix: self.file_prefix.map(|name| sourced("--file-prefix", name)),
            ..Settings::default()
        };
        if let Some(address) = self.udp {
            settings.port(0).udp = Some(sourced("--udp", address));
        }
        for OnPort { port: number, value } in self.address {
            settings.port(number).addresses.push(sourced("--address", value));
        }
        for OnPort { port: number, value } in self.gateway {
            settings.port(number).gateways.push(sourced("--gateway", value));
        }
        for OnPort { port: number, value } in self.route {
            settings.port(number).routes.push(sourced("--route", value));
        }
        for OnPort { port: number, value } in self.peer {
            settings.port(number).peers.push(value);
        }
        for OnPort { port: number, value } in self.vlan {
            once(&mut settings.port(number).vlan, "--vlan", number, value)?;
        }
        for OnPort { port: number, value } in self.mtu {
            once(&mut settings.port(number).mtu, "--mtu", number, value)?;
        }
        Ok(settings)
    }
}

/// Sets a value that a port can have only once.
fn once<T>(slot: &mut Option<Sourced<T>>, flag: &'static str, port: u16, value: T) -> Result<(), CliError> {
    if slot.replace(sourced(flag, value)).is_some() {
        return cli_error!("{flag} is given twice for port {port}: keep one of them, or name the port as port1:VALUE");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(OsString::from)).map_err(|error| error.to_string())
    }

    fn wrong(line: &str) -> String {
        command(line).map(|c| panic!("{line} gave {c:?}")).unwrap_or_else(|error| error)
    }

    fn serve(line: &str) -> Settings {
        match command(line) {
            Ok(Command::Serve(settings, _)) => *settings,
            other => panic!("{line} gave {other:?}"),
        }
    }

    #[test]
    fn the_first_separator_divides() {
        let settings = serve("-l 0 --vdev=net_null0 -- --address 10.0.0.1/24 --address port1:fd00::1/64 --mtu 4200");
        assert_eq!(settings.eal_args.as_deref().map(|args| args.join(" ")), Some("-l 0 --vdev=net_null0".to_owned()));
        assert_eq!(settings.ports[&0].addresses.len(), 1);
        assert_eq!(settings.ports[&0].mtu.as_ref().map(|m| m.value), Some(Mtu(4200)));
        assert_eq!(settings.ports[&1].addresses[0].origin.to_string(), "--address");
        assert_eq!(serve("-- --address 10.0.0.1/24").eal_args, None);
    }

    #[test]
    fn every_option_is_parsed() {
        let settings = serve(
            "-- --gateway 10.0.0.254 --route 10.1.0.0/16=10.0.0.253 --vlan 5 --traffic-class 0x2e --pcp 3 \
             --service rping --service region --region a=1M --region b=2M,file=/dev/shm/b --region c=4K*1000 --region-port 5000 \
             --idle sleep:20 --log debug --fault rx.drop=0.01,tx.drop=0.01,seed=7 --capture rxe.pcapng",
        );
        let port = &settings.ports[&0];
        assert_eq!((port.gateways.len(), port.routes.len(), port.vlan.is_some()), (1, 1, true));
        assert_eq!(settings.services.map(|s| s.len()), Some(2));
        assert_eq!(settings.regions.map(|r| (r[1].value.size, r[2].value.count)), Some((2 << 20, Some(1000))));
        assert!(settings.region_port.is_some() && settings.idle.is_some() && settings.log.is_some());
        assert!(settings.traffic_class.is_some() && settings.pcp.is_some());
        let capture = settings.capture_file.map(|file| file.value.0).expect("a capture");
        assert!(capture.is_absolute() && capture.ends_with("rxe.pcapng"));
        let faults = settings.fault.and_then(|fault| fault.value.resolve().ok()).unwrap_or_default();
        let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(faults, ["rx drop probability=0.01 seed=7", "tx drop probability=0.01 seed=7"]);
    }

    #[test]
    fn help_version_and_check_need_no_separator() {
        let help = wrong("--help");
        for word in ["--address", "--check-config", "--idle", "--fault", "EAL", "ready", "Exit codes"] {
            assert!(help.contains(word), "{word} is missing in {help}");
        }
        let version = wrong("--version");
        assert!(version.starts_with("rxe-target ") && version.contains(env!("CARGO_PKG_VERSION")), "{version}");
        let conf = concat!(env!("CARGO_MANIFEST_DIR"), "/conf/target.toml");
        assert!(matches!(command(&format!("--check-config {conf}")), Ok(Command::Check(..))));
        assert!(matches!(command(&format!("-- --check-config={conf}")), Ok(Command::Check(..))));
    }

    #[test]
    fn options_replace_the_file() {
        let conf = concat!(env!("CARGO_MANIFEST_DIR"), "/conf/target.toml");
        let file = serve(&format!("--config {conf}"));
        let both = serve(&format!("--config {conf} --address 10.9.9.9/24 --log trace"));
        assert_eq!(both.ports[&0].addresses.len(), 1);
        assert_eq!(both.ports[&0].addresses[0].origin, Origin::Flag("--address"));
        assert_eq!(both.eal_args, file.eal_args);
        let eal = serve(&format!("-l 3 -- --config {conf}"));
        assert_eq!(eal.eal_args, Some(vec!["-l".to_owned(), "3".to_owned()]));
    }

    #[test]
    fn a_missing_separator_is_suggested_at_the_right_place() {
        const START: &str = "there is no `--` on the command line: put it between EAL's arguments and the options of the target, try: rxe-target ";
        for (line, rest) in [
            ("-l 0 --address 10.0.0.1/24", "-l 0 -- --address 10.0.0.1/24"),
            ("--address=10.0.0.1/24", "-- --address=10.0.0.1/24"),
            ("-l 0 --vdev=net_null0", "-l 0 --vdev=net_null0 -- --address IP/PREFIX"),
            ("-l 0 --config a.toml", "-l 0 -- --config a.toml"),
        ] {
            assert_eq!(wrong(line), format!("{START}{rest}"));
        }
        assert_eq!(
            wrong(""),
            "the command line is empty: give the target a port and an address (see rxe-target --help)"
        );
        assert_eq!(quote("a b"), "'a b'");
    }

    #[test]
    fn an_option_of_the_target_among_those_of_eal_is_named() {
        for (line, name) in [
            ("--config a.toml -- --address 10.0.0.1/24", "--config"),
            ("-l 0 --config=a.toml --", "--config"),
            ("-l 0 --service rping -- --address 10.0.0.1/24", "--service"),
        ] {
            assert_eq!(wrong(line), format!("{name} is an option of the target: it belongs behind `--`"));
        }
        // EAL has an option of that name, too.
        assert!(serve("--file-prefix a -- --address 10.0.0.1/24").eal_args.is_some());
    }

    #[test]
    fn errors_of_the_command_line_are_claps() {
        for (line, text) in [
            (
                "-- --address 10.0.0.1",
                "error: invalid value '10.0.0.1' for '--address <[portN:]IP/PREFIX>': '10.0.0.1' lacks its prefix length: write 10.0.0.1/24, or what your network uses",
            ),
            ("-- --adress 10.0.0.1/24", "error: unexpected argument '--adress' found"),
            ("-- --address", "error: a value is required for '--address <[portN:]IP/PREFIX>' but none was supplied"),
            ("-- stray", "error: unexpected argument 'stray' found"),
            (
                "-- --config a --check-config b",
                "error: the argument '--config <FILE>' cannot be used with '--check-config <FILE>'",
            ),
            (
                "-- --fault rx.drop=2",
                "error: invalid value 'rx.drop=2' for '--fault <KEY=VALUE[,KEY=VALUE]...>': '2' is not a probability: it goes from 0 (never) to 1 (always) in billionths, as 0.01 for one frame in a hundred",
            ),
        ] {
            let error = wrong(line);
            assert_eq!(error.lines().next(), Some(text));
            assert!(error.contains("try '--help'"), "{error}");
        }
        assert!(wrong("-- --adress 10.0.0.1/24").contains("a similar argument exists: '--address'"));
    }

    #[test]
    fn other_errors_are_one_sentence() {
        for (line, sentence) in [
            (
                "-- --mtu 1500 --mtu 4200",
                "--mtu is given twice for port 0: keep one of them, or name the port as port1:VALUE",
            ),
            (
                "--config /nonexistent.toml",
                "the configuration file /nonexistent.toml cannot be read (No such file or directory): check its name and rights",
            ),
        ] {
            assert_eq!(wrong(line), sentence);
        }
    }
}
