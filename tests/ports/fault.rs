//! Faults that `rxe-ctl fault` adds and removes while the target runs, and how the initiator recovers.

use rxe_dpdk::rxe_proto::transport::WcStatus;
use rxe_dpdk::rxe_proto::wire::PathMtu;

use crate::Target;
use crate::initiator::Initiator;
use crate::operate::{contains, ctl, json, refused, rxe_ctl};

/// Counters of a fault: frames that matched, and frames to which it was applied.
fn done(target: &Target, id: u64) -> (u64, u64) {
    let faults = json(target, "fault list");
    let fault = faults.as_array().unwrap().iter().find(|fault| fault["id"] == id);
    let number = |key: &str| fault.unwrap_or_else(|| panic!("no {id} in {faults}"))[key].as_u64().unwrap();
    (number("matched"), number("hits"))
}

fn rnrs_sent(target: &Target) -> u64 {
    json(target, "stat")["hw_counters"]["send_rnr_err"].as_u64().unwrap()
}

/// Makes one fault after the other.
pub fn make_some(initiator: &mut Initiator, target: &Target) {
    mistakes(target);
    assert_eq!(ctl(target, "fault list"), "ID  MATCHED  HITS  LEFT  FAULT\n");
    let mut connection = initiator.connect(4792, "demo", PathMtu::Mtu4096);

    assert_eq!(ctl(target, "fault add drop --opcode RC_WRITE_ONLY --count 1"), "1\n");
    connection.write(initiator, 0, b"lost at first");
    assert_eq!((connection.read(initiator, 0, 13).as_slice(), done(target, 1)), (&b"lost at first"[..], (1, 1)));
    contains(&ctl(target, "fault list"), &["\n 1        1     1     0  rx drop opcode=RC_WRITE_ONLY count=1\n"]);
    contains(&target.log_line("the fault 1 was added: "), &["WARN", "rx drop opcode=RC_WRITE_ONLY"]);

    let before = rnrs_sent(target);
    assert_eq!(ctl(target, "fault add rnr 10us --opcode WRITE_ONLY --count 3"), "2\n");
    connection.write(initiator, 0, b"not now");
    assert_eq!((connection.read(initiator, 0, 7).as_slice(), done(target, 2)), (&b"not now"[..], (3, 3)));
    assert!((1..=3).contains(&(rnrs_sent(target) - before)));

    // Responses of ours, of which there is more than one.
    assert_eq!(ctl(target, "fault add corrupt-payload --direction tx --opcode READ_RESPONSE --count 2"), "3\n");
    let bytes: Vec<u8> = (0..20_000).map(|i| (i % 251) as u8).collect();
    connection.write(initiator, 0, &bytes);
    assert!(connection.read(initiator, 0, bytes.len()) == bytes);
    assert_eq!(done(target, 3), (2, 2));

    // A removed fault is not applied any more.
    assert_eq!(ctl(target, "fault add drop --opcode FETCH_ADD"), "4\n");
    assert_eq!(ctl(target, "fault remove 4"), "");
    connection.write(initiator, 64, &[0; 8]);
    assert_eq!(connection.fetch_add(initiator, 64, 5), 0);

    assert_eq!(json(target, "fault add nak remote-access --count 1"), 5);
    let status = connection.refused_write(initiator, 0, b"never");
    assert_eq!(status, WcStatus::RemAccessErr);
    connection.await_disconnect(initiator);
    contains(&target.log_line("a fault made on purpose refused a request"), &["WARN", "injected", "RC WRITE_ONLY"]);

    let ids: Vec<_> = json(target, "fault list").as_array().unwrap().iter().map(|fault| fault["id"].clone()).collect();
    assert_eq!(ids, [1, 2, 3, 5]);
    assert_eq!(ctl(target, "fault clear"), "");
    assert_eq!(json(target, "fault list"), serde_json::json!([]));
}

fn mistakes(target: &Target) {
    let ctl = |words: &str| {
        let mut command = rxe_ctl();
        command.args(["--file-prefix", &target.prefix, "fault"]).args(words.split(' '));
        command
    };
    refused(&mut ctl("add nak"), "the action 'nak' needs a code: it is psn-sequence,");
    refused(&mut ctl("add drop --opcode SEND_SOME"), "'SEND_SOME' is no opcode");
    refused(&mut ctl("add drop now"), "the fault 'drop' takes no value: leave 'now' out");
    refused(&mut ctl("remove 99"), "there is no fault 99");
}
