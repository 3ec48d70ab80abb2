//! Addresses and routes that come and go while the host runs.

use std::net::{IpAddr, Ipv6Addr};

use rxe_proto::Instant;

use super::{Addressing, Host, HostConfig, HostConfigError};

impl Host {
    /// Replaces our addresses and routes; the link-local address stays. New addresses are probed and announced from the next
    /// [`Host::poll`] on; streams at those that are gone are reset, which their users learn by an event.
    ///
    /// # Errors
    ///
    /// As for [`Host::new`]. Nothing has changed then.
    pub fn set_addressing(&mut self, now: Instant, addressing: Addressing) -> Result<(), HostConfigError> {
        let Addressing { addresses, gateways, routes } = addressing;
        let config = HostConfig { addresses, gateways, routes, ..self.config.clone() };
        config.check()?;
        self.config = config;
        let before: Vec<IpAddr> = self.addresses().collect();
        self.interface.set_routing(&self.config);
        for ip in before.iter().filter(|ip| !self.interface.routing.owns(**ip)) {
            self.tcp.reset_all_at(*ip);
        }
        let groups_of = |ip: &IpAddr| match ip {
            IpAddr::V6(ip) => Some(*ip),
            IpAddr::V4(_) => None,
        };
        let before_v6: Vec<Ipv6Addr> = before.iter().filter_map(groups_of).collect();
        self.mld.addresses_changed(now, &self.interface, &before_v6);
        if self.addresses().any(|ip| !before.contains(&ip)) {
            self.announcer.restart(now);
        }
        Ok(())
    }

    /// Our addresses and routes, as they were configured.
    pub fn addressing(&self) -> Addressing {
        let HostConfig { addresses, gateways, routes, .. } = self.config.clone();
        Addressing { addresses, gateways, routes }
    }

    /// Open TCP streams at those of our addresses that would be gone.
    pub fn streams_lost_by(&self, addressing: &Addressing) -> usize {
        let stays = |ip: IpAddr| addressing.addresses.iter().any(|new| new.ip == ip);
        let gone = self.config.addresses.iter().filter(|address| !stays(address.ip));
        gone.map(|address| self.tcp.count_at(address.ip)).sum()
    }
}
