//! `rxe-bench nvme`: an NVMe over Fabrics host that measures a namespace.
//!
//! [`args`] becomes a [`plan`]. The [`service`] moves bytes for a [`host`], which has no IO: the session with the controller and a
//! [`queue`] for each I/O queue, whose I/Os [`places`] chooses and whose data [`blocks`] checks. A [`measurement`] becomes a
//! [`report`].

mod args;
mod blocks;
mod host;
mod measurement;
mod places;
mod plan;
mod queue;
mod report;
mod service;
#[cfg(test)]
mod tests;
mod transport_id;
mod wires;

use std::sync::Arc;

use rxe::CliError;

pub use args::NvmeArgs;
pub use plan::NvmePlan;

use crate::outcome::End;
use crate::plan::{Json, Length};
use crate::progress::{Progress, Rows};
use crate::run::{flag, prepare, print_results, serve};
use crate::session::{Ended, Session};
use report::NvmeOutcome;
use service::HostFactory;

/// Runs the load and prints the result, also that of a run that failed or was interrupted.
pub fn run(plan: &NvmePlan) -> Result<(), CliError> {
    let signals = prepare(plan.json.as_ref())?;
    let rows = matches!(plan.length, Length::Endless(_)).then(|| Rows {
        head: Box::new(report::head),
        row: Box::new(report::row),
        to_stderr: plan.json == Some(Json::Stdout),
    });
    let session = Session::new(plan, Progress::with("nvme".to_owned(), "I/Os", rows), flag(&signals));
    let served = serve(&plan.wiring(), &session, Box::new(HostFactory(Arc::clone(&session))));
    let ended = match served {
        Ok(()) => session.take(),
        Err(failure) => Ended { failure: Some(failure), ..Ended::default() },
    };
    // The progress ends before the result is printed.
    drop(session);
    let (outcome, failure) = concluded(plan, ended);
    let printed = print_results(plan.json.as_ref(), &report::json(&outcome), || report::text(&outcome));
    failure.map_or(printed, Err)
}

/// The result, and why the run has failed.
fn concluded(plan: &NvmePlan, Ended { mut outcomes, failure }: Ended<NvmeOutcome>) -> (NvmeOutcome, Option<CliError>) {
    let mut outcome = outcomes
        .pop()
        .unwrap_or_else(|| NvmeOutcome::nothing(plan, if failure.is_some() { End::Failed } else { End::Interrupted }));
    let failure = failure.or_else(|| why_failed(plan, &outcome));
    if let Some(failure) = &failure {
        outcome.error = Some(failure.to_string());
        if outcome.end == End::Complete {
            outcome.end = End::Failed;
        }
    }
    (outcome, failure)
}

/// Why a run that has come to its end has failed all the same.
fn why_failed(plan: &NvmePlan, outcome: &NvmeOutcome) -> Option<CliError> {
    let seconds = outcome.seconds;
    let sentence = if outcome.failed() > 0 {
        format!("{} commands failed: {}", outcome.failed(), outcome.failures())
    } else if outcome.ios == 0 && outcome.end == End::Interrupted {
        "stopped by a signal before an I/O was measured".to_owned()
    } else if outcome.ios == 0 {
        format!("no I/O was completed within {seconds:.3} s: measure longer with --duration, or look at the target")
    } else if outcome.end == End::Interrupted && !matches!(plan.length, Length::Endless(_)) {
        format!("stopped by a signal before the run was complete: the result is that of {seconds:.3} s")
    } else {
        return None;
    };
    Some(CliError::failed(sentence))
}
