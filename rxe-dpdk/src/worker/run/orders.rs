//! Changes that other threads order from a worker, applied between two turns: recorders of a capture, fault rules, allowed
//! peers, addresses, queues of a port whose device is gone, links that came up.

use std::sync::Arc;

use rxe_proto::Instant;

use super::Worker;
use crate::worker::dispatch::{Dispatcher, FromPort};
use crate::worker::injector::FOREVER;
use crate::worker::orders::{AddressingOrder, FaultChange, PeersOrder, PortChangedOrder, PortOrder};
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
                dispatcher.dispatch_due(now, FOREVER, &mut origin, injector, burst);
                *faults = None;
            }
        }
        dispatcher.flush_rings(now, outbound);
        let settled = faults.place_tx(now, &rules, &mut dispatcher.tx);
        if let Some(reply) = reply {
            // The sender of the order may have timed out.
            let _ = reply.try_send(());
        }
        if !settled {
            orders.faults = Some(FaultChange { rules, reply: None });
        }
    }

    /// Changes the allowed peers of ports.
    #[cold]
    pub(super) fn apply_peers_orders(&mut self) {
        let Worker { orders, dispatcher, .. } = self;
        for PeersOrder { port, peers, reply } in orders.peers.drain(..) {
            if let Some(host) = dispatcher.control.as_mut().and_then(|control| control.host_mut(port)) {
                host.host.set_peers(peers.clone());
            }
            if let Some(identity) = dispatcher.identities.get_mut(usize::from(port.0)) {
                identity.set_peers(peers);
            }
            // The sender of the order may have timed out.
            let _ = reply.try_send(());
        }
    }

    /// Changes the addresses and routes of ports, on the worker with the control side.
    #[cold]
    pub(super) fn apply_addressing_orders(&mut self, now: Instant) {
        let Worker { orders, dispatcher, .. } = self;
        let Some(control) = &mut dispatcher.control else { return };
        for AddressingOrder { port, addressing, force, reply } in orders.addressing.drain(..) {
            let Some(host) = control.host_mut(port) else { continue };
            let changed = host.set_addressing(now, addressing, force);
            if changed.is_ok() {
                control.port_changed(port);
            }
            // The sender of the order may have timed out.
            let _ = reply.try_send(changed);
        }
    }

    /// Dispatches frames to the new addresses of ports, and no longer to the old ones.
    #[cold]
    pub(super) fn apply_port_changes(&mut self, now: Instant) {
        let Dispatcher { identities, services, engine, .. } = &mut self.dispatcher;
        for PortChangedOrder { local, reply } in self.orders.ports_changed.drain(..) {
            if let Some(identity) = identities.get_mut(usize::from(local.id.0)) {
                identity.gids = local.gids().collect();
            }
            services.port_changed(now, engine, &local);
            // The sender of the order may have timed out.
            let _ = reply.try_send(());
        }
    }

    /// Refuses new clients, if that was ordered.
    #[cold]
    pub(super) fn apply_drain_order(&mut self) {
        let Some(reply) = self.orders.drain.take() else { return };
        if let Some(control) = &mut self.dispatcher.control {
            control.begin_drain();
        }
        // The sender of the order may have timed out.
        let _ = reply.try_send(());
    }

    /// Announces the addresses and groups of ports whose links came up.
    #[cold]
    pub(super) fn announce_links(&mut self, now: Instant) {
        let Worker { orders, dispatcher, .. } = self;
        for port in orders.links_up.drain(..) {
            if let Some(port) = dispatcher.control.as_mut().and_then(|control| control.host_mut(port)) {
                port.host.announce(now);
            }
        }
    }

    /// Parks or resumes queues of ports.
    #[cold]
    pub(super) fn apply_port_orders(&mut self) {
        let Worker { rx, dispatcher, stats, orders, .. } = self;
        for PortOrder { port, park, reply } in std::mem::take(&mut orders.ports) {
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
