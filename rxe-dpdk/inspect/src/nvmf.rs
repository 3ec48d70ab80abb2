//! Requests to the service `nvmf`, and its reports.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A request to the service `nvmf`. NQNs are text; NSIDs are numbers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum NvmfRequest {
    /// Every [`NvmfSubsystem`].
    Subsystems,
    /// Adds a subsystem. The answer is `null`.
    AddSubsystem {
        /// The keys of a `[[service.nvmf.subsystem]]` of the configuration file.
        subsystem: BTreeMap<String, Value>,
    },
    /// Removes a subsystem. The answer is `null`.
    RemoveSubsystem {
        /// NQN of the subsystem.
        subsystem: String,
        /// Remove it although hosts use it: they are disconnected.
        #[serde(default)]
        force: bool,
    },
    /// Every [`NvmfNamespace`].
    Namespaces,
    /// Adds a namespace. The answer is its NSID.
    AddNamespace {
        /// NQN of its subsystem.
        subsystem: String,
        /// The keys of a `[[service.nvmf.subsystem.namespace]]` of the configuration file. Without `nsid` it gets the lowest
        /// number that is free.
        namespace: BTreeMap<String, Value>,
    },
    /// Removes a namespace; its commands in progress are completed. The answer is `null`.
    RemoveNamespace {
        /// NQN of its subsystem.
        subsystem: String,
        /// NSID of the namespace.
        nsid: u32,
        /// Remove it although hosts use the subsystem: they lose the disk.
        #[serde(default)]
        force: bool,
    },
    /// Lets hosts write to a namespace again of whose file a flush failed. The answer is `null`.
    RecoverNamespace {
        /// NQN of its subsystem.
        subsystem: String,
        /// NSID of the namespace.
        nsid: u32,
    },
    /// Gives hosts the size that the file or device of a namespace has. The answer is the size in bytes.
    ResizeNamespace {
        /// NQN of its subsystem.
        subsystem: String,
        /// NSID of the namespace.
        nsid: u32,
        /// The size as text, as `2G`: a shorter file is extended to it before.
        size: Option<String>,
    },
    /// Every [`NvmfHost`]: the hosts in the lists of the subsystems.
    Hosts,
    /// Adds a host to the list of a subsystem. The answer is `null`.
    AddHost {
        /// NQN of the subsystem.
        subsystem: String,
        /// NQN of the host.
        host: String,
    },
    /// Removes a host from the list of a subsystem, and disconnects it. The answer is `null`.
    RemoveHost {
        /// NQN of the subsystem.
        subsystem: String,
        /// NQN of the host.
        host: String,
    },
    /// Every [`NvmfController`].
    Controllers,
    /// Every [`NvmfShare`]: what the hosts have of each worker's room for commands. Those of a worker and class that wait come
    /// first, in the order of their turns.
    Shares,
    /// Compares blocks of a namespace with their checksums. The answer is an [`NvmfScrub`], which may cover a part: request the
    /// next part from its `next` on.
    Scrub {
        /// NQN of the subsystem.
        subsystem: String,
        /// Number of the namespace.
        nsid: u32,
        /// 0 to begin, or `next` of the answer before.
        from: u64,
    },
}

impl NvmfRequest {
    /// Whether the request changes nothing, so that it may be repeated.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        matches!(
            self,
            NvmfRequest::Subsystems
                | NvmfRequest::Namespaces
                | NvmfRequest::Hosts
                | NvmfRequest::Controllers
                | NvmfRequest::Shares
        )
    }
}

/// A subsystem.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NvmfSubsystem {
    /// NQN of the subsystem.
    pub nqn: String,
    /// Serial number that hosts see.
    pub serial: String,
    /// Model number that hosts see.
    pub model: String,
    /// Whether every host may use it; else those of [`NvmfRequest::Hosts`].
    pub any_host: bool,
    /// Number of namespaces.
    pub namespaces: u64,
    /// Number of controllers, each of a connected host.
    pub controllers: u64,
}

/// A namespace.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NvmfNamespace {
    /// NQN of its subsystem.
    pub subsystem: String,
    /// NSID, from 1.
    pub nsid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Size of a block in bytes.
    pub block_size: u64,
    /// The file or device; `None` for memory.
    pub file: Option<String>,
    /// Whether hosts can only read it.
    pub read_only: bool,
    /// Whether each block has a checksum.
    pub checksums: bool,
    /// UUID that hosts see.
    pub uuid: String,
}

/// A host that may use a subsystem.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NvmfHost {
    /// NQN of the subsystem.
    pub subsystem: String,
    /// NQN of the host.
    pub host: String,
}

/// A controller: a connected host.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NvmfController {
    /// Controller id (CNTLID).
    pub id: u16,
    /// NQN of the host.
    pub host: String,
    /// NQN of the subsystem.
    pub subsystem: String,
    /// Address of the host; `None` if the connection has just ended.
    pub address: Option<String>,
    /// Number of queue pairs, that of the admin queue first.
    pub queue_pairs: Vec<u32>,
    /// Whether the host has enabled the controller.
    pub ready: bool,
}

/// What a host has of a worker's room for commands, and what it waits for.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NvmfShare {
    /// The worker.
    pub worker: u32,
    /// `io`, or `admin` for Connects and admin commands, which have memory of their own.
    pub class: String,
    /// NQN of the host, or its address before it has sent a Connect; `-` if it has disconnected.
    pub host: String,
    /// Number of commands in progress; 0 of class `admin`, where only memory counts.
    pub commands: u64,
    /// Bytes of staging memory that they have.
    pub bytes: u64,
    /// Number of commands that wait for a place or for memory.
    pub waiting: u64,
    /// Bytes that these need.
    pub waiting_bytes: u64,
}

/// A part of a scrub.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NvmfScrub {
    /// Number of blocks compared in this part.
    pub checked: u64,
    /// Numbers of the blocks that differ from their checksum.
    pub mismatches: Vec<u64>,
    /// Numbers of the blocks whose checksum was replaced, as the target had ended while they were written.
    pub rebuilt: Vec<u64>,
    /// The first block of the next part; `None` at the end.
    pub next: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Request;

    #[test]
    fn requests_have_the_documented_form() {
        let line =
            r#"{"verb":"nvmf","do":"remove-namespace","subsystem":"nqn.2026-01.test:disk","nsid":2,"force":true}"#;
        let request = Request::Nvmf(NvmfRequest::RemoveNamespace {
            subsystem: "nqn.2026-01.test:disk".into(),
            nsid: 2,
            force: true,
        });
        assert_eq!(serde_json::to_string(&request).unwrap(), line);
        assert_eq!(serde_json::from_str::<Request>(line).unwrap(), request);
        assert!(!request.is_read_only());
        let list = serde_json::from_str::<Request>(r#"{"verb":"nvmf","do":"controllers"}"#).unwrap();
        assert_eq!((list.is_read_only(), list), (true, Request::Nvmf(NvmfRequest::Controllers)));
        assert!(serde_json::from_str::<Request>(r#"{"verb":"nvmf","do":"dance"}"#).is_err());
    }
}
