//! The configuration file: TOML to [`Settings`].
//!
//! Every value keeps its line, so that a later error can name the place.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use rxe::{CliError, cli_error};
use rxe_adapter::texts::Text;
use serde::Deserialize;
use toml::Spanned;

use super::capture::CaptureSection;
use super::fault::FaultSpec;
use super::limits::LimitsSection;
use super::metrics_address::MetricsAddress;
use super::peers::{self, Peers};
use super::region::{DomainName, RegionCount, RegionName, RegionSpec};
use super::service::ServiceSections;
use super::settings::{PortSettings, Settings};
use super::sourced::{Origin, Sourced};
use super::transport::TransportSection;
use super::values::{
    Gateway, HostAddress, Idle, LogFormat, LogLevel, Mtu, Network, Pcp, RouteSpec, ServicePort, Size, TrafficClass,
    UdpAddress, Vlan,
};

/// Maximum size of a configuration file in bytes.
const MAX_FILE: u64 = 4 << 20;

type Value<T> = Spanned<Text<T>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Document {
    log: Option<Value<LogLevel>>,
    log_format: Option<Value<LogFormat>>,
    idle: Option<Value<Idle>>,
    traffic_class: Option<Value<TrafficClass>>,
    pcp: Option<Value<Pcp>>,
    services: Option<Vec<Spanned<String>>>,
    region_port: Option<Value<ServicePort>>,
    eal: Option<Eal>,
    metrics: Option<Metrics>,
    fault: Option<Spanned<FaultSpec>>,
    capture: Option<Spanned<CaptureSection>>,
    service: Option<ServiceSections>,
    transport: Option<TransportSection>,
    limits: Option<LimitsSection>,
    #[serde(default)]
    port: Vec<Port>,
    #[serde(default)]
    region: Vec<Region>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Eal {
    args: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Metrics {
    listen: Option<Value<MetricsAddress>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Port {
    udp: Option<Value<UdpAddress>>,
    #[serde(default)]
    addresses: Vec<Value<HostAddress>>,
    #[serde(default)]
    gateways: Vec<Value<Gateway>>,
    #[serde(default)]
    routes: Vec<Spanned<Route>>,
    peers: Option<Peers>,
    strict_pkey: Option<bool>,
    pin_mac: Option<bool>,
    vlan: Option<Value<Vlan>>,
    mtu: Option<Value<Mtu>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Route {
    to: Text<Network>,
    via: Text<Gateway>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Region {
    name: Value<RegionName>,
    size: Text<Size>,
    count: Option<Text<RegionCount>>,
    #[serde(default)]
    watch: bool,
    #[serde(default)]
    read_only: bool,
    domain: Option<Text<DomainName>>,
    peers: Option<Peers>,
    file: Option<PathBuf>,
}

/// Reads `path`.
pub fn load(path: &Path) -> Result<Settings, CliError> {
    match read(path) {
        Ok(Some(text)) => parse(path, &text),
        Ok(None) => cli_error!(
            "the configuration file {} is longer than {} MiB: it is another file, check its name",
            path.display(),
            MAX_FILE >> 20
        ),
        Err(error) => cli_error!(
            "the configuration file {} cannot be read ({}): check its name and rights",
            path.display(),
            // Users do not need errno's number.
            error.to_string().split(" (os error").next().unwrap_or_default()
        ),
    }
}

/// The whole file; `None` when it is longer than any configuration.
fn read(path: &Path) -> io::Result<Option<String>> {
    // Opening a pipe may block, and reading a device may never end.
    let kind = std::fs::metadata(path)?.file_type();
    if !kind.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            if kind.is_dir() { "it is a folder" } else { "it is a device, a pipe or a socket, not a file" },
        ));
    }
    let mut text = String::new();
    File::open(path)?.take(MAX_FILE + 1).read_to_string(&mut text)?;
    Ok((text.len() as u64 <= MAX_FILE).then_some(text))
}

/// Reads the text of a configuration file; `path` is for messages.
pub fn parse(path: &Path, text: &str) -> Result<Settings, CliError> {
    let place = Place { path, text };
    let file: Document = toml::from_str(text).map_err(|error| place.describe(&error))?;
    let mut settings = Settings {
        eal_args: file.eal.map(|eal| eal.args),
        services: file.services.map(|s| s.into_iter().map(|name| place.source("services", name, |n| n)).collect()),
        regions: None,
        region_port: place.value("region-port", file.region_port),
        idle: place.value("idle", file.idle),
        log: place.value("log", file.log),
        log_format: place.value("log-format", file.log_format),
        metrics: place.value("listen", file.metrics.and_then(|metrics| metrics.listen)),
        traffic_class: place.value("traffic-class", file.traffic_class),
        pcp: place.value("pcp", file.pcp),
        fault: file.fault.map(|fault| place.source("fault", fault, |fault| fault)),
        capture: file.capture.map(|capture| place.source("capture", capture, |capture| capture)),
        service: file.service,
        transport: file.transport,
        limits: file.limits,
        ..Settings::default()
    };
    if !file.region.is_empty() {
        let regions = file.region.into_iter().map(|region| {
            let Region { name, size, count, watch, read_only, domain, peers, file } = region;
            let peers = peers::resolve(&peers.map(|Peers(networks)| networks).unwrap_or_default())?;
            let (size, count) = (size.0.0, count.map(|Text(RegionCount(count))| count));
            let domain = domain.map(|Text(DomainName(name))| name);
            let spec = |name: Text<RegionName>| RegionSpec {
                name: name.0.0,
                size,
                count,
                watch,
                read_only,
                domain,
                file,
                peers,
            };
            Ok(place.source("name", name, spec))
        });
        settings.regions = Some(regions.collect::<Result<_, CliError>>()?);
    }
    for (number, port) in file.port.into_iter().enumerate() {
        let Ok(number) = u16::try_from(number) else { break };
        let mut routes = Vec::new();
        for route in port.routes {
            let origin = place.origin("routes", &route.span());
            let Route { to: Text(Network(to)), via: Text(Gateway(via)) } = route.into_inner();
            match RouteSpec::new(to, via) {
                Ok(value) => routes.push(Sourced { value, origin }),
                Err(error) => return cli_error!("{origin}: {error}"),
            }
        }
        settings.ports.insert(
            number,
            PortSettings {
                udp: place.value("udp", port.udp),
                addresses: place.values("addresses", port.addresses),
                gateways: place.values("gateways", port.gateways),
                routes,
                peers: port.peers.map(|Peers(networks)| networks).unwrap_or_default(),
                strict_pkey: port.strict_pkey,
                pin_mac: port.pin_mac,
                vlan: place.value("vlan", port.vlan),
                mtu: place.value("mtu", port.mtu),
            },
        );
    }
    Ok(settings)
}

/// Maps byte ranges of the text to lines.
struct Place<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Place<'_> {
    fn line(&self, at: usize) -> usize {
        let before = self.text.as_bytes().get(..at).unwrap_or(self.text.as_bytes());
        1 + before.iter().filter(|b| **b == b'\n').count()
    }

    fn origin(&self, key: &'static str, span: &Range<usize>) -> Origin {
        Origin::File { path: self.path.to_owned(), line: self.line(span.start), key }
    }

    fn source<T, U>(&self, key: &'static str, value: Spanned<T>, map: impl FnOnce(T) -> U) -> Sourced<U> {
        let origin = self.origin(key, &value.span());
        Sourced { value: map(value.into_inner()), origin }
    }

    fn value<T>(&self, key: &'static str, value: Option<Value<T>>) -> Option<Sourced<T>> {
        value.map(|value| self.source(key, value, |text| text.0))
    }

    fn values<T>(&self, key: &'static str, values: Vec<Value<T>>) -> Vec<Sourced<T>> {
        values.into_iter().map(|value| self.source(key, value, |text| text.0)).collect()
    }

    /// One sentence for an error of the TOML parser.
    fn describe(&self, error: &toml::de::Error) -> CliError {
        // The messages may have several lines, and quote names in backticks.
        let message = error.message().replace('`', "'").split_whitespace().collect::<Vec<_>>().join(" ");
        let path = self.path.display();
        let Some(span) = error.span() else { return CliError::new(format!("{path}: {message}")) };
        let line = self.line(span.start);
        if message.contains("invalid type: map, expected a sequence")
            && let Some(section) = self.text.lines().nth(line - 1).map(str::trim)
            && matches!(section, "[port]" | "[region]")
        {
            return CliError::new(format!("{path}, line {line}: write [{section}], as there may be several"));
        }
        let hint = match self.text.get(span.clone()) {
            Some(key) if message.starts_with("unknown field") && GLOBAL_KEYS.contains(&key) => {
                " (this key belongs above the first [section])"
            }
            _ => "",
        };
        match self.key_before(span.end) {
            Some(key) if !message.starts_with("unknown field") && !message.starts_with("missing field") => {
                CliError::new(format!("{path}, line {line}, key '{key}': {message}"))
            }
            _ => CliError::new(format!("{path}, line {line}: {message}{hint}")),
        }
    }

    /// The last `key =` that ends before byte `end`: the key whose value an error is about.
    fn key_before(&self, end: usize) -> Option<&str> {
        let (before, _) = self.text.get(..end)?.rsplit_once('=')?;
        let before = before.trim_end();
        let other = before.trim_end_matches(|c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_');
        before.strip_prefix(other).filter(|key| !key.is_empty())
    }
}

/// Keys of the top level, which in TOML precede the first section.
const GLOBAL_KEYS: [&str; 7] = ["log", "log-format", "idle", "traffic-class", "pcp", "services", "region-port"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::capture;

    fn wrong(text: &str) -> String {
        match parse(Path::new("t.toml"), text) {
            Ok(_) => panic!("{text} was accepted"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn every_key_is_read() {
        let text = r#"
            log = "debug"
            log-format = "json"
            idle = "sleep:20"
            traffic-class = 46
            pcp = 5
            services = ["rping"]
            region-port = 5000

            [eal]
            args = ["-l", "0"]

            [metrics]
            listen = "127.0.0.1:9100"

            [fault]
            seed = 7
            frames = "all"
            rx = { drop = 0.01, duplicate = 0.01, reorder = 0.01, corrupt = 0.01 }
            tx = { drop = 1, delay = "2ms", jitter = "500us", delayed = 0.5 }

            [capture]
            file = "/tmp/rxe.pcapng"
            peers = ["10.0.0.2", "fd00::2"]
            snaplen = 128
            size = 64
            files = 10

            [[port]]
            addresses = ["10.0.0.1/24", "fd00::1/64"]
            gateways = ["10.0.0.254"]
            routes = [{ to = "10.1.0.0/16", via = "10.0.0.253" }]
            vlan = 7
            mtu = 4200

            [[region]]
            name = "scratch"
            size = "64M"
            watch = true
            file = "/dev/shm/scratch"

            [[region]]
            name = "many"
            size = "4K"
            count = 1000

            [[fault.rule]]
            action = "nak"
            code = "remote-access"
            opcode = "RC WRITE_ONLY"
            psn = "5-9"
            count = 1
        "#;
        let settings = parse(Path::new("t.toml"), text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(settings.eal_args.as_deref(), Some(&["-l".to_owned(), "0".to_owned()][..]));
        let port = &settings.ports[&0];
        assert_eq!(port.addresses.len(), 2);
        assert_eq!(port.addresses[1].origin.to_string(), "t.toml, line 30, key 'addresses'");
        assert_eq!(port.mtu.as_ref().map(|m| m.value), Some(Mtu(4200)));
        let regions = settings.regions.expect("regions");
        assert_eq!((regions[0].value.size, regions[0].value.name.as_str()), (64 << 20, "scratch"));
        assert!(regions[0].value.watch && regions[0].value.count.is_none());
        assert_eq!((regions[1].value.size, regions[1].value.count), (4096, Some(1000)));
        let faults = settings.fault.expect("faults").value.resolve().expect("right ones");
        assert_eq!(
            crate::config::fault_text(&faults).as_deref(),
            Some(
                "rx drop frames=all probability=0.01 seed=7, rx duplicate frames=all probability=0.01 seed=7, \
                 rx reorder frames=all probability=0.01 seed=7, rx corrupt frames=all probability=0.01 seed=7, \
                 tx drop frames=all seed=7, tx delay 2ms jitter 500µs frames=all probability=0.5 seed=7, \
                 rx nak remote-access opcode=RC WRITE_ONLY psn=5-9 count=1 seed=7"
            )
        );
        let capture = capture::resolve(settings.capture, None).expect("a right one").expect("one");
        assert_eq!((capture.file, capture.peers.len()), ("/tmp/rxe.pcapng".into(), 2));
        assert_eq!((capture.snaplen, capture.size, capture.files), (128, Some(64), Some(10)));
        assert_eq!(settings.log_format.map(|f| f.value), Some(LogFormat::Json));
        assert_eq!(settings.metrics.map(|m| m.value), Some("127.0.0.1:9100".parse().expect("an address")));
        assert_eq!(settings.traffic_class.map(|t| t.value), Some(TrafficClass(Some(46))));
    }

    #[test]
    fn errors_name_file_line_and_key() {
        for (text, sentence) in [
            (
                "[[port]]\naddresses = [\n  \"10.0.0.1/24\",\n  \"10.0.0.2\",\n]\n",
                "t.toml, line 4, key 'addresses': '10.0.0.2' lacks its prefix length: write 10.0.0.2/24, or what your network uses",
            ),
            ("[[port]]\nmtu = 70\n", "t.toml, line 2, key 'mtu': '70' is not an IP MTU: it goes from 1280 to 9216"),
            ("idle = true\n", "t.toml, line 1, key 'idle': invalid type: boolean 'true', expected a text or a number"),
            (
                "[[port]]\nadresses = []\n",
                "t.toml, line 2: unknown field 'adresses', expected one of 'udp', 'addresses', 'gateways', 'routes', 'peers', 'strict-pkey', 'pin-mac', 'vlan', 'mtu'",
            ),
            (
                "[eal]\nargs = []\nlog = \"info\"\n",
                "t.toml, line 3: unknown field 'log', expected 'args' (this key belongs above the first [section])",
            ),
            (
                "[fault]\nrx = { drop = 2.5 }\n",
                "t.toml, line 2, key 'drop': '2.5' is not a probability: it goes from 0 (never) to 1 (always) in billionths, as 0.01 for one frame in a hundred",
            ),
            (
                "[fault]\ntx = { delay = 5 }\n",
                "t.toml, line 2, key 'delay': '5' is not a time: write a whole number with ns, us, ms or s, as 500us",
            ),
            (
                "[fault]\nrx = { lose = 0.5 }\n",
                "t.toml, line 2: unknown field 'lose', expected one of 'drop', 'duplicate', 'reorder', 'corrupt', 'delay', 'jitter', 'delayed'",
            ),
            ("[[region]]\nname = \"a\"\n", "t.toml, line 1: missing field 'size'"),
            ("[port]\nmtu = 1500\n", "t.toml, line 1: write [[port]], as there may be several"),
            ("# one\n[region]\nname = \"a\"\nsize = 1\n", "t.toml, line 2: write [[region]], as there may be several"),
            (
                "[[port]]\nroutes = [{ to = \"10.1.0.0/16\", via = \"x\" }]\n",
                "t.toml, line 2, key 'via': 'x' is not an IP address",
            ),
            (
                "[[port]]\nroutes = [{ to = \"10.1.0.0/16\", via = \"fd00::1\" }]\n",
                "t.toml, line 2, key 'routes': the route to 10.1.0.0/16 cannot go via fd00::1: one is IPv4, the other IPv6",
            ),
        ] {
            assert_eq!(wrong(text), sentence);
        }
        let syntax = wrong("log = \"info\"\nidle = \n");
        assert!(syntax.starts_with("t.toml, line 2") && !syntax.contains('\n'), "{syntax}");
    }

    #[test]
    fn errors_behind_letters_outside_of_ascii_have_their_place() {
        for (text, sentence) in [
            ("# \u{e9} = 1\nfoo = 1\n", "t.toml, line 2: unknown field 'foo', expected one of "),
            ("# \u{1f980}=\nidle = true\n", "t.toml, line 2, key 'idle': invalid type: boolean 'true'"),
            ("\"\u{e9}\" = 1\n", "t.toml, line 1: unknown field '\u{e9}', expected one of "),
            ("idle = \"\u{e9}=\"\n", "t.toml, line 1: "),
            ("log = \"\u{e9}-\u{e9}=\u{e9}\"\n", "t.toml, line 1"),
        ] {
            assert!(wrong(text).starts_with(sentence), "{}", wrong(text));
        }
    }

    #[test]
    fn only_regular_files_of_limited_size_are_read() {
        let said = |path: &Path| load(path).map(|_| ()).expect_err("no configuration").to_string();
        let zero = said(Path::new("/dev/zero"));
        assert!(zero.contains("/dev/zero cannot be read (it is a device, a pipe or a socket, not a file)"), "{zero}");
        assert!(said(Path::new("/tmp")).contains("it is a folder"));
        let folder = std::env::temp_dir().join(format!("rxe-config-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        // No process writes to it.
        let pipe = folder.join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
        assert!(said(&pipe).contains("not a file"));
        // A gigabyte without a disk block.
        let huge = folder.join("huge.toml");
        File::create(&huge).and_then(|file| file.set_len(1 << 30)).expect("a sparse file");
        assert!(said(&huge).contains("is longer than 4 MiB"));
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn an_unreadable_file_is_named() {
        let error = load(Path::new("/nonexistent/t.toml")).map(|_| ()).expect_err("no such file");
        assert_eq!(
            error.to_string(),
            "the configuration file /nonexistent/t.toml cannot be read (No such file or directory): check its name and rights"
        );
    }
}
