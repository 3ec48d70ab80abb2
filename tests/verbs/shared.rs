//! Several processes at one address.

use rxe_testkit::process::{Program, run};

use crate::Check;
use crate::case::Case;
use crate::client_output::{UCMATOSE, UDADDY, Wants};
use crate::pair::{Command, LIMIT, Pair, Ready, until, until_ready};
use crate::place::{Place, expect_code, with_input};
use crate::rdmacm::rping;
use crate::sockets;

/// All cases.
pub fn cases() -> Vec<Case> {
    let listens = Ready::Command(Command::Listen);
    let pingpong = "ibv_rc_pingpong -g 1 -p PORT -n 500";
    let pairs = [
        Pair::new(pingpong, format!("{pingpong} SERVER"), Wants::Messages { size: 4096, count: 500 }),
        rping("rping -s -a SERVER -C 50 -v -V", "rping -c -a SERVER -C 50 -v -V", 50).ready(listens),
        Pair::new("ucmatose -b SERVER -c 5", "ucmatose -s SERVER -c 5", UCMATOSE).ready(listens),
        Pair::new("udaddy -b SERVER", "udaddy -s SERVER", UDADDY).ready(listens),
    ];
    let mut cases: Vec<Case> = pairs.into_iter().map(|pair| pair.at_one_address().case("shared")).collect();
    cases.push(Case::new("shared/the address outlives its first process", outlives));
    cases
}

/// A program that has opened the device, and waits until its standard input ends.
const HOLDER: &str =
    "import pyverbs.device as d, sys; c = d.Context(name='rxe0'); print('open', flush=True); sys.stdin.read()";

/// A server and a client are guests of a third process, which is killed while they work.
fn outlives(place: &Place) -> Check {
    let (address, port) = (place.address(), sockets::free_port()?);
    let owner = with_input(place.program(address, "/usr/bin/python3 -c").arg(HOLDER))?;
    owner.wait_for_line("open", LIMIT)?;
    let command = format!("ib_send_bw -F -p {port} -s 4096 -n 5000");
    let mut server = Program::start(&mut place.program(address, &command))?;
    until_ready(&mut server, Ready::Tcp, port)?;
    let mut client = Program::start(&mut place.program(address, &format!("{command} {address}")))?;
    // Each has a row when it has its part of the port.
    let rows = || {
        let done = run(&mut place.rxe_run("--list"), LIMIT)?;
        Ok::<_, String>(done.stdout.lines().filter(|line| line.starts_with(&format!("{address} "))).count())
    };
    until(&mut client, "get a device", |_| rows().is_ok_and(|rows| rows == 3))?;
    owner.signal("KILL")?;
    for (side, program) in [("client", &mut client), ("server", &mut server)] {
        expect_code(&program.finish(LIMIT)?, 0).map_err(|why| format!("{side}: {why}"))?;
    }
    Ok(())
}
