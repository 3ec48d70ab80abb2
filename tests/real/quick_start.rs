//! README's quick start, executed as written, with the target inside a guest.
//!
//! The commands are the lines of the ```sh blocks that follow the comment `<!-- test:quick-start -->` in README.md. Each
//! runs as root in the guest, in a folder that looks like a checkout after `cargo build --release`; a line that ends
//! with ` &` starts the target and has to print its `ready` line. All others have to exit with 0.

use crate::Check;
use crate::env::{TestEnv, root};
use crate::guest::{Guest, GuestConfig, Job, Plug};
use crate::suite::{AnyGroup, Fixture, Group, Needs};
use crate::target::archive;
use rxe_testkit::readme::commands;
use std::time::Duration;

const MARKER: &str = "<!-- test:quick-start -->";
const LIMIT: Duration = Duration::from_secs(90);

/// The guest, its running targets, and the pings so far.
struct Reader {
    guest: Guest,
    targets: Vec<Job>,
    pings: usize,
}

impl Fixture for Reader {
    fn context(&self) -> String {
        format!("console: {}", self.guest.console())
    }
}

impl Reader {
    fn boot(env: &TestEnv) -> Result<Reader, String> {
        let guest = env.boot(GuestConfig {
            name: "quick".to_owned(),
            plug: Plug::None,
            parameters: "rxe=none".to_owned(),
            extra_initrd: Some(archive(env)?),
            memory: 1536,
            cpus: 2,
        })?;
        Ok(Reader { guest, targets: Vec::new(), pings: 0 })
    }

    fn run(&mut self, command: &str) -> Check {
        let in_checkout = |line: &str| format!("cd /root/rxe-dpdk && {line}");
        if let Some(background) = command.strip_suffix(" &") {
            let job = self.guest.start(&in_checkout(&format!("exec {background}")), Duration::from_secs(600))?;
            job.wait_for("ready ", LIMIT)?;
            self.targets.push(job);
            return Ok(());
        }
        let done = self.guest.expect(&in_checkout(command), LIMIT, &[])?;
        self.pings += done.text.lines().filter(|l| l.starts_with("ping data: rdma-ping-")).count();
        Ok(())
    }
}

/// The group `quick-start`.
pub fn group() -> AnyGroup {
    let mut group = Group::new("quick-start", Needs::default(), |env| Reader::boot(env));
    group.stop_at_failure();
    let readme = std::fs::read_to_string(root().join("README.md")).map_err(|e| format!("README.md: {e}"));
    match readme.and_then(|text| commands(&text, MARKER)) {
        Ok(commands) => {
            for command in commands {
                group.case(command.clone(), move |reader: &mut Reader| reader.run(&command));
            }
        }
        Err(why) => group.case("README.md has commands", move |_| Err(why)),
    }
    group.case("ten pings or more", |reader| match reader.pings {
        10.. => Ok(()),
        pings => Err(format!("{pings} pings")),
    });
    group.case("Ctrl-C ends the target", |reader| {
        if reader.targets.is_empty() {
            return Err("no line of the quick start ends with ` &`".to_owned());
        }
        for job in reader.targets.drain(..) {
            job.kill(2)?;
            job.wait()?.expect(0, &[])?;
        }
        Ok(())
    });
    group.build()
}
