//! rxe-ctl and running programs.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use rxe_testkit::pcapng;
use rxe_testkit::process::{Program, run};

use crate::Check;
use crate::case::Case;
use crate::pair::{Command, LIMIT, Ready, until_ready};
use crate::place::{Place, expect_code, prints_at};
use crate::sockets;

/// All cases.
pub fn cases() -> Vec<Case> {
    vec![
        prints_at(
            "rxe-ctl/a process that does not run",
            Place::rxe_ctl,
            "--pid 4194304 qp",
            2,
            &["no program of this user with process number 4194304 runs under rxe-run: rxe-run --list shows them"],
        ),
        Case::new("rxe-ctl/shows device, port, queue pairs, memory and counters of a program", shown),
        Case::new("rxe-ctl/says what a program does not have", refused),
        Case::new("rxe-ctl/captures the packets of a program", captured),
        Case::new("rxe-ctl/faults of a program: lost, refused and delayed packets", faulted),
        Case::new("rxe-ctl/shows and ends the connection of a program", disconnected),
    ]
}

/// A server and its client that run until they are killed.
struct Both {
    address: Ipv4Addr,
    server: Program,
    client: Program,
}

impl Both {
    /// A pingpong without end.
    fn pingpong(place: &Place) -> Result<Both, String> {
        let port = sockets::free_port()?;
        Both::start(place, "ibv_rc_pingpong -e -g 1 -p PORT -n 1000000000", Ready::Tcp, port)
    }

    /// `line`, with SERVER behind it for the client.
    fn start(place: &Place, line: &str, ready: Ready, port: u16) -> Result<Both, String> {
        let [address, other] = [place.address(), place.address()];
        let line = line.replace("PORT", &port.to_string());
        let mut server = Program::start(&mut place.program(address, &line))?;
        until_ready(&mut server, ready, port)?;
        let client = Program::start(&mut place.program(other, &format!("{line} {address}")))?;
        let mut both = Both { address, server, client };
        // The queue pair has sent and received.
        both.until(place, "stat", |text| text.contains("rcvd_pkts") && text.contains("sent_pkts"))?;
        Ok(both)
    }

    /// The output of `rxe-ctl --pid SERVER WORDS`.
    fn ask(&self, place: &Place, words: &str) -> Result<String, String> {
        let done = run(&mut place.rxe_ctl(&format!("--pid {} {words}", self.server.id())), LIMIT)?;
        expect_code(&done, 0).map_err(|why| format!("rxe-ctl {words}: {why}"))?;
        Ok(done.stdout)
    }

    /// Waits until `rxe-ctl WORDS` succeeds with what is wanted.
    fn until(&mut self, place: &Place, words: &str, wanted: impl Fn(&str) -> bool) -> Check {
        let deadline = Instant::now() + LIMIT;
        loop {
            let said = self.ask(place, words);
            if said.as_ref().is_ok_and(|text| wanted(text)) {
                return Ok(());
            }
            if Instant::now() > deadline || !self.server.is_running() || !self.client.is_running() {
                return Err(format!("{said:?}\nserver: {}client: {}", self.server.tail(), self.client.tail()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Compares what `rxe-ctl WORDS` prints.
    fn prints(&self, place: &Place, words: &str, texts: &[&str]) -> Check {
        let said = self.ask(place, words)?;
        match texts.iter().find(|text| !said.contains(**text)) {
            Some(missing) => Err(format!("rxe-ctl {words}: no {missing:?}: {said}")),
            None => Ok(()),
        }
    }
}

fn shown(place: &Place) -> Check {
    let both = Both::pingpong(place)?;
    let address = both.address.to_string();
    both.prints(place, "devinfo -v", &["hca_id:\trxe0", &address])?;
    both.prints(place, "link --details --check", &["state ACTIVE", "driver udp", &address])?;
    both.prints(place, "resource", &["qp 1", "mr 1"])?;
    both.prints(place, "qp", &["RTS"])?;
    both.prints(place, "mr", &["local_write"])?;
    both.prints(place, "stat transport", &["rcvd_pkts"])?;
    both.prints(place, "drops", &[])
}

fn refused(place: &Place) -> Check {
    let both = Both::pingpong(place)?;
    let done = run(&mut place.rxe_ctl(&format!("--pid {} region list", both.server.id())), LIMIT)?;
    expect_code(&done, 2)?;
    let why = "a program under rxe-run has no services, named regions, configuration and events of its own";
    if done.stderr.contains(why) { Ok(()) } else { Err(done.stderr) }
}

fn captured(place: &Place) -> Check {
    let mut both = Both::pingpong(place)?;
    let file = place.work().join("ordered.pcapng");
    both.ask(place, &format!("capture start {}", file.display()))?;
    let frames = |text: &str| -> Option<u64> {
        let status: serde_json::Value = serde_json::from_str(text).ok()?;
        status.get("frames")?.as_u64()
    };
    both.until(place, "--json capture status", |text| frames(text).is_some_and(|frames| frames > 100))?;
    both.ask(place, "capture stop")?;
    let capture = pcapng::read(&file);
    let sent = capture.packets.iter().filter(|packet| packet.sent).count();
    if sent > 10 && capture.packets.len() - sent > 10 {
        Ok(())
    } else {
        Err(format!("{sent} packets sent of {}", capture.packets.len()))
    }
}

fn faulted(place: &Place) -> Check {
    let mut both = Both::pingpong(place)?;
    for (rule, group, counter) in [
        ("drop --count 5", "rx_fault", "dropped"),
        ("drop --direction tx --count 5", "tx_fault", "dropped"),
        ("delay 5ms --count 5", "rx_fault", "delayed"),
        ("rnr 1ms --count 3", "rx_fault", "refused"),
    ] {
        let number = both.ask(place, &format!("fault add {rule}"))?;
        both.until(place, &format!("stat {group}"), |text| {
            text.lines().any(|line| line.contains(counter) && !line.ends_with(" 0"))
        })
        .map_err(|why| format!("{rule}: {why}"))?;
        both.ask(place, &format!("fault remove {}", number.trim().rsplit(' ').next().unwrap_or_default()))?;
    }
    // They go on.
    let before = received(&both.ask(place, "--json stat --all")?);
    both.until(place, "--json stat --all", |text| received(text) > before)
}

/// Packets that the port has received.
fn received(text: &str) -> u64 {
    let number = text.split("\"rx_frames\"").nth(1).map(|rest| rest.trim_start_matches(|c: char| !c.is_ascii_digit()));
    let digits = number.map(|rest| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

fn disconnected(place: &Place) -> Check {
    let port = sockets::free_port()?;
    let [address, other] = [place.address(), place.address()];
    let mut server = Program::start(&mut place.program(address, &format!("rping -s -P -a {address} -p {port}")))?;
    until_ready(&mut server, Ready::Command(Command::Listen), port)?;
    let client = Program::start(&mut place.program(other, &format!("rping -c -a {address} -p {port}")))?;
    let mut both = Both { address, server, client };
    both.until(place, "connections", |text| text.contains(&other.to_string()))?;
    let list: serde_json::Value =
        serde_json::from_str(&both.ask(place, "--json qp")?).map_err(|error| error.to_string())?;
    let qpn = list.pointer("/0/lqpn").and_then(serde_json::Value::as_u64).ok_or(format!("no queue pair: {list}"))?;
    both.ask(place, &format!("disconnect {qpn}"))?;
    match both.client.wait(LIMIT)? {
        Some(_) if both.server.is_running() => Ok(()),
        ended => Err(format!("the client: {ended:?}\n{}{}", both.client.tail(), both.server.tail())),
    }
}
