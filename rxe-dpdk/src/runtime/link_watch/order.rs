//! Orders to workers about the queues of a port.

use std::io::PipeReader;
use std::sync::mpsc::{RecvTimeoutError, Sender, sync_channel};
use std::time::{Duration, Instant};

use rxe_proto::wire::PortId;

use crate::eal::{Woken, wait_for_links};
use crate::worker::orders::{Order, PortOrder};

/// How long a worker may take: it reads its mail in every turn, once it runs.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often a wait looks whether the target stops.
const STEP: Duration = Duration::from_millis(20);

/// Has every worker park or resume its queues of `port`. False when one of them did not, or not in time.
pub(super) fn send(workers: &[Sender<Order>], port: PortId, park: bool, stopped: &PipeReader) -> bool {
    let (reply, answers) = sync_channel(workers.len());
    for worker in workers {
        if worker.send(Order::Port(PortOrder { port, park, reply: reply.clone() })).is_err() {
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
