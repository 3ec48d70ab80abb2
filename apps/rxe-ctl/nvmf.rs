//! The verb `nvmf`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use rxe::CliError;
use rxe_inspect::client::Client;
use rxe_inspect::nvmf::{NvmfController, NvmfHost, NvmfNamespace, NvmfRequest, NvmfScrub, NvmfShare, NvmfSubsystem};
use rxe_inspect::protocol::Request;
use serde_json::{Value, json};

use crate::output::{done, json_or_text};
use crate::table::{Align, Table};

/// The verbs of `nvmf`.
#[derive(Subcommand, Debug)]
pub enum NvmfVerb {
    /// Subsystems: list, add and remove them
    Subsystem {
        #[command(subcommand)]
        what: SubsystemVerb,
    },
    /// Namespaces, the disks of a subsystem: list, add, remove and grow them
    Namespace {
        #[command(subcommand)]
        what: NamespaceVerb,
    },
    /// Hosts that may use a subsystem: list, add and remove them
    Host {
        #[command(subcommand)]
        what: HostVerb,
    },
    /// Controllers, each a connected host: list them
    Controller {
        #[command(subcommand)]
        what: ControllerVerb,
    },
    /// Room for commands: list what each host has of it, and what waits
    Share {
        #[command(subcommand)]
        what: ShareVerb,
    },
    /// Compare all blocks of a namespace with their checksums, while hosts use it. Exit code 1 if blocks differ
    Scrub {
        /// NQN of the subsystem
        subsystem: String,

        /// Number of the namespace
        nsid: u32,
    },
}

/// The verbs of `nvmf subsystem`.
#[derive(Subcommand, Debug)]
pub enum SubsystemVerb {
    /// List the subsystems
    List,
    /// Add a subsystem without namespaces
    ///
    /// It is lost with the target unless its configuration file has it too.
    Add {
        /// Its NQN
        subsystem: String,

        /// Serial number [default: derived from the NQN]
        #[arg(long)]
        serial: Option<String>,

        /// Model number
        #[arg(long)]
        model: Option<String>,

        /// NQN of a host that may use it; repeat it for more [default: every host]
        #[arg(long = "host", value_name = "NQN")]
        hosts: Vec<String>,
    },
    /// Remove a subsystem and its namespaces. One that hosts use stays
    Remove {
        /// Its NQN
        subsystem: String,

        /// Remove it although hosts use it: they are disconnected
        #[arg(long)]
        force: bool,
    },
}

/// The verbs of `nvmf namespace`.
#[derive(Subcommand, Debug)]
pub enum NamespaceVerb {
    /// List the namespaces with size, block size and storage
    List,
    /// Add a namespace and print its number. Connected hosts see the disk at once
    ///
    /// It is lost with the target unless its configuration file has it too.
    Add(NamespaceArgs),
    /// Remove a namespace. One of a subsystem that hosts use stays
    Remove {
        /// NQN of the subsystem
        subsystem: String,

        /// Number of the namespace
        nsid: u32,

        /// Remove it although hosts use the subsystem: they lose the disk, after the commands in progress
        #[arg(long)]
        force: bool,
    },
    /// Let hosts write to a namespace again that is read-only because a flush of its file failed
    ///
    /// What was written between the flush before and the one that failed may be lost: check the file system on it first.
    Recover {
        /// NQN of the subsystem
        subsystem: String,

        /// Number of the namespace
        nsid: u32,
    },
    /// Let a namespace grow to the size of its file or device, and print the size. Connected hosts see it at once
    ///
    /// Memory keeps its size.
    Resize {
        /// NQN of the subsystem
        subsystem: String,

        /// Number of the namespace
        nsid: u32,

        /// Size in bytes, or with K, M or G: a shorter file is extended to it before [default: as the file is]
        size: Option<String>,
    },
}

/// A namespace to add.
#[derive(Args, Debug)]
pub struct NamespaceArgs {
    /// NQN of the subsystem
    subsystem: String,

    /// Keep the blocks in memory of the target, of this size in bytes, or with K, M or G
    #[arg(long, value_name = "SIZE", required_unless_present = "file", conflicts_with = "file")]
    ram: Option<String>,

    /// Keep the blocks in this file or block device, named by its absolute path
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,

    /// Number of the namespace [default: the lowest that is free]
    #[arg(long)]
    nsid: Option<u32>,

