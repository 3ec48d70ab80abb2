//! SPDK's transport ids: `trtype:RDMA adrfam:IPv4 traddr:10.0.0.1 trsvcid:4420 subnqn:NQN`.

use std::net::IpAddr;
use std::str::FromStr;

use rxe::{CliError, cli_error};
use rxe_nvmf::wire::Nqn;

use crate::values::Peer;

/// A subsystem and the way to it.
#[derive(Clone, Debug)]
pub struct TransportId {
    /// `traddr` and `trsvcid`.
    pub peer: Peer,
    /// `subnqn`.
    pub subsystem: Option<Nqn>,
}

impl FromStr for TransportId {
    type Err = CliError;

    fn from_str(text: &str) -> Result<TransportId, CliError> {
        let (mut family, mut address, mut port, mut subsystem) = (None, None, None, None);
        let mut transport = false;
        for field in text.split_whitespace() {
            let Some((key, value)) = field.split_once(':') else {
                return cli_error!("'{field}' has no colon: write trtype:RDMA adrfam:IPv4 traddr:10.0.0.1 subnqn:NQN");
            };
            match key.to_ascii_lowercase().as_str() {
                "trtype" if value.eq_ignore_ascii_case("RDMA") => transport = true,
                "trtype" => return cli_error!("trtype:{value}: the bench has the transport RDMA only"),
                "adrfam" => {
                    family = match value.to_ascii_lowercase().as_str() {
                        "ipv4" => Some(true),
                        "ipv6" => Some(false),
                        _ => return cli_error!("adrfam:{value}: write IPv4 or IPv6"),
                    };
                }
                "traddr" => address = Some(value.parse::<Peer>()?.ip),
                "trsvcid" => match value.parse::<u16>() {
                    Ok(number) if number != 0 => port = Some(number),
                    _ => return cli_error!("trsvcid:{value} is not a port: write 1 to 65535"),
                },
                "subnqn" => match value.parse() {
                    Ok(nqn) => subsystem = Some(nqn),
                    Err(error) => return cli_error!("subnqn:{value}: {error}"),
                },
                _ => return cli_error!("{key} is no field of a transport id: leave it out"),
            }
        }
        let Some(ip) = address else { return cli_error!("traddr is missing: add traddr:ADDRESS, that of the target") };
        if !transport {
            return cli_error!("trtype is missing: add trtype:RDMA");
        }
        if family.is_some_and(|v4| v4 != IpAddr::is_ipv4(&ip)) {
            return cli_error!("adrfam does not match traddr:{ip}: correct one of them");
        }
        Ok(TransportId { peer: Peer { ip, port }, subsystem })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_in_any_order_and_keys_in_any_case() {
        let id: TransportId =
            "subnqn:nqn.2024-01.x:y TRADDR:10.0.0.1 trtype:rdma adrfam:ipv4 trsvcid:4421".parse().unwrap();
        assert_eq!((id.peer.ip.to_string(), id.peer.port), ("10.0.0.1".to_owned(), Some(4421)));
        assert_eq!(id.subsystem.map(|nqn| nqn.to_string()), Some("nqn.2024-01.x:y".to_owned()));
        let id: TransportId = "trtype:RDMA adrfam:IPv6 traddr:fd00::1".parse().unwrap();
        assert_eq!((id.peer.ip.to_string(), id.peer.port, id.subsystem), ("fd00::1".to_owned(), None, None));
    }

    #[test]
    fn errors_name_the_field() {
        for (text, words) in [
            ("trtype:TCP traddr:10.0.0.1", "trtype:TCP: the bench has the transport RDMA only"),
            ("trtype:RDMA", "traddr is missing"),
            ("traddr:10.0.0.1", "trtype is missing"),
            ("trtype:RDMA adrfam:IPv6 traddr:10.0.0.1", "adrfam does not match traddr:10.0.0.1"),
            ("trtype:RDMA adrfam:IB traddr:10.0.0.1", "adrfam:IB: write IPv4 or IPv6"),
            ("trtype:RDMA traddr:here", "'here' is not an IP address"),
            ("trtype:RDMA traddr:10.0.0.1 trsvcid:0", "trsvcid:0 is not a port"),
            ("trtype:RDMA traddr:10.0.0.1 subnqn:disk", "subnqn:disk: an NQN starts with"),
            ("trtype:RDMA traddr:10.0.0.1 priority:1", "priority is no field"),
            ("RDMA", "'RDMA' has no colon"),
        ] {
            let error = text.parse::<TransportId>().map(|_| ()).expect_err(text).to_string();
            assert!(error.starts_with(words), "{text}: {error}");
        }
    }
}
