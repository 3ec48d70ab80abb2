//! Ends a target when its last client is gone.

use std::thread;
use std::time::{Duration, Instant};

use rxe::CliError;
use rxe_inspect::client::{AskError, Client};
use rxe_inspect::protocol::Request;
use rxe_inspect::report::LcoreResources;
use serde::Serialize;

/// Interval between two looks at the target.
const LOOK: Duration = Duration::from_millis(200);

/// How long the target takes to end, after the deadline: it disconnects the clients that are left.
const END: Duration = Duration::from_secs(10);

/// How a drain ended.
#[derive(Debug, Serialize)]
pub struct Drained {
    /// Queue pairs at the last look.
    queue_pairs_left: u64,
    /// From the request to the end of the target.
    seconds: f64,
}

/// Requests the drain and waits for the end of the target.
pub fn run(target: &mut Client, patience: u64) -> Result<Drained, CliError> {
    let began = Instant::now();
    target.tell(&Request::Drain { seconds: patience })?;
    let mut left = 0;
    loop {
        match target.ask::<Vec<LcoreResources>>(&Request::Resources) {
            Ok(lcores) => {
                let queue_pairs = lcores.iter().map(|lcore| lcore.resources.qp).sum();
                // After the deadline there are none because the target has disconnected them.
                if queue_pairs > 0 || began.elapsed() < Duration::from_secs(patience) {
                    left = queue_pairs;
                }
            }
            // It has closed its socket.
            Err(AskError::Io(_)) => break,
            // It is stopping.
            Err(AskError::Refused(_)) => {}
        }
        let limit = Duration::from_secs(patience) + END;
        if began.elapsed() > limit {
            return Err(CliError::failed(format!("the target still runs {} s after the request", limit.as_secs())));
        }
        thread::sleep(LOOK);
    }
    let late = began.elapsed() >= Duration::from_secs(patience);
    Ok(Drained { queue_pairs_left: if late { left } else { 0 }, seconds: began.elapsed().as_secs_f64() })
}

/// One line.
pub fn show(drained: &Drained) -> String {
    match drained {
        Drained { queue_pairs_left: 0, seconds } => format!("drained after {seconds:.1} s\n"),
        Drained { queue_pairs_left, seconds } => {
            format!("ended after {seconds:.1} s; {queue_pairs_left} queue pairs were left and have been disconnected\n")
        }
    }
}
