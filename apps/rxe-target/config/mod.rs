//! The configuration of the target.
//!
//! [`cli`](crate::cli) and [`file`] each give [`Settings`]; those of the command line take precedence. [`Config::resolve`] fills
//! in the defaults and checks the whole. Its errors name the option or the line to change.

mod address;
mod capture;
mod dump;
mod fault;
mod file;
mod limits;
mod metrics_address;
pub mod nvmf;
mod peers;
mod region;
mod service;
mod service_values;
mod settings;
mod source;
mod sourced;
mod transport;
mod values;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;

use rxe::adapter::Carrier;
use rxe::{CliError, cli_error};
use rxe_adapter::addressing::Route;
use rxe_adapter::worker::FaultRule;
use rxe_inspect::capture::CaptureSettings;
use rxe_proto::transport::EngineConfig;
use rxe_proto::wire::{Cidr, PrefixList};
use rxe_service::Restrictions;
use tracing::level_filters::LevelFilter;

pub use address::{with_another as with_another_address, without as without_address};
pub use capture::CaptureFile;
pub use fault::FaultSpec;
#[cfg(test)]
pub use file::parse;
pub use limits::Limits;
pub use metrics_address::MetricsAddress;
use nvmf::NvmfConfig;
pub use peers::{PeerNetwork, resolve as allowed_peers};
pub use region::{MAX_REGION_NAME, RegionSpec, with_another as with_another_region};
pub use service::{IdleTimeouts, MckeyConfig, PerftestConfig, PingpongConfig};
use settings::PortSettings;
pub use settings::Settings;
pub use source::Source;
pub use sourced::{Origin, Sourced};
pub use values::{
    FilePrefix, Gateway, HostAddress, Idle, LogFormat, LogLevel, Mtu, OnPort, Pcp, RouteSpec, ServicePort,
    TrafficClass, UdpAddress, Vlan,
};

/// Default port of the `region` service.
const DEFAULT_REGION_PORT: u16 = 4792;
/// The region that the `region` service exports by default.
const DEFAULT_REGION: (&str, usize) = ("default", 1 << 20);
/// The service that needs a subsystem to run.
const NVMF_SERVICE: &str = "nvmf";
/// The service that exports regions.
pub const REGION_SERVICE: &str = "region";

/// Checked configuration of a port.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Port {
    /// On a UDP socket at the only address.
    pub udp: bool,
    /// The target's addresses with their on-link prefixes.
    pub addresses: Vec<Cidr>,
    /// Default routers, at most one per address family.
    pub gateways: Vec<IpAddr>,
    /// Networks behind other routers.
    pub routes: Vec<Route>,
    /// Whom the port does not serve.
    pub restrictions: Restrictions,
    /// VLAN id.
    pub vlan: Option<u16>,
    /// IP MTU; `None` for the largest that the device supports, up to 4200.
    pub mtu: Option<u16>,
}

/// Checked configuration of the target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Arguments for EAL.
    pub eal_args: Vec<String>,
    /// Name of a target on a UDP socket; DPDK's is among EAL's arguments.
    pub file_prefix: Option<FilePrefix>,
    /// The ports, by DPDK's number.
    pub ports: Vec<Port>,
    /// The services to run.
    pub services: Vec<String>,
    /// The regions to export.
    pub regions: Vec<RegionSpec>,
    /// Port of the `region` service.
    pub region_port: u16,
    /// The allowed peers of single services, by name; a service without an entry serves everyone.
    pub service_peers: BTreeMap<&'static str, PrefixList>,
    /// Time after which idle clients are disconnected, by service.
    pub idle_timeouts: IdleTimeouts,
    /// Settings of the service `mckey`.
    pub mckey: MckeyConfig,
    /// Settings of the service `perftest`.
    pub perftest: PerftestConfig,
    /// Settings of the service `pingpong`.
    pub pingpong: PingpongConfig,
    /// Settings of the service `nvmf`.
    pub nvmf: NvmfConfig,
    /// Idle policy of the workers.
    pub idle: Idle,
    /// Minimum severity of the log.
    pub log: LevelFilter,
    /// Format of the log.
    pub log_format: LogFormat,
    /// Where the metrics for Prometheus are served.
    pub metrics: Option<MetricsAddress>,
    /// DSCP and ECN bits of transmitted packets; `None` mirrors the peer's.
    pub traffic_class: Option<u8>,
    /// VLAN priority of transmitted frames.
    pub pcp: u8,
    /// Limits and timers of the queue pairs.
    pub engine: EngineConfig,
    /// Limits on what peers may use.
    pub limits: Limits,
    /// Faults to inject.
    pub faults: Vec<FaultRule>,
    /// Capture that runs from the start on.
    pub capture: Option<CaptureSettings>,
}

