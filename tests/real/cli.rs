//! Wrong command lines: a message on stderr, exit code 2, no panic.

use crate::Check;
use crate::env::{TestEnv, root, target_binary};
use crate::suite::{AnyGroup, Group, Needs};
use rxe_testkit::process::{self, Finished};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);

/// Runs the target with these words.
fn target(words: &[&str]) -> Result<Finished, String> {
    process::run(Command::new(target_binary()).args(words), LIMIT)
}

/// The command line was refused: exit code 2 and, on stderr, all of `texts`; a few lines at most unless EAL had started.
fn refused(done: Finished, texts: &[&str], eal_started: bool) -> Check {
    let stderr = done.stderr.trim();
    let fail = |what: &str| Err(format!("{what}; stdout: {:?}; stderr: {stderr}", done.stdout));
    if stderr.contains("panicked") || done.stdout.contains("panicked") {
        return fail("the target panicked");
    }
    if done.code != 2 {
        return fail(&format!("exit code {} instead of 2", done.code));
    }
    if let Some(missing) = texts.iter().find(|t| !stderr.to_lowercase().contains(&t.to_lowercase())) {
        return fail(&format!("stderr does not mention {missing:?}"));
    }
    let own: Vec<&str> = stderr.lines().filter(|l| !l.trim().is_empty() && !is_eal_log(l)).collect();
    if own.is_empty() {
        return fail("stderr has nothing but EAL's own lines");
    }
    if !eal_started && stderr.lines().filter(|l| !l.trim().is_empty()).count() > 6 {
        return fail("more than a few lines for one error");
    }
    if !done.stdout.lines().all(|l| !l.starts_with("ready ")) {
        return fail("a `ready` line although it was refused");
    }
    Ok(())
}

/// Lines that DPDK itself prints.
fn is_eal_log(line: &str) -> bool {
    ["EAL:", "TELEMETRY:", "PMD:", "rte_", "ethdev", "vhost"].iter().any(|p| line.trim_start().starts_with(p))
}

/// The groups `cli`, which needs nothing, and `cli-eal`.
pub fn groups() -> Vec<AnyGroup> {
    let mut bare = Group::new("cli", Needs { bare: true, ..Needs::default() }, |_| Ok(()));
    without_eal(&mut bare);
    config_file(&mut bare);
    vec![bare.build(), with_eal()]
}

fn without_eal(group: &mut Group<()>) {
    group.case("--help", |()| {
        let done = target(&["--help"])?;
        if done.code != 0 || !done.stderr.is_empty() {
            return Err(format!("exit code {}, stderr {:?}", done.code, done.stderr));
        }
        for word in ["--address", "--gateway", "--config", "--service", "--region", "--log", "--check-config", "EAL"] {
            if !done.stdout.contains(word) {
                return Err(format!("the help does not mention {word}: {}", done.stdout));
            }
        }
        Ok(())
    });
    group.case("--version", |()| {
        let done = target(&["--version"])?;
        let line = done.stdout.trim();
        let versions =
            line.starts_with("rxe-target ") && line.contains(env!("CARGO_PKG_VERSION")) && line.contains("DPDK ");
        if done.code != 0 || !versions || line.contains('\n') || !done.stderr.is_empty() {
            return Err(format!("exit code {}, stdout {line:?}, stderr {:?}", done.code, done.stderr));
        }
        Ok(())
    });
    // The second element: what the message has to mention.
    let mistakes: &'static [(&[&str], &[&str])] = &[
        (&["--", "--frobnicate"], &["--frobnicate"]),
        (&["--", "--address", "10.0.0.300/24"], &["10.0.0.300"]),
        (&["--", "--address", "10.0.0.1/33"], &["10.0.0.1/33"]),
        (&["--", "--address", "10.0.0.1/24", "--address", "10.0.0.1/24"], &["10.0.0.1"]),
        (&["--", "--address", "fd00::1/64", "--address", "fd00:0::1/64"], &["fd00::1"]),
        (&["--", "--address", "10.0.0.1/24", "--gateway", "here"], &["here"]),
        (&["--", "--address", "10.0.0.1/24", "--service", "no-such-service"], &["no-such-service"]),
        (&["--", "--address", "10.0.0.1/24", "--region", "demo"], &["demo"]),
        (&["--", "--address", "10.0.0.1/24", "--region", "demo=12parsec"], &["12parsec"]),
        (&["--", "--address", "10.0.0.1/24", "--region", "demo=1M", "--region", "demo=2M"], &["demo"]),
        (&["--", "--address", "10.0.0.1/24", "--log", "shouting"], &["shouting"]),
        (&["--", "--config", "/nonexistent/target.toml"], &["/nonexistent/target.toml"]),
        (&["--check-config", "/nonexistent/target.toml"], &["/nonexistent/target.toml"]),
    ];
    for (words, mentions) in mistakes {
        group.case(words.join(" "), move |()| refused(target(words)?, mentions, false));
    }
}

