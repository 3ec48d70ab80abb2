//! The command line as users get it wrong: a sentence on stderr, exit code 2, no panic.

use crate::Check;
use crate::process::{self, Finished};
use crate::report::Report;
use crate::world::{World, root, target_binary};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);

/// Runs the target with these words.
fn target(words: &[&str]) -> Result<Finished, String> {
    process::run(Command::new(target_binary()).args(words), LIMIT)
}

/// A user's mistake: exit code 2 and, on stderr, all of `texts`; no more than a few lines unless EAL had started.
fn refused(done: Finished, texts: &[&str], eal_started: bool) -> Check {
    let stderr = done.stderr.trim();
    let complain = |what: &str| Err(format!("{what}; stdout: {:?}; stderr: {stderr}", done.stdout));
    if stderr.contains("panicked") || done.stdout.contains("panicked") {
        return complain("the target panicked");
    }
    if done.code != 2 {
        return complain(&format!("exit code {} instead of 2", done.code));
    }
    if let Some(missing) = texts.iter().find(|t| !stderr.to_lowercase().contains(&t.to_lowercase())) {
        return complain(&format!("stderr does not mention {missing:?}"));
    }
    let own: Vec<&str> = stderr.lines().filter(|l| !l.trim().is_empty() && !is_eal_log(l)).collect();
    if own.is_empty() {
        return complain("stderr has nothing but EAL's own lines");
    }
    if !eal_started && stderr.lines().filter(|l| !l.trim().is_empty()).count() > 6 {
        return complain("more than a few lines for one mistake");
    }
    if !done.stdout.lines().all(|l| !l.starts_with("ready ")) {
        return complain("a `ready` line in spite of the mistake");
    }
    Ok(())
}

/// Lines that DPDK itself prints.
fn is_eal_log(line: &str) -> bool {
    ["EAL:", "TELEMETRY:", "PMD:", "rte_", "ethdev", "vhost"].iter().any(|p| line.trim_start().starts_with(p))
}

/// The group `cli`.
pub fn run(report: &mut Report, world: Option<&World>) {
    if !report.group("cli") {
        return;
    }
    without_eal(report);
    config_file(report);
    if let Some(world) = world {
        with_eal(report, world);
    }
}

fn without_eal(report: &mut Report) {
    report.case("--help", String::new, || {
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
    report.case("--version", String::new, || {
        let done = target(&["--version"])?;
        let line = done.stdout.trim();
        let versions =
            line.starts_with("rxe-target ") && line.contains(env!("CARGO_PKG_VERSION")) && line.contains("DPDK ");
        if done.code != 0 || !versions || line.contains('\n') || !done.stderr.is_empty() {
            return Err(format!("exit code {}, stdout {line:?}, stderr {:?}", done.code, done.stderr));
        }
        Ok(())
    });
    // The second element: what the sentence has to mention.
    let mistakes: &[(&[&str], &[&str])] = &[
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
        report.case(&words.join(" "), String::new, || refused(target(words)?, mentions, false));
    }
}

fn config_file(report: &mut Report) {
    let path = std::env::temp_dir().join(format!("rxe-real-{}.toml", std::process::id()));
    let file = path.to_string_lossy().into_owned();
    let check = |text: &str| -> Result<Finished, String> {
        std::fs::write(&path, text).map_err(|e| e.to_string())?;
        target(&["--check-config", &file])
    };
    let examples = std::fs::read_dir(root().join("conf/examples")).into_iter().flatten().flatten().map(|e| e.path());
    for good in examples.chain([root().join("conf/target.toml")]) {
        let name = good.strip_prefix(root()).unwrap_or(&good).to_string_lossy().into_owned();
        report.case(&format!("--check-config {name}"), String::new, || {
            let done = target(&["--check-config", &good.to_string_lossy()])?;
            if done.code != 0 || done.stderr.contains("EAL") {
                return Err(format!("exit code {}, stderr {:?}", done.code, done.stderr));
            }
            Ok(())
        });
    }
    report.case("--check-config of a file that is no TOML", String::new, || {
        refused(check("[eal\nargs = 3\n")?, &[&file, "line 1"], true)
    });
    report.case("--check-config of a file with an unknown key", String::new, || {
        refused(check("[eal]\nargz = [\"--no-pci\"]\n")?, &[&file, "argz", "line 2"], true)
    });
    let _ = std::fs::remove_file(&path);
}

fn with_eal(report: &mut Report, world: &World) {
    let address = ["--", "--address", "10.0.0.1/24"];
    let with = |eal: &[&str]| -> Result<Finished, String> {
        let mut words = world.eal_options("cli");
        words.extend(eal.iter().chain(&address).map(|s| s.to_string()));
        process::run(Command::new(target_binary()).args(words), LIMIT)
    };
    report.case("no port", String::new, || refused(with(&[])?, &["port"], true));
    report.case("an EAL option that does not exist", String::new, || {
        refused(with(&["--no-such-eal-option"])?, &["EAL"], true)
    });
    report.case("net_af_packet on an interface that does not exist", String::new, || {
        refused(with(&["--vdev=net_af_packet0,iface=nosuch0"])?, &["net_af_packet0", "No such device"], true)
    });
    report.case("--huge-dir that does not exist", String::new, || {
        let words = ["-l", "0", "--no-pci", "--file-prefix", "rxecli2", "--huge-dir", "/nonexistent"];
        refused(target(&[&words[..], &address].concat())?, &["hugepages"], true)
    });
    report.case("no hugetlbfs mounted", String::new, || {
        let script =
            "while umount -a -t hugetlbfs 2>/dev/null && grep -q hugetlbfs /proc/mounts; do :; done; exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh", target_binary(), "-l", "0", "--no-pci"]);
        command.args(["--file-prefix", "rxecli3"]).args(address);
        refused(process::run(&mut command, LIMIT)?, &["hugepages", "make setup"], true)
    });
}