impl Config {
    /// The carrier of the packets: DPDK ports or UDP sockets.
    pub fn carrier(&self) -> Carrier<'_> {
        if self.ports.iter().any(|port| port.udp) { Carrier::Udp } else { Carrier::Dpdk(&self.eal_args) }
    }

    /// Checks `settings` and fills in the defaults. `known_services` are the names of all services.
    pub fn resolve(settings: Settings, known_services: &[&str]) -> Result<Config, CliError> {
        let eal_args = settings.eal_args.unwrap_or_default();
        if eal_args.iter().any(|arg| arg == "--") {
            return cli_error!(
                "'--' is among the EAL arguments: leave it out of [eal] args, it belongs on command lines only"
            );
        }
        let ports = resolve_ports(&settings.ports)?;
        let udp = udp_address(&settings.ports);
        let file_prefix = resolve_file_prefix(udp, settings.file_prefix, &eal_args)?;
        let pcp = match settings.pcp {
            Some(pcp) if pcp.value.0 > 0 && ports.iter().all(|port| port.vlan.is_none()) => {
                return cli_error!(
                    "{}: a VLAN priority needs a VLAN: add --vlan ID, or leave the priority out",
                    pcp.origin
                );
            }
            Some(pcp) => pcp.value.0 as u8, // at most 7
            None => 0,
        };
        let service = settings.service.unwrap_or_default();
        let nvmf = service.nvmf()?;
        let all = settings.services.is_none();
        let mut services = resolve_services(settings.services, known_services)?;
        if all && nvmf.subsystems.is_empty() {
            services.retain(|name| name != NVMF_SERVICE);
        }
        let mut regions = region::resolve(settings.regions.unwrap_or_default())?;
        if regions.is_empty() && services.iter().any(|s| s == REGION_SERVICE) {
            let (name, size) = DEFAULT_REGION;
            regions.push(RegionSpec::plain(name, size));
        }
        let faults = match settings.fault {
            Some(Sourced { value, origin }) => match value.resolve() {
                Ok(faults) => faults,
                Err(error) => return cli_error!("{origin}: {error}"),
            },
            None => Vec::new(),
        };
        let limits = settings.limits.unwrap_or_default().resolve();
        let engine = settings.transport.unwrap_or_default().engine();
        Ok(Config {
            eal_args,
            file_prefix,
            ports,
            services,
            regions,
            region_port: settings.region_port.map_or(DEFAULT_REGION_PORT, |p| p.value.0),
            service_peers: service.peers()?,
            idle_timeouts: service.idle_timeouts(),
            mckey: service.mckey(),
            perftest: service.perftest()?,
            pingpong: service.pingpong(),
            nvmf,
            idle: settings.idle.map_or(Idle::Pause, |i| i.value),
            log: settings.log.map_or(LevelFilter::INFO, |l| l.value.0),
            log_format: settings.log_format.map(|f| f.value).unwrap_or_default(),
            metrics: settings.metrics.map(|m| m.value),
            traffic_class: settings.traffic_class.and_then(|t| t.value.0),
            pcp,
            engine: EngineConfig { max_qp: limits.queue_pairs, ..engine },
            limits,
            faults,
            capture: capture::resolve(settings.capture, settings.capture_file)?,
        })
    }
}