/// Writes `text` to a file of this `name`, and has it checked.
fn check(name: &str, text: &str, texts: &[&str]) -> Check {
    let path = std::env::temp_dir().join(format!("rxe-real-{}-{name}.toml", std::process::id()));
    let file = path.to_string_lossy().into_owned();
    std::fs::write(&path, text).map_err(|e| e.to_string())?;
    let done = target(&["--check-config", &file]);
    let _ = std::fs::remove_file(&path);
    refused(done?, &[&[file.as_str()], texts].concat(), true)
}

fn config_file(group: &mut Group<()>) {
    let examples = std::fs::read_dir(root().join("conf/examples")).into_iter().flatten().flatten().map(|e| e.path());
    let mut files: Vec<_> = examples.chain([root().join("conf/target.toml")]).collect();
    files.sort();
    for good in files {
        let name = good.strip_prefix(root()).unwrap_or(&good).to_string_lossy().into_owned();
        group.case(format!("--check-config {name}"), move |()| {
            let done = target(&["--check-config", &good.to_string_lossy()])?;
            if done.code != 0 || done.stderr.contains("EAL") {
                return Err(format!("exit code {}, stderr {:?}", done.code, done.stderr));
            }
            Ok(())
        });
    }
    group.case("--check-config of a file that is not TOML", |()| check("syntax", "[eal\nargs = 3\n", &["line 1"]));
    group.case("--check-config of a file with an unknown key", |()| {
        check("key", "[eal]\nargz = [\"--no-pci\"]\n", &["argz", "line 2"])
    });
}

const ADDRESS: [&str; 3] = ["--", "--address", "10.0.0.1/24"];

/// Runs the target with an address and these options of EAL.
fn with(env: &TestEnv, eal: &[&str]) -> Result<Finished, String> {
    let mut words = env.eal_options("cli");
    words.extend(eal.iter().chain(&ADDRESS).map(|s| s.to_string()));
    process::run(Command::new(target_binary()).args(words), LIMIT)
}

struct Env(Arc<TestEnv>);

impl crate::suite::Fixture for Env {}

fn with_eal() -> AnyGroup {
    let mut group = Group::new("cli-eal", Needs::default(), |env| Ok(Env(Arc::clone(env))));
    group.case("no port", |env: &mut Env| refused(with(&env.0, &[])?, &["port"], true));
    group.case("an EAL option that does not exist", |env| {
        refused(with(&env.0, &["--no-such-eal-option"])?, &["EAL"], true)
    });
    group.case("net_af_packet on an interface that does not exist", |env| {
        let done = with(&env.0, &["--vdev=net_af_packet0,iface=nosuch0"])?;
        refused(done, &["net_af_packet0", "No such device"], true)
    });
    group.case("--huge-dir that does not exist", |_| {
        let words = ["-l", "0", "--no-pci", "--file-prefix", "rxecli2", "--huge-dir", "/nonexistent"];
        refused(target(&[&words[..], &ADDRESS].concat())?, &["hugepages"], true)
    });
    group.build()
}
