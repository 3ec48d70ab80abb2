//! Where faults happen in a worker: the injectors in front of its queues and behind them, and the refusals in front of its
//! engine. Each is there only as long as a rule wants it.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use rxe_proto::Instant;

use super::capture::TxRecorder;
use super::injector::{ActiveFault, Direction, FOREVER, FaultStats, Faults, Injector, Refusals, Room};
use super::lane::TxLane;
use super::ports::{PortsTx, RxPort};
use super::run::{Others, Worker};
use crate::eal::{Mbuf, Mempool};

/// Other rules to go by.
#[derive(Debug)]
pub(crate) struct FaultChange {
    pub(crate) rules: Faults,
    /// Who waits until they are gone by.
    pub(crate) reply: Option<SyncSender<()>>,
}

/// What it takes to make injectors and refusals for a worker.
pub(crate) struct FaultPlaces {
    worker: usize,
    room: Room,
    /// The buffers of the ports, by number.
    pools: Vec<Mempool>,
    rx_stats: Arc<FaultStats>,
    tx_stats: Arc<FaultStats>,
}

impl FaultPlaces {
    /// For worker number `worker`. The pools have buffers for two injectors of `room` for each port.
    pub(crate) fn new(
        worker: usize,
        room: Room,
        pools: Vec<Mempool>,
        rx_stats: Arc<FaultStats>,
        tx_stats: Arc<FaultStats>,
    ) -> FaultPlaces {
        FaultPlaces { worker, room, pools, rx_stats, tx_stats }
    }

    /// Has injectors behind receive queues where they are wanted. One that is not is off, and holds on to frames.
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

    /// Has injectors in front of transmit queues where they are wanted, and nowhere else. False when there still is one
    /// that is not wanted: the port has not yet taken all that it held.
    pub(crate) fn place_tx(&self, now: Instant, rules: &[Arc<ActiveFault>], tx: &mut PortsTx) -> bool {
        let direction = Direction::Tx;
        let wanted = Injector::<Mbuf>::is_wanted(direction, rules);
        let PortsTx { lanes, recorders, .. } = tx;
        recorders.resize_with(lanes.len(), || None);
        let place = |((lane, recorder), (number, pool)): ((TxLane, &mut Option<TxRecorder>), (u16, &Mempool))| {
            let mut lane = if wanted && !lane.is_faulty() {
                let port = rxe_proto::wire::PortId(number);
                let injector = Injector::new(direction, self.worker, port, self.room, Arc::clone(&self.tx_stats));
                lane.with_faults(pool.clone(), injector)
            } else {
                lane
            };
            lane.set_faults(rules);
            lane.lend_recorder(recorder);
            lane.without_faults(now, recorder)
        };
        *lanes = std::mem::take(lanes).into_iter().zip(recorders).zip((0..).zip(&self.pools)).map(place).collect();
        wanted || !lanes.iter().any(TxLane::is_faulty)
    }

    /// Refuses requests if that is wanted.
    pub(crate) fn refusals(&self, rules: &[Arc<ActiveFault>], before: Option<Box<Refusals>>) -> Option<Box<Refusals>> {
        Refusals::new(before, rules, self.worker, &self.rx_stats)
    }
}

impl Worker {
    /// Goes by other rules from now on, if somebody said so.
    #[cold]
    pub(super) fn change_faults(&mut self, now: Instant) {
        let Worker { rx, burst, outbound, dispatcher, faults, .. } = self;
        let Some(FaultChange { rules, reply }) = dispatcher.orders.faults.take() else { return };
        let before = dispatcher.refusals.take();
        dispatcher.refusals = faults.refusals(&rules, before);
        faults.place_rx(&rules, rx);
        for RxPort { port, queue, faults } in rx.iter_mut() {
            if let Some(injector) = faults.as_mut().filter(|injector| injector.is_off()) {
                let mut others = Others { rings: outbound, pool: queue.pool() };
                dispatcher.dispatch_due(now, FOREVER, *port, injector, burst, &mut others);
                *faults = None;
            }
        }
        dispatcher.hand_over(now, outbound);
        let settled = faults.place_tx(now, &rules, &mut dispatcher.tx);
        if let Some(reply) = reply {
            // Who asked may have given up, which is no loss.
            let _ = reply.try_send(());
        }
        if !settled {
            dispatcher.orders.faults = Some(FaultChange { rules, reply: None });
        }
    }
}
