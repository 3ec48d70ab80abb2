//! Single values of command line and configuration file.
//!
//! Each type parses itself, so both sources accept the same texts and report the same errors.

use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use rxe::{CliError, cli_error};
use rxe_adapter::addressing::Route;
use rxe_proto::wire::Cidr;
use tracing::level_filters::LevelFilter;

/// Maximum number of ports of DPDK (RTE_MAX_ETHPORTS), as Debian builds it.
const MAX_PORTS: u16 = 32;
/// Sleep time of `sleep` without a time.
const DEFAULT_SLEEP: Duration = Duration::from_micros(50);
/// Longest sleep: with a longer one the protocol's timers would be late.
const MAX_SLEEP_MICROS: u64 = 10_000;
/// Maximum size in bytes: more than any machine has, and small enough for later arithmetic.
pub const MAX_BYTES: usize = 1 << 46;

/// A value that belongs to one port, written `VALUE` for port 0 or `portN:VALUE`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OnPort<T> {
    /// DPDK's number of the port.
    pub port: u16,
    /// The value.
    pub value: T,
}

impl<T: FromStr<Err = CliError>> FromStr for OnPort<T> {
    type Err = CliError;

    fn from_str(text: &str) -> Result<OnPort<T>, CliError> {
        // No value starts with these letters, so nothing is ambiguous.
        let Some((number, rest)) = text.strip_prefix("port").and_then(|t| t.split_once(':')) else {
            return Ok(OnPort { port: 0, value: text.parse()? });
        };
        match number.parse() {
            Ok(port) if port < MAX_PORTS => Ok(OnPort { port, value: rest.parse()? }),
            _ => cli_error!("'port{number}:' names no port: they are port0: to port{}:", MAX_PORTS - 1),
        }
    }
}

fn parse_ip(text: &str) -> Result<IpAddr, CliError> {
    if let Some((ip, zone)) = text.split_once('%')
        && ip.parse::<IpAddr>().is_ok()
    {
        return cli_error!("'{text}' has a zone: leave '%{zone}' out, as the port is known");
    }
    text.parse().map_err(|_| CliError::new(format!("'{text}' is not an IP address")))
}

fn parse_cidr(text: &str) -> Result<Cidr, CliError> {
    let Some((ip, prefix)) = text.split_once('/') else {
        let ip = parse_ip(text)?;
        let usual = if ip.is_ipv4() { 24 } else { 64 };
        return cli_error!("'{text}' lacks its prefix length: write {ip}/{usual}, or what your network uses");
    };
    let ip = parse_ip(ip)?;
    let bits = if ip.is_ipv4() { 32 } else { 128 };
    match prefix.parse() {
        Ok(prefix) if prefix <= bits => Ok(Cidr { ip, prefix }),
        _ => cli_error!("'/{prefix}' is not a prefix length: {ip} takes /0 to /{bits}"),
    }
}

/// An address of this machine for a UDP socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpAddress(pub IpAddr);

impl FromStr for UdpAddress {
    type Err = CliError;

    fn from_str(text: &str) -> Result<UdpAddress, CliError> {
        if text.contains('/') {
            return cli_error!(
                "'{text}' has a prefix length: leave it out, the kernel knows the network of the address"
            );
        }
        Ok(UdpAddress(parse_ip(text)?))
    }
}

/// The name of a target on this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilePrefix(pub String);

impl FilePrefix {
    /// Longest name: with it the path of a socket below `/var/run` still fits.
    const MAX: usize = 64;

    /// The name of a target at `address` that is given no other.
    pub fn of(address: IpAddr) -> FilePrefix {
        FilePrefix(format!("udp-{address}").replace(':', "-"))
    }
}

impl FromStr for FilePrefix {
    type Err = CliError;

    fn from_str(text: &str) -> Result<FilePrefix, CliError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !(1..=Self::MAX).contains(&text.len()) || !text.bytes().all(plain) || matches!(text, "." | "..") {
            return cli_error!(
                "write 1 to {} letters, digits, dots, dashes and underscores, and not '.' or '..'",
                Self::MAX
            );
        }
        Ok(FilePrefix(text.to_owned()))
    }
}

/// An address of ours with its on-link prefix, written `IP/PREFIX`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostAddress(pub Cidr);

impl FromStr for HostAddress {
    type Err = CliError;

