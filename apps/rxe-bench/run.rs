//! Runs a plan and prints its results.

use std::fs::OpenOptions;
use std::io::{self, IsTerminal, Write};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rxe::CliError;
use rxe::adapter::{Adapter, Carrier};
use rxe::signals::Signals;
use rxe_adapter::output;
use rxe_adapter::settings::{PortSettings, RuntimeConfig};
use rxe_adapter::worker::IdlePolicy;
use rxe_proto::transport::EngineConfig;
use rxe_proto::wire::Cidr;
use rxe_service::ServiceFactory;
use tracing::level_filters::LevelFilter;

use crate::connect_rate::ConnectRateFactory;
use crate::initiator::InitiatorFactory;
use crate::outcome::{self, End, Outcome};
use crate::plan::{Json, Length, Plan, Test};
use crate::progress::Progress;
use crate::session::{Ended, Session};
use crate::{echo, table};

/// Send window of a queue pair in packets: larger than that of a target, so that the link is always busy.
const WINDOW: u32 = 256;
/// Capacity of the completion queue: all work requests of all queue pairs.
const MAX_CQE: u32 = 1 << 24;

/// Runs the test and prints the results, also those of a run that failed or was interrupted.
pub fn run(plan: &Plan) -> Result<(), CliError> {
    let signals = prepare(plan.json.as_ref())?;
    if plan.test == Test::Reflect {
        return reflect(plan, &signals);
    }
    let ended = measure(plan, &signals).unwrap_or_else(|failure| Ended { failure: Some(failure), ..Ended::default() });
    let (outcomes, failure) = concluded(plan, ended);
    let printed = print_all(plan, &outcomes);
    failure.map_or(printed, Err)
}

/// Starts the log and the handling of signals, and checks that the JSON can be written.
pub fn prepare(json: Option<&Json>) -> Result<Signals, CliError> {
    log_to_stderr();
    if let Some(Json::File(path)) = json {
        // Now, not after the measurement.
        OpenOptions::new().append(true).create(true).open(path).map_err(|error| unwritable(path, &error))?;
    }
    Signals::install()
}

/// `reflect` prints its own lines.
fn reflect(plan: &Plan, signals: &Signals) -> Result<(), CliError> {
    let text = echo::reflect(&plan.eal_args, &flag(signals), print)?;
    print(&text)
}

fn measure(plan: &Plan, signals: &Signals) -> Result<Ended, CliError> {
    let progress = Progress::start(plan);
    let interrupted = flag(signals);
    if plan.test == Test::Echo {
        return echo::echo(plan, &interrupted, &progress);
    }
    let session = Session::new(plan, progress, interrupted);
    let factory: Box<dyn ServiceFactory> = match plan.test.verb() {
        Some(verb) => Box::new(InitiatorFactory { session: Arc::clone(&session), verb }),
        None => Box::new(ConnectRateFactory(Arc::clone(&session))),
    };
    serve(&plan.into(), &session, factory)?;
    Ok(session.take())
}

/// The results, one at least, and why the run has failed.
fn concluded(plan: &Plan, Ended { mut outcomes, failure }: Ended) -> (Vec<Outcome>, Option<CliError>) {
    if outcomes.is_empty() {
        let end = if failure.is_some() { End::Failed } else { End::Interrupted };
        outcomes.push(Outcome::nothing(plan, plan.sizes.first().copied().unwrap_or_default(), end));
    }
    let failure = failure.or_else(|| nothing_measured(plan, &outcomes)).or_else(|| interrupted(plan, &outcomes));
    if let (Some(failure), Some(last)) = (&failure, outcomes.last_mut()) {
        last.error = Some(failure.to_string());
        if last.end == End::Complete {
            last.end = End::Failed;
        }
    }
    (outcomes, failure)
}

fn print_all(plan: &Plan, outcomes: &[Outcome]) -> Result<(), CliError> {
    let measured: Vec<Outcome> = outcomes.iter().filter(|outcome| outcome.seconds > 0.0).cloned().collect();
    print_results(plan.json.as_ref(), &outcome::json(plan, outcomes), || table::table(plan, &measured))
}

/// Prints the results: as JSON, as text, or both.
pub fn print_results(to: Option<&Json>, json: &str, text: impl FnOnce() -> String) -> Result<(), CliError> {
    if to == Some(&Json::Stdout) {
        return print(json);
    }
    let text = text();
    if !text.is_empty() {
        print(&text)?;
    }
    match to {
        Some(Json::File(path)) => {
            std::fs::write(path, json).map_err(|error| CliError::failed(unwritable(path, &error).to_string()))
        }
        _ => Ok(()),
    }
}

fn unwritable(path: &Path, error: &io::Error) -> CliError {
    let reason = error.to_string();
    let reason = reason.split(" (os error").next().unwrap_or_default();
    CliError::new(format!("--out_json: {} cannot be written ({reason}): choose another file", path.display()))
}

/// A run has failed if no message of one of its sizes was completed.
fn nothing_measured(plan: &Plan, outcomes: &[Outcome]) -> Option<CliError> {
    let empty = outcomes.iter().find(|outcome| outcome.messages == 0 && outcome.end == End::Complete)?;
    let (seconds, size) = (empty.seconds, empty.size);
    Some(CliError::failed(match plan.test {
        Test::ConnectRate => {
            format!("no connection was completed within {seconds:.3} s: measure longer with --duration")
        }
        _ => format!(
            "no message of {size} bytes was completed within {seconds:.3} s: measure longer with --duration, or look at the \
             target with rxe-ctl top"
        ),
    }))
}

