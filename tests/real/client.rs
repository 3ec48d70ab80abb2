//! An unmodified client program: its command line and its expected output.
//!
//! Command lines are as docs/clients.md shows them, with names for values that differ from run to run: `IPV4` and `IPV6` are the
//! target's addresses, `GID4` and `GID6` the numbers of the guest's own, `MYIP` its IPv4 address.

use crate::Check;
use crate::bed::TestBed;
use crate::guest::Output;
use crate::suite::Group;
pub use crate::support::client_output::{RDMA_EXAMPLE, Rows, UCMATOSE, UDADDY, Wants};
use std::time::Duration;

/// Far more than any of them takes, but for the loaded machine.
const LIMIT: Duration = Duration::from_secs(180);
/// The same in the nightly run.
const LONG: Duration = Duration::from_secs(1800);

/// A client program with its flags.
pub struct Client {
    command: String,
    wants: Wants,
    limit: Duration,
    /// The service that counts it, with connections and exchanges.
    counts: Option<(&'static str, u64, u64)>,
}

impl Client {
    /// `command` has names in place of addresses.
    pub fn new(command: impl Into<String>, wants: Wants) -> Client {
        Client { command: command.into(), wants, limit: LIMIT, counts: None }
    }

    /// perftest: nothing is said of the processor's clock, which an emulated one cannot keep.
    pub fn perftest(command: &str, rows: Rows) -> Client {
        Client::new(format!("{command} -F IPV4"), Wants::Rows(rows))
    }

    /// The ping-pong programs: `kind` is rc, uc, ud or srq, `version` that of IP.
    pub fn pingpong(kind: &str, version: u8, size: u64, count: u64, flags: &str) -> Client {
        let command = format!("ibv_{kind}_pingpong -g GID{version} -s {size} -n {count}{flags} IPV{version}");
        Client::new(command, Wants::Messages { size, count })
    }

    /// It may take long.
    pub fn long(self) -> Client {
        Client { limit: LONG, ..self }
    }

    /// The command line, with names in place of addresses.
    pub fn command(&self) -> &str {
        &self.command
    }

    /// The guest's shell command.
    pub fn script(&self, bed: &TestBed) -> Result<String, String> {
        let command = bed.fill(&self.command)?;
        Ok(match self.wants {
            // Only the lines' beginnings: 100 lines of 64 KiB are much for an emulated serial port. Errors come last,
            // as they would end up in the middle of a line.
            Wants::Pings(_) => format!(
                "set -o pipefail; errors=$(mktemp); {command} 2>$errors | cut -c 1-60; c=$?; cat $errors; exit $c"
            ),
            _ => command,
        })
    }

    /// Checks how it ended.
    pub fn check(&self, output: Output) -> Check {
        self.wants.check(&output.expect(0, &[])?.text)
    }

    /// Runs it to its end.
    pub fn run(&self, bed: &TestBed) -> Check {
        self.check(bed.guest().run(&self.script(bed)?, self.limit)?)
    }

    /// Adds to the client what the service counts for it: connections and exchanges.
    pub fn counts(self, service: &'static str, connections: u64, exchanges: u64) -> Client {
        Client { counts: Some((service, connections, exchanges)), ..self }
    }

    /// Runs it to its end, and adds its connections and exchanges to the bed's tally.
    pub fn run_counted(&self, bed: &mut TestBed) -> Check {
        self.run(bed)?;
        if let Some((service, connections, exchanges)) = self.counts {
            bed.count(service, connections, exchanges);
        }
        Ok(())
    }

    /// Adds it to a group as a row of docs/clients.md. `bed` finds the bed in the group's fixture.
    pub fn case_in<F: crate::suite::Fixture + 'static>(
        self,
        group: &mut Group<F>,
        bed: impl FnOnce(&mut F) -> &mut TestBed + Send + 'static,
    ) {
        let command = self.command.clone();
        group.client_row(&command, move |fixture| self.run_counted(bed(fixture)));
    }

    /// The same in a group whose fixture is the bed.
    pub fn case(self, group: &mut Group<TestBed>) {
        self.case_in(group, |bed| bed);
    }
}

/// Adds them as cases that run one after the other.
pub fn cases(group: &mut Group<TestBed>, clients: impl IntoIterator<Item = Client>) {
    for client in clients {
        client.case(group);
    }
}

/// Adds them as cases, of which those that are not in `quick` belong to the nightly run.
pub fn cases_quick(group: &mut Group<TestBed>, clients: Vec<Client>, quick: &[&str]) {
    for command in quick {
        assert!(clients.iter().any(|client| client.command == *command), "no client program runs `{command}`");
    }
    for client in clients {
        let in_quick = quick.contains(&client.command.as_str());
        client.case(group.nightly(!in_quick));
    }
}

/// Kills a program once a queue pair of its own works.
pub fn kill_at_work(bed: &TestBed, program: &str) -> Check {
    let script = format!(
        "{program} & pid=$!\n\
         until rdma resource show qp | grep -q \"RTS.* pid $pid \"; do kill -0 $pid || exit 99; done\n\
         kill -KILL $pid; wait $pid"
    );
    bed.guest().run(&script, LIMIT)?.expect(137, &[]).map(drop)
}

/// Runs them all at once.
pub fn at_once(bed: &TestBed, clients: &[Client], limit: Duration) -> Check {
    let mut jobs = Vec::new();
    for client in clients {
        jobs.push(bed.guest().start(&client.script(bed)?, limit)?);
    }
    let mut failed = Vec::new();
    for (client, job) in clients.iter().zip(jobs) {
        if let Err(what) = job.wait().and_then(|output| client.check(output)) {
            failed.push(format!("{}: {what}", client.command()));
        }
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("{} of {}: {}", failed.len(), clients.len(), failed.join("\n")))
    }
}