    fn from_str(text: &str) -> Result<HostAddress, CliError> {
        let cidr = parse_cidr(text)?;
        let ip = cidr.ip;
        let kind = if ip.is_unspecified() {
            "the unspecified address"
        } else if cidr.prefix == 0 {
            "in a network without an end: write the prefix length of your network, as /24 or /64"
        } else if matches!(ip, IpAddr::V4(ip) if ip.octets()[0] == 0) {
            "of 0.0.0.0/8, which no host may have"
        } else if matches!(ip, IpAddr::V4(ip) if ip.octets()[0] >= 240) {
            "of 240.0.0.0/4, which is reserved"
        } else if ip.is_loopback() {
            "a loopback address"
        } else if ip.is_multicast() {
            "a multicast address"
        } else if matches!(ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some()) {
            "an IPv4-mapped IPv6 address: write the IPv4 address"
        } else {
            let host_bits = match ip {
                IpAddr::V4(ip) if cidr.prefix <= 30 => Some((ip.to_bits(), u32::MAX >> cidr.prefix)),
                _ => None,
            };
            match host_bits {
                Some((ip, mask)) if ip & mask == 0 => "the network itself: give the target an address in it",
                Some((ip, mask)) if ip & mask == mask => "the network's broadcast address",
                _ => return Ok(HostAddress(cidr)),
            }
        };
        cli_error!("{cidr} cannot be the target's, it is {kind}")
    }
}

/// A router's address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gateway(pub IpAddr);

impl FromStr for Gateway {
    type Err = CliError;

    fn from_str(text: &str) -> Result<Gateway, CliError> {
        parse_ip(text).map(Gateway)
    }
}

/// A network behind a router, written `NETWORK/PREFIX=ROUTER`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RouteSpec(pub Route);

impl RouteSpec {
    pub fn new(to: Cidr, via: IpAddr) -> Result<RouteSpec, CliError> {
        if to.ip.is_ipv4() != via.is_ipv4() {
            return cli_error!("the route to {to} cannot go via {via}: one is IPv4, the other IPv6");
        }
        Ok(RouteSpec(Route { to, via }))
    }
}

impl FromStr for RouteSpec {
    type Err = CliError;

    fn from_str(text: &str) -> Result<RouteSpec, CliError> {
        let Some((to, via)) = text.split_once('=') else {
            return cli_error!("'{text}' is not a route: write NETWORK/PREFIX=ROUTER, as 10.1.0.0/16=10.0.0.254");
        };
        RouteSpec::new(parse_cidr(to)?, parse_ip(via)?)
    }
}

/// The network of a route in the configuration file.
#[derive(Clone, Copy, Debug)]
pub struct Network(pub Cidr);

impl FromStr for Network {
    type Err = CliError;

    fn from_str(text: &str) -> Result<Network, CliError> {
        parse_cidr(text).map(Network)
    }
}

fn parse_number(text: &str, what: &str, range: std::ops::RangeInclusive<u16>) -> Result<u16, CliError> {
    match text.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => cli_error!("'{text}' is not {what}: it goes from {} to {}", range.start(), range.end()),
    }
}

macro_rules! number {
    ($(#[$meta:meta])* $name:ident, $what:literal, $range:expr) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name(pub u16);

        impl FromStr for $name {
            type Err = CliError;

            fn from_str(text: &str) -> Result<$name, CliError> {
                parse_number(text, $what, $range).map($name)
            }
        }
    };
}

number!(
    /// A VLAN id.
    Vlan,
    "a VLAN id",
    1..=4094
);
number!(
    /// The largest IP packet of a port, in bytes. The lower bound is IPv6's.
    Mtu,
    "an IP MTU",
    1280..=9216
);
number!(
    /// VLAN priority of transmitted frames.
    Pcp,
    "a VLAN priority",
    0..=7
);
number!(
    /// A port number of a service.
    ServicePort,
    "a port number",
    1..=65535
);

/// DSCP and ECN bits of transmitted packets: a number, or `mirror` for the peer's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrafficClass(pub Option<u8>);

impl FromStr for TrafficClass {
    type Err = CliError;

    fn from_str(text: &str) -> Result<TrafficClass, CliError> {
        let number = match text.strip_prefix("0x") {
            _ if text == "mirror" => return Ok(TrafficClass(None)),
            Some(hex) => u8::from_str_radix(hex, 16),
            None => text.parse(),
        };
        match number {
            Ok(number) => Ok(TrafficClass(Some(number))),
            Err(_) => cli_error!("'{text}' is not a traffic class: it is 'mirror' or 0 to 255 (0x0 to 0xff)"),
        }
    }
}

/// Idle policy of the workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Idle {
    /// Poll continuously.
    Spin,
    /// Poll with CPU pause hints.
    Pause,
    /// Sleep this long between polls.
    Sleep(Duration),
}