/// A run that a signal ended before its planned end has failed, and so has one without a result.
fn interrupted(plan: &Plan, outcomes: &[Outcome]) -> Option<CliError> {
    let last = outcomes.last().filter(|outcome| outcome.end == End::Interrupted)?;
    match plan.length {
        _ if last.messages == 0 => Some(CliError::failed("stopped by a signal before a message was measured")),
        Length::Endless(_) => None,
        _ => Some(CliError::failed(format!(
            "stopped by a signal before the test was complete: the last result is that of {:.3} s",
            last.seconds
        ))),
    }
}

/// Settings of an adapter that follow from a plan.
pub struct Wiring<'a> {
    pub eal_args: &'a [String],
    pub udp: bool,
    /// Address of the bench.
    pub address: Cidr,
    pub gateway: Option<IpAddr>,
    /// Connections at the same time.
    pub connections: u32,
}

impl<'a> From<&'a Plan> for Wiring<'a> {
    fn from(plan: &'a Plan) -> Wiring<'a> {
        Wiring {
            eal_args: &plan.eal_args,
            udp: plan.udp,
            address: plan.address,
            gateway: plan.gateway,
            connections: plan.connections(),
        }
    }
}

/// Runs an adapter with one service until the service stops it.
pub fn serve<P: Clone, O>(
    plan: &Wiring<'_>,
    session: &Session<P, O>,
    factory: Box<dyn ServiceFactory>,
) -> Result<(), CliError> {
    let engine = EngineConfig::default();
    // A closed connection keeps its slot for a while (timewait).
    let connections = 2 * plan.connections + 64;
    let config = RuntimeConfig {
        ports: vec![PortSettings {
            addresses: vec![plan.address],
            gateways: plan.gateway.into_iter().collect(),
            ..PortSettings::default()
        }],
        // The target on a UDP socket runs on this machine as well, most likely.
        idle: if plan.udp { IdlePolicy::Pause } else { IdlePolicy::Spin },
        engine: EngineConfig { max_qp: engine.max_qp.max(connections), max_cqe: MAX_CQE, window: WINDOW, ..engine },
        max_connections: RuntimeConfig::default().max_connections.max(connections as usize),
        ..RuntimeConfig::default()
    };
    let carrier = if plan.udp { Carrier::Udp } else { Carrier::Dpdk(plan.eal_args) };
    let adapter = Adapter::new(carrier, config, vec![factory])?;
    session.set_adapter(&adapter);
    let summary = adapter.run()?;
    tracing::debug!("counters:\n{summary}");
    Ok(())
}

/// A flag that the first signal sets.
pub fn flag(signals: &Signals) -> Arc<AtomicBool> {
    let flag = Arc::<AtomicBool>::default();
    let raised = Arc::clone(&flag);
    signals.stop(move || raised.store(true, Ordering::Relaxed));
    flag
}

/// Writes to standard output at once.
pub fn print(text: &str) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    written.map_err(|error| CliError::failed(format!("the results cannot be written to standard output: {error}")))
}

/// Starts the log on standard error. Call it before EAL is started.
fn log_to_stderr() {
    output::start();
    output::print_panics();
    let level = std::env::var("RXE_LOG").ok().and_then(|level| level.parse().ok()).unwrap_or(LevelFilter::WARN);
    let logger = tracing_subscriber::fmt()
        .compact()
        .with_writer(output::stderr)
        .with_ansi(io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty()))
        .with_max_level(level);
    // This fails only if a logger is set already; then that one receives the messages.
    let _ = logger.try_init();
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::plan::tests::plan;

    fn end_of(plan: &Plan, outcomes: Vec<Outcome>, failure: Option<CliError>) -> (Outcome, Option<CliError>) {
        let (outcomes, failure) = concluded(plan, Ended { outcomes, failure });
        (outcomes.last().expect("one at least").clone(), failure)
    }

    #[test]
    fn a_run_without_any_message_has_failed() {
        let plan = plan();
        let outcome = |size, messages| Outcome::new(&plan, size, 1024, messages, 0.5);
        assert!(end_of(&plan, vec![outcome(2, 1), outcome(4, 7)], None).1.is_none());
        let (last, failed) = end_of(&plan, vec![outcome(2, 1), outcome(4, 0)], None);
        let failed = failed.expect("no message");
        assert_eq!((failed.exit_code(), last.end), (1, End::Failed));
        assert!(failed.to_string().starts_with("no message of 4 bytes was completed within 0.500 s"), "{failed}");
        assert_eq!(last.error, Some(failed.to_string()));
    }

    #[test]
    fn an_interrupted_run_has_failed_unless_it_was_endless() {
        let endless = Plan { length: Length::Endless(Duration::from_secs(1)), ..plan() };
        let cut =
            |plan: &Plan, messages| Outcome { end: End::Interrupted, ..Outcome::new(plan, 64, 1024, messages, 0.5) };
        let code = |failed: Option<CliError>| failed.map_or(0, |failed| failed.exit_code());
        for (plan, messages, wanted) in [(plan(), 5, 1), (endless.clone(), 5, 0), (endless.clone(), 0, 1)] {
            let (last, failed) = end_of(&plan, vec![cut(&plan, messages)], None);
            assert_eq!((last.end, code(failed)), (End::Interrupted, wanted));
        }
        let (last, failed) = end_of(&endless, Vec::new(), None);
        assert_eq!((last.end, last.messages, code(failed)), (End::Interrupted, 0, 1));
        let (last, failed) = end_of(&plan(), Vec::new(), Some(CliError::new("no port")));
        assert_eq!((last.end, last.error.as_deref(), code(failed)), (End::Failed, Some("no port"), 2));
    }
}
