//! The disks of a running target and its operator: `rxe-ctl nvmf`, and the reload of `[service.nvmf]`.

use std::fs::{self, File, Permissions};
use std::io::{Read as _, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rxe_testkit::process::Program;
use serde_json::{Value, json};

use crate::nvme::wait_for_progress;
use crate::{LIMIT, Target, address, contains, folder, program, run, told};

/// The subsystem of the configuration.
const DISK: &str = "nqn.2026-01.test:disk";
/// A subsystem that is added.
const MORE: &str = "nqn.2026-01.test:more";
/// Hosts.
const HOST: &str = "nqn.2014-08.test:host";
const OTHER: &str = "nqn.2014-08.test:other";

/// The configuration of a target with one disk of 1 MiB in memory, and `more`.
fn text(ip: IpAddr, more: &str) -> String {
    format!(
        "services = [\"nvmf\"]\n[[port]]\nudp = \"{ip}\"\n[service.nvmf]\nstaging = \"8M\"\n\
         [[service.nvmf.subsystem]]\nnqn = \"{DISK}\"\n[[service.nvmf.subsystem.namespace]]\nram = \"1M\"\n{more}"
    )
}

/// A file that the target may read.
fn write(name: &str, text: &str) -> PathBuf {
    let path = folder().join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    path
}

/// A file of `len` bytes that the target may read and write.
fn disk(name: &str, len: u64) -> PathBuf {
    let path = folder().join(name);
    File::create(&path).unwrap().set_len(len).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    path
}

/// A target with this configuration file.
fn start(ip: IpAddr, config: &Path) -> Target {
    start_with(ip, config, "")
}

/// The same, with these options.
fn start_with(ip: IpAddr, config: &Path, options: &str) -> Target {
    let program = Program::start(&mut program("rxe-target", &format!("--config {} {options}", config.display())));
    let program = program.unwrap_or_else(|error| panic!("{error}"));
    let ready = program.wait_for_line("ready ", LIMIT).unwrap_or_else(|error| panic!("{error}"));
    Target { program, ip, ready }
}

/// Number and size of each namespace of a subsystem.
fn sizes(target: &Target, subsystem: &str) -> Vec<(u64, u64)> {
    let all = target.json("nvmf namespace list");
    let of = all.as_array().unwrap().iter().filter(|namespace| namespace["subsystem"] == subsystem);
    of.map(|namespace| (namespace["nsid"].as_u64().unwrap(), namespace["size"].as_u64().unwrap())).collect()
}

/// The sentence of a request that is refused.
fn sentence(target: &Target, words: &str) -> String {
    let text = target.refusal(words);
    assert_eq!(text.lines().count(), 1, "{words}: one sentence, not:\n{text}");
    text
}

#[test]
fn subsystems_namespaces_and_hosts_come_and_go() {
    let ip = address();
    let target = start(ip, &write("nvmf-manage.toml", &text(ip, "")));
    assert_eq!(sizes(&target, DISK), [(1, 1 << 20)]);

    // A subsystem, and memory and files for it.
    target.ctl(&format!("nvmf subsystem add {MORE} --serial 0001 --host {HOST}"));
    assert_eq!(target.ctl(&format!("nvmf namespace add {MORE} --ram 2M --block-size 512 --checksums")), "1\n");
    let file = disk("nvmf-manage.img", 1 << 20);
    let add = format!("nvmf namespace add {MORE} --file {} --nsid 7 --read-only", file.display());
    assert_eq!(target.ctl(&add), "7\n");
    assert_eq!(target.ctl(&format!("nvmf namespace add {DISK} --ram 1M")), "2\n");
    assert_eq!(sizes(&target, MORE), [(1, 2 << 20), (7, 1 << 20)]);
    let namespaces = target.json("nvmf namespace list");
    let find = |nsid: u32| {
        let all = namespaces.as_array().unwrap();
        all.iter().find(|of| of["subsystem"] == MORE && of["nsid"] == nsid).unwrap()
    };
    let keys = |of: &Value| ["file", "block_size", "read_only", "checksums"].map(|key| of[key].clone());
    assert_eq!(keys(find(1)), [json!(null), json!(512), json!(false), json!(true)]);
    assert_eq!(keys(find(7)), [json!(file), json!(4096), json!(true), json!(false)]);
    let subsystems = target.json("nvmf subsystem list");
    let more = subsystems.as_array().unwrap().iter().find(|of| of["nqn"] == MORE).unwrap();
    let keys = ["serial", "any_host", "namespaces", "controllers"].map(|key| more[key].clone());
    assert_eq!(keys, [json!("0001"), json!(false), json!(2), json!(0)], "{more}");
    contains(&target.ctl("nvmf subsystem list"), &[DISK, MORE, "listed", "all"]);
    contains(&target.ctl("nvmf namespace list"), &["ram", "nvmf-manage.img", "read-only", "checksums"]);

    // Hosts.
    target.ctl(&format!("nvmf host add {MORE} {OTHER}"));
    let hosts = json!([{"subsystem": MORE, "host": HOST}, {"subsystem": MORE, "host": OTHER}]);
    assert_eq!(target.json("nvmf host list"), hosts);
    target.ctl(&format!("nvmf host remove {MORE} {HOST}"));
    contains(&sentence(&target, &format!("nvmf host remove {MORE} {OTHER}")), &["the only host"]);
    assert_eq!(target.json("nvmf controller list"), json!([]));

    // All blocks agree with their checksums.
    assert_eq!(
        target.json(&format!("nvmf scrub {MORE} 1")),
        json!({"checked": 4096, "mismatches": [], "rebuilt": [], "next": null})
    );

    // The file grows, and the namespace with it.
    let shorter = sentence(&target, &format!("nvmf namespace resize {MORE} 1 4M"));
    contains(&shorter, &["is memory, which keeps its size"]);
    assert_eq!(target.ctl(&format!("nvmf namespace resize {MORE} 7")), format!("{}\n", 1 << 20));
    File::options().write(true).open(&file).unwrap().set_len(3 << 20).unwrap();
    assert_eq!(target.ctl(&format!("nvmf namespace resize {MORE} 7")), format!("{}\n", 3 << 20));
    assert_eq!(target.ctl(&format!("nvmf namespace resize {MORE} 7 4M")), format!("{}\n", 4 << 20));
    assert_eq!(sizes(&target, MORE), [(1, 2 << 20), (7, 4 << 20)]);
    assert_eq!(fs::metadata(&file).unwrap().len(), 4 << 20);

    // Times of commands, by namespace.
    let latency = target.json("stat latency")["latency"].take();
    let of = latency["namespaces"].as_array().unwrap().iter().filter(|of| of["subsystem"] == MORE).count();
    assert_eq!(of, 2 * 4, "read, write, flush and other of two namespaces: {latency}");

    // What runs starts again.
    let dump = target.ctl("config dump");
    target.ctl(&format!("nvmf namespace remove {MORE} 7"));
    assert_eq!(sizes(&target, MORE), [(1, 2 << 20)]);
    target.ctl(&format!("nvmf subsystem remove {MORE}"));
    assert_eq!(sizes(&target, MORE), []);
    target.stop();
    let again = start(ip, &write("nvmf-dump.toml", &dump));
    assert_eq!(sizes(&again, DISK), [(1, 1 << 20), (2, 1 << 20)]);
    assert_eq!(sizes(&again, MORE), [(1, 2 << 20), (7, 4 << 20)]);
    assert_eq!(again.json("nvmf host list"), json!([{"subsystem": MORE, "host": OTHER}]));
    assert_eq!(again.ctl("config dump"), dump);
    again.stop();
}

#[test]
fn a_disk_in_use_is_removed_by_force_alone() {
    let (ip, own) = (address(), address());
    let metrics = folder().join("nvmf-in-use.sock");
    let target =
        start_with(ip, &write("nvmf-in-use.toml", &text(ip, "")), &format!("--metrics unix:{}", metrics.display()));
    let words = format!("nvme --udp {own} --peer {ip} --nqn {DISK} --warm-up 0 -w randrw -t 3600 --out_json -");
    let mut bench = Program::start(&mut program("rxe-bench", &words)).unwrap();
    wait_for_progress(&mut bench);
    for (words, what) in
        [(format!("namespace remove {DISK} 1"), "disk"), (format!("subsystem remove {DISK}"), "its disks")]
    {
        let refusal = sentence(&target, &format!("nvmf {words}"));
        contains(&refusal, &["with 1 controllers", "--force", what]);
    }
    assert_eq!(sizes(&target, DISK), [(1, 1 << 20)]);

    // The times of its commands, for Prometheus.
    let scraped = scrape(&metrics);
    for kind in ["read", "write"] {
        let mut counts = scraped.lines().filter(|line| {
            line.starts_with("rxe_nvmf_command_seconds_count{") && line.contains(&format!("\"{kind}\""))
        });
        let count = counts.next().and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        assert!(count.is_some_and(|count| count > 0.0), "{kind}:\n{scraped}");
    }

    // The host's commands fail from now on, and the host is connected still.
    target.ctl(&format!("nvmf namespace remove {DISK} 1 --force"));
    assert_eq!(sizes(&target, DISK), []);
    assert_eq!(target.json("nvmf controller list").as_array().unwrap().len(), 1);
    assert!(bench.is_running(), "{}", bench.tail());
    target.ctl(&format!("nvmf subsystem remove {DISK} --force"));
    let done = bench.finish(LIMIT).unwrap();
    assert_eq!(done.code, 1, "{}", told(&done));
    let value: Value = serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {}", told(&done)));
    let keys = ["/end", "/errors/0/code", "/errors/1"].map(|key| value.pointer(key).cloned());
    assert_eq!(keys, [Some(json!("failed")), Some(json!(0x0B)), None], "invalid namespace or format: {value}");
    assert!(value["ios"].as_u64().is_some_and(|ios| ios > 0), "{value}");
    assert_eq!(target.json("nvmf controller list"), json!([]));
    target.stop();
}

/// What a scrape of this socket gets.
fn scrape(socket: &Path) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_wrong_request_is_refused_in_a_sentence_and_changes_nothing() {
    let ip = address();
    let target = start(ip, &write("nvmf-wrong.toml", &text(ip, "")));
    let empty = disk("nvmf-empty.img", 0);
    let odd = disk("nvmf-odd.img", 5000);
    let dump = target.ctl("config dump");
    for (words, part) in [
        (format!("subsystem add {DISK}"), "exists already"),
        ("subsystem add disk".to_owned(), "cannot be added"),
        ("subsystem add nqn.2014-08.org.nvmexpress.discovery".to_owned(), "discovery subsystem"),
        (format!("subsystem add {MORE} --serial 123456789012345678901"), "serial number"),
        (format!("subsystem remove {MORE}"), "there is no subsystem"),
        ("subsystem remove x".to_owned(), "'x' is no name of a subsystem or host"),
        (format!("namespace add {MORE} --ram 1M"), "there is no subsystem"),
        (format!("namespace add {DISK} --ram 1X"), "'1X' is not a size"),
        (format!("namespace add {DISK} --ram 1M --nsid 1"), "has a namespace 1 already"),
        (format!("namespace add {DISK} --ram 1M --nsid 0"), "NSID 0 is not in the range"),
        (format!("namespace add {DISK} --ram 1M --block-size 1000"), "'block-size' is 512 or 4096"),
        (format!("namespace add {DISK} --ram 1M --uuid 5"), "cannot be added"),
        (format!("namespace add {DISK} --file disk.img"), "is relative"),
        (format!("namespace add {DISK} --file /nonexistent/disk.img"), "/nonexistent/disk.img"),
        (format!("namespace add {DISK} --file {}", empty.display()), "the size is 0"),
        (format!("namespace add {DISK} --file {}", odd.display()), "not a multiple of the block size"),
        (format!("namespace remove {DISK} 2"), "has no namespace 2"),
        (format!("namespace resize {DISK} 2"), "has no namespace 2"),
        (format!("namespace resize {DISK} 1 big"), "'big' is not a size"),
        (format!("host add {DISK} {HOST}"), "serves every host"),
        (format!("host remove {DISK} {HOST}"), "has no host"),
        (format!("scrub {DISK} 1"), "has no checksums"),
        (format!("scrub {DISK} 2"), "has no namespace 2"),
    ] {
        contains(&sentence(&target, &format!("nvmf {words}")), &[part]);
    }
    assert_eq!(target.ctl("config dump"), dump);
    target.stop();
}

#[test]
fn without_the_service_every_request_says_what_to_do() {
    let target = Target::start("");
    contains(&sentence(&target, "nvmf subsystem list"), &["does not run the service nvmf"]);
    target.stop();
}

#[test]
fn a_reload_makes_the_disks_those_of_the_file() {
    let ip = address();
    let file = disk("nvmf-reload.img", 1 << 20);
    let subsystem = |hosts: &str, namespaces: &str| {
        format!("[[service.nvmf.subsystem]]\nnqn = \"{MORE}\"\nhosts = [{hosts}]\n{namespaces}")
    };
    let namespace = |keys: &str| format!("[[service.nvmf.subsystem.namespace]]\n{keys}\n");
    let config = write("nvmf-reload.toml", &text(ip, ""));
    let target = start(ip, &config);
    let reload = |more: &str| {
        fs::write(&config, text(ip, more)).unwrap();
        target.json("reload")
    };

    let of_file = namespace(&format!("nsid = 2\nfile = \"{}\"", file.display()));
    let both = namespace("nsid = 1\nram = \"1M\"") + &of_file;
    let added = reload(&subsystem(&format!("\"{HOST}\""), &both));
    assert_eq!((&added["refused"], &added["needs_restart"]), (&json!([]), &json!([])), "{added}");
    assert_eq!(added["applied"], json!([format!("add the subsystem {MORE}")]));
    assert_eq!(sizes(&target, MORE), [(1, 1 << 20), (2, 1 << 20)]);

    let changed = reload(&subsystem(&format!("\"{OTHER}\""), &(of_file + &namespace("nsid = 3\nram = \"2M\""))));
    assert_eq!((&changed["refused"], &changed["needs_restart"]), (&json!([]), &json!([])), "{changed}");
    assert_eq!(sizes(&target, MORE), [(2, 1 << 20), (3, 2 << 20)]);
    assert_eq!(target.json("nvmf host list"), json!([{"subsystem": MORE, "host": OTHER}]));

    // Storage stays as it is.
    let other = reload(&subsystem(&format!("\"{OTHER}\""), &namespace("nsid = 3\nram = \"4M\"")));
    contains(&other["needs_restart"].to_string(), &["namespace 3 of"]);
    assert_eq!(sizes(&target, MORE), [(3, 2 << 20)]);

    // A file that does not exist.
    let lost = subsystem(
        &format!("\"{OTHER}\""),
        &(namespace("nsid = 3\nram = \"2M\"") + &namespace("nsid = 2\nfile = \"/nonexistent\"")),
    );
    fs::write(&config, text(ip, &lost)).unwrap();
    let said = run("rxe-ctl", &format!("--file-prefix udp-{ip} reload"));
    assert_eq!(said.code, 1, "{}", told(&said));
    contains(&said.stdout, &["refused: add namespace 2 of", "/nonexistent"]);

    // No host is connected.
    assert_eq!(target.json("nvmf share list"), json!([]));

    let removed = reload("");
    assert_eq!(removed["applied"], json!([format!("remove the subsystem {MORE}")]), "{removed}");
    assert_eq!(sizes(&target, MORE), []);
    target.stop();
}
