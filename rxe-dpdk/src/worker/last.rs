//! The end of a worker's loop.

use rxe_proto::transport::Engine;
use rxe_proto::wire::TxQueue;
use rxe_proto::{Duration, Instant};

/// Writes what is owed to peers until nothing is left, the ports take no more, or `patience` is over: a READ may be of
/// gigabytes, and a port that is fast enough takes all of it.
pub(super) fn transmit_rest(
    engine: &mut Engine,
    tx: &mut impl TxQueue,
    patience: Duration,
    clock: impl Fn() -> Instant,
) {
    let mut now = clock();
    let until = now + patience;
    while now < until && engine.transmit(now, tx) > 0 {
        now = clock();
    }
}

#[cfg(test)]
mod tests;
