//! The command line.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{CommandFactory, Parser, ValueHint};
use rxe::manual_pages::Sections;
use rxe::{CliError, Suggested};
use rxe_uverbs::settings::{DEVICE_NAMES, LOG_LEVELS, is_device_name};

const USAGE: &str = "rxe-run [OPTIONS] PROGRAM [ARGUMENTS]...\n       rxe-run --list";

const AFTER_HELP: &str = "\
An option that is not given is taken from the environment, from RXE_ADDRESS, RXE_DEVICE, RXE_LOG or RXE_CAPTURE.

Every process of the program has an RDMA device of its own from its first use of one. Several processes may have the same --address; \
without it each has one of its own. Programs on one machine reach each other, and RoCEv2 devices of other machines at an address of an interface.

Programs that are linked statically or run with the rights of another user (setuid) do not see the device, nor do programs that \
call the kernel without libc, such as those of Go.

Exit codes: those of PROGRAM; 127 if there is no such program; 126 if it cannot be executed; 2 if the command line is wrong \
or librxe_verbs.so is missing.";

/// The rest of the manual page.
pub const SECTIONS: Sections = Sections {
    examples: &[
        ("Show the device:", "rxe-run ibv_devinfo -v"),
        (
            "Measure WRITEs between two programs of one machine:",
            "rxe-run --address 127.0.0.1 ib_write_bw &\nrxe-run --address 127.0.0.2 ib_write_bw 127.0.0.1",
        ),
        (
            "Ping a target at the other end of an interface that has the address 10.77.0.2:",
            "rxe-run --address 10.77.0.2 rping -c -a 10.77.0.1 -C 5 -v",
        ),
    ],
    files: &[
        (
            "/usr/lib/rxe/librxe_verbs.so",
            "The library that plays the kernel's part. RXE_VERBS_LIBRARY in the environment names another one.",
        ),
        (
            "$XDG_RUNTIME_DIR/rxe-run/PID",
            "Files of a running process. Without XDG_RUNTIME_DIR they are in /tmp/rxe-run-UID.",
        ),
    ],
    see_also: &[("rxe-target", 1), ("rxe-ctl", 1), ("ibv_devinfo", 1), ("rping", 1), ("ld.so", 8)],
};

/// Run a program with an RDMA device in user space: RoCEv2 over UDP sockets, without a kernel module, hardware or privileges
#[derive(Parser, Debug)]
#[command(name = "rxe-run", version, override_usage = USAGE, after_help = AFTER_HELP)]
struct Args {
    /// Address of the device, which an interface has [default: the first free one of 127.0.0.1, 127.0.0.2, ...]
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,

    /// Name of the device [default: rxe0]
    #[arg(long, value_name = "NAME", value_parser = device)]
    device: Option<String>,

    /// Minimum severity of the device's log lines on standard error [default: warn]
    #[arg(long, value_name = "LEVEL", value_parser = log_level())]
    log: Option<String>,

    /// Write all packets to this pcapng file, for Wireshark
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    capture: Option<PathBuf>,

    /// List the running programs and their addresses
    #[arg(long, exclusive = true)]
    list: bool,

    /// Write the manual page and shell completions to a folder
    #[arg(long, value_name = "FOLDER", hide = true, exclusive = true)]
    generate: Option<PathBuf>,

    /// The program and its arguments
    #[arg(value_name = "PROGRAM", trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments, required_unless_present_any = ["list", "generate"])]
    program: Vec<OsString>,
}

/// The chosen action.
#[derive(PartialEq, Eq, Debug)]
pub enum Action {
    /// Run a program.
    Run(Run),
    /// Print the running programs.
    List,
    /// Write the manual page and completions.
    Generate(PathBuf),
}

/// A program and the settings of its device. Those that are `None` are left to the environment.
#[derive(PartialEq, Eq, Debug)]
pub struct Run {
    /// The address of the device.
    pub address: Option<IpAddr>,
    /// The name of the device.
    pub device: Option<String>,
    /// The log level.
    pub log: Option<String>,
    /// The file for packets, as an absolute path.
    pub capture: Option<PathBuf>,
    /// The program, as the user has named it.
    pub program: OsString,
    /// Arguments of the program.
    pub arguments: Vec<OsString>,
}

/// The definition of the command line.
pub fn command() -> clap::Command {
    Args::command()
}

/// Parses a command line, with the name of this program.
///
/// # Errors
/// It is wrong, or asks for help.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Action, CliError> {
    let args = Args::try_parse_from(words)?;
    if let Some(folder) = args.generate {
        return Ok(Action::Generate(folder));
    }
    let mut words = args.program.into_iter();
    let Some(program) = words.next() else { return Ok(Action::List) };
    let absolute = |file: PathBuf| {
        std::path::absolute(&file)
            .map_err(|error| CliError::new(format!("--capture {}: no absolute path: {error}", file.display())))
    };
    Ok(Action::Run(Run {
        address: args.address,
        device: args.device,
        log: args.log,
        capture: args.capture.map(absolute).transpose()?,
        program,
        arguments: words.collect(),
    }))
}

fn device(name: &str) -> Result<String, String> {
    if is_device_name(name) { Ok(name.to_owned()) } else { Err(format!("give it {DEVICE_NAMES}")) }
}

fn log_level() -> impl clap::builder::TypedValueParser<Value = String> {
    use clap::builder::TypedValueParser;
    Suggested::new(LOG_LEVELS).try_map(|level| {
        if LOG_LEVELS.contains(&level.as_str()) {
            Ok(level)
        } else {
            Err(format!("it is one of {}", LOG_LEVELS.join(", ")))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Action, String> {
        let words = std::iter::once("rxe-run").chain(line.split_whitespace()).map(OsString::from);
        parse(words).map_err(|error| error.to_string())
    }

    fn run(line: &str) -> Run {
        match parsed(line) {
            Ok(Action::Run(run)) => run,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn options_of_the_program_are_left_to_it() {
        let run = run("--address 127.0.0.9 --log debug rping -s --address x -- --log");
        assert_eq!(run.address, Some(IpAddr::from([127, 0, 0, 9])));
        assert_eq!(run.log.as_deref(), Some("debug"));
        assert_eq!(run.program, "rping");
        assert_eq!(run.arguments, ["-s", "--address", "x", "--", "--log"]);
        assert_eq!((run.device, run.capture), (None, None));
    }

    #[test]
    fn a_separator_may_precede_the_program() {
        assert_eq!(run("-- -strange -s").program, "-strange");
    }

    #[test]
    fn the_capture_has_an_absolute_path() {
        let capture = run("--capture a.pcapng ibv_devices").capture.unwrap();
        assert!(capture.is_absolute() && capture.ends_with("a.pcapng"), "{}", capture.display());
    }

    #[test]
    fn without_a_program_there_is_a_list_or_an_error() {
        assert_eq!(parsed("--list"), Ok(Action::List));
        assert_eq!(parsed("--generate x"), Ok(Action::Generate(PathBuf::from("x"))));
        assert!(parsed("").unwrap_err().contains("PROGRAM"));
        assert!(parsed("--list rping").is_err());
    }

    #[test]
    fn wrong_values_are_explained() {
        for (line, expected) in [
            ("--device mlx5_0 x", "begins with rxe"),
            ("--address 10.0.0.1/24 x", "--address"),
            ("--log loud x", "off, error, warn, info, debug, trace"),
            ("--lgo x", "--lgo"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
