//! Section `[service.nvmf]` of the configuration file: disks for NVMe over Fabrics.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use rxe::{CliError, cli_error};
use rxe_adapter::texts::Text;
use rxe_nvmf::subsystem::{AllowedHosts, Limits, derived_serial};
use rxe_nvmf::wire::Nqn;
use rxe_storage::BlockSize;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use uuid::Uuid;

use super::peers::Peers;
use super::values::{ServicePort, Size};

/// The port of NVMe over RDMA.
const PORT: u16 = 4420;
/// Staging memory of an lcore.
const STAGING: usize = 64 << 20;
/// Model number of a subsystem.
const MODEL: &str = "rxe-target";
/// The smallest staging memory: a few transfers of 1 MiB.
const MIN_STAGING: usize = 8 << 20;
/// Numbers of controllers that NVMe has.
const MAX_CONTROLLERS: usize = 65_519;

/// Settings of the service `nvmf`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NvmfConfig {
    /// Port of the subsystems and of discovery.
    pub port: u16,
    /// Bytes of staging memory of each lcore.
    pub staging: usize,
    /// Controllers of all hosts, at most.
    pub controllers: usize,
    /// Controllers of one host, at most.
    pub controllers_per_host: usize,
    /// The subsystems. Without any the service does not run.
    pub subsystems: Vec<SubsystemConfig>,
}

impl Default for NvmfConfig {
    fn default() -> NvmfConfig {
        let Limits { controllers, controllers_per_host, .. } = Limits::default();
        NvmfConfig { port: PORT, staging: STAGING, controllers, controllers_per_host, subsystems: Vec::new() }
    }
}

/// A subsystem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubsystemConfig {
    /// NQN of the subsystem, which hosts connect to.
    pub nqn: Nqn,
    /// Serial number that hosts see.
    pub serial: String,
    /// Model number that hosts see.
    pub model: String,
    /// The hosts that may use it.
    pub hosts: AllowedHosts,
    /// Namespaces of the subsystem.
    pub namespaces: Vec<NamespaceConfig>,
}

/// A namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamespaceConfig {
    /// NSID, from 1, unique in the subsystem.
    pub nsid: u32,
    /// The storage of its blocks.
    pub backing: Backing,
    /// Size of a block.
    pub block_size: BlockSize,
    /// Whether hosts can only read it.
    pub read_only: bool,
    /// Whether each block has a checksum.
    pub checksums: bool,
    /// Its UUID, if it is not that of the data.
    pub uuid: Option<Uuid>,
}

/// The storage of a namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Backing {
    /// Memory of the target: empty after each start.
    Ram {
        /// Size in bytes.
        size: usize,
    },
    /// A file, or a block device.
    File {
        /// Path of the file or device.
        path: PathBuf,
        /// Whether the page cache is bypassed.
        direct: bool,
    },
}

/// `[service.nvmf]`.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct NvmfSection {
    pub(super) peers: Option<Peers>,
    port: Option<Text<ServicePort>>,
    staging: Option<Text<Size>>,
    controllers: Option<usize>,
    controllers_per_host: Option<usize>,
    #[serde(default)]
    subsystem: Vec<SubsystemSection>,
}

/// `[[service.nvmf.subsystem]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct SubsystemSection {
    nqn: Text<Nqn>,
    serial: Option<String>,
    model: Option<String>,
    hosts: Option<Vec<Text<Nqn>>>,
    #[serde(default)]
    namespace: Vec<NamespaceSection>,
}

/// `[[service.nvmf.subsystem.namespace]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct NamespaceSection {
    nsid: Option<u32>,
    ram: Option<Text<Size>>,
    file: Option<PathBuf>,
    block: Option<PathBuf>,
    block_size: Option<u64>,
    direct: Option<bool>,
    read_only: Option<bool>,
    checksums: Option<bool>,
    uuid: Option<Text<Uuid>>,
}

