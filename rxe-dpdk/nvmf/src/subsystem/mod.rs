//! Configuration as plain data: subsystems, namespaces, identifiers, limits.

mod ids;
mod limits;
mod namespace;

pub use ids::{derived_nguid, derived_serial, derived_uuid};
pub use limits::Limits;
pub use namespace::{BlockSize, MAX_NSID, Namespace, NamespaceView};

use std::collections::BTreeSet;

use crate::wire::Nqn;

/// Longest serial number in bytes.
const SERIAL_LEN: usize = 20;
/// Longest model number in bytes.
const MODEL_LEN: usize = 40;

/// The hosts that may connect to a subsystem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AllowedHosts {
    /// Every host.
    Any,
    /// The hosts with these names.
    Only(BTreeSet<Nqn>),
}

impl AllowedHosts {
    /// Whether the host may connect.
    #[must_use]
    pub fn contains(&self, host: &Nqn) -> bool {
        match self {
            AllowedHosts::Any => true,
            AllowedHosts::Only(hosts) => hosts.contains(host),
        }
    }
}

/// A subsystem: a set of namespaces that hosts connect to by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subsystem {
    /// Name, unique in the target.
    pub nqn: Nqn,
    /// Serial number: printable ASCII, at most 20 characters.
    pub serial: String,
    /// Model number: printable ASCII, at most 40 characters.
    pub model: String,
    /// Namespaces, each with an NSID and identifiers of its own.
    pub namespaces: Vec<Namespace>,
    /// Hosts that may connect.
    pub hosts: AllowedHosts,
}

/// A configuration that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// The name belongs to the discovery subsystem.
    #[error("{0} is the name of the discovery subsystem")]
    ReservedNqn(Nqn),
    /// A subsystem with this name exists.
    #[error("subsystem {0} exists already")]
    DuplicateSubsystem(Nqn),
    /// There is no subsystem with this name.
    #[error("there is no subsystem {0}")]
    UnknownSubsystem(Nqn),
    /// The serial or model number is not printable ASCII, empty, or too long.
    #[error("{field} \"{value}\" is not 1 to {longest} printable ASCII characters")]
    Text {
        /// "serial number" or "model number".
        field: &'static str,
        /// The text.
        value: String,
        /// Most characters.
        longest: usize,
    },
    /// The NSID is not in the range of a namespace.
    #[error("NSID {0} is not in the range 1 to {MAX_NSID}")]
    Nsid(u32),
    /// A namespace with this NSID exists.
    #[error("subsystem {0} has a namespace {1} already")]
    DuplicateNsid(Nqn, u32),
    /// There is no namespace with this NSID.
    #[error("subsystem {0} has no namespace {1}")]
    UnknownNamespace(Nqn, u32),
    /// The namespace has no blocks, or more than 2^63 bytes.
    #[error("namespace {0} cannot have {1} blocks")]
    Size(u32, u64),
    /// Two namespaces of the target have the same identifier, so that Linux ignores the second one.
    #[error("namespace {nsid} of {nqn} has an identifier of namespace {other_nsid} of {other_nqn}")]
    DuplicateIdentifier {
        /// Subsystem of the refused namespace.
        nqn: Nqn,
        /// The refused namespace.
        nsid: u32,
        /// Subsystem of the existing namespace.
        other_nqn: Nqn,
        /// The existing namespace.
        other_nsid: u32,
    },
}

impl Subsystem {
    /// A subsystem without namespaces for every host, with a serial number that is derived from the name.
    #[must_use]
    pub fn new(nqn: Nqn) -> Subsystem {
        let serial = derived_serial(&nqn);
        Subsystem { nqn, serial, model: "rxe-target".into(), namespaces: Vec::new(), hosts: AllowedHosts::Any }
    }

    /// The namespace with this NSID.
    #[must_use]
    pub fn namespace(&self, nsid: u32) -> Option<&Namespace> {
        self.namespaces.iter().find(|namespace| namespace.nsid == nsid)
    }

