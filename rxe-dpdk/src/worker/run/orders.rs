//! Changes that other threads order from a worker and that concern its queues, applied between two turns: recorders of a
//! capture, fault rules, queues of a port whose device is gone, links that came up.

use std::sync::Arc;

use rxe_adapter::worker::injector::FOREVER;
use rxe_adapter::worker::orders::FaultChange;
use rxe_proto::Instant;

use super::Worker;
use crate::worker::origin::{FromPort, dispatch_due, flush_rings};
use crate::worker::port_orders::ParkOrder;
use crate::worker::ports::RxPort;
use crate::worker::tx_path::TxPath;

impl Worker {
    /// Starts or stops recording, if that was ordered.
    #[inline]
    pub(super) fn apply_capture_order(&mut self) {
        let Some(order) = self.orders.capture.take() else { return };
        let (rx, tx) = order.recorders.map(|recorders| (recorders.rx, recorders.tx)).unzip();
        self.dispatcher.recorder = rx;
        self.dispatcher.tx.set_recorders(tx.unwrap_or_default());
        if let Some(done) = order.done {
            // The sender of the order may have timed out.
            let _ = done.try_send(());
        }
    }

    /// Applies another list of fault rules.
    #[cold]
    pub(super) fn apply_fault_change(&mut self, now: Instant) {
        let Worker { rx, burst, outbound, dispatcher, faults, orders, .. } = self;
        let Some(FaultChange { rules, reply }) = orders.faults.take() else { return };
        let before = dispatcher.refusals.take();
        dispatcher.refusals = faults.refusals(&rules, before);
        faults.place_rx(&rules, rx);
        for RxPort { port, queue, faults } in rx.iter_mut() {
            if let Some(injector) = faults.as_mut().filter(|injector| injector.is_off()) {
                let mut origin = FromPort { port: *port, rings: outbound, pool: queue.pool() };
                dispatch_due(dispatcher, now, FOREVER, &mut origin, injector, burst);
                *faults = None;
            }
        }
        flush_rings(dispatcher, now, outbound);
        let settled = faults.place_tx(now, &rules, &mut dispatcher.tx);
        if let Some(reply) = reply {
            // The sender of the order may have timed out.
            let _ = reply.try_send(());
        }
        if !settled {
            orders.faults = Some(FaultChange { rules, reply: None });
        }
    }

    /// Announces the addresses and groups of ports whose links came up.
    #[cold]
    pub(super) fn announce_links(&mut self, now: Instant) {
        let Worker { port_orders, dispatcher, .. } = self;
        for port in port_orders.links_up.drain(..) {
            if let Some(port) = dispatcher.control.as_mut().and_then(|control| control.host_mut(port)) {
                port.host.announce(now);
            }
        }
    }

    /// Parks or resumes queues of ports.
    #[cold]
    pub(super) fn apply_port_orders(&mut self) {
        let Worker { rx, dispatcher, stats, port_orders, .. } = self;
        for ParkOrder { port, park, reply } in std::mem::take(&mut port_orders.parks) {
            let mut done = true;
            for queue in rx.iter_mut().filter(|rx| rx.port == port).map(|rx| &mut rx.queue) {
                if park {
                    queue.park();
                } else {
                    done &= queue.resume();
                }
            }
            if let Some(stage) = dispatcher.tx.paths.get_mut(usize::from(port.0)).and_then(TxPath::queue) {
                if park {
                    let stats = Arc::clone(stats);
                    stage.park(move |frames| stats.tx_port_gone.add(frames));
                } else {
                    done &= stage.resume();
                }
            }
            // The sender of the order may have timed out; it repeats the order.
            let _ = reply.try_send(done);
        }
    }
}