/// A summary in one line.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, port) in self.ports.iter().enumerate() {
            let addresses: Vec<String> = port.addresses.iter().map(|a| a.to_string()).collect();
            match port.addresses.first().filter(|_| port.udp) {
                Some(address) => write!(f, "UDP {}, ", address.ip)?,
                None => write!(f, "port{number} {}, ", addresses.join(" "))?,
            }
        }
        write!(f, "services {}", self.services.join(" "))?;
        for region in &self.regions {
            write!(f, ", {region}")?;
        }
        if let Some(faults) = fault_text(&self.faults) {
            write!(f, ", faults: {faults}")?;
        }
        if let Some(capture) = &self.capture {
            write!(f, ", captures to {}", capture.file.display())?;
        }
        Ok(())
    }
}

/// The fault rules in one line; `None` if there are none.
pub fn fault_text(faults: &[FaultRule]) -> Option<String> {
    let rules: Vec<String> = faults.iter().map(ToString::to_string).collect();
    (!rules.is_empty()).then(|| rules.join(", "))
}

fn resolve_ports(settings: &BTreeMap<u16, PortSettings>) -> Result<Vec<Port>, CliError> {
    if let Some(udp) = udp_address(settings) {
        return Ok(vec![resolve_udp(settings, udp)?]);
    }
    let Some(&last) = settings.keys().next_back() else {
        return cli_error!("the target has no address: give it one with --address IP/PREFIX, as 10.0.0.1/24");
    };
    let mut taken: HashMap<IpAddr, &Origin> = HashMap::new();
    let mut ports = Vec::new();
    for number in 0..=last {
        let given = settings.get(&number).filter(|port| !port.addresses.is_empty());
        let Some(given) = given else {
            return cli_error!("port {number} has no address: give it one with --address port{number}:IP/PREFIX");
        };
        for address in &given.addresses {
            let ip = address.value.0.ip;
            if let Some(first) = taken.insert(ip, &address.origin) {
                let second = &address.origin;
                let places = if first == second { format!("{first}") } else { format!("{first} and {second}") };
                return cli_error!("the address {ip} is given twice, by {places}: leave one of them out");
            }
        }
        ports.push(resolve_port(number, given)?);
    }
    Ok(ports)
}

/// The address of the UDP socket, if there is one.
fn udp_address(settings: &BTreeMap<u16, PortSettings>) -> Option<&Sourced<UdpAddress>> {
    settings.values().find_map(|port| port.udp.as_ref())
}

/// The name of a target on a UDP socket; `None` on DPDK ports, where it is among EAL's arguments.
fn resolve_file_prefix(
    udp: Option<&Sourced<UdpAddress>>,
    given: Option<Sourced<FilePrefix>>,
    eal_args: &[String],
) -> Result<Option<FilePrefix>, CliError> {
    match (udp, given) {
        (Some(Sourced { origin, .. }), _) if !eal_args.is_empty() => {
            cli_error!("{origin}: a UDP socket needs no DPDK: leave EAL's arguments out ({})", eal_args.join(" "))
        }
        (Some(Sourced { value: UdpAddress(ip), .. }), given) => {
            Ok(Some(given.map_or_else(|| FilePrefix::of(*ip), |given| given.value)))
        }
        (None, Some(_)) => cli_error!("--file-prefix is an option of DPDK's EAL: it belongs in front of `--`"),
        (None, None) => Ok(None),
    }
}

