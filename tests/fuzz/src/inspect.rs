//! The management protocol: requests as they arrive in pieces, and answers of every kind.
//!
//! Both are JSON; what parses is written again with the same meaning, in one line.

use std::fmt::Debug;

use rxe_inspect::capture::CaptureStatus;
use rxe_inspect::fault::Fault;
use rxe_inspect::protocol::{MAX_REQUEST, Reply, Request, RequestReader};
use rxe_inspect::report::{
    AllowedPeers, CounterGroup, Device, LcoreResources, Mr, Page, Qp, Region, RegionDigest, Service, sum,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Reads the bytes behind the first one as requests, in pieces as long as the first byte says, and each line as an answer.
pub fn run(data: &[u8]) {
    let Some((&piece, data)) = data.split_first() else { return };
    requests(data, usize::from(piece) + 1);
    for line in data.split(|byte| *byte == b'\n') {
        answers(line);
    }
}

fn requests(data: &[u8], piece: usize) {
    let mut lines = data.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
    let mut reader = RequestReader::default();
    for part in data.chunks(piece) {
        reader.push(part);
        loop {
            match reader.next_request() {
                Ok(None) => break,
                Ok(Some(request)) => {
                    // The same as of the whole line.
                    let line = lines.next().expect("a line for each request");
                    let expected = serde_json::from_slice::<Request>(line);
                    assert_eq!(request.as_ref().ok(), expected.as_ref().ok());
                    match request {
                        Ok(request) => examine(&request),
                        Err(sentence) => answers(&serde_json::to_vec(&Reply::Error(sentence)).expect("written")),
                    }
                }
                Err(too_long) => {
                    let line = lines.next().map_or(data.len(), <[u8]>::len);
                    assert!(line as u64 > MAX_REQUEST, "{too_long}: {line}");
                    return;
                }
            }
        }
    }
    assert_eq!(lines.next(), None, "a line without a request");
}

fn examine(request: &Request) {
    assert_eq!(written_again(request), *request);
    if let Request::CaptureStart { settings } = request {
        assert!(!request.is_read_only());
        let _ = settings.check();
    }
}

fn answers(line: &[u8]) {
    let Ok(reply) = serde_json::from_slice::<Reply>(line) else { return };
    assert_eq!(rounded(&written_again(&reply)), rounded(&reply));
    answer::<()>(&reply);
    answer::<u32>(&reply);
    answer::<Device>(&reply);
    answer::<Vec<LcoreResources>>(&reply);
    answer::<Page<Qp>>(&reply);
    answer::<Qp>(&reply);
    answer::<Page<Mr>>(&reply);
    answer::<RegionDigest>(&reply);
    answer::<Vec<Region>>(&reply);
    answer::<Vec<AllowedPeers>>(&reply);
    answer::<Vec<CounterGroup>>(&reply);
    if let Ok(groups) = reply.clone().read::<Vec<CounterGroup>>() {
        assert!(sum(&groups).len() <= groups.len());
    }
    answer::<Vec<Service>>(&reply);
    answer::<Vec<Fault>>(&reply);
    answer::<CaptureStatus>(&reply);
}

/// The answer as a `T`: what is written for it is the same `T`.
fn answer<T: Serialize + DeserializeOwned + Debug>(reply: &Reply) {
    match reply.clone().read::<T>() {
        Ok(value) => {
            let again = written_again(&value);
            assert_eq!(rounded(&again), rounded(&value));
            let again = Reply::of(Ok(again)).read::<T>().unwrap_or_else(|sentence| panic!("{value:?}: {sentence}"));
            assert_eq!(rounded(&again), rounded(&value));
        }
        Err(sentence) => assert!(!sentence.is_empty() || matches!(reply, Reply::Error(_))),
    }
}

/// The value with 12 digits of each fraction: serde_json does not parse every last digit.
fn rounded(value: &impl Serialize) -> Value {
    fn round(value: &mut Value) {
        match value {
            Value::Number(number) if number.is_f64() => {
                *value = format!("{:.12e}", number.as_f64().unwrap_or_default()).into();
            }
            Value::Array(values) => values.iter_mut().for_each(round),
            Value::Object(values) => values.values_mut().for_each(round),
            _ => {}
        }
    }
    let mut value = serde_json::to_value(value).expect("a value");
    round(&mut value);
    value
}

fn written_again<T: Serialize + DeserializeOwned>(value: &T) -> T {
    let text = serde_json::to_string(value).expect("written");
    assert!(!text.contains('\n'), "{text}");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"))
}
