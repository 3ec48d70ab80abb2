//! Side channels over TCP, which are the kernel's sockets here.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use crate::Target;

/// The line that clients of ibv_rc_pingpong send: LID, queue pair, PSN and GID.
fn line(gid: &str) -> Vec<u8> {
    format!("0000:000abc:000123:{gid}\0").into_bytes()
}

#[test]
fn a_client_of_pingpong_gets_the_targets_queue_pair() {
    let target = Target::start("--service pingpong");
    let mut client = TcpStream::connect((target.ip, 18_515)).unwrap();
    client.write_all(&line("00000000000000000000ffff7f000001")).unwrap();
    let mut answer = [0; 52];
    client.read_exact(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let std::net::IpAddr::V4(ip) = target.ip else { panic!("an IPv4 address") };
    assert!(answer.starts_with("0000:") && answer.ends_with(&format!("ffff{:08x}\0", ip.to_bits())), "{answer:?}");
    assert_eq!(target.json("resource")[0]["tcp"], 1);
    client.shutdown(Shutdown::Both).unwrap();
    while target.json("resource")[0]["tcp"] != 0 {}
    let totals = target.stop();
    assert!(totals.contains("tcp_opened=1") && totals.contains("streams_opened=1"), "{totals}");
}
