//! docs/management-protocol.md has every verb, and its examples are those of this version.

use std::collections::BTreeSet;

use rxe_inspect::capture::CaptureStatus;
use rxe_inspect::event::{Event, EventKind};
use rxe_inspect::fault::Fault;
use rxe_inspect::latency::Latency;
use rxe_inspect::nvmf::{NvmfController, NvmfHost, NvmfNamespace, NvmfScrub, NvmfShare, NvmfSubsystem};
use rxe_inspect::protocol::{MAX_REQUEST, Reply, Request};
use rxe_inspect::reload::Reload;
use rxe_inspect::report::{
    Address, AllowedPeers, CounterGroup, Device, LcoreResources, Mr, Page, Qp, Region, RegionDigest, Service,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::read;

/// All verbs, those of disks as `nvmf` with their `do`: an unknown one is refused with a list of them.
fn verbs() -> BTreeSet<String> {
    let mut verbs = expected(serde_json::from_str::<Request>(r#"{"verb":"dance"}"#).map(|_| ()));
    assert!(verbs.remove("nvmf"));
    let of_disks = expected(serde_json::from_str::<Request>(r#"{"verb":"nvmf","do":"dance"}"#).map(|_| ()));
    verbs.extend(of_disks.into_iter().map(|verb| format!("nvmf {verb}")));
    verbs
}

/// The name of a request's verb in [`verbs`].
fn verb_of(request: &Value) -> String {
    let verb = request["verb"].as_str().unwrap();
    request["do"].as_str().map_or_else(|| verb.to_owned(), |of_disks| format!("{verb} {of_disks}"))
}

/// Likewise all types of events.
fn kinds_of_events() -> BTreeSet<String> {
    expected(serde_json::from_str::<EventKind>(r#"{"type":"dance"}"#).map(|_| ()))
}

fn expected(refused: Result<(), serde_json::Error>) -> BTreeSet<String> {
    let refused = refused.unwrap_err().to_string();
    let (_, list) = refused.split_once("expected one of ").unwrap_or_else(|| panic!("{refused}"));
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Checks that an answer has all keys of a `T`, and no others.
fn check<T: DeserializeOwned + Serialize>(answer: Value) {
    let parsed: T = serde_json::from_value(answer.clone()).unwrap_or_else(|error| panic!("{answer}: {error}"));
    assert_eq!(serde_json::to_value(&parsed).unwrap(), answer);
}

fn check_answer(verb: &str, answer: Value) {
    match verb {
        "device" => check::<Device>(answer),
        "resources" => check::<Vec<LcoreResources>>(answer),
        "qps" => check::<Page<Qp>>(answer),
        "qp" => check::<Qp>(answer),
        "mrs" => check::<Page<Mr>>(answer),
        "digest" => check::<RegionDigest>(answer),
        "regions" => check::<Vec<Region>>(answer),
        "addresses" => check::<Vec<Address>>(answer),
        "config" => check::<String>(answer),
        "reload" => check::<Reload>(answer),
        "latency" => check::<Latency>(answer),
        "counters" => check::<Vec<CounterGroup>>(answer),
        "services" => check::<Vec<Service>>(answer),
        "peers" => check::<Vec<AllowedPeers>>(answer),
        "faults" => check::<Vec<Fault>>(answer),
        "add-fault" | "nvmf add-namespace" => check::<u32>(answer),
        "nvmf subsystems" => check::<Vec<NvmfSubsystem>>(answer),
        "nvmf namespaces" => check::<Vec<NvmfNamespace>>(answer),
        "nvmf resize-namespace" => check::<u64>(answer),
        "nvmf hosts" => check::<Vec<NvmfHost>>(answer),
        "nvmf controllers" => check::<Vec<NvmfController>>(answer),
        "nvmf shares" => check::<Vec<NvmfShare>>(answer),
        "nvmf scrub" => check::<NvmfScrub>(answer),
        "capture-start" | "capture-status" | "capture-stop" => check::<CaptureStatus>(answer),
        _ => check::<()>(answer),
    }
}

#[test]
fn the_protocol_page_has_every_verb_with_a_request_and_its_answer() {
    let page = read("docs/management-protocol.md");
    let mut shown = BTreeSet::new();
    let (mut asked, mut events) = (None, BTreeSet::new());
    for line in page.lines() {
        if let Some(text) = line.strip_prefix("-> ") {
            let request: Request = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            let request = serde_json::to_value(&request).unwrap();
            let written: Value = serde_json::from_str(text).unwrap();
            assert_eq!(request, written, "the example shows all arguments");
            assert_eq!(asked.replace(verb_of(&request)), None, "{text} follows a request");
        } else if let Some(text) = line.strip_prefix("<- {\"event\":").and_then(|rest| rest.strip_suffix('}')) {
            let event: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            check::<Event>(event.clone());
            events.insert(event["type"].as_str().unwrap().to_owned());
        } else if let Some(text) = line.strip_prefix("<- ") {
            let verb = asked.take().unwrap_or_else(|| panic!("no request before {text}"));
            match serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}")) {
                Reply::Answer(answer) => {
                    check_answer(&verb, answer);
                    shown.insert(verb);
                }
                Reply::Error(sentence) => assert!(!sentence.is_empty()),
                Reply::Event(_) => panic!("{text} answers {verb}"),
            }
        }
    }
    assert_eq!(asked, None, "a request without an answer");
    assert_eq!(shown, verbs());
    assert_eq!(events, kinds_of_events());
    assert!(shown.len() > 15, "{shown:?}");
    assert!(page.contains("at most 65,536 bytes"));
    assert_eq!(MAX_REQUEST, 65_536);
}