impl NvmfSection {
    /// The checked settings.
    ///
    /// # Errors
    /// The first problem, in a sentence.
    pub fn resolve(&self) -> Result<NvmfConfig, CliError> {
        let staging = self.staging.as_ref().map_or(STAGING, |Text(Size(bytes))| *bytes);
        if staging < MIN_STAGING {
            return cli_error!("[service.nvmf] staging is {staging} bytes: 8M is the least");
        }
        let mut names = BTreeSet::new();
        let mut subsystems = Vec::new();
        for section in &self.subsystem {
            if !names.insert(&section.nqn.0) {
                return cli_error!(
                    "[service.nvmf] two subsystems have the name {}: give each its own nqn",
                    section.nqn.0
                );
            }
            subsystems.push(section.resolve()?);
        }
        let port = self.port.as_ref().map_or(PORT, |Text(ServicePort(port))| *port);
        let default = NvmfConfig::default();
        let controllers = self.controllers.unwrap_or(default.controllers);
        let controllers_per_host =
            self.controllers_per_host.unwrap_or_else(|| default.controllers_per_host.min(controllers));
        if !(1..=MAX_CONTROLLERS).contains(&controllers) {
            return cli_error!(
                "[service.nvmf] controllers is {controllers}: give it a number from 1 to {MAX_CONTROLLERS}"
            );
        }
        if !(1..=controllers).contains(&controllers_per_host) {
            return cli_error!(
                "[service.nvmf] controllers-per-host is {controllers_per_host}: give it a number from 1 to that of controllers, \
                 {controllers}"
            );
        }
        Ok(NvmfConfig { port, staging, controllers, controllers_per_host, subsystems })
    }
}

/// A subsystem from the keys of its section.
///
/// # Errors
/// The first problem, in a sentence.
pub fn subsystem_from(keys: BTreeMap<String, Value>) -> Result<SubsystemConfig, CliError> {
    section::<SubsystemSection>("a subsystem", keys)?.resolve()
}

/// A namespace of `subsystem` from the keys of its section; without `nsid` it gets the lowest free number.
///
/// # Errors
/// The first problem, in a sentence.
pub fn namespace_from(subsystem: &SubsystemConfig, keys: BTreeMap<String, Value>) -> Result<NamespaceConfig, CliError> {
    let is_free = |nsid: &u32| subsystem.namespaces.iter().all(|other| other.nsid != *nsid);
    let number = (1..=u32::MAX).find(is_free).unwrap_or(u32::MAX);
    let namespace = section::<NamespaceSection>("a namespace", keys)?.resolve(&subsystem.nqn, number)?;
    match &namespace.backing {
        // The target's working directory is not the operator's.
        Backing::File { path, .. } if !path.is_absolute() => {
            cli_error!("the path {} of a namespace is relative: name the file by its absolute path", path.display())
        }
        _ => Ok(namespace),
    }
}

/// A size in bytes from a text such as `2G`.
///
/// # Errors
/// The problem, in a sentence.
pub fn size_from(text: &str) -> Result<u64, CliError> {
    text.parse().map(|Size(bytes)| bytes as u64)
}

fn section<T: DeserializeOwned>(what: &str, keys: BTreeMap<String, Value>) -> Result<T, CliError> {
    let section = serde_json::from_value(Value::Object(keys.into_iter().collect()));
    section.map_err(|error| CliError::new(format!("{what} cannot be added: {error}")))
}

impl SubsystemSection {
    fn resolve(&self) -> Result<SubsystemConfig, CliError> {
        let Text(nqn) = &self.nqn;
        if nqn.is_discovery() {
            return cli_error!("{nqn} is the name of the discovery subsystem, which always exists: choose another nqn");
        }
        let mut namespaces: Vec<NamespaceConfig> = Vec::new();
        if self.namespace.len() > 1
            && let Some(place) = self.namespace.iter().position(|section| section.nsid.is_none())
        {
            return cli_error!(
                "subsystem {nqn} has several namespaces: give each its own nsid, so that hosts find the same disk under it when \
                 another one is taken away; that of number {} was {} until now",
                place + 1,
                place + 1
            );
        }
        for section in &self.namespace {
            let namespace = section.resolve(nqn, 1)?;
            if namespaces.iter().any(|other| other.nsid == namespace.nsid) {
                return cli_error!("subsystem {nqn} has two namespaces {}: give each its own nsid", namespace.nsid);
            }
            namespaces.push(namespace);
        }
        let hosts = match &self.hosts {
            None => AllowedHosts::Any,
            Some(hosts) if hosts.is_empty() => {
                return cli_error!("subsystem {nqn} has an empty list of hosts: leave 'hosts' out to serve all");
            }
            Some(hosts) => AllowedHosts::Only(hosts.iter().map(|Text(host)| host.clone()).collect()),
        };
        Ok(SubsystemConfig {
            serial: self.serial.clone().unwrap_or_else(|| derived_serial(nqn)),
            model: self.model.clone().unwrap_or_else(|| MODEL.to_owned()),
            nqn: nqn.clone(),
            hosts,
            namespaces,
        })
    }
}

