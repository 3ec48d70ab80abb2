//! Wrong command lines that only the real binaries show: a message and exit code 2, at once.

use std::process::Command;
use std::time::Duration;

use rxe_testkit::process;

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
    for (metrics, sentence) in [
        ("127.0.0.1:0", "'127.0.0.1:0' has no port number"),
        ("unix:metrics.sock", "'unix:metrics.sock' has no absolute path: write one"),
        (
            "unix:/nowhere/metrics.sock",
            "the metrics cannot be served at unix:/nowhere/metrics.sock (No such file or directory)",
        ),
    ] {
        refused(&mut command(target, &["--", "--address", "10.0.0.1/24", "--metrics", metrics]), sentence);
    }
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

/// The whole sentence for EAL's arguments `eal` and the target's options `own`.
fn said(eal: &str, own: &str) -> String {
    let prefix = format!("--file-prefix={}mist", std::process::id());
    let words: Vec<&str> = ["-l", "0", "--no-telemetry", &prefix]
        .into_iter()
        .chain(eal.split_whitespace())
        .chain(["--"])
        .chain(own.split_whitespace())
        .collect();
    let done = process::run(&mut command(env!("CARGO_BIN_EXE_rxe-target"), &words), Duration::from_secs(60)).unwrap();
    assert_eq!((done.code, done.stdout.as_str()), (2, ""), "{eal} -- {own}: {}", done.stderr);
    done.stderr.lines().last().unwrap_or_default().to_owned()
}

#[test]
fn mistakes_in_eal_s_arguments_are_explained() {
    const OWN: &str = "--address 10.0.0.1/24";
    for (eal, own, sentence) in [
        (
            "--in-memory --vdev=net_null0",
            "--address 10.0.0.1/24 --no-pci",
            "--no-pci is an option of DPDK's EAL: it belongs in front of `--`",
        ),
        (
            "--in-memory --no-pci --vdev=net_af_packet0",
            OWN,
            "the device net_af_packet0 did not start: it needs the key iface, as --vdev=net_af_packet0,iface=veth1",
        ),
        (
            "--in-memory --no-pci --vdev=net_af_packet0,iface=lo,frames=3",
            OWN,
            "the device net_af_packet0 did not start: it has no key 'frames': its keys are iface, qpairs, blocksz, framesz, \
             framecnt, qdisc_bypass, fanout_mode",
        ),
        (
            "--in-memory --no-pci --vdev=net_nosuch0",
            OWN,
            "bad EAL arguments: there is no driver for the device net_nosuch0: its name begins with that of a driver, as \
             net_af_packet0, net_vhost0, net_virtio_user0, net_memif0, net_tap0, net_af_xdp0, net_null0",
        ),
        (
            "--in-memory --no-pci --proc-type=secondary --vdev=net_null0",
            OWN,
            "bad EAL arguments: --proc-type=secondary is for programs that attach to another DPDK process, and this one is a \
             process of its own: leave it out",
        ),
        (
            "--in-memory --no-huge -m 64 --no-pci --vdev=net_null0",
            OWN,
            "bad EAL arguments: --no-huge and --in-memory exclude each other: leave --in-memory out",
        ),
        (
            "--in-memory --no-pci --vdev=net_null0 --vdev=net_null1",
            OWN,
            "port 1 (net_null1) has no address: give it one with --address port1:IP/PREFIX",
        ),
        (
            "--in-memory --no-pci",
            OWN,
            "DPDK found no port: name one before `--`, for example --vdev=net_af_packet0,iface=veth1, or bind a PCI NIC to vfio-pci",
        ),
    ] {
        assert_eq!(said(eal, own), format!("rxe-target: {sentence}"));
    }
}

