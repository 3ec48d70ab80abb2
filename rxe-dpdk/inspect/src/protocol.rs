//! How a target is asked: one line of JSON per request, one line of JSON per answer, in turn.
//!
//! ```text
//! -> {"verb":"qps","start":0}
//! <- {"answer":{"items":[...],"next":64}}
//! -> {"verb":"qp","qpn":1}
//! <- {"error":"there is no queue pair 0x1"}
//! ```

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::capture::CaptureSettings;

/// The longest request.
pub const MAX_REQUEST: u64 = 64 << 10;

/// What a target can be asked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The [`Device`](crate::report::Device).
    Device,
    /// [`LcoreResources`](crate::report::LcoreResources) of every lcore.
    Resources,
    /// A [`Page`](crate::report::Page) of [`Qp`](crate::report::Qp)s.
    Qps {
        /// 0, or what the page before named as next.
        start: u32,
    },
    /// One [`Qp`](crate::report::Qp).
    Qp {
        /// Its number.
        qpn: u32,
    },
    /// A [`Page`](crate::report::Page) of [`Mr`](crate::report::Mr)s.
    Mrs {
        /// 0, or what the page before named as next.
        start: u32,
    },
    /// A [`RegionDigest`](crate::report::RegionDigest). It may cover fewer bytes than requested, from the same offset on:
    /// request the digest of the others then.
    Digest {
        /// Name of the region.
        name: String,
        /// First byte, counted from the start of the region.
        offset: u64,
        /// Number of bytes; `None` for all up to the end of the region.
        length: Option<u64>,
    },
    /// Every [`CounterGroup`](crate::report::CounterGroup).
    Counters,
    /// Every [`Service`](crate::report::Service).
    Services,
    /// Ends the connection of a queue pair, or takes one without a connection to the error state. No answer but `null`.
    Disconnect {
        /// Its number.
        qpn: u32,
    },
    /// Every [`Fault`](crate::fault::Fault).
    Faults,
    /// Makes a fault from now on. The answer is its number.
    AddFault {
        /// The keys of a `[[fault.rule]]` of the configuration file, with their values as texts.
        rule: BTreeMap<String, String>,
    },
    /// Ends a fault. No answer but `null`.
    RemoveFault {
        /// Its number.
        id: u32,
    },
    /// Ends all faults. No answer but `null`.
    ClearFaults,
    /// Logs from this level on. No answer but `null`.
    SetLog {
        /// `error`, `warn`, `info`, `debug` or `trace`.
        level: String,
    },
    /// Starts a capture. The answer is its [`CaptureStatus`](crate::capture::CaptureStatus).
    CaptureStart {
        /// What to capture.
        settings: CaptureSettings,
    },
    /// Ends the capture. The answer is its last [`CaptureStatus`](crate::capture::CaptureStatus).
    CaptureStop,
    /// The [`CaptureStatus`](crate::capture::CaptureStatus) of the capture that is running, or was the last one.
    CaptureStatus,
}

impl Request {
    /// Whether it changes nothing, so that it may be asked twice.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        match self {
            Request::Device
            | Request::Resources
            | Request::Qps { .. }
            | Request::Qp { .. }
            | Request::Mrs { .. }
            | Request::Digest { .. }
            | Request::Counters
            | Request::Services
            | Request::Faults
            | Request::CaptureStatus => true,
            Request::Disconnect { .. }
            | Request::AddFault { .. }
            | Request::RemoveFault { .. }
            | Request::ClearFaults
            | Request::SetLog { .. }
            | Request::CaptureStart { .. }
            | Request::CaptureStop => false,
        }
    }
}

/// What comes back.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// What was asked for.
    Answer(Value),
    /// Why not, in a sentence.
    Error(String),
}

impl Reply {
    /// The answer to something that cannot be written as JSON is an error too.
    pub fn of<T: Serialize>(answer: Result<T, String>) -> Reply {
        match answer.map(|answer| serde_json::to_value(answer)) {
            Ok(Ok(value)) => Reply::Answer(value),
            Ok(Err(error)) => Reply::Error(format!("the answer cannot be written: {error}")),
            Err(sentence) => Reply::Error(sentence),
        }
    }

    /// As what it should be.
    ///
    /// # Errors
    /// The target's sentence, or one that says that the two do not understand each other.
    pub fn read<T: DeserializeOwned>(self) -> Result<T, String> {
        match self {
            Reply::Answer(value) => serde_json::from_value(value).map_err(|error| {
                format!("the target's answer makes no sense ({error}): rxe-ctl and rxe-target must be of one version")
            }),
            Reply::Error(sentence) => Err(sentence),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_replies_read_as_the_documentation_says() {
        let line = serde_json::to_string(&Request::Qps { start: 0 }).unwrap();
        assert_eq!(line, r#"{"verb":"qps","start":0}"#);
        assert_eq!(serde_json::from_str::<Request>(&line).unwrap(), Request::Qps { start: 0 });
        let request = serde_json::from_str::<Request>(r#"{"verb":"set-log","level":"debug"}"#).unwrap();
        assert_eq!(request, Request::SetLog { level: "debug".to_owned() });
        assert!(serde_json::from_str::<Request>(r#"{"verb":"dance"}"#).is_err());

        let reply = Reply::of(Ok::<_, String>([1, 2]));
        assert_eq!(serde_json::to_string(&reply).unwrap(), r#"{"answer":[1,2]}"#);
        assert_eq!(reply.clone().read::<Vec<u32>>(), Ok(vec![1, 2]));
        assert!(reply.read::<String>().unwrap_err().contains("must be of one version"));
        let reply = Reply::of(Err::<(), _>("no".to_owned()));
        assert_eq!(serde_json::to_string(&reply).unwrap(), r#"{"error":"no"}"#);
        assert_eq!(reply.read::<()>(), Err("no".to_owned()));
        assert_eq!(Reply::of(Ok::<_, String>(())).read::<()>(), Ok(()));
    }
}
