//! Applies orders of management that need nothing but the dispatcher, between two turns of a worker's loop.

use rxe_proto::Instant;

use super::dispatch::Dispatcher;
use super::host::WorkerHost;
use super::orders::{AddressingOrder, Orders, PeersOrder, PortChangedOrder};

impl<H: WorkerHost> Dispatcher<H> {
    /// Applies the orders about allowed peers, addresses and draining.
    #[inline]
    pub fn apply(&mut self, now: Instant, orders: &mut Orders) {
        if !orders.peers.is_empty() {
            self.apply_peers_orders(orders);
        }
        if !orders.addressing.is_empty() {
            self.apply_addressing_orders(now, orders);
        }
        if !orders.ports_changed.is_empty() {
            self.apply_port_changes(now, orders);
        }
        if orders.drain.is_some() {
            self.apply_drain_order(orders);
        }
    }

    /// Changes the allowed peers of ports.
    #[cold]
    fn apply_peers_orders(&mut self, orders: &mut Orders) {
        for PeersOrder { port, peers, reply } in orders.peers.drain(..) {
            if let Some(host) = self.control.as_mut().and_then(|control| control.host_mut(port)) {
                host.set_peers(peers.clone());
            }
            if let Some(identity) = self.identities.get_mut(usize::from(port.0)) {
                identity.set_peers(peers);
            }
            // The sender of the order may have timed out.
            let _ = reply.try_send(());
        }
    }

    /// Changes the addresses and routes of ports, on the worker with the control side.
    #[cold]
    fn apply_addressing_orders(&mut self, now: Instant, orders: &mut Orders) {
        let Some(control) = &mut self.control else { return };
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
    fn apply_port_changes(&mut self, now: Instant, orders: &mut Orders) {
        for PortChangedOrder { local, reply } in orders.ports_changed.drain(..) {
            if let Some(identity) = self.identities.get_mut(usize::from(local.id.0)) {
                identity.gids = local.gids().collect();
            }
            self.services.port_changed(now, &mut self.engine, &local);
            // The sender of the order may have timed out.
            let _ = reply.try_send(());
        }
    }

    /// Refuses new clients.
    #[cold]
    fn apply_drain_order(&mut self, orders: &mut Orders) {
        let Some(reply) = orders.drain.take() else { return };
        if let Some(control) = &mut self.control {
            control.begin_drain();
        }
        // The sender of the order may have timed out.
        let _ = reply.try_send(());
    }
}