    /// What workers need of the namespaces, in ascending order of the NSID.
    #[must_use]
    pub fn views(&self) -> Vec<NamespaceView> {
        let mut views: Vec<NamespaceView> = self.namespaces.iter().map(Namespace::view).collect();
        views.sort_unstable_by_key(|view| view.nsid);
        views
    }

    /// Checks everything but the uniqueness in the target.
    ///
    /// # Errors
    /// The first reason why the configuration cannot be used.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.nqn.is_discovery() {
            return Err(ConfigError::ReservedNqn(self.nqn.clone()));
        }
        check_text("serial number", &self.serial, SERIAL_LEN)?;
        check_text("model number", &self.model, MODEL_LEN)?;
        for (at, namespace) in self.namespaces.iter().enumerate() {
            namespace.validate()?;
            for earlier in &self.namespaces[..at] {
                self.check_pair(namespace, &self.nqn, earlier)?;
            }
        }
        Ok(())
    }

    /// Checks that `namespace`, of this subsystem, differs from a namespace `other` of subsystem `other_nqn`.
    ///
    /// # Errors
    /// [`ConfigError::DuplicateNsid`] and [`ConfigError::DuplicateIdentifier`].
    pub(crate) fn check_pair(
        &self,
        namespace: &Namespace,
        other_nqn: &Nqn,
        other: &Namespace,
    ) -> Result<(), ConfigError> {
        if self.nqn == *other_nqn && namespace.nsid == other.nsid {
            return Err(ConfigError::DuplicateNsid(self.nqn.clone(), namespace.nsid));
        }
        if namespace.shares_identifier(other) {
            return Err(ConfigError::DuplicateIdentifier {
                nqn: self.nqn.clone(),
                nsid: namespace.nsid,
                other_nqn: other_nqn.clone(),
                other_nsid: other.nsid,
            });
        }
        Ok(())
    }
}

fn check_text(field: &'static str, value: &str, longest: usize) -> Result<(), ConfigError> {
    let printable = value.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if printable && (1..=longest).contains(&value.len()) {
        Ok(())
    } else {
        Err(ConfigError::Text { field, value: value.into(), longest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subsystem() -> Subsystem {
        let mut subsystem = Subsystem::new("nqn.2024-01.test:one".parse().unwrap());
        for nsid in [2, 1] {
            subsystem.namespaces.push(Namespace::new(&subsystem.nqn, nsid, 100, BlockSize::B512));
        }
        subsystem
    }

    #[test]
    fn a_new_subsystem_is_valid_and_has_views_in_order() {
        let subsystem = subsystem();
        assert_eq!(subsystem.validate(), Ok(()));
        assert_eq!(subsystem.views().iter().map(|view| view.nsid).collect::<Vec<_>>(), [1, 2]);
        assert!(subsystem.hosts.contains(&"nqn.2024-01.host:any".parse().unwrap()));
    }

    #[test]
    fn each_unusable_value_is_refused_by_name() {
        let mut reserved = subsystem();
        reserved.nqn = Nqn::discovery();
        assert_eq!(reserved.validate(), Err(ConfigError::ReservedNqn(Nqn::discovery())));
        let mut serial = subsystem();
        serial.serial = "x".repeat(21);
        assert!(matches!(serial.validate(), Err(ConfigError::Text { field: "serial number", .. })));
        let mut model = subsystem();
        model.model = "t\u{e9}st".into();
        assert!(matches!(model.validate(), Err(ConfigError::Text { field: "model number", .. })));
        let mut twice = subsystem();
        twice.namespaces[1].nsid = 2;
        assert!(matches!(twice.validate(), Err(ConfigError::DuplicateNsid(_, 2))));
        let mut same = subsystem();
        same.namespaces[1].nguid = same.namespaces[0].nguid;
        assert!(matches!(same.validate(), Err(ConfigError::DuplicateIdentifier { nsid: 1, other_nsid: 2, .. })));
    }
}
