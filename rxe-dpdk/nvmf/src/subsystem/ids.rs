//! Identifiers that are derived from names, so that they are the same after a restart.
//!
//! A host drops a disk whose identifiers changed while it was disconnected.

use uuid::Uuid;

use crate::wire::Nqn;

/// The name space of the derived identifiers: a constant of this implementation.
const NAME_SPACE: Uuid = Uuid::from_u128(0x6E1C_0B52_93A7_4D28_B1F0_47E2_5A8D_3C96);

/// Each kind of identifier hashes a different text. No NQN contains a control character, so texts are unambiguous.
fn derive(kind: &str, nqn: &Nqn, nsid: u32) -> Uuid {
    Uuid::new_v5(&NAME_SPACE, format!("{kind}\0{nqn}\0{nsid}").as_bytes())
}

/// The UUID of a namespace.
#[must_use]
pub fn derived_uuid(subsystem: &Nqn, nsid: u32) -> Uuid {
    derive("uuid", subsystem, nsid)
}

/// The NGUID of a namespace.
#[must_use]
pub fn derived_nguid(subsystem: &Nqn, nsid: u32) -> [u8; 16] {
    derive("nguid", subsystem, nsid).into_bytes()
}

/// The serial number of a subsystem: 20 hexadecimal digits.
#[must_use]
pub fn derived_serial(subsystem: &Nqn) -> String {
    let mut serial = derive("serial", subsystem, 0).simple().to_string();
    serial.truncate(20);
    serial
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn identifiers_depend_on_name_and_nsid_only() {
        let nqn: Nqn = "nqn.2024-01.test:ram".parse().unwrap();
        // Computed with another program. A host that reconnects after an update of the target must find the same ones.
        assert_eq!(derived_uuid(&nqn, 1).to_string(), "c06b196d-3bd0-501c-82ab-06394e077254");
        assert_eq!(Uuid::from_bytes(derived_nguid(&nqn, 1)).to_string(), "4999f12c-1a6a-5142-a22c-573c54af4bc1");
        assert_eq!(derived_serial(&nqn), "1815dc8ce69d55079c4e");
        let mut seen = BTreeSet::new();
        for name in ["nqn.2024-01.test:ram", "nqn.2024-01.test:ram2"] {
            let nqn: Nqn = name.parse().unwrap();
            for nsid in 1..=100 {
                assert!(seen.insert(derived_uuid(&nqn, nsid).into_bytes()));
                assert!(seen.insert(derived_nguid(&nqn, nsid)));
            }
            assert_eq!(derived_serial(&nqn).len(), 20);
        }
    }
}