impl FromStr for Idle {
    type Err = CliError;

    fn from_str(text: &str) -> Result<Idle, CliError> {
        match text {
            "spin" => return Ok(Idle::Spin),
            "pause" => return Ok(Idle::Pause),
            "sleep" => return Ok(Idle::Sleep(DEFAULT_SLEEP)),
            _ => {}
        }
        match text.strip_prefix("sleep:").and_then(|t| t.parse().ok()) {
            Some(micros @ 1..=MAX_SLEEP_MICROS) => Ok(Idle::Sleep(Duration::from_micros(micros))),
            _ => cli_error!(
                "'{text}' is not an idle policy: it is spin, pause, sleep or sleep:MICROSECONDS (1 to {MAX_SLEEP_MICROS})"
            ),
        }
    }
}

/// Minimum severity of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogLevel(pub LevelFilter);

impl FromStr for LogLevel {
    type Err = CliError;

    fn from_str(text: &str) -> Result<LogLevel, CliError> {
        Ok(LogLevel(match text {
            "error" => LevelFilter::ERROR,
            "warn" => LevelFilter::WARN,
            "info" => LevelFilter::INFO,
            "debug" => LevelFilter::DEBUG,
            "trace" => LevelFilter::TRACE,
            _ => return cli_error!("'{text}' is not a log level: they are error, warn, info, debug and trace"),
        }))
    }
}

/// Format of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl FromStr for LogFormat {
    type Err = CliError;

    fn from_str(text: &str) -> Result<LogFormat, CliError> {
        match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => cli_error!("'{text}' is not a log format: they are text and json"),
        }
    }
}

/// A number of bytes, written as a number with an optional K, M or G (powers of 1024).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size(pub usize);

impl FromStr for Size {
    type Err = CliError;