    /// Size of a block: 512 or 4096 [default: 4096]
    #[arg(long, value_name = "BYTES")]
    block_size: Option<u64>,

    /// Use the page cache for the file
    #[arg(long, requires = "file")]
    buffered: bool,

    /// Let hosts only read it
    #[arg(long)]
    read_only: bool,

    /// Keep a checksum of each block
    #[arg(long)]
    checksums: bool,

    /// UUID [default: that beside the file; of memory a new one]
    #[arg(long)]
    uuid: Option<String>,
}

/// The verbs of `nvmf host`.
#[derive(Subcommand, Debug)]
pub enum HostVerb {
    /// List the hosts of the subsystems that do not serve every host
    List,
    /// Allow a host to use a subsystem that has a list of hosts
    Add {
        /// NQN of the subsystem
        subsystem: String,

        /// NQN of the host
        host: String,
    },
    /// Remove a host from the list of a subsystem, and disconnect it
    Remove {
        /// NQN of the subsystem
        subsystem: String,

        /// NQN of the host
        host: String,
    },
}

/// The verbs of `nvmf controller`.
#[derive(Subcommand, Debug)]
pub enum ControllerVerb {
    /// List the controllers with host, subsystem, address and queue pairs
    List,
}

/// The verbs of `nvmf share`.
#[derive(Subcommand, Debug)]
pub enum ShareVerb {
    /// List, by worker and host, the commands in progress, their staging memory, and the commands that wait, in order of their turns
    List,
}

impl NamespaceArgs {
    fn request(self) -> Request {
        let keys = [
            ("ram", self.ram.map(Value::from)),
            ("file", self.file.map(|path| json!(path))),
            ("nsid", self.nsid.map(Value::from)),
            ("block-size", self.block_size.map(Value::from)),
            ("direct", self.buffered.then_some(Value::Bool(false))),
            ("read-only", self.read_only.then_some(Value::Bool(true))),
            ("checksums", self.checksums.then_some(Value::Bool(true))),
            ("uuid", self.uuid.map(Value::from)),
        ];
        Request::Nvmf(NvmfRequest::AddNamespace { subsystem: self.subsystem, namespace: present(keys) })
    }
}