impl NamespaceSection {
    fn resolve(&self, nqn: &Nqn, number: u32) -> Result<NamespaceConfig, CliError> {
        let nsid = self.nsid.unwrap_or(number);
        let direct = self.direct.unwrap_or(true);
        let backing = match (&self.ram, &self.file, &self.block) {
            (Some(Text(Size(size))), None, None) if self.direct.is_none() => Backing::Ram { size: *size },
            (Some(_), None, None) => {
                return cli_error!("namespace {nsid} of {nqn}: 'direct' is for files and block devices, not for ram");
            }
            (None, Some(path), None) | (None, None, Some(path)) => Backing::File { path: path.clone(), direct },
            _ => return cli_error!("namespace {nsid} of {nqn}: give it one of 'ram', 'file' and 'block'"),
        };
        let Some(block_size) = BlockSize::from_bytes(self.block_size.unwrap_or(4096)) else {
            return cli_error!("namespace {nsid} of {nqn}: 'block-size' is 512 or 4096");
        };
        Ok(NamespaceConfig {
            nsid,
            backing,
            block_size,
            read_only: self.read_only.unwrap_or(false),
            checksums: self.checksums.unwrap_or(false),
            uuid: self.uuid.as_ref().map(|Text(uuid)| *uuid),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<NvmfConfig, String> {
        let section: NvmfSection = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        section.resolve().map_err(|error| error.to_string())
    }

    const SUBSYSTEM: &str = "[[subsystem]]\nnqn = \"nqn.2026-01.test:disk\"\n";

    #[test]
    fn a_namespace_needs_little_more_than_its_storage() {
        let config = read(&format!("{SUBSYSTEM}[[subsystem.namespace]]\nram = \"1M\"\n")).unwrap();
        assert_eq!((config.port, config.staging), (4420, 64 << 20));
        let [subsystem] = &config.subsystems[..] else { panic!("one subsystem") };
        assert_eq!((subsystem.serial.len(), subsystem.hosts.clone()), (20, AllowedHosts::Any));
        let [namespace] = &subsystem.namespaces[..] else { panic!("one namespace") };
        assert_eq!((namespace.nsid, namespace.block_size), (1, BlockSize::B4096));
        assert_eq!(namespace.backing, Backing::Ram { size: 1 << 20 });
    }

    #[test]
    fn every_key_is_used() {
        let text = "port = 4421\nstaging = \"16M\"\ncontrollers = 70\ncontrollers-per-host = 7\n[[subsystem]]\nnqn = \"nqn.2026-01.test:disk\"\nserial = \"S1\"\n\
                    model = \"M1\"\nhosts = [\"nqn.2026-01.test:host\"]\n[[subsystem.namespace]]\nnsid = 7\n\
                    file = \"/srv/disk\"\nblock-size = 512\ndirect = false\nread-only = true\nchecksums = true\n\
                    uuid = \"6e1c0b52-93a7-4d28-b1f0-47e25a8d3c96\"\n";
        let config = read(text).unwrap();
        assert_eq!((config.port, config.staging), (4421, 16 << 20));
        assert_eq!((config.controllers, config.controllers_per_host), (70, 7));
        let [subsystem] = &config.subsystems[..] else { panic!("one subsystem") };
        assert_eq!((subsystem.serial.as_str(), subsystem.model.as_str()), ("S1", "M1"));
        assert!(!subsystem.hosts.contains(&"nqn.2026-01.test:other".parse().unwrap()));
        let [namespace] = &subsystem.namespaces[..] else { panic!("one namespace") };
        assert_eq!((namespace.nsid, namespace.block_size), (7, BlockSize::B512));
        assert_eq!(namespace.backing, Backing::File { path: "/srv/disk".into(), direct: false });
        assert!(namespace.read_only && namespace.checksums && namespace.uuid.is_some());
    }

    #[test]
    fn a_namespace_that_is_added_gets_the_lowest_free_number() {
        let text = format!(
            "{SUBSYSTEM}[[subsystem.namespace]]\nnsid = 1\nram = \"1M\"\n[[subsystem.namespace]]\nnsid = 3\nram = \"1M\"\n"
        );
        let config = read(&text).unwrap();
        let add = |json: &str| namespace_from(&config.subsystems[0], serde_json::from_str(json).unwrap());
        let added = add(r#"{"ram":"2M","block-size":512,"checksums":true}"#).unwrap();
        assert_eq!((added.nsid, added.block_size, added.checksums), (2, BlockSize::B512, true));
        assert_eq!(add(r#"{"ram":"2M","nsid":9}"#).unwrap().nsid, 9);
        assert_eq!(
            add(r#"{"file":"disk.img"}"#).unwrap_err().to_string(),
            "the path disk.img of a namespace is relative: name the file by its absolute path"
        );
        assert_eq!(
            add(r#"{"size":"2M"}"#).unwrap_err().to_string().split(", expected").next(),
            Some("a namespace cannot be added: unknown field `size`")
        );
    }

    #[test]
    fn mistakes_are_sentences() {
        let namespace = |keys: &str| read(&format!("{SUBSYSTEM}[[subsystem.namespace]]\n{keys}")).unwrap_err();
        let one = "namespace 1 of nqn.2026-01.test:disk: give it one of 'ram', 'file' and 'block'";
        assert_eq!(namespace(""), one);
        assert_eq!(namespace("ram = \"1M\"\nfile = \"/srv/disk\"\n"), one);
        assert_eq!(
            namespace("ram = \"1M\"\nblock-size = 1024\n"),
            "namespace 1 of nqn.2026-01.test:disk: 'block-size' is 512 or 4096"
        );
        assert_eq!(
            namespace("ram = \"1M\"\ndirect = true\n"),
            "namespace 1 of nqn.2026-01.test:disk: 'direct' is for files and block devices, not for ram"
        );
        let unnumbered = "nsid = 1\nram = \"1M\"\n[[subsystem.namespace]]\nram = \"1M\"\n";
        assert_eq!(
            namespace(unnumbered),
            "subsystem nqn.2026-01.test:disk has several namespaces: give each its own nsid, so that hosts find the same disk \
             under it when another one is taken away; that of number 2 was 2 until now"
        );
        let twice = "nsid = 1\nram = \"1M\"\n[[subsystem.namespace]]\nnsid = 1\nram = \"1M\"\n";
        assert_eq!(namespace(twice), "subsystem nqn.2026-01.test:disk has two namespaces 1: give each its own nsid");
        assert_eq!(
            read(&format!("{SUBSYSTEM}{SUBSYSTEM}")).unwrap_err(),
            "[service.nvmf] two subsystems have the name nqn.2026-01.test:disk: give each its own nqn"
        );
        assert_eq!(
            read(&format!("{SUBSYSTEM}hosts = []\n")).unwrap_err(),
            "subsystem nqn.2026-01.test:disk has an empty list of hosts: leave 'hosts' out to serve all"
        );
        assert_eq!(
            read("[[subsystem]]\nnqn = \"nqn.2014-08.org.nvmexpress.discovery\"\n").unwrap_err(),
            "nqn.2014-08.org.nvmexpress.discovery is the name of the discovery subsystem, which always exists: choose another nqn"
        );
        assert_eq!(
            read("controllers = 0\n").unwrap_err(),
            "[service.nvmf] controllers is 0: give it a number from 1 to 65519"
        );
        assert_eq!(
            read("controllers = 70\ncontrollers-per-host = 71\n").unwrap_err(),
            "[service.nvmf] controllers-per-host is 71: give it a number from 1 to that of controllers, 70"
        );
        assert_eq!(read("controllers = 7\n").unwrap().controllers_per_host, 7);
        assert_eq!(read("staging = \"1M\"\n").unwrap_err(), "[service.nvmf] staging is 1048576 bytes: 8M is the least");
    }
}
