//! librdmacm's small programs.

use crate::case::Case;
use crate::client_output::{UCMATOSE, UDADDY, Wants};
use crate::pair::{Command, Pair, Ready};

const CMATOSE_SERVER: Wants = Wants::Texts(&["data transfers complete", "return status 0"]);
const NO_MESSAGES: Wants = Wants::Texts(&["test complete", "return status 0"]);
const MCKEY_RECEIVES: Wants = Wants::Texts(&["joined dgid:", "data transfers complete", "return status 0"]);
const MCKEY_SENDS: Wants = Wants::Texts(&["initiating data transfers", "data transfers complete", "return status 0"]);

/// All pairs.
pub fn cases() -> Vec<Case> {
    let listens = Ready::Command(Command::Listen);
    let mut pairs = Vec::new();
    for (flags, pings) in [("-C 100 -v -V", 100), ("-C 20 -v -V -S 60000", 20), ("-C 20 -v -V -q", 20)] {
        let client = format!("rping -c -a SERVER {flags}");
        pairs.push(rping(format!("rping -s -a SERVER {flags}"), client, pings));
    }
    // A source address, and a server that goes on.
    let persistent = rping("rping -s -P -a SERVER", "rping -c -a SERVER -I CLIENT -C 3 -v -V", 3);
    pairs.push(persistent.runs_for_ever());
    for flags in ["", " -c 10", " -C 3 -S 33333", " -m", " -C 0"] {
        let (client_wants, server_wants) =
            if flags == " -C 0" { (NO_MESSAGES, NO_MESSAGES) } else { (UCMATOSE, CMATOSE_SERVER) };
        let client = format!("ucmatose -s SERVER{flags}");
        pairs.push(Pair::new(format!("ucmatose -b SERVER{flags}"), client, client_wants).server_wants(server_wants));
    }
    for flags in ["", " -c 10", " -C 100 -S 4000"] {
        let client = format!("udaddy -s SERVER{flags}");
        pairs.push(Pair::new(format!("udaddy -b SERVER{flags}"), client, UDADDY).server_wants(CMATOSE_SERVER));
    }
    for count in [1, 50] {
        let client = format!("cmtime -s SERVER -c {count}");
        pairs.push(Pair::new(format!("cmtime -b SERVER -c {count}"), client, Wants::Steps).runs_for_ever());
    }
    pairs.push(Pair::new("rdma_server -s SERVER", "rdma_client -s SERVER", Wants::Texts(&["rdma_client: end 0"])));
    pairs.push(Pair::new("rdma_xserver -c r", "rdma_xclient -s SERVER -c r", Wants::Texts(&["rdma_xclient: end 0"])));

    let mut cases: Vec<Case> = pairs.into_iter().map(|pair| pair.ready(listens).case("rdmacm")).collect();
    for flags in ["", " -C 100 -S 4000"] {
        let receiver = format!("mckey -m 239.7.7.7 -b SERVER{flags}");
        let sender = format!("mckey -m 239.7.7.7 -b CLIENT -s{flags}");
        let joined = Ready::Command(Command::JoinMulticast);
        let pair = Pair::new(receiver, sender, MCKEY_SENDS).ready(joined).server_wants(MCKEY_RECEIVES);
        cases.push(pair.case("rdmacm"));
    }
    cases
}

/// A pair of rping. At its end one thread of it may begin to wait for an event of the channel that another one has just closed.
pub fn rping(server: impl Into<String>, client: impl Into<String>, pings: usize) -> Pair {
    Pair::new(server, client, Wants::Pings(pings)).may_fail_with("rdma_get_cm_event: Bad file descriptor")
}
