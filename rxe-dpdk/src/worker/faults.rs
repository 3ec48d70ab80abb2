//! Where faults are injected in a worker: in front of its receive queues, behind its transmit stages, and in front of its
//! engine (refused requests). An injector exists only while a rule needs it.

use std::sync::Arc;

use rxe_adapter::worker::capture::TxRecorder;
use rxe_adapter::worker::injector::{ActiveFault, Direction, FaultStats, Injector, Refusals, Room};
use rxe_proto::Instant;
use rxe_proto::wire::PortId;

use super::ports::{PortsTx, RxPort};
use super::tx_path::TxPath;
use crate::eal::{Mbuf, Mempool};

/// Places and removes the injectors and refusals of a worker.
pub(crate) struct FaultPlaces {
    worker: usize,
    room: Room,
    /// The buffers of the ports, by number.
    pools: Vec<Mempool>,
    rx_stats: Arc<FaultStats>,
    tx_stats: Arc<FaultStats>,
}

impl FaultPlaces {
    /// For worker number `worker`. Each pool has buffers for two injectors of `room` per worker.
    pub(crate) fn new(
        worker: usize,
        room: Room,
        pools: Vec<Mempool>,
        rx_stats: Arc<FaultStats>,
        tx_stats: Arc<FaultStats>,
    ) -> FaultPlaces {
        FaultPlaces { worker, room, pools, rx_stats, tx_stats }
    }

    /// Places injectors behind receive queues if a rule needs them, and sets their rules. An injector without rules stays:
    /// it may hold frames.
    pub(crate) fn place_rx(&self, rules: &[Arc<ActiveFault>], rx: &mut [RxPort]) {
        let direction = Direction::Rx;
        let wanted = Injector::<Mbuf>::is_wanted(direction, rules);
        for rx in rx {
            let (room, stats) = (self.room, &self.rx_stats);
            if wanted && rx.faults.is_none() {
                rx.faults = Some(Box::new(Injector::new(direction, self.worker, rx.port, room, Arc::clone(stats))));
            }
            if let Some(injector) = &mut rx.faults {
                injector.set_rules(rules);
            }
        }
    }

    /// Places injectors in front of transmit queues if a rule needs them, and removes the others. Returns false if one
    /// could not be removed yet, because its port has not taken all that it held.
    pub(crate) fn place_tx(&self, now: Instant, rules: &[Arc<ActiveFault>], tx: &mut PortsTx) -> bool {
        let direction = Direction::Tx;
        let wanted = Injector::<Mbuf>::is_wanted(direction, rules);
        let PortsTx { paths, spare_recorders, .. } = tx;
        spare_recorders.resize_with(paths.len(), || None);
        let place = |((path, recorder), (number, pool)): ((TxPath, &mut Option<TxRecorder>), (u16, &Mempool))| {
            let mut path = if wanted && !path.is_faulty() {
                let (port, stats) = (PortId(number), Arc::clone(&self.tx_stats));
                path.with_faults(pool.clone(), Injector::new(direction, self.worker, port, self.room, stats))
            } else {
                path
            };
            path.set_faults(rules);
            path.attach_recorder(recorder);
            path.without_faults(now, recorder)
        };
        let before = std::mem::take(paths).into_iter().zip(spare_recorders);
        *paths = before.zip((0..).zip(&self.pools)).map(place).collect();
        wanted || !paths.iter().any(TxPath::is_faulty)
    }

    /// The refusals that `rules` ask for. A rule that was active `before` continues its random sequence.
    pub(crate) fn refusals(&self, rules: &[Arc<ActiveFault>], before: Option<Box<Refusals>>) -> Option<Box<Refusals>> {
        Refusals::new(before, rules, self.worker, &self.rx_stats)
    }
}
