//! Orders to workers about the queues of a port.

use std::io::PipeReader;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rxe_proto::wire::PortId;

use crate::eal::{Woken, wait_for_links};
use crate::worker::lane::TxLane;
use crate::worker::orders::Order;
use crate::worker::run::Worker;

/// How long a worker may take: it reads its mail in every turn, once it runs.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often a wait looks whether the target stops.
const STEP: Duration = Duration::from_millis(20);

/// Park the queues of a port, or resume them.
#[derive(Debug)]
pub(crate) struct PortOrder {
    port: PortId,
    park: bool,
    /// Answered when that is done: whether it could be.
    reply: SyncSender<bool>,
}

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

impl Worker {
    /// Does as ordered, if there are orders.
    #[cold]
    pub(in crate::worker) fn follow_port_orders(&mut self) {
        let Worker { rx, dispatcher, stats, .. } = self;
        for PortOrder { port, park, reply } in std::mem::take(&mut dispatcher.orders.ports) {
            let mut done = true;
            for queue in rx.iter_mut().filter(|rx| rx.port == port).map(|rx| &mut rx.queue) {
                if park {
                    queue.park();
                } else {
                    done &= queue.resume();
                }
            }
            if let Some(stage) = dispatcher.tx.lanes.get_mut(usize::from(port.0)).and_then(TxLane::queue) {
                if park {
                    let stats = Arc::clone(stats);
                    stage.park(move |frames| stats.tx_port_gone.add(frames));
                } else {
                    done &= stage.resume();
                }
            }
            // Whoever waited may have given up, and asks again.
            let _ = reply.try_send(done);
        }
    }
}
