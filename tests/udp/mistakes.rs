//! Start-up errors: exit code 2 and one sentence.

use std::net::TcpListener;

use crate::{Target, address, run, told};

#[track_caller]
fn refused(name: &str, words: &str, sentence: &str) {
    let said = run(name, words);
    assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{words}: {}", told(&said));
    let line = said.stderr.lines().next_back().unwrap_or_default();
    let shape = line.starts_with(&format!("{name}: {sentence}")) || said.stderr.contains("--help");
    assert!(said.stderr.contains(sentence) && shape, "{words}: {}", said.stderr);
}

#[test]
fn an_address_that_is_taken_or_foreign_is_named() {
    let target = Target::start("--service rping");
    let ip = target.ip;
    let in_use = format!(
        "UDP port 4791 of {ip} is in use: another program serves at this address, or the kernel's rdma_rxe is loaded (rmmod \
         rdma_rxe); or choose another address"
    );
    refused("rxe-target", &format!("--udp {ip} --file-prefix other{}", std::process::id()), &in_use);
    refused("rxe-bench", &format!("write-bw --udp {ip} --peer {}", address()), &in_use);
    refused(
        "rxe-target",
        &format!("--udp {ip}"),
        &format!(
            "another target with --file-prefix udp-{ip} is running: give this one another, as --file-prefix udp-{ip}2"
        ),
    );
    refused("rxe-target", "--udp 192.0.2.77", "no interface of this machine has the address 192.0.2.77; it has ");
    refused(
        "rxe-target",
        "--udp 224.0.0.1",
        "224.0.0.1 is not the address of a host: give an address of an interface of this machine",
    );
}

#[test]
fn a_tcp_port_that_is_taken_is_named() {
    let ip = address();
    let _other = TcpListener::bind((ip, 18_515)).unwrap();
    refused(
        "rxe-target",
        &format!("--udp {ip} --service pingpong"),
        &format!("TCP port 18515 of {ip} is in use: end the program that has it, or leave the service out (--service)"),
    );
}

#[test]
fn options_of_dpdk_ports_are_refused() {
    for (words, sentence) in [
        ("--udp 127.0.0.2 --address 10.0.0.1/24", "the argument '--udp <ADDRESS>' cannot be used with"),
        ("--udp 127.0.0.2 --vlan 5", "the argument '--udp <ADDRESS>' cannot be used with"),
        ("--udp 127.0.0.2 --mtu 1500", "the argument '--udp <ADDRESS>' cannot be used with"),
        (
            "--udp 127.0.0.2/8",
            "'127.0.0.2/8' has a prefix length: leave it out, the kernel knows the network of the address",
        ),
        ("-l 0 --udp 127.0.0.2", "-l is no option of the target: --udp needs no DPDK, so leave EAL's arguments out"),
        ("-l 0 -- --udp 127.0.0.2", "--udp: a UDP socket needs no DPDK: leave EAL's arguments out (-l 0)"),
        (
            "--udp 127.0.0.2 --peer port1:10.0.0.0/8",
            "--udp and another port: a target on a UDP socket has no second port of its own: leave one of them out",
        ),
        ("--udp 127.0.0.2 --file-prefix a/b", "write 1 to 64 letters, digits, dots, dashes and underscores"),
    ] {
        refused("rxe-target", words, sentence);
    }
    for (words, sentence) in [
        (
            "write-bw --udp 127.0.0.3 --peer 127.0.0.2 --address 10.0.0.1/24",
            "the argument '--udp <ADDRESS>' cannot be used",
        ),
        ("-l 1 -- write-bw --udp 127.0.0.3 --peer 127.0.0.2", "--udp needs no DPDK: leave EAL's arguments out (-l 1)"),
        (
            "echo --udp 127.0.0.3 --peer 127.0.0.2",
            "echo sends frames of its own, which a UDP socket cannot: leave --udp out",
        ),
        (
            "write-bw --udp 127.0.0.3 --peer 127.0.0.3",
            "--peer 127.0.0.3 is the address of the bench itself: give the target's",
        ),
    ] {
        refused("rxe-bench", words, sentence);
    }
}

#[test]
fn a_target_that_does_not_run_is_no_host_that_answers() {
    // At the same time: each takes as long as the retransmissions of a REQ.
    std::thread::scope(|scope| {
        for (words, port) in [("write-bw", 4792), ("nvme --nqn nqn.2026-01.org.example:udp", 4420)] {
            let (own, peer) = (address(), address());
            scope.spawn(move || {
                refused(
                    "rxe-bench",
                    &format!("{words} --udp {own} --peer {peer}"),
                    &format!("{peer}:{port} does not answer connection requests: does a RoCE target run there?"),
                );
            });
        }
    });
}
