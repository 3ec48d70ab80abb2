//! Runs a plan and prints its results.

use std::fs::OpenOptions;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rxe::CliError;
use rxe::lcores;
use rxe::signals::Signals;
use rxe_dpdk::eal::Eal;
use rxe_dpdk::output;
use rxe_dpdk::runtime::{PortSettings, Runtime, RuntimeConfig};
use rxe_dpdk::service::ServiceFactory;
use rxe_dpdk::worker::IdlePolicy;
use rxe_proto::transport::EngineConfig;
use tracing::level_filters::LevelFilter;

use crate::connect_rate::ConnectRateFactory;
use crate::initiator::InitiatorFactory;
use crate::plan::{Json, Plan, Test};
use crate::progress::Progress;
use crate::report::Outcome;
use crate::session::Session;
use crate::{echo, report};

/// Send window of a queue pair in packets: larger than that of a target, so that the link is always busy.
const WINDOW: u32 = 256;
/// Capacity of the completion queue: all work requests of all queue pairs.
const MAX_CQE: u32 = 1 << 24;

/// Runs the test and prints the results.
pub fn run(plan: &Plan) -> Result<(), CliError> {
    log_to_stderr();
    if let Some(Json::File(path)) = &plan.json {
        // Now, not after the measurement.
        OpenOptions::new().append(true).create(true).open(path).map_err(|error| unwritable(path, &error))?;
    }
    let signals = Signals::install()?;
    let progress = Progress::start(plan);
    let eal = Eal::init(&lcores::or_one(&plan.eal_args)).map_err(|error| CliError::new(error.to_string()))?;
    let outcomes = match (plan.test, plan.test.verb()) {
        (Test::Reflect, _) => {
            // `reflect` prints its own lines.
            drop(progress);
            let text = echo::reflect(&eal, &flag(&signals), print)?;
            return print(&text);
        }
        (Test::Echo, _) => {
            let outcomes = echo::echo(&eal, plan, &flag(&signals), &progress);
            drop(progress);
            outcomes?
        }
        (_, verb) => {
            let session = Session::new(plan, progress);
            let factory: Box<dyn ServiceFactory> = match verb {
                Some(verb) => Box::new(InitiatorFactory { session: Arc::clone(&session), verb }),
                None => Box::new(ConnectRateFactory(Arc::clone(&session))),
            };
            serve(eal, plan, &session, &signals, factory)?;
            session.take()?
        }
    };
    let (table, json) = (report::table(plan, &outcomes), report::json(&outcomes));
    match &plan.json {
        Some(Json::Stdout) => print(&json)?,
        Some(Json::File(path)) => {
            print(&table)?;
            std::fs::write(path, json).map_err(|error| CliError::failed(unwritable(path, &error).to_string()))?;
        }
        None => print(&table)?,
    }
    something_measured(plan, &outcomes)
}

fn unwritable(path: &Path, error: &io::Error) -> CliError {
    let reason = error.to_string();
    let reason = reason.split(" (os error").next().unwrap_or_default();
    CliError::new(format!("--out_json: {} cannot be written ({reason}): choose another file", path.display()))
}

/// A run has failed if no message of one of its sizes was completed.
fn something_measured(plan: &Plan, outcomes: &[Outcome]) -> Result<(), CliError> {
    let Some(empty) = outcomes.iter().find(|outcome| outcome.messages == 0) else { return Ok(()) };
    let (seconds, size) = (empty.seconds, empty.size);
    Err(CliError::failed(match plan.test {
        Test::ConnectRate => {
            format!("no connection was completed within {seconds:.3} s: measure longer with --duration")
        }
        _ => format!(
            "no message of {size} bytes was completed within {seconds:.3} s: measure longer with --duration, or look at the \
             target with rxe-ctl top"
        ),
    }))
}

/// Runs an adapter with one service until the service or a signal stops it.
fn serve(
    eal: Eal,
    plan: &Plan,
    session: &Session,
    signals: &Signals,
    factory: Box<dyn ServiceFactory>,
) -> Result<(), CliError> {
    // Time to process all outstanding messages at a microsecond each. With thousands of queue pairs it is longer than the
    // retransmission timeouts, so these are raised.
    let round = rxe_proto::Duration::from_micros(u64::from(plan.qps) * u64::from(plan.depth()));
    let timeouts = EngineConfig::default();
    // A closed connection keeps its slot for a while (timewait).
    let connections = 2 * plan.connections() + 64;
    let config = RuntimeConfig {
        ports: vec![PortSettings {
            addresses: vec![plan.address],
            gateways: plan.gateway.into_iter().collect(),
            ..PortSettings::default()
        }],
        idle: IdlePolicy::Spin,
        engine: EngineConfig {
            max_qp: timeouts.max_qp.max(connections),
            max_cqe: MAX_CQE,
            window: WINDOW,
            min_timeout: timeouts.min_timeout.max(round / 4),
            initial_timeout: timeouts.initial_timeout.max(round),
            ..timeouts
        },
        max_connections: RuntimeConfig::default().max_connections.max(connections as usize),
        ..RuntimeConfig::default()
    };
    let runtime = Runtime::new(eal, config, vec![factory]).map_err(|error| CliError::new(error.to_string()))?;
    session.set_stop(runtime.stop_handle());
    let stop = runtime.stop_handle();
    signals.stop(move || stop.stop());
    let summary = runtime.run().map_err(|error| CliError::failed(error.to_string()))?;
    tracing::debug!("counters:\n{summary}");
    Ok(())
}

/// A flag that the first signal sets.
fn flag(signals: &Signals) -> Arc<AtomicBool> {
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
        .with_ansi(io::stderr().is_terminal())
        .with_max_level(level);
    // This fails only if a logger is set already; then that one receives the messages.
    let _ = logger.try_init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_any_message_has_failed() {
        let plan = crate::plan::tests::plan();
        let outcome = |size, messages| Outcome::new(&plan, size, 1024, messages, 0.5);
        assert!(something_measured(&plan, &[outcome(2, 1), outcome(4, 7)]).is_ok());
        let failed = something_measured(&plan, &[outcome(2, 1), outcome(4, 0)]).expect_err("no message");
        assert_eq!(failed.exit_code(), 1);
        assert!(failed.to_string().starts_with("no message of 4 bytes was completed within 0.500 s"), "{failed}");
    }
}