/// The keys that have a value.
fn present<const N: usize>(keys: [(&str, Option<Value>); N]) -> BTreeMap<String, Value> {
    keys.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

/// Carries out the verb; returns the text to print.
pub fn run(target: &mut Client, verb: NvmfVerb, json: bool) -> Result<String, CliError> {
    let request = match verb {
        NvmfVerb::Subsystem { what: SubsystemVerb::List } => {
            let all: Vec<NvmfSubsystem> = target.ask(&Request::Nvmf(NvmfRequest::Subsystems))?;
            return Ok(json_or_text(json, &all, |all| show_subsystems(all)));
        }
        NvmfVerb::Subsystem { what: SubsystemVerb::Add { subsystem, serial, model, hosts } } => {
            let subsystem = present([
                ("nqn", Some(Value::from(subsystem))),
                ("serial", serial.map(Value::from)),
                ("model", model.map(Value::from)),
                ("hosts", (!hosts.is_empty()).then(|| Value::from(hosts))),
            ]);
            NvmfRequest::AddSubsystem { subsystem }
        }
        NvmfVerb::Subsystem { what: SubsystemVerb::Remove { subsystem, force } } => {
            NvmfRequest::RemoveSubsystem { subsystem, force }
        }
        NvmfVerb::Namespace { what: NamespaceVerb::List } => {
            let all: Vec<NvmfNamespace> = target.ask(&Request::Nvmf(NvmfRequest::Namespaces))?;
            return Ok(json_or_text(json, &all, |all| show_namespaces(all)));
        }
        NvmfVerb::Namespace { what: NamespaceVerb::Add(namespace) } => {
            let nsid: u32 = target.ask(&namespace.request())?;
            return Ok(format!("{nsid}\n"));
        }
        NvmfVerb::Namespace { what: NamespaceVerb::Remove { subsystem, nsid, force } } => {
            NvmfRequest::RemoveNamespace { subsystem, nsid, force }
        }
        NvmfVerb::Namespace { what: NamespaceVerb::Recover { subsystem, nsid } } => {
            NvmfRequest::RecoverNamespace { subsystem, nsid }
        }
        NvmfVerb::Namespace { what: NamespaceVerb::Resize { subsystem, nsid, size } } => {
            let size: u64 = target.ask(&Request::Nvmf(NvmfRequest::ResizeNamespace { subsystem, nsid, size }))?;
            return Ok(format!("{size}\n"));
        }
        NvmfVerb::Host { what: HostVerb::List } => {
            let all: Vec<NvmfHost> = target.ask(&Request::Nvmf(NvmfRequest::Hosts))?;
            return Ok(json_or_text(json, &all, |all| show_hosts(all)));
        }
        NvmfVerb::Host { what: HostVerb::Add { subsystem, host } } => NvmfRequest::AddHost { subsystem, host },
        NvmfVerb::Host { what: HostVerb::Remove { subsystem, host } } => NvmfRequest::RemoveHost { subsystem, host },
        NvmfVerb::Controller { what: ControllerVerb::List } => {
            let all: Vec<NvmfController> = target.ask(&Request::Nvmf(NvmfRequest::Controllers))?;
            return Ok(json_or_text(json, &all, |all| show_controllers(all)));
        }
        NvmfVerb::Share { what: ShareVerb::List } => {
            let all: Vec<NvmfShare> = target.ask(&Request::Nvmf(NvmfRequest::Shares))?;
            return Ok(json_or_text(json, &all, |all| show_shares(all)));
        }
        NvmfVerb::Scrub { subsystem, nsid } => return scrub(target, &subsystem, nsid, json),
    };
    target.tell(&Request::Nvmf(request))?;
    Ok(done(json))
}

/// Scrubs a namespace, part by part.
///
/// # Errors
/// The target refuses, or blocks differ from their checksums: the error says which.
fn scrub(target: &mut Client, subsystem: &str, nsid: u32, json: bool) -> Result<String, CliError> {
    let mut all = NvmfScrub { next: Some(0), ..NvmfScrub::default() };
    while let Some(from) = all.next {
        let request = NvmfRequest::Scrub { subsystem: subsystem.to_owned(), nsid, from };
        let part: NvmfScrub = target.ask(&Request::Nvmf(request))?;
        all.checked += part.checked;
        all.mismatches.extend(part.mismatches);
        all.rebuilt.extend(part.rebuilt);
        // Guards against a target that never finishes.
        all.next = part.next.filter(|next| *next > from);
    }
    let text = json_or_text(json, &all, show_scrub);
    if all.mismatches.is_empty() {
        return Ok(text);
    }
    // Standard output may be closed, as by `head`.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
    Err(CliError::failed(format!("{} blocks differ from their checksums", all.mismatches.len())))
}

fn show_scrub(scrub: &NvmfScrub) -> String {
    let list = |what: &str, blocks: &[u64]| -> String {
        blocks.iter().map(|block| format!("{what}: block {block}\n")).collect()
    };
    let checked = format!("{} blocks compared, {} differ\n", scrub.checked, scrub.mismatches.len());
    checked + &list("differs", &scrub.mismatches) + &list("checksum replaced", &scrub.rebuilt)
}

fn show_subsystems(all: &[NvmfSubsystem]) -> String {
    let columns = [
        ("SUBSYSTEM", Align::Left),
        ("SERIAL", Align::Left),
        ("MODEL", Align::Left),
        ("HOSTS", Align::Left),
        ("NAMESPACES", Align::Right),
        ("CONTROLLERS", Align::Right),
    ];
    let mut table = Table::new("", &columns);
    table.rows.extend(all.iter().map(|of| {
        let hosts = if of.any_host { "all" } else { "listed" }.to_owned();
        let (namespaces, controllers) = (of.namespaces.to_string(), of.controllers.to_string());
        vec![of.nqn.clone(), of.serial.clone(), of.model.clone(), hosts, namespaces, controllers]
    }));
    table.text()
}

fn show_namespaces(all: &[NvmfNamespace]) -> String {
    let columns = [
        ("SUBSYSTEM", Align::Left),
        ("NSID", Align::Right),
        ("SIZE", Align::Right),
        ("BLOCK", Align::Right),
        ("STORAGE", Align::Left),
        ("OPTIONS", Align::Left),
    ];
    let mut table = Table::new("", &columns);
    table.rows.extend(all.iter().map(|of| {
        let options = [of.read_only.then_some("read-only"), of.checksums.then_some("checksums")];
        let options: Vec<&str> = options.into_iter().flatten().collect();
        let options = if options.is_empty() { "-".to_owned() } else { options.join(",") };
        let storage = of.file.clone().unwrap_or_else(|| "ram".to_owned());
        let (nsid, size, block) = (of.nsid.to_string(), of.size.to_string(), of.block_size.to_string());
        vec![of.subsystem.clone(), nsid, size, block, storage, options]
    }));
    table.text()
}

fn show_hosts(all: &[NvmfHost]) -> String {
    let mut table = Table::new("", &[("SUBSYSTEM", Align::Left), ("HOST", Align::Left)]);
    table.rows.extend(all.iter().map(|of| vec![of.subsystem.clone(), of.host.clone()]));
    table.text()
}

fn show_controllers(all: &[NvmfController]) -> String {
    let columns = [
        ("ID", Align::Right),
        ("HOST", Align::Left),
        ("SUBSYSTEM", Align::Left),
        ("ADDRESS", Align::Left),
        ("STATE", Align::Left),
        ("QUEUE PAIRS", Align::Left),
    ];
    let mut table = Table::new("", &columns);
    table.rows.extend(all.iter().map(|of| {
        let queue_pairs: Vec<String> = of.queue_pairs.iter().map(|qpn| format!("{qpn:#x}")).collect();
        let state = if of.ready { "ready" } else { "disabled" }.to_owned();
        let address = of.address.clone().unwrap_or_else(|| "-".to_owned());
        vec![of.id.to_string(), of.host.clone(), of.subsystem.clone(), address, state, queue_pairs.join(" ")]
    }));
    table.text()
}

fn show_shares(all: &[NvmfShare]) -> String {
    let columns = [
        ("WORKER", Align::Right),
        ("CLASS", Align::Left),
        ("HOST", Align::Left),
        ("COMMANDS", Align::Right),
        ("BYTES", Align::Right),
        ("WAITING", Align::Right),
        ("BYTES WAITING", Align::Right),
    ];
    let mut table = Table::new("", &columns);
    table.rows.extend(all.iter().map(|of| {
        let [commands, bytes, waiting, wanted] =
            [of.commands, of.bytes, of.waiting, of.waiting_bytes].map(|number| number.to_string());
        vec![of.worker.to_string(), of.class.clone(), of.host.clone(), commands, bytes, waiting, wanted]
    }));
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Vec<&str>> {
        text.lines().map(|line| line.split_whitespace().collect()).collect()
    }

    #[test]
    fn namespaces_and_controllers_are_tables() {
        let subsystem = "nqn.2026-01.test:disk".to_owned();
        let ram = NvmfNamespace {
            subsystem: subsystem.clone(),
            nsid: 1,
            size: 1 << 20,
            block_size: 4096,
            ..Default::default()
        };
        let file =
            NvmfNamespace { file: Some("/srv/disk".to_owned()), read_only: true, checksums: true, ..ram.clone() };
        let text = show_namespaces(&[ram, file]);
        let rows = words(&text);
        assert_eq!(rows[1], ["nqn.2026-01.test:disk", "1", "1048576", "4096", "ram", "-"]);
        assert_eq!(rows[2][4..], ["/srv/disk", "read-only,checksums"]);
        let host = "nqn.2026-01.test:host".to_owned();
        let controller =
            NvmfController { id: 7, host, subsystem, queue_pairs: vec![17, 18], ready: true, ..Default::default() };
        let text = show_controllers(&[controller]);
        assert_eq!(
            words(&text)[1],
            ["7", "nqn.2026-01.test:host", "nqn.2026-01.test:disk", "-", "ready", "0x11", "0x12"]
        );
    }

    #[test]
    fn shares_are_a_table() {
        let (class, host) = ("io".to_owned(), "nqn.2026-01.test:host".to_owned());
        let share = NvmfShare { worker: 1, class, host, commands: 2, bytes: 8192, waiting: 7, waiting_bytes: 7 << 20 };
        let text = show_shares(&[share]);
        assert_eq!(words(&text)[1], ["1", "io", "nqn.2026-01.test:host", "2", "8192", "7", "7340032"]);
    }

    #[test]
    fn a_scrub_names_the_blocks() {
        let scrub = NvmfScrub { checked: 100, mismatches: vec![3, 9], rebuilt: vec![5], next: None };
        assert_eq!(
            show_scrub(&scrub),
            "100 blocks compared, 2 differ\ndiffers: block 3\ndiffers: block 9\nchecksum replaced: block 5\n"
        );
    }
}
