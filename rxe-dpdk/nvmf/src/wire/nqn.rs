//! NVMe qualified names.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

/// The well-known name of every discovery subsystem.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// Length in bytes of a name's field on the wire; the rest is NUL.
pub const NQN_FIELD_LEN: usize = 256;

/// Longest name in bytes.
const MAX_LEN: usize = 223;

/// A valid qualified name: starts with "nqn.", at most 223 bytes of UTF-8 without control characters.
///
/// Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nqn(Arc<str>);

/// Text that is not a qualified name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NqnError {
    /// The prefix is missing.
    #[error("an NQN starts with \"nqn.\"")]
    Prefix,
    /// Longer than 223 bytes, or a field without a terminating NUL.
    #[error("an NQN has at most {MAX_LEN} bytes")]
    TooLong,
    /// Not UTF-8, or with control characters.
    #[error("an NQN is UTF-8 without control characters")]
    Characters,
}

impl Nqn {
    /// The discovery subsystem's name.
    #[must_use]
    pub fn discovery() -> Nqn {
        Nqn(Arc::from(DISCOVERY_NQN))
    }

    /// What stands for the name of a host that has none: its address.
    #[must_use]
    pub fn of_unnamed_host(address: IpAddr) -> Nqn {
        Nqn(Arc::from(format!("nqn.2014-08.org.nvmexpress:unnamed:{address}")))
    }

    /// Whether it is the discovery subsystem's name.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        &*self.0 == DISCOVERY_NQN
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reads a field: the name ends at the first NUL.
    ///
    /// # Errors
    /// See [`NqnError`].
    pub fn from_field(field: &[u8; NQN_FIELD_LEN]) -> Result<Nqn, NqnError> {
        let end = field.iter().position(|&byte| byte == 0).ok_or(NqnError::TooLong)?;
        std::str::from_utf8(&field[..end]).map_err(|_| NqnError::Characters)?.parse()
    }

    /// The field, padded with NUL.
    #[must_use]
    pub fn to_field(&self) -> [u8; NQN_FIELD_LEN] {
        let mut field = [0; NQN_FIELD_LEN];
        field[..self.0.len()].copy_from_slice(self.0.as_bytes());
        field
    }
}

impl FromStr for Nqn {
    type Err = NqnError;

    fn from_str(text: &str) -> Result<Nqn, NqnError> {
        if text.len() > MAX_LEN {
            Err(NqnError::TooLong)
        } else if !text.starts_with("nqn.") {
            Err(NqnError::Prefix)
        } else if text.chars().any(char::is_control) {
            Err(NqnError::Characters)
        } else {
            Ok(Nqn(Arc::from(text)))
        }
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_prefix_and_a_longest_length() {
        let longest = format!("nqn.{}", "x".repeat(219));
        assert_eq!(longest.parse::<Nqn>().unwrap().as_str(), longest);
        assert_eq!(format!("{longest}x").parse::<Nqn>(), Err(NqnError::TooLong));
        assert_eq!("".parse::<Nqn>(), Err(NqnError::Prefix));
        assert_eq!("iqn.2024-01.test".parse::<Nqn>(), Err(NqnError::Prefix));
        assert_eq!("nqn.2024-01.te\nst".parse::<Nqn>(), Err(NqnError::Characters));
        assert!(DISCOVERY_NQN.parse::<Nqn>().unwrap().is_discovery());
    }

    #[test]
    fn a_field_ends_at_the_first_nul() {
        let nqn: Nqn = "nqn.2024-01.test:ram".parse().unwrap();
        let mut field = nqn.to_field();
        assert_eq!(Nqn::from_field(&field), Ok(nqn.clone()));
        field[100] = b'x';
        assert_eq!(Nqn::from_field(&field), Ok(nqn));
        field.fill(b'x');
        assert_eq!(Nqn::from_field(&field), Err(NqnError::TooLong));
        field[..5].copy_from_slice(&[b'n', b'q', 0xFF, 0xFE, 0]);
        assert_eq!(Nqn::from_field(&field), Err(NqnError::Characters));
    }
}