#[test]
fn without_hugepages_the_ways_out_are_named() {
    // In a mount namespace of its own, as in a container.
    let script = "while umount -a -t hugetlbfs 2>/dev/null && grep -q hugetlbfs /proc/mounts; do :; done; exec \"$@\"";
    let prefix = format!("--file-prefix={}huge", std::process::id());
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_rxe-target"), "-l", "0", "--no-telemetry"]);
    unshare.args(["--no-pci", &prefix, "--vdev=net_null0", "--", "--address", "10.0.0.1/24"]);
    let done = process::run(&mut unshare, Duration::from_secs(60)).unwrap();
    assert_eq!(
        (done.code, done.stderr.lines().last().unwrap_or_default()),
        (
            2,
            "rxe-target: no hugepages for DPDK: no hugetlbfs is mounted; reserve some as root (echo 512 > /proc/sys/vm/nr_hugepages; \
             mount -t hugetlbfs none /dev/hugepages), or give EAL --no-huge -m MEGABYTES; a container needs /dev/hugepages and the \
             capability SYS_NICE, or RXE_NO_HUGE=1"
        )
    );
}

#[test]
fn without_the_right_to_open_sockets_the_capability_is_named() {
    let prefix = format!("--file-prefix={}raw", std::process::id());
    let target = env!("CARGO_BIN_EXE_rxe-target");
    let eal =
        ["-l", "0", "--no-huge", "-m", "64", "--no-telemetry", "--no-pci", &prefix, "--vdev=net_af_packet0,iface=lo"];
    let mut setpriv = Command::new("setpriv");
    setpriv.args(["--inh-caps=-all", "--bounding-set=-all", "--", target]).args(eal);
    setpriv.args(["--", "--address", "10.0.0.1/24"]);
    let done = process::run(&mut setpriv, Duration::from_secs(60)).unwrap();
    assert_eq!(
        (done.code, done.stderr.lines().last().unwrap_or_default()),
        (
            2,
            "rxe-target: the device net_af_packet0 did not start: it needs the right CAP_NET_RAW: run this as root, or give the \
             process that capability (--cap-add NET_RAW, AmbientCapabilities=CAP_NET_RAW)"
        )
    );
}

#[test]
fn host_setup_explains_itself_and_what_is_wrong() {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/conf/host-setup");
    // Without root, and under the name that the package gives it.
    let installed = std::env::temp_dir().join(format!("rxe-host-setup-{}", std::process::id()));
    std::fs::copy(program, &installed).unwrap();
    let mut help = Command::new("setpriv");
    help.args(["--reuid=65534", "--clear-groups"]).arg(&installed).arg("--help");
    let done = process::run(&mut help, Duration::from_secs(60)).unwrap();
    std::fs::remove_file(&installed).unwrap();
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    let name = installed.file_name().unwrap().to_str().unwrap();
    for command in ["hugepages [MIB]", "veth A B [MTU]", "status", "undo"] {
        assert!(done.stdout.contains(&format!("\n  {name} {command} ")), "{}", done.stdout);
    }
    for (words, sentence) in [
        ("dance", "host-setup: there is no command 'dance': host-setup --help lists them\n"),
        ("hugepages 1G", "host-setup: '1G' is no size in MiB: write a number\n"),
        ("veth a", "host-setup: veth needs the names of two interfaces: host-setup veth A B [MTU]\n"),
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let done = process::run(&mut command(program, &words), Duration::from_secs(60)).unwrap();
        assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (2, "", sentence));
    }
}

#[test]
fn a_symbolic_link_is_no_file_of_a_region() {
    let id = std::process::id();
    let link = std::path::PathBuf::from(format!("/dev/shm/rxe-ports-{id}-link"));
    std::os::unix::fs::symlink("/dev/null", &link).unwrap();
    let eal = "--in-memory --no-pci --vdev=net_null0";
    let sentence = said(eal, &format!("--address 10.0.0.1/24 --region a=1M,file={}", link.display()));
    std::fs::remove_file(&link).unwrap();
    let path = link.display();
    assert_eq!(
        sentence,
        format!(
            "rxe-target: region a: {path}: cannot open it: it is a symbolic link, and links are not followed: name the file itself"
        )
    );
}
