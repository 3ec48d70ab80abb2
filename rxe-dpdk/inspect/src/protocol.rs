//! Requests and answers: one line of JSON each, in turn.
//!
//! ```text
//! -> {"verb":"qps","start":0}
//! <- {"answer":{"items":[...],"next":64}}
//! -> {"verb":"qp","qpn":1}
//! <- {"error":"there is no queue pair 0x1"}
//! -> {"verb":"events"}
//! <- {"answer":null}
//! <- {"event":{"time":"2026-01-31T23:59:59.123456Z","type":"connected","lqpn":1,...}}
//! ```
//!
//! After [`Request::Events`] the target sends [`Reply::Event`]s until the client closes the connection.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::capture::CaptureSettings;
use crate::event::Event;
use crate::nvmf::NvmfRequest;

/// Maximum size of a request, in bytes.
pub const MAX_REQUEST: u64 = 64 << 10;

/// A request to a target.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The [`Device`](crate::report::Device).
    Device,
    /// [`LcoreResources`](crate::report::LcoreResources) of every lcore.
    Resources,
    /// A [`Page`](crate::report::Page) of [`Qp`](crate::report::Qp)s.
    Qps {
        /// 0, or `next` of the page before.
        start: u32,
    },
    /// One [`Qp`](crate::report::Qp).
    Qp {
        /// Queue pair number.
        qpn: u32,
    },
    /// A [`Page`](crate::report::Page) of [`Mr`](crate::report::Mr)s.
    Mrs {
        /// 0, or `next` of the page before.
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
    /// Every [`Region`](crate::report::Region).
    Regions,
    /// Adds a named region. The answer is `null`.
    AddRegion {
        /// As the option `--region` of rxe-target has it.
        region: String,
    },
    /// Removes a named region. The answer is `null`.
    RemoveRegion {
        /// Its name; of numbered regions what comes before the number.
        name: String,
        /// Remove it although queue pairs can reach it: their requests for it are refused from then on.
        #[serde(default)]
        force: bool,
    },
    /// Every [`Address`](crate::report::Address) of every port.
    Addresses,
    /// Adds an address to a port. The answer is `null`.
    AddAddress {
        /// As the option `--address` of rxe-target has it.
        address: String,
    },
    /// Removes an address. The answer is `null`.
    RemoveAddress {
        /// The address, without a prefix length.
        address: String,
        /// Remove it although clients use it: they are disconnected.
        #[serde(default)]
        force: bool,
    },
    /// A configuration file that would start the target as it runs, as a string.
    Config,
    /// Applies the configuration file as it is now. The answer is a [`Reload`](crate::reload::Reload).
    Reload,
    /// Every [`CounterGroup`](crate::report::CounterGroup).
    Counters,
    /// The [`Latency`](crate::latency::Latency) of turns and operations.
    Latency,
    /// Every [`Service`](crate::report::Service).
    Services,
    /// Stops a service: it refuses new clients. The answer is `null`.
    StopService {
        /// Name of the service.
        name: String,
        /// Disconnect its clients too.
        #[serde(default)]
        force: bool,
    },
    /// Starts a service that was stopped. The answer is `null`.
    StartService {
        /// Name of the service.
        name: String,
    },
    /// Every port's, service's and region's [`AllowedPeers`](crate::report::AllowedPeers).
    Peers,
    /// Sets the allowed peers of a port, service or region. The answer is `null`.
    SetPeers {
        /// `port0`, `service:NAME` or `region:NAME`.
        of: String,
        /// Networks; empty for everyone.
        peers: Vec<String>,
    },
    /// Disconnects a queue pair; one without a connection moves to the error state. The answer is `null`.
    Disconnect {
        /// Queue pair number.
        qpn: u32,
    },
    /// Refuses new clients, and ends the target when no queue pair is left. The answer is `null`.
    Drain {
        /// The target ends after this time at the latest.
        seconds: u64,
    },
    /// Every [`Fault`](crate::fault::Fault).
    Faults,
    /// Adds a fault rule. The answer is its number.
    AddFault {
        /// The keys of a `[[fault.rule]]` of the configuration file, with their values as strings.
        rule: BTreeMap<String, String>,
    },
    /// Removes a fault rule. The answer is `null`.
    RemoveFault {
        /// Number of the rule.
        id: u32,
    },
    /// Removes all fault rules. The answer is `null`.
    ClearFaults,
    /// Sets the log level. The answer is `null`.
    SetLog {
        /// `error`, `warn`, `info`, `debug` or `trace`.
        level: String,
    },
    /// Starts a capture. The answer is its [`CaptureStatus`](crate::capture::CaptureStatus).
    CaptureStart {
        /// File, limits and filter.
        settings: CaptureSettings,
    },
    /// Stops the capture. The answer is its last [`CaptureStatus`](crate::capture::CaptureStatus).
    CaptureStop,
    /// The [`CaptureStatus`](crate::capture::CaptureStatus) of the capture that runs, or ran last.
    CaptureStatus,
    /// A request to the service `nvmf`.
    Nvmf(NvmfRequest),
    /// Further [`Event`]s, as they happen. The answer is `null`; the events follow, each a [`Reply::Event`]. The connection
    /// takes no further request.
    Events,
}

