//! Wrong command lines that only the real binaries show: a message and exit code 2, at once.

use std::process::Command;

use super::lacking;
use super::operate::refused;

fn command(program: &str, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(words);
    command
}

#[test]
fn a_configuration_without_an_end_is_refused() {
    let target = env!("CARGO_BIN_EXE_rxe-target");
    let sentence = "the configuration file /dev/zero cannot be read (it is a device, a pipe or a socket, not a file)";
    refused(&mut command(target, &["--", "--config", "/dev/zero"]), sentence);
    refused(&mut command(target, &["--check-config", "/dev/zero"]), sentence);
}

#[test]
fn addresses_that_no_host_has_are_refused() {
    let target = env!("CARGO_BIN_EXE_rxe-target");
    for (address, sentence) in [
        ("0.0.0.5/24", "it is of 0.0.0.0/8"),
        ("240.0.0.1/24", "it is of 240.0.0.0/4"),
        ("10.0.0.1/0", "write the prefix length of your network"),
        ("10.0.0.255/24", "the network's broadcast address"),
    ] {
        refused(&mut command(target, &["--", "--address", address]), sentence);
    }
    let metrics = ["--", "--address", "10.0.0.1/24", "--metrics", "127.0.0.1:0"];
    refused(&mut command(target, &metrics), "'127.0.0.1:0' has no port number");
}

#[test]
fn a_path_mtu_that_the_port_does_not_carry_is_refused() {
    if let Some(why) = lacking() {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci.is_empty()), "CI must not skip: {why}");
        eprintln!("SKIPPED: {why}");
        return;
    }
    let id = std::process::id();
    let socket = std::env::temp_dir().join(format!("rxe-ports-{id}-mtu.sock")).display().to_string();
    // Without a larger bsize it carries 2,030 bytes.
    let vdev = format!("--vdev=net_memif0,role=server,socket-abstract=no,socket={socket}");
    let prefix = format!("--file-prefix={id}mtu");
    let eal = ["-l", "0", "--in-memory", "--no-pci", "--no-telemetry", &prefix, &vdev, "--"];
    let test = ["write-bw", "--address", "10.0.0.2/24", "--peer", "10.0.0.1", "-m", "4096"];
    let words: Vec<&str> = eal.iter().chain(&test).copied().collect();
    refused(
        &mut command(env!("CARGO_BIN_EXE_rxe-bench"), &words),
        "--mtu 4096: the port of the bench supports a path MTU of 1024 at most",
    );
    let connect: Vec<&str> = words.iter().map(|word| if *word == "write-bw" { "connect-rate" } else { word }).collect();
    refused(&mut command(env!("CARGO_BIN_EXE_rxe-bench"), &connect), "--mtu 4096: the port of the bench supports");
    let _ = std::fs::remove_file(socket);
}