/// A port on a UDP socket: everything but the address is the kernel's.
fn resolve_udp(settings: &BTreeMap<u16, PortSettings>, udp: &Sourced<UdpAddress>) -> Result<Port, CliError> {
    let Sourced { value: UdpAddress(ip), origin } = udp;
    let alone = |other: &dyn fmt::Display, what: &str| {
        cli_error!("{origin} and {other}: a target on a UDP socket has no {what} of its own: leave one of them out")
    };
    for port in settings.values() {
        let others = [
            port.addresses.first().map(|other| (&other.origin, "addresses")),
            port.gateways.first().map(|other| (&other.origin, "routers")),
            port.routes.first().map(|other| (&other.origin, "routes")),
            port.vlan.as_ref().map(|other| (&other.origin, "VLAN")),
            port.mtu.as_ref().map(|other| (&other.origin, "MTU")),
        ];
        if let Some((other, what)) = others.into_iter().flatten().next() {
            return alone(other, what);
        }
    }
    let given = settings.values().next().filter(|_| settings.len() == 1);
    let Some(given) = given else { return alone(&"another port", "second port") };
    if given.pin_mac == Some(true) {
        return cli_error!("{origin}: a UDP socket does not show MAC addresses: leave 'pin-mac' out");
    }
    let restrictions = Restrictions {
        peers: peers::resolve(&given.peers)?,
        full_members_only: given.strict_pkey.unwrap_or(false),
        pin_mac: false,
    };
    let address = Cidr::new(*ip, if ip.is_ipv4() { 32 } else { 128 });
    Ok(Port { udp: true, addresses: vec![address], restrictions, ..Port::default() })
}

fn resolve_port(number: u16, given: &PortSettings) -> Result<Port, CliError> {
    let addresses: Vec<Cidr> = given.addresses.iter().map(|a| a.value.0).collect();
    let check_router = |via: IpAddr, origin: &Origin| {
        if addresses.iter().any(|a| a.ip == via) {
            return cli_error!("{origin}: the router {via} is the target's own address: name another machine");
        }
        let link_local = matches!(via, IpAddr::V6(ip) if ip.is_unicast_link_local());
        if via.is_multicast() || !(link_local || addresses.iter().any(|a| a.contains(via))) {
            return cli_error!(
                "{origin}: the router {via} is in no network of port {number}: check it against the prefixes of the addresses"
            );
        }
        Ok(via)
    };
    let mut gateways: Vec<IpAddr> = Vec::new();
    for Sourced { value: Gateway(ip), origin } in &given.gateways {
        if let Some(first) = gateways.iter().find(|other| other.is_ipv4() == ip.is_ipv4()) {
            return cli_error!(
                "{origin}: port {number} has the gateway {first} already: use routes to name more routers"
            );
        }
        gateways.push(check_router(*ip, origin)?);
    }
    let mut routes: Vec<Route> = Vec::new();
    for Sourced { value: RouteSpec(route), origin } in &given.routes {
        check_router(route.via, origin)?;
        routes.push(*route);
    }
    Ok(Port {
        udp: false,
        addresses,
        gateways,
        routes,
        restrictions: Restrictions {
            peers: peers::resolve(&given.peers)?,
            full_members_only: given.strict_pkey.unwrap_or(false),
            pin_mac: given.pin_mac.unwrap_or(false),
        },
        vlan: given.vlan.as_ref().map(|v| v.value.0),
        mtu: given.mtu.as_ref().map(|m| m.value.0),
    })
}

fn resolve_services(given: Option<Vec<Sourced<String>>>, known: &[&str]) -> Result<Vec<String>, CliError> {
    let Some(given) = given else {
        return Ok(known.iter().map(|name| (*name).to_owned()).collect());
    };
    for Sourced { value, origin } in &given {
        if !known.contains(&value.as_str()) {
            return cli_error!("{origin}: there is no service '{value}': the services are {}", known.join(", "));
        }
    }
    // In the order in which services may claim a connection request, each once.
    let chosen: Vec<String> =
        known.iter().filter(|name| given.iter().any(|g| g.value == **name)).map(|name| (*name).to_owned()).collect();
    if chosen.is_empty() {
        return cli_error!("the list of services is empty: leave 'services' out for all of {}", known.join(", "));
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests;
