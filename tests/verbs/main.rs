//! Programs of libibverbs, librdmacm and perftest, as Debian has them, under rxe-run: as client and as server, as user nobody
//! without capabilities, on loopback.
//!
//! `cargo test --test verbs [-- FILTER]` runs the cases whose names contain FILTER; `--list` prints all names, and crate
//! libtest-mimic has the other options. Without the programs (packages perftest, ibverbs-utils and rdmacm-utils) the cases
//! are skipped; with the environment variable CI set that is a failure.
//!
//! Each case has addresses and TCP ports of its own, so that cases and whole runs go beside each other. `--ignored` and
//! RXE_NIGHTLY=1 add the cases of the nightly run.

mod adapter;
mod case;
mod command;
mod libraries;
mod manage;
mod pair;
mod perftest_pairs;
mod pingpong;
mod place;
mod process;
mod pyverbs;
mod rdmacm;
mod rsocket;
mod shared;
mod sockets;
mod target;

#[path = "../support/client_output.rs"]
#[allow(dead_code, reason = "each of several tests uses its part")]
mod client_output;
#[path = "../support/perftest.rs"]
#[allow(dead_code, reason = "each of several tests uses its part")]
mod perftest;

use std::path::Path;
use std::process::ExitCode;
use std::sync::LazyLock;

use case::Case;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use place::Place;

/// Nothing, or the reason of a failure.
type Check = Result<(), String>;

/// One program of each package.
const PROGRAMS: [&str; 3] = ["/usr/bin/ib_write_bw", "/usr/bin/ibv_rc_pingpong", "/usr/bin/rping"];

static PLACE: LazyLock<Result<Place, String>> = LazyLock::new(Place::new);

fn set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.is_empty())
}

fn cases() -> Vec<Case> {
    let groups = [
        command::cases(),
        adapter::cases(),
        manage::cases(),
        pingpong::cases(),
        perftest_pairs::cases(),
        rdmacm::cases(),
        rsocket::cases(),
        shared::cases(),
        process::cases(),
        libraries::cases(),
        target::cases(),
        pyverbs::cases(),
    ];
    groups.into_iter().flatten().collect()
}

fn trial(case: Case) -> Trial {
    let nightly = case.nightly;
    let body = move || {
        if let Some(missing) = PROGRAMS.iter().find(|program| !Path::new(program).exists()) {
            let why = format!("there is no {missing}: apt install perftest ibverbs-utils rdmacm-utils");
            return if set("CI") { Err(Failed::from(why)) } else { Ok(Completion::ignored_with(why)) };
        }
        let place = PLACE.as_ref().map_err(Failed::from)?;
        (case.body)(place).map(|()| Completion::Completed).map_err(Failed::from)
    };
    Trial::ignorable_test(case.name, body).with_ignored_flag(nightly)
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.include_ignored |= set("RXE_NIGHTLY");
    let conclusion = libtest_mimic::run(&arguments, cases().into_iter().map(trial).collect());
    if !arguments.list
        && let Ok(place) = PLACE.as_ref()
    {
        place.remove();
    }
    conclusion.exit_code()
}
