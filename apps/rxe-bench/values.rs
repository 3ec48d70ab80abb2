//! Values of command-line options.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use rxe::{CliError, cli_error};
use rxe_proto::wire::{Cidr, PathMtu};

/// The address of the bench, with its on-link prefix.
#[derive(Clone, Copy, Debug)]
pub struct OwnAddress(pub Cidr);

impl FromStr for OwnAddress {
    type Err = CliError;

    fn from_str(text: &str) -> Result<OwnAddress, CliError> {
        match text.parse() {
            Ok(cidr) if text.contains('/') => Ok(OwnAddress(cidr)),
            Ok(_) => cli_error!("'{text}' lacks its prefix length: write {text}/24, or what your network uses"),
            Err(error) => cli_error!("{error}"),
        }
    }
}

/// A router.
#[derive(Clone, Copy, Debug)]
pub struct Router(pub IpAddr);

impl FromStr for Router {
    type Err = CliError;

    fn from_str(text: &str) -> Result<Router, CliError> {
        match text.parse() {
            Ok(ip) => Ok(Router(ip)),
            Err(_) => cli_error!("'{text}' is not an IP address"),
        }
    }
}

/// The target, with or without a port.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pub ip: IpAddr,
    pub port: Option<u16>,
}

impl FromStr for Peer {
    type Err = CliError;

    fn from_str(text: &str) -> Result<Peer, CliError> {
        let whole: Result<IpAddr, _> = text.parse();
        let found = match (whole, text.parse::<SocketAddr>()) {
            (Ok(ip), _) => Some(Peer { ip, port: None }),
            (_, Ok(peer)) if peer.port() != 0 => Some(Peer { ip: peer.ip(), port: Some(peer.port()) }),
            _ => None,
        };
        match found {
            Some(Peer { ip, .. })
                if ip.is_unspecified()
                    || ip.is_multicast()
                    || matches!(ip, IpAddr::V4(ip) if ip.octets()[0] >= 240) =>
            {
                cli_error!("'{text}' is not a unicast address: give the target's")
            }
            Some(peer) => Ok(peer),
            None => {
                cli_error!(
                    "'{text}' is not an IP address with an optional port: write it as 10.0.0.1:4792 or [fd00::1]:4792"
                )
            }
        }
    }
}

/// Length of a message in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Size(pub u32);

/// The longest message of InfiniBand.
const MAX_SIZE: u64 = 1 << 31;

impl FromStr for Size {
    type Err = CliError;

    fn from_str(text: &str) -> Result<Size, CliError> {
        let (digits, shift) = match text.as_bytes().last() {
            Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
            Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
            _ => (text, 0),
        };
        let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
        match bytes.filter(|bytes| (1..MAX_SIZE).contains(bytes)).and_then(|bytes| u32::try_from(bytes).ok()) {
            Some(bytes) => Ok(Size(bytes)),
            None => cli_error!(
                "'{text}' is not the size of a message: write 1 to 2147483647 bytes, for example 64, 64K or 1M"
            ),
        }
    }
}

/// A time in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Seconds(pub Duration);

/// The longest run: a day.
const MAX_SECONDS: f64 = 86_400.0;

impl FromStr for Seconds {
    type Err = CliError;

    fn from_str(text: &str) -> Result<Seconds, CliError> {
        match text.parse::<f64>() {
            Ok(seconds) if (0.0..=MAX_SECONDS).contains(&seconds) => Ok(Seconds(Duration::from_secs_f64(seconds))),
            _ => cli_error!("'{text}' is not a time: write 0 to {MAX_SECONDS} seconds, for example 2 or 0.5"),
        }
    }
}

/// A path MTU.
#[derive(Clone, Copy, Debug)]
pub struct Mtu(pub PathMtu);

impl FromStr for Mtu {
    type Err = CliError;

    fn from_str(text: &str) -> Result<Mtu, CliError> {
        let found = PathMtu::ALL.into_iter().find(|mtu| mtu.bytes().to_string() == text);
        found
            .map(Mtu)
            .ok_or_else(|| CliError::new(format!("'{text}' is not a path MTU: write 256, 512, 1024, 2048 or 4096")))
    }
}
