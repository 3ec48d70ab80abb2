//! Orders to workers about the queues of a port.

use std::io::PipeReader;
use std::sync::mpsc::{RecvTimeoutError, Sender, sync_channel};
use std::time::{Duration, Instant};

use rxe_proto::wire::PortId;

use crate::eal::{Woken, wait_for_links};
use crate::worker::port_orders::{ParkOrder, PortOrder};

/// How long a worker may take; a running worker reads its orders every few microseconds.
const PATIENCE: Duration = Duration::from_secs(2);
/// Interval at which a wait checks whether the target stops.
const STEP: Duration = Duration::from_millis(20);

/// Orders every worker to park or resume its queues of `port`. Returns false if one refused or did not answer in time.
pub(super) fn send(workers: &[Sender<PortOrder>], port: PortId, park: bool, stopped: &PipeReader) -> bool {
    let (reply, answers) = sync_channel(workers.len());
    for worker in workers {
        if worker.send(PortOrder::Park(ParkOrder { port, park, reply: reply.clone() })).is_err() {
            return false;
        }
    }
    drop(reply);
    let began = Instant::now();
    let mut missing = workers.len();
    while missing > 0 {
        match answers.recv_timeout(STEP) {
            Ok(true) => missing -= 1,
            Ok(false) | Err(RecvTimeoutError::Disconnected) => return false,
            Err(RecvTimeoutError::Timeout) => {
                let stops = wait_for_links(None, stopped, Duration::ZERO) == Woken::Stopped;
                if stops || began.elapsed() > PATIENCE {
                    return false;
                }
            }
        }
    }
    true
}
