//! A configuration as a file: the inverse of [`file`](super::file) and [`Config::resolve`].

use std::time::Duration;

use rxe_adapter::worker::{FaultAction, FaultRule, FaultScope, Probability, nak_name};
use rxe_inspect::capture::CaptureSettings;
use rxe_nvmf::subsystem::AllowedHosts;
use rxe_nvmf::wire::Nqn;
use rxe_proto::transport::{CongestionControl, RequestRefusal};
use rxe_proto::wire::PrefixList;
use toml::{Table, Value};

use super::nvmf::{Backing, NamespaceConfig, NvmfConfig, SubsystemConfig};
use super::{Config, Idle, LogFormat, Port, RegionSpec};

/// A table of the keys that have a value.
fn table<const N: usize>(entries: [(&str, Option<Value>); N]) -> Table {
    entries.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

fn text(value: impl ToString) -> Option<Value> {
    Some(Value::String(value.to_string()))
}

fn number(value: impl TryInto<i64>) -> Option<Value> {
    // Larger ones, of which there is the seed of a fault rule, are written as text.
    value.try_into().ok().map(Value::Integer)
}

fn flag(value: bool) -> Option<Value> {
    Some(Value::Boolean(value))
}

/// `None` for an empty list.
fn list(items: impl IntoIterator<Item = impl ToString>) -> Option<Value> {
    let items: Vec<Value> = items.into_iter().map(|item| Value::String(item.to_string())).collect();
    (!items.is_empty()).then_some(Value::Array(items))
}

/// `None` for an empty list.
fn tables(items: impl Iterator<Item = Table>) -> Option<Value> {
    let items: Vec<Value> = items.map(Value::Table).collect();
    (!items.is_empty()).then_some(Value::Array(items))
}

fn peers(peers: Option<&PrefixList>) -> Option<Value> {
    list(peers.into_iter().flat_map(PrefixList::networks))
}

/// A time with the largest unit that keeps it whole.
fn span(value: Duration) -> Option<Value> {
    text(time(value))
}

/// A time with the largest unit that it is a multiple of.
fn time(time: Duration) -> String {
    let nanos = time.as_nanos();
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    let unit = units.into_iter().find(|(unit, _)| nanos.is_multiple_of(*unit));
    let (unit, name) = unit.unwrap_or((1, "ns"));
    format!("{}{name}", nanos / unit)
}

fn congestion(control: &CongestionControl) -> Option<Value> {
    match control {
        CongestionControl::Off => text("off"),
        CongestionControl::Notifications(_) => text("cnp"),
        CongestionControl::Delay(delay) => text(format!("delay:{}", time(delay.target))),
    }
}

impl Config {
    /// The text of the file. It has every setting, defaults included, but for what the environment decides.
    pub fn to_toml(&self) -> String {
        // It has nothing that TOML cannot say.
        toml::to_string(&self.to_table()).unwrap_or_default()
    }

    /// The content of the file.
    pub fn to_table(&self) -> Table {
        let idle = match self.idle {
            Idle::Spin => "spin".to_owned(),
            Idle::Pause => "pause".to_owned(),
            Idle::Sleep(time) => format!("sleep:{}", time.as_micros()),
        };
        let log_format = match self.log_format {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        };
        table([
            ("log", text(self.log)),
            ("log-format", text(log_format)),
            ("idle", text(idle)),
            ("traffic-class", self.traffic_class.map_or_else(|| text("mirror"), number)),
            // Without a VLAN there is none.
            ("pcp", (self.pcp > 0).then(|| number(self.pcp)).flatten()),
            ("services", list(&self.services)),
            ("region-port", number(self.region_port)),
            ("eal", Some(Value::Table(table([("args", list(&self.eal_args))]))).filter(|_| !self.eal_args.is_empty())),
            ("metrics", self.metrics.as_ref().map(|address| Value::Table(table([("listen", text(address))])))),
            ("port", tables(self.ports.iter().map(port))),
            ("region", tables(self.regions.iter().map(region))),
            ("transport", Some(Value::Table(self.transport()))),
            ("limits", Some(Value::Table(self.limits_table()))),
            ("service", Some(Value::Table(self.service_tables()))),
            ("capture", self.capture.as_ref().map(|settings| Value::Table(capture(settings)))),
            ("fault", tables(self.faults.iter().map(rule)).map(|rules| Value::Table(table([("rule", Some(rules))])))),
        ])
    }

    fn transport(&self) -> Table {
        let engine = &self.engine;
        table([
            ("flush", flag(engine.flush)),
            ("atomic-write", flag(engine.atomic_write)),
            ("credits", flag(engine.credits)),
            ("cnp-interval", span(engine.cnp_interval)),
            ("congestion", congestion(&engine.congestion)),
            ("short-messages-first", flag(engine.short_messages_first)),
            ("early-retransmission", flag(engine.early_retransmission)),
            ("keep-alive", number(engine.keep_alive.map_or(0, |keep_alive| keep_alive.idle.as_secs()))),
        ])
    }

    fn limits_table(&self) -> Table {
        let limits = &self.limits;
        table([
            ("connections", number(limits.connections)),
            ("connections-per-address", number(limits.connections_per_address)),
            ("pending", number(limits.pending)),
            ("pending-per-address", number(limits.pending_per_address)),
            ("requests-per-second", limits.requests_per_second.and_then(number)),
            ("queue-pairs", number(limits.queue_pairs)),
        ])
    }

    fn service_tables(&self) -> Table {
        let Config { idle_timeouts: idle, mckey, perftest, pingpong, .. } = self;
        let idle_timeout = |time: Duration| ("idle-timeout", span(time));
        let mut all = [
            ("rping", table([idle_timeout(idle.rping)])),
            ("rdma-server", table([idle_timeout(idle.rdma_server)])),
            ("ucmatose", table([idle_timeout(idle.ucmatose)])),
            ("cmtime", table([idle_timeout(idle.cmtime)])),
            ("udaddy", table([idle_timeout(idle.udaddy)])),
            ("rdma-example", table([idle_timeout(idle.rdma_example)])),
            ("region", Table::new()),
            ("rsocket", table([idle_timeout(idle.rsocket)])),
            ("rc-example", table([idle_timeout(idle.rc_example)])),
            (
                "mckey",
                table([
                    idle_timeout(mckey.idle_timeout),
                    ("count", number(mckey.count)),
                    ("size", number(mckey.size)),
                    ("send-after", span(mckey.send_after)),
                ]),
            ),
            (
                "perftest",
                table([
                    idle_timeout(perftest.idle_timeout),
                    ("max-message", number(perftest.max_message)),
                    ("budget", number(perftest.budget)),
                    ("queue-pairs", number(perftest.queue_pairs)),
                    ("write-lat-size", number(perftest.write_lat_size)),
                    ("write-lat-after", span(perftest.write_lat_after)),
                ]),
            ),
            (
                "pingpong",
                table([
                    idle_timeout(pingpong.idle_timeout),
                    ("memory", number(pingpong.memory)),
                    ("budget", number(pingpong.budget)),
                ]),
            ),
            ("nvmf", nvmf(&self.nvmf)),
        ];
        for (name, section) in &mut all {
            if let Some(peers) = peers(self.service_peers.get(name)) {
                section.insert("peers".to_owned(), peers);
            }
        }
        let some = all.into_iter().filter(|(_, section)| !section.is_empty());
        some.map(|(name, section)| (name.to_owned(), Value::Table(section))).collect()
    }
}

fn port(port: &Port) -> Table {
    let route = |route: &rxe_adapter::addressing::Route| table([("to", text(route.to)), ("via", text(route.via))]);
    table([
        ("udp", port.addresses.first().filter(|_| port.udp).and_then(|address| text(address.ip))),
        ("addresses", list(port.addresses.get(..).filter(|_| !port.udp).unwrap_or_default())),
        ("gateways", list(&port.gateways)),
        ("routes", tables(port.routes.iter().map(route))),
        ("peers", peers(port.restrictions.peers.as_ref())),
        ("strict-pkey", flag(port.restrictions.full_members_only)),
        ("pin-mac", flag(port.restrictions.pin_mac)),
        ("vlan", port.vlan.and_then(number)),
        ("mtu", port.mtu.and_then(number)),
    ])
}

fn nvmf(config: &NvmfConfig) -> Table {
    if config.subsystems.is_empty() {
        return Table::new();
    }
    table([
        ("port", number(config.port)),
        ("staging", number(config.staging)),
        ("controllers", number(config.controllers)),
        ("controllers-per-host", number(config.controllers_per_host)),
        ("subsystem", tables(config.subsystems.iter().map(subsystem))),
    ])
}

fn subsystem(subsystem: &SubsystemConfig) -> Table {
    let hosts: Vec<&Nqn> = match &subsystem.hosts {
        AllowedHosts::Any => Vec::new(),
        AllowedHosts::Only(hosts) => hosts.iter().collect(),
    };
    table([
        ("nqn", text(&subsystem.nqn)),
        ("serial", text(&subsystem.serial)),
        ("model", text(&subsystem.model)),
        ("hosts", list(&hosts)),
        ("namespace", tables(subsystem.namespaces.iter().map(namespace))),
    ])
}

fn namespace(namespace: &NamespaceConfig) -> Table {
    let (ram, file, direct) = match &namespace.backing {
        Backing::Ram { size } => (number(*size), None, None),
        Backing::File { path, direct } => (None, text(path.display()), Some(Value::Boolean(*direct))),
    };
    table([
        ("nsid", number(namespace.nsid)),
        ("ram", ram),
        ("file", file),
        ("direct", direct),
        ("block-size", number(namespace.block_size.bytes())),
        ("read-only", flag(namespace.read_only)),
        ("checksums", flag(namespace.checksums)),
        ("uuid", namespace.uuid.and_then(text)),
    ])
}

fn region(region: &RegionSpec) -> Table {
    table([
        ("name", text(&region.name)),
        ("size", number(region.size)),
        ("count", region.count.and_then(number)),
        ("watch", flag(region.watch)),
        ("read-only", flag(region.read_only)),
        ("domain", region.domain.as_ref().and_then(text)),
        ("peers", peers(region.peers.as_ref())),
        ("file", region.file.as_ref().and_then(|file| text(file.display()))),
    ])
}

fn capture(settings: &CaptureSettings) -> Table {
    table([
        ("file", text(settings.file.display())),
        ("peers", list(&settings.peers)),
        ("snaplen", number(settings.snaplen)),
        ("size", settings.size.and_then(number)),
        ("files", settings.files.and_then(number)),
    ])
}

fn rule(rule: &FaultRule) -> Table {
    let FaultRule { action, direction, matches, probability, count, seed } = rule;
    let all = matches.scope == FaultScope::All;
    let mut table = table([
        ("action", text(action.name())),
        ("direction", text(direction)),
        ("frames", text(if all { "all" } else { "roce" })),
        ("opcode", matches.opcodes.as_ref().and_then(text)),
        ("qpn", matches.qpn.and_then(|qpn| number(qpn.get()))),
        ("psn", matches.psn.and_then(text)),
        ("probability", Some(Value::Float(probability.share())).filter(|_| *probability != Probability::ALWAYS)),
        ("count", count.and_then(number)),
        ("seed", number(*seed).or_else(|| text(seed))),
    ]);
    let mut set = |key: &str, value: Option<Value>| value.and_then(|value| table.insert(key.to_owned(), value));
    match *action {
        FaultAction::Delay { delay, jitter } => {
            set("delay", span(delay));
            set("jitter", span(jitter));
        }
        FaultAction::Refuse(RequestRefusal::NotReady { timer }) => _ = set("timer", number(timer)),
        FaultAction::Refuse(refusal) => _ = set("code", nak_name(refusal).and_then(text)),
        _ => {}
    }
    table
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Settings, file};
    use super::*;
    use crate::services;

    fn resolve(settings: Settings) -> Config {
        Config::resolve(settings, &services::names()).unwrap_or_else(|error| panic!("{error}"))
    }

    fn read(text: &str) -> Config {
        resolve(file::parse(Path::new("t.toml"), text).unwrap_or_else(|error| panic!("{error}\n{text}")))
    }

    fn is_its_own_dump(config: &Config) {
        let dump = config.to_toml();
        assert_eq!(read(&dump), *config, "{dump}");
    }

    #[test]
    fn a_dump_gives_the_same_configuration() {
        is_its_own_dump(&read("[[port]]\naddresses = [\"10.0.0.1/24\"]\n"));
        is_its_own_dump(&read("[[port]]\nudp = \"127.0.0.2\"\npeers = [\"127.0.0.0/8\"]\n"));
        // The file that explains every key, with all of its examples in use but those that exclude others.
        let mut explained = include_str!("../../../conf/target.toml").to_owned();
        for excluded in ["udp = ", "ram = ", "block = "] {
            explained = explained.replace(&format!("#: {excluded}"), &format!("# {excluded}"));
        }
        let explained = explained.replace("#: ", "");
        let all = read(&explained);
        assert!(all.capture.is_some() && all.faults.len() > 5 && all.regions.len() == 2, "{all:?}");
        is_its_own_dump(&all);
    }

    #[test]
    fn fault_rules_of_every_action_survive() {
        let rules = [
            "action = \"ecn\"\ndirection = \"tx\"\nopcode = \"READ_RESPONSE\"\npsn = \"0xfffff0-15\"",
            "action = \"nak\"\ncode = \"psn-sequence\"\nqpn = 17\ncount = 3\nprobability = 0.123456789",
            "action = \"rnr\"\ntimer = \"640us\"",
            "action = \"delay\"\ndelay = \"1500us\"\njitter = \"7ns\"\nframes = \"all\"",
            "action = \"corrupt-icrc\"\nseed = \"18446744073709551615\"",
        ];
        let rules: String = rules.iter().map(|rule| format!("[[fault.rule]]\n{rule}\n")).collect();
        let config = read(&format!("[[port]]\naddresses = [\"10.0.0.1/24\"]\n{rules}"));
        assert_eq!(config.faults.len(), 5);
        is_its_own_dump(&config);
    }
}
