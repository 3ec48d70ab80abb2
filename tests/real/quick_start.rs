//! README's quick start, executed as written, with the target inside a guest.
//!
//! The commands are the lines of the ```sh blocks that follow the comment `<!-- test:quick-start -->` in README.md. Each
//! runs as root in the guest, in a folder that looks like a checkout after `cargo build --release`; a line that ends
//! with ` &` starts the target and has to print its `ready` line. All others have to exit with 0.

use crate::guest::{Guest, GuestConfig, Job, Plug};
use crate::report::Report;
use crate::target::archive;
use crate::world::{World, root};
use std::time::Duration;

const MARKER: &str = "<!-- test:quick-start -->";
const LIMIT: Duration = Duration::from_secs(90);

/// The commands of all marked blocks; a backslash joins lines, comments and empty lines are left out.
fn commands(readme: &str) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for part in readme.split(MARKER).skip(1) {
        let block = part.trim_start().strip_prefix("```sh").and_then(|rest| rest.split_once("\n```"));
        let Some((block, _)) = block else {
            return Err(format!("README.md: no ```sh block right after {MARKER}"));
        };
        let lines = block.replace("\\\n", " ");
        found.extend(lines.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')).map(str::to_owned));
    }
    if found.is_empty() {
        return Err(format!("README.md: no {MARKER}"));
    }
    Ok(found)
}

/// The group `quick-start`.
pub fn run(report: &mut Report, world: &World) {
    if !report.group("quick-start") {
        return;
    }
    let read = || commands(&std::fs::read_to_string(root().join("README.md")).map_err(|e| format!("README.md: {e}"))?);
    let Some(commands) = report.fixture("README.md has commands", read) else { return };
    let Some(guest) = report.fixture("boot a guest with rxe-target in it", || boot(world)) else { return };
    let context = || format!("console: {}", guest.console());
    let mut targets: Vec<Job> = Vec::new();
    let mut pings = 0;
    for command in &commands {
        let in_checkout = |line: &str| format!("cd /root/rxe-dpdk && {line}");
        let went_well = report.case(command, context, || {
            if let Some(background) = command.strip_suffix(" &") {
                let job = guest.start(&in_checkout(&format!("exec {background}")), Duration::from_secs(600))?;
                job.wait_for("ready ", LIMIT)?;
                targets.push(job);
                return Ok(());
            }
            let done = guest.expect(&in_checkout(command), LIMIT, &[])?;
            pings += done.text.lines().filter(|l| l.starts_with("ping data: rdma-ping-")).count();
            Ok(())
        });
        if !went_well {
            return;
        }
    }
    report.case("ten pings or more", context, || if pings >= 10 { Ok(()) } else { Err(format!("{pings} pings")) });
    report.case("Ctrl-C ends the target", context, || {
        if targets.is_empty() {
            return Err("no line of the quick start ends with ` &`".to_owned());
        }
        for job in targets {
            job.kill(2)?;
            job.wait()?.expect(0, &[])?;
        }
        Ok(())
    });
}

fn boot(world: &World) -> Result<Guest, String> {
    world.boot(GuestConfig {
        name: "quick".to_owned(),
        plug: Plug::None,
        parameters: "rxe=none".to_owned(),
        extra_initrd: Some(archive(world)?),
        memory: 1536,
        cpus: 2,
    })
}
