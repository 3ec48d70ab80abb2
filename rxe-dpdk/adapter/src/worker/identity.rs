//! The addresses of a port, for dispatch.

use rxe_proto::wire::{Gid, MacAddr, PrefixList};
use rxe_service::{LocalPort, Restrictions};

/// The addresses by which dispatch filters the frames of a port.
#[derive(Clone, Debug)]
pub struct PortIdentity {
    /// Ethernet address.
    pub mac: MacAddr,
    /// `None` is untagged.
    pub vlan: Option<u16>,
    /// The port's GID table.
    pub gids: Vec<Gid>,
    /// `None` serves everyone.
    pub restrictions: Option<Box<Restrictions>>,
}

impl PortIdentity {
    /// Changes the allowed peers; `None` for everyone.
    pub fn set_peers(&mut self, peers: Option<PrefixList>) {
        let before = self.restrictions.take().map(|restrictions| *restrictions).unwrap_or_default();
        let restrictions = Restrictions { peers, ..before };
        self.restrictions = (!restrictions.is_none()).then(|| Box::new(restrictions));
    }
}

impl From<&LocalPort> for PortIdentity {
    fn from(port: &LocalPort) -> PortIdentity {
        PortIdentity {
            mac: port.mac,
            vlan: port.vlan.map(|tci| tci & 0x0FFF),
            gids: port.gids().collect(),
            restrictions: (!port.restrictions.is_none()).then(|| Box::new(port.restrictions.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_peers_change_and_other_restrictions_stay() {
        let peers: PrefixList = ["10.0.0.0/24".parse().unwrap()].into_iter().collect();
        let mut open = PortIdentity { mac: MacAddr::default(), vlan: None, gids: Vec::new(), restrictions: None };
        open.set_peers(Some(peers.clone()));
        assert_eq!(open.restrictions.as_ref().and_then(|restrictions| restrictions.peers.clone()), Some(peers.clone()));
        open.set_peers(None);
        assert!(open.restrictions.is_none(), "one check per burst, as before");
        let pinned = Restrictions { pin_mac: true, ..Restrictions::default() };
        let mut strict = PortIdentity { restrictions: Some(Box::new(pinned.clone())), ..open };
        strict.set_peers(Some(peers));
        strict.set_peers(None);
        assert_eq!(strict.restrictions.as_deref(), Some(&pinned));
    }
}
