//! Settings of the command line or the configuration file, before they are checked as a whole.

use std::collections::BTreeMap;

use super::capture::{CaptureFile, CaptureSection};
use super::fault::FaultSpec;
use super::limits::LimitsSection;
use super::metrics_address::MetricsAddress;
use super::peers::PeerNetwork;
use super::region::RegionSpec;
use super::service::ServiceSections;
use super::sourced::Sourced;
use super::transport::TransportSection;
use super::values::{
    FilePrefix, Gateway, HostAddress, Idle, LogFormat, LogLevel, Mtu, Pcp, RouteSpec, ServicePort, TrafficClass,
    UdpAddress, Vlan,
};

/// Settings of one port.
#[derive(Clone, Default, Debug)]
pub struct PortSettings {
    pub udp: Option<Sourced<UdpAddress>>,
    pub addresses: Vec<Sourced<HostAddress>>,
    pub gateways: Vec<Sourced<Gateway>>,
    pub routes: Vec<Sourced<RouteSpec>>,
    pub peers: Vec<PeerNetwork>,
    pub strict_pkey: Option<bool>,
    pub pin_mac: Option<bool>,
    pub vlan: Option<Sourced<Vlan>>,
    pub mtu: Option<Sourced<Mtu>>,
}

/// Settings of the command line or the file; those that are absent are `None` or empty.
#[derive(Clone, Default, Debug)]
pub struct Settings {
    pub eal_args: Option<Vec<String>>,
    pub file_prefix: Option<Sourced<FilePrefix>>,
    pub ports: BTreeMap<u16, PortSettings>,
    pub services: Option<Vec<Sourced<String>>>,
    pub regions: Option<Vec<Sourced<RegionSpec>>>,
    pub region_port: Option<Sourced<ServicePort>>,
    pub idle: Option<Sourced<Idle>>,
    pub log: Option<Sourced<LogLevel>>,
    pub log_format: Option<Sourced<LogFormat>>,
    pub metrics: Option<Sourced<MetricsAddress>>,
    pub traffic_class: Option<Sourced<TrafficClass>>,
    pub pcp: Option<Sourced<Pcp>>,
    pub fault: Option<Sourced<FaultSpec>>,
    pub capture: Option<Sourced<CaptureSection>>,
    pub capture_file: Option<Sourced<CaptureFile>>,
    pub service: Option<ServiceSections>,
    pub transport: Option<TransportSection>,
    pub limits: Option<LimitsSection>,
}

impl Settings {
    /// Settings of port `number` so far.
    pub fn port(&mut self, number: u16) -> &mut PortSettings {
        self.ports.entry(number).or_default()
    }

    /// `self`, completed by `below`. A list replaces the whole list below it; lists of ports do so port by port.
    pub fn over(self, below: Settings) -> Settings {
        let mut ports = below.ports;
        for (number, port) in self.ports {
            let below = ports.entry(number).or_default();
            *below = port.over(std::mem::take(below));
        }
        Settings {
            eal_args: self.eal_args.or(below.eal_args),
            file_prefix: self.file_prefix.or(below.file_prefix),
            ports,
            services: self.services.or(below.services),
            regions: self.regions.or(below.regions),
            region_port: self.region_port.or(below.region_port),
            idle: self.idle.or(below.idle),
            log: self.log.or(below.log),
            log_format: self.log_format.or(below.log_format),
            metrics: self.metrics.or(below.metrics),
            traffic_class: self.traffic_class.or(below.traffic_class),
            pcp: self.pcp.or(below.pcp),
            fault: self.fault.or(below.fault),
            capture: self.capture.or(below.capture),
            capture_file: self.capture_file.or(below.capture_file),
            service: self.service.or(below.service),
            transport: self.transport.or(below.transport),
            limits: self.limits.or(below.limits),
        }
    }
}

impl PortSettings {
    fn over(self, below: PortSettings) -> PortSettings {
        fn list<T>(above: Vec<T>, below: Vec<T>) -> Vec<T> {
            if above.is_empty() { below } else { above }
        }
        PortSettings {
            udp: self.udp.or(below.udp),
            addresses: list(self.addresses, below.addresses),
            gateways: list(self.gateways, below.gateways),
            routes: list(self.routes, below.routes),
            peers: list(self.peers, below.peers),
            strict_pkey: self.strict_pkey.or(below.strict_pkey),
            pin_mac: self.pin_mac.or(below.pin_mac),
            vlan: self.vlan.or(below.vlan),
            mtu: self.mtu.or(below.mtu),
        }
    }
}
