//! Codes as text, for logs and messages.

use std::fmt;

use super::{RejReason, SidrStatus};

impl fmt::Display for RejReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RejReason::NoQp => "no queue pair available",
            RejReason::NoEec => "no end-to-end context available",
            RejReason::NoResources => "no resources available",
            RejReason::Timeout => "it gave up waiting for an answer",
            RejReason::UnsupportedRequest => "unsupported request",
            RejReason::InvalidCommId => "invalid communication id",
            RejReason::InvalidCommInstance => "invalid communication instance",
            RejReason::InvalidServiceId => "no service listens there",
            RejReason::InvalidTransportType => "transport type not supported",
            RejReason::StaleConnection => "the queue pair is still in use by an older connection",
            RejReason::RdcDoesNotExist => "RD connection does not exist",
            RejReason::InvalidGid => "primary GID not supported",
            RejReason::InvalidLid => "primary LID not supported",
            RejReason::InvalidSl => "primary service level not supported",
            RejReason::InvalidTrafficClass => "primary traffic class not supported",
            RejReason::InvalidHopLimit => "primary hop limit not supported",
            RejReason::InvalidPacketRate => "primary packet rate not supported",
            RejReason::InvalidAlternateGid => "alternate GID not supported",
            RejReason::InvalidAlternateLid => "alternate LID not supported",
            RejReason::InvalidAlternateSl => "alternate service level not supported",
            RejReason::InvalidAlternateTrafficClass => "alternate traffic class not supported",
            RejReason::InvalidAlternateHopLimit => "alternate hop limit not supported",
            RejReason::InvalidAlternatePacketRate => "alternate packet rate not supported",
            RejReason::PortAndCmRedirect => "redirected to another port and connection manager",
            RejReason::PortRedirect => "redirected to another port",
            RejReason::InvalidMtu => "path MTU not supported",
            RejReason::InsufficientResponderResources => "not enough responder resources",
            RejReason::ConsumerDefined => "refused by the service",
            RejReason::InvalidRnrRetry => "RNR retry count not supported",
            RejReason::DuplicateLocalCommId => "the communication id is in use by another connection",
            RejReason::InvalidClassVersion => "class version not supported",
            RejReason::InvalidFlowLabel => "primary flow label not supported",
            RejReason::InvalidAlternateFlowLabel => "alternate flow label not supported",
            RejReason::VendorOptionNotSupported => "vendor option not supported",
            RejReason::Unknown(code) => return write!(f, "unknown reason {code}"),
        })
    }
}

impl fmt::Display for SidrStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SidrStatus::Valid => "valid",
            SidrStatus::ServiceIdNotSupported => "no service listens there",
            SidrStatus::Rejected => "refused by the service",
            SidrStatus::NoQp => "no queue pair available",
            SidrStatus::Redirect => "redirected to another port",
            SidrStatus::UnsupportedVersion => "version not supported",
            SidrStatus::Unknown(code) => return write!(f, "unknown status {code}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_is_told_in_words_of_its_own() {
        let mut seen = std::collections::HashSet::new();
        for code in 0..=40 {
            let reason = RejReason::from_code(code);
            let words = reason.to_string();
            assert!(!words.contains(&format!("{reason:?}")) && seen.insert(words.clone()), "{code}: {words}");
        }
        assert_eq!(RejReason::Unknown(99).to_string(), "unknown reason 99");
        assert_eq!(SidrStatus::from_code(6).to_string(), "unknown status 6");
        assert_eq!(SidrStatus::from_code(3).to_string(), "no queue pair available");
    }
}
