//! The end of a worker's loop: every frame that is still in an injector, a ring or a stage is delivered or sent.

use std::thread;

use rxe_adapter::worker::dispatch::Dispatcher;
use rxe_adapter::worker::injector::FOREVER;
use rxe_proto::transport::Engine;
use rxe_proto::wire::TxQueue;
use rxe_proto::{Duration, Instant};
use rxe_sync::Arrivals;

use super::{StopFlags, Worker};
use crate::worker::origin::{FromPort, dispatch_due, flush_rings};
use crate::worker::ports::RxPort;

/// How long a worker waits for the other workers, and for a port to take its last frames, each.
const LAST_PATIENCE: Duration = Duration::from_millis(100);

impl Worker {
    /// Delivers and sends what is left. The worker with the transmit queue stays until all others have sent.
    pub(super) fn shut_down(&mut self) {
        let Worker { rx, burst, outbound, dispatcher, .. } = self;
        let now = self.clock.now();
        // From here on transmit injectors delay nothing.
        dispatcher.tx.finish();
        for RxPort { port, queue, faults } in rx {
            if let Some(injector) = faults {
                let mut origin = FromPort { port: *port, rings: outbound, pool: queue.pool() };
                dispatch_due(dispatcher, now, FOREVER, &mut origin, injector, burst);
            }
        }
        flush_rings(dispatcher, now, outbound);
        self.await_all(|flags| &flags.received_all, |_| {});

        let until = now + LAST_PATIENCE;
        while self.receive_handed_over(now) && self.clock.now() < until {}
        let Dispatcher { engine, services, tx, .. } = &mut self.dispatcher;
        services.count_left(engine);
        transmit_rest(engine, tx, LAST_PATIENCE, || self.clock.now());
        self.send_rest();
        self.await_all(
            |flags| &flags.sent_all,
            |worker| {
                worker.forward();
                worker.dispatcher.tx.finish();
            },
        );
        self.send_rest();
        self.stats.tx_frames.add(std::mem::take(&mut self.dispatcher.tx.frames));
    }

    /// Sends everything that is staged, and waits up to [`LAST_PATIENCE`] for ports that refuse it.
    fn send_rest(&mut self) {
        let until = self.clock.now() + LAST_PATIENCE;
        loop {
            let moved = self.forward();
            let waiting = self.dispatcher.tx.finish();
            if !(moved || waiting) || self.clock.now() >= until {
                return;
            }
            thread::yield_now();
        }
    }

    /// This worker has arrived; calls `meanwhile` until all have.
    fn await_all(&mut self, arrivals: impl Fn(&StopFlags) -> &Arrivals, meanwhile: impl Fn(&mut Worker)) {
        arrivals(&self.flags).arrive();
        let until = self.clock.now() + LAST_PATIENCE;
        while !arrivals(&self.flags).are(self.dispatcher.workers) && self.clock.now() < until {
            meanwhile(self);
            thread::yield_now();
        }
    }
}

/// Transmits until the engine has nothing left to send, the ports refuse more, or `patience` is over. A READ response may
/// be gigabytes long: a port that is fast enough takes all of it.
fn transmit_rest(engine: &mut Engine, tx: &mut impl TxQueue, patience: Duration, clock: impl Fn() -> Instant) {
    let mut now = clock();
    let until = now + patience;
    while now < until && engine.transmit(now, tx) > 0 {
        now = clock();
    }
}

#[cfg(test)]
mod tests;
