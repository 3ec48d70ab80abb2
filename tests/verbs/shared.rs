//! Several processes at one address.

use std::net::Ipv4Addr;

use rxe_testkit::process::{Program, run};

use crate::Check;
use crate::case::Case;
use crate::client_output::{UCMATOSE, UDADDY, Wants};
use crate::command::OPENER;
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
    cases.push(Case::new("shared/processes that start together all open the device", together));
    cases.push(Case::new("shared/the address outlives its first process", outlives));
    cases.push(Case::new("shared/a port has one listener", listener));
    cases.push(Case::new("shared/READs take at most twice the time of those between two addresses", reads));
    cases
}

/// As the ranks of an MPI program, and as short-lived processes: one after the other is the owner of the address.
fn together(place: &Place) -> Check {
    for _ in 0..3 {
        let address = place.address();
        let start = || Program::start(&mut place.program(address, "ibv_devinfo"));
        let programs: Vec<Program> = (0..12).map(|_| start()).collect::<Result<_, _>>()?;
        for mut program in programs {
            expect_code(&program.finish(LIMIT)?, 0)?;
        }
    }
    Ok(())
}

/// The second process could listen too, and no request ever reached it.
fn listener(place: &Place) -> Check {
    let address = place.address();
    let command = format!("rping -s -a {address} -v");
    let mut first = Program::start(&mut place.program(address, &command))?;
    until_ready(&mut first, Ready::Command(Command::Listen), 0)?;
    let second = run(&mut place.program(address, &command), LIMIT)?;
    if second.code != 0 && second.stderr.contains("rdma_bind_addr: Address already in use") {
        return Ok(());
    }
    Err(format!("exit code {}: {}", second.code, second.stderr))
}

/// A guest's port was full of what the owner sent, and whole batches of responses were dropped: up to 55 times as long. Each kind of pair has
/// as many runs, as other tests are running.
fn reads(place: &Place) -> Check {
    let (mut apart, mut together) = (0.0_f64, 0.0_f64);
    for _ in 0..6 {
        let (server, client) = (place.address(), place.address());
        apart = apart.max(read_bandwidth(place, server, client)?);
        together = together.max(read_bandwidth(place, server, server)?);
        if together > 0.0 && 2.0 * together >= apart {
            return Ok(());
        }
    }
    Err(format!("{together} MiB/s at one address, {apart} at two"))
}

/// MiB/s of READs of 1 MiB.
fn read_bandwidth(place: &Place, server: Ipv4Addr, client: Ipv4Addr) -> Result<f64, String> {
    let port = sockets::free_port()?;
    let command = format!("ib_read_bw -F -p {port} -s 1048576 -n 100");
    let mut serving = Program::start(&mut place.program(server, &command))?;
    until_ready(&mut serving, Ready::Tcp, port)?;
    let done = run(&mut place.program(client, &format!("{command} {server}")), LIMIT)?;
    expect_code(&done, 0)?;
    expect_code(&serving.finish(LIMIT)?, 0)?;
    // Bytes, iterations, peak, average.
    let row = done.stdout.lines().find_map(|line| line.trim_start().strip_prefix("1048576"));
    let average = row.and_then(|row| row.split_whitespace().nth(2)?.parse().ok());
    average.ok_or_else(|| format!("no row of figures: {}", done.stdout))
}

/// A server and a client are guests of a third process, which is killed while they work.
fn outlives(place: &Place) -> Check {
    let (address, port) = (place.address(), sockets::free_port()?);
    let owner = with_input(place.program(address, "/usr/bin/python3 -c").arg(OPENER))?;
    owner.wait_for_line("open", LIMIT)?;
    let command = format!("ib_send_bw -F -p {port} -s 4096 -n 5000");
    let mut server = Program::start(&mut place.program(address, &command))?;
    until_ready(&mut server, Ready::Tcp, port)?;
    let mut client = Program::start(&mut place.program(address, &format!("{command} {address}")))?;
    // It has its part of the port then.
    let opened = |client: &Program| client.stderr().iter().any(|line| line.contains("uverbs0 opened as descriptor"));
    until(&mut client, "open the device", opened)?;
    owner.signal("KILL")?;
    for (side, program) in [("client", &mut client), ("server", &mut server)] {
        expect_code(&program.finish(LIMIT)?, 0).map_err(|why| format!("{side}: {why}"))?;
    }
    Ok(())
}