    fn from_str(text: &str) -> Result<Size, CliError> {
        let (digits, shift) = match text.char_indices().next_back() {
            Some((at, 'k' | 'K')) => (&text[..at], 10),
            Some((at, 'm' | 'M')) => (&text[..at], 20),
            Some((at, 'g' | 'G')) => (&text[..at], 30),
            _ => (text, 0),
        };
        let bytes = digits.parse::<usize>().ok().and_then(|n| n.checked_mul(1 << shift));
        match bytes {
            Some(bytes) if (1..=MAX_BYTES).contains(&bytes) => Ok(Size(bytes)),
            _ => cli_error!("'{text}' is not a size: write bytes, or a number with K, M or G, as 64M"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    fn wrong<T: FromStr<Err = CliError> + fmt::Debug>(text: &str) -> String {
        text.parse::<T>().expect_err(text).to_string()
    }

    #[test]
    fn values_belong_to_port_0_or_the_port_named() {
        let plain: OnPort<HostAddress> = "fd00::1/64".parse().expect("an address");
        assert_eq!((plain.port, plain.value.0.prefix), (0, 64));
        let third: OnPort<Vlan> = "port3:100".parse().expect("a VLAN");
        assert_eq!((third.port, third.value), (3, Vlan(100)));
        assert_eq!(wrong::<OnPort<Vlan>>("port32:1"), "'port32:' names no port: they are port0: to port31:");
        assert_eq!(wrong::<OnPort<Vlan>>("portx:1"), "'portx:' names no port: they are port0: to port31:");
    }

    #[test]
    fn an_address_without_a_prefix_is_refused() {
        assert!("10.0.0.1/24".parse::<HostAddress>().is_ok());
        assert!("10.0.0.0/31".parse::<HostAddress>().is_ok());
        for (text, sentence) in [
            ("10.0.0.1", "'10.0.0.1' lacks its prefix length: write 10.0.0.1/24, or what your network uses"),
            ("fd00::1", "'fd00::1' lacks its prefix length: write fd00::1/64, or what your network uses"),
            ("10.0.0/24", "'10.0.0' is not an IP address"),
            ("10.0.0.1/33", "'/33' is not a prefix length: 10.0.0.1 takes /0 to /32"),
            ("fd00::1/x", "'/x' is not a prefix length: fd00::1 takes /0 to /128"),
            ("0.0.0.0/0", "0.0.0.0/0 cannot be the target's, it is the unspecified address"),
            ("127.0.0.1/8", "127.0.0.1/8 cannot be the target's, it is a loopback address"),
            ("ff02::1/64", "ff02::1/64 cannot be the target's, it is a multicast address"),
            (
                "10.0.0.0/24",
                "10.0.0.0/24 cannot be the target's, it is the network itself: give the target an address in it",
            ),
            ("10.0.0.255/24", "10.0.0.255/24 cannot be the target's, it is the network's broadcast address"),
            ("0.0.0.5/24", "0.0.0.5/24 cannot be the target's, it is of 0.0.0.0/8, which no host may have"),
            ("240.0.0.1/24", "240.0.0.1/24 cannot be the target's, it is of 240.0.0.0/4, which is reserved"),
            (
                "255.255.255.255/32",
                "255.255.255.255/32 cannot be the target's, it is of 240.0.0.0/4, which is reserved",
            ),
            (
                "10.0.0.1/0",
                "10.0.0.1/0 cannot be the target's, it is in a network without an end: write the prefix length of your network, as /24 or /64",
            ),
            (
                "fd00::1/0",
                "fd00::1/0 cannot be the target's, it is in a network without an end: write the prefix length of your network, as /24 or /64",
            ),
            (
                "::ffff:10.0.0.1/96",
                "::ffff:10.0.0.1/96 cannot be the target's, it is an IPv4-mapped IPv6 address: write the IPv4 address",
            ),
        ] {
            assert_eq!(wrong::<HostAddress>(text), sentence);
        }
    }

    #[test]
    fn an_address_with_a_zone_is_explained() {
        const WHY: &str = "'fe80::1%eth0' has a zone: leave '%eth0' out, as the port is known";
        assert_eq!(wrong::<HostAddress>("fe80::1%eth0/64"), WHY);
        assert_eq!(wrong::<Gateway>("fe80::1%eth0"), WHY);
        assert_eq!(wrong::<UdpAddress>("fe80::1%eth0"), WHY);
        assert_eq!(wrong::<Gateway>("x%eth0"), "'x%eth0' is not an IP address");
    }

    #[test]
    fn routes_name_a_network_and_a_router() {
        let route: RouteSpec = "10.1.0.0/16=10.0.0.254".parse().expect("a route");
        assert_eq!(route.0.to.prefix, 16);
        assert!(wrong::<RouteSpec>("10.1.0.0/16").contains("write NETWORK/PREFIX=ROUTER"));
        assert_eq!(
            wrong::<RouteSpec>("10.1.0.0/16=fd00::1"),
            "the route to 10.1.0.0/16 cannot go via fd00::1: one is IPv4, the other IPv6"
        );
    }

    #[test]
    fn numbers_name_their_range() {
        assert_eq!(wrong::<Vlan>("4095"), "'4095' is not a VLAN id: it goes from 1 to 4094");
        assert_eq!(wrong::<Mtu>("1279"), "'1279' is not an IP MTU: it goes from 1280 to 9216");
        assert_eq!(wrong::<Pcp>("8"), "'8' is not a VLAN priority: it goes from 0 to 7");
        assert_eq!(wrong::<ServicePort>("0"), "'0' is not a port number: it goes from 1 to 65535");
        assert_eq!("0x2e".parse(), Ok(TrafficClass(Some(0x2e))));
        assert_eq!("mirror".parse(), Ok(TrafficClass(None)));
        assert!(wrong::<TrafficClass>("256").starts_with("'256' is not a traffic class"));
    }

    #[test]
    fn idle_policies() {
        assert_eq!("sleep:200".parse(), Ok(Idle::Sleep(Duration::from_micros(200))));
        assert_eq!("sleep".parse(), Ok(Idle::Sleep(DEFAULT_SLEEP)));
        for text in ["sleep:0", "sleep:10001", "doze", ""] {
            assert!(wrong::<Idle>(text).contains("is not an idle policy"), "{text}");
        }
    }

    #[test]
    fn sizes_are_bytes_or_multiples() {
        assert_eq!("1g".parse(), Ok(Size(1 << 30)));
        assert_eq!("4096".parse(), Ok(Size(4096)));
        for text in ["", "M", "0", "-1", "1T", "99999999999G", "1µ"] {
            assert!(wrong::<Size>(text).contains("is not a size"), "{text}");
        }
    }

    #[test]
    fn log_levels() {
        assert_eq!("debug".parse(), Ok(LogLevel(LevelFilter::DEBUG)));
        assert_eq!("json".parse(), Ok(LogFormat::Json));
        assert_eq!(wrong::<LogFormat>("xml"), "'xml' is not a log format: they are text and json");
        assert!(wrong::<LogLevel>("loud").starts_with("'loud' is not a log level"));
    }
}
