//! Mutated dialogues of the connection manager, from many addresses: messages in any order, repeated, with wrong fields, given
//! up half way. Connections of others are made meanwhile, and in the end the target has given everything back.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rxe_dpdk::rxe_proto::wire::{DropReason, PathMtu};
use rxe_inspect::client::Client;
use rxe_inspect::protocol::Request;
use rxe_inspect::report::{LcoreResources, Resources};

use super::dialogue_host::DialogueHost;
use super::rng::Rng;
use super::{accounting, check_log, from_env};
use crate::Target;
use crate::initiator::Initiator;

/// Dialogues in `make test`; RXE_HOSTILE_DIALOGUES is another number.
const DIALOGUES: u64 = 100_000;

/// Messages that are sent before a WRITE of another connection is waited for.
const BURSTS: [u64; 3] = [16, 64, 128];

/// Dialogues between two connections of the initiator.
const ROUND: u64 = 5_000;

/// The target disconnects silent clients soon, but not those that a busy machine stops for a few seconds; these lines continue the
/// section `[transport]`.
pub const SETTINGS: &str = "\
keep-alive = 4
[service.rping]
idle-timeout = \"5s\"
[service.rdma-server]
idle-timeout = \"5s\"
[service.ucmatose]
idle-timeout = \"5s\"
[service.cmtime]
idle-timeout = \"5s\"
[service.rdma-example]
idle-timeout = \"5s\"
[service.udaddy]
idle-timeout = \"5s\"
";

/// The longest that the target may hold the resources of a dialogue: an unconfirmed connection 8 s after the last REQ, then the
/// DREQs that nobody answers; and more on a busy machine.
const FREE_WITHIN: Duration = Duration::from_secs(60);

/// Answered SIDR requests are remembered for 70 s.
const SIDR_FREE_WITHIN: Duration = Duration::from_secs(120);

/// Drops that show how deep the dialogues reach.
const REACHED: [DropReason; 7] = {
    use DropReason::*;
    [MadMalformed, MadUnsupported, CmUnknownId, CmUnexpected, CmDuplicate, CmForeign, GsiSource]
};

/// Numbers of objects of the target's only lcore, which a busy machine may stop for a while.
fn resources(client: &mut Client) -> Resources {
    let began = Instant::now();
    loop {
        match client.ask::<Vec<LcoreResources>>(&Request::Resources) {
            Ok(lcores) => return lcores[0].resources,
            Err(error) => assert!(began.elapsed() < FREE_WITHIN, "{error}"),
        }
    }
}

pub fn leave_nothing_behind(initiator: &mut Initiator, target: Target) {
    let dialogues = from_env("RXE_HOSTILE_DIALOGUES", DIALOGUES);
    let rng = Rng::seeded();
    let mut client = Client::connect(&rxe_inspect::socket::path(&target.prefix)).unwrap();
    let mut connection = initiator.connect(4792, "demo", PathMtu::Mtu4096);
    let before = resources(&mut client);
    assert_eq!((before.conn, before.qp), (1, 1));

    let host = Rc::new(RefCell::new(DialogueHost::new(target.mac.parse().unwrap(), rng)));
    initiator.neighbour = Some(host.clone());
    let began = Instant::now();
    let (mut most, mut begun) = (before, 0);
    while begun < dialogues {
        let round = (begun + ROUND).min(dialogues);
        host.borrow_mut().dialogues_left = round - begun;
        begun = round;
        while !host.borrow().is_done() {
            let messages = host.borrow().rng.pick(&BURSTS);
            host.borrow_mut().messages_left = messages;
            initiator.wait_for(|| host.borrow().messages_left == 0 || host.borrow().is_done());
            connection.write(initiator, 0, &begun.to_ne_bytes());
        }
        let message = std::array::from_fn(|_| host.borrow().rng.next() as u8);
        assert_eq!(initiator.exchange(message), message);
        let now = resources(&mut client);
        (most.qp, most.conn, most.sidr) = (most.qp.max(now.qp), most.conn.max(now.conn), most.sidr.max(now.sidr));
    }
    let took = began.elapsed();
    let counts = host.borrow().counts();
    // Answers of the attacker to late messages, as a host would give them, are a part of the dialogues.
    // Services keep protection domains and keys of as many clients as there were at one time.
    let held = |now: &Resources| (now.qp, now.conn, now.cm_id, now.ah);
    let is_free = |now: &Resources| held(now) == held(&before);
    let free = Instant::now();
    let mut now = resources(&mut client);
    while !is_free(&now) {
        assert!(free.elapsed() < FREE_WITHIN, "{now:?}, and at the start {before:?}");
        initiator.turn_for(Duration::from_millis(50));
        now = resources(&mut client);
    }
    println!(
        "{dialogues} dialogues in {took:?}: {counts:?}; at most {} queue pairs, {} connections, {} SIDR requests; all but \
         those free after {:?}",
        most.qp,
        most.conn,
        most.sidr,
        free.elapsed()
    );
    assert!(now.timer <= now.qp && now.tcp == 0, "{now:?}");
    if dialogues > DIALOGUES {
        let free = Instant::now();
        while resources(&mut client).sidr > 0 {
            assert!(free.elapsed() < SIDR_FREE_WITHIN, "{:?}", resources(&mut client));
            initiator.turn_for(Duration::from_millis(200));
        }
    }
    initiator.neighbour = None;
    assert!(
        counts.replies > dialogues / 10 && counts.confirmed > dialogues / 100,
        "dialogues reach services: {counts:?}"
    );
    connection.write(initiator, 64, b"after all");
    assert_eq!(connection.read(initiator, 64, 9), b"after all");
    let message = *b"a last exchange.";
    assert_eq!(initiator.exchange(message), message);
    connection.disconnect(initiator);
    check_log(&target);
    accounting(initiator, target, &REACHED);
}