impl Request {
    /// Whether the request changes nothing, so that it may be repeated.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        match self {
            Request::Device
            | Request::Resources
            | Request::Qps { .. }
            | Request::Qp { .. }
            | Request::Mrs { .. }
            | Request::Digest { .. }
            | Request::Regions
            | Request::Addresses
            | Request::Config
            | Request::Counters
            | Request::Latency
            | Request::Services
            | Request::Peers
            | Request::Faults
            | Request::CaptureStatus
            | Request::Events => true,
            Request::Nvmf(request) => request.is_read_only(),
            Request::AddRegion { .. }
            | Request::AddAddress { .. }
            | Request::RemoveAddress { .. }
            | Request::Reload
            | Request::StopService { .. }
            | Request::StartService { .. }
            | Request::SetPeers { .. }
            | Request::RemoveRegion { .. }
            | Request::Disconnect { .. }
            | Request::Drain { .. }
            | Request::AddFault { .. }
            | Request::RemoveFault { .. }
            | Request::ClearFaults
            | Request::SetLog { .. }
            | Request::CaptureStart { .. }
            | Request::CaptureStop => false,
        }
    }
}

/// The requests in the bytes that a client sends, at most one of which is kept.
#[derive(Default, Debug)]
pub struct RequestReader {
    received: Vec<u8>,
    /// Bytes of `received` that are known to contain no line end.
    searched: usize,
}

/// A request longer than [`MAX_REQUEST`]: the connection cannot go on, as its rest has no beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the request is longer than {MAX_REQUEST} bytes")]
pub struct RequestTooLong;

impl RequestReader {
    /// Appends bytes of the client. Take all requests with [`next_request`](Self::next_request) before.
    pub fn push(&mut self, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
    }

    /// The next request, or a sentence that says why it is none; `None` when it is incomplete.
    ///
    /// # Errors
    /// [`RequestTooLong`].
    pub fn next_request(&mut self) -> Result<Option<Result<Request, String>>, RequestTooLong> {
        let end = self.received[self.searched..].iter().position(|byte| *byte == b'\n');
        let length = end.map_or(self.received.len(), |at| self.searched + at);
        if length as u64 > MAX_REQUEST {
            return Err(RequestTooLong);
        }
        if end.is_none() {
            self.searched = length;
            return Ok(None);
        }
        let rest = self.received.split_off(length + 1);
        let line = std::mem::replace(&mut self.received, rest);
        self.searched = 0;
        Ok(Some(serde_json::from_slice(&line).map_err(|error| {
            format!("the request cannot be parsed ({error}): rxe-ctl and rxe-target must be of one version")
        })))
    }
}

/// The answer to a request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// The requested data.
    Answer(Value),
    /// Why the request failed, in a sentence.
    Error(String),
    /// An event, after the answer to [`Request::Events`].
    Event(Event),
}

impl Reply {
    /// From a result. An answer that cannot be written as JSON becomes an error.
    pub fn of<T: Serialize>(answer: Result<T, String>) -> Reply {
        match answer.map(|answer| serde_json::to_value(answer)) {
            Ok(Ok(value)) => Reply::Answer(value),
            Ok(Err(error)) => Reply::Error(format!("the answer cannot be written: {error}")),
            Err(sentence) => Reply::Error(sentence),
        }
    }

    /// Parses the answer.
    ///
    /// # Errors
    /// The target's message, or that its answer cannot be parsed.
    pub fn read<T: DeserializeOwned>(self) -> Result<T, String> {
        match self {
            Reply::Answer(value) => serde_json::from_value(value).map_err(|error| {
                format!("the target's answer cannot be parsed ({error}): rxe-ctl and rxe-target must be of one version")
            }),
            Reply::Error(sentence) => Err(sentence),
            Reply::Event(_) => Err("the target sends an event instead of an answer".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_line_by_line() {
        let mut reader = RequestReader::default();
        for part in ["{\"verb\":", "\"device\"}\n{\"verb\":\"resources\"}\nx\n{\"ve"] {
            assert_eq!(reader.next_request(), Ok(None));
            reader.push(part.as_bytes());
        }
        assert_eq!(reader.next_request(), Ok(Some(Ok(Request::Device))));
        assert_eq!(reader.next_request(), Ok(Some(Ok(Request::Resources))));
        let sentence = reader.next_request().unwrap().unwrap().unwrap_err();
        assert!(sentence.starts_with("the request cannot be parsed (") && !sentence.contains('\n'), "{sentence}");
        assert_eq!(reader.next_request(), Ok(None));
        reader.push(b"rb\":\"services\"}\n");
        assert_eq!(reader.next_request(), Ok(Some(Ok(Request::Services))));

        let space = vec![b' '; MAX_REQUEST as usize - 17];
        for (end, expected) in
            [("\n", Ok(Some(Ok(Request::Device)))), (" \n", Err(RequestTooLong)), (" ", Err(RequestTooLong))]
        {
            reader = RequestReader::default();
            reader.push(br#"{"verb":"device"}"#);
            reader.push(&space);
            assert_eq!(reader.next_request(), Ok(None));
            reader.push(end.as_bytes());
            assert_eq!(reader.next_request(), expected);
        }
    }

    #[test]
    fn requests_and_replies_have_the_documented_form() {
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
