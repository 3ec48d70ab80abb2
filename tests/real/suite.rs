//! Groups of cases: a fixture (a guest with a target, for example) and named cases that use it one after the other.
//! `scheduler` runs them.

use crate::Check;
use crate::env::TestEnv;
use crate::station::StationKey;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// State that the cases of a group share. It is made before the first case that runs and dropped after the last one.
pub trait Fixture {
    /// State that helps to understand a failure, such as the last lines of a program's log.
    fn context(&self) -> String {
        String::new()
    }

    /// The target's settings for docs/clients.md, where the group has rows there.
    fn settings(&self) -> &str {
        ""
    }
}

impl Fixture for () {}

type Body<F> = Box<dyn FnOnce(&mut F) -> Check + Send>;

struct Case<F> {
    name: String,
    nightly: bool,
    /// Whether it is a row of docs/clients.md.
    client: bool,
    body: Body<F>,
}

/// Resources that a group needs for itself while it runs.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    /// The guest that it shares with other groups.
    pub station: Option<StationKey>,
    /// No other group may run at the same time: it measures time, or takes all CPUs.
    pub alone: bool,
    /// It runs without root, hugepages and QEMU.
    pub bare: bool,
}

/// Makes the fixture of a group.
type Setup<F> = Box<dyn FnOnce(&Arc<TestEnv>) -> Result<F, String> + Send>;

/// Runs the cases of a group.
type RunGroup = Box<dyn FnOnce(&Arc<TestEnv>, &mut Run) + Send>;

/// A group of cases with fixture `F`, as it is being put together.
pub struct Group<F> {
    name: String,
    needs: Needs,
    setup: Setup<F>,
    cases: Vec<Case<F>>,
    nightly: bool,
    stop_at_failure: bool,
}

impl<F: Fixture + 'static> Group<F> {
    /// An empty group whose fixture is made by `setup`.
    pub fn new(
        name: impl Into<String>,
        needs: Needs,
        setup: impl FnOnce(&Arc<TestEnv>) -> Result<F, String> + Send + 'static,
    ) -> Group<F> {
        let setup = Box::new(setup);
        Group { name: name.into(), needs, setup, cases: Vec::new(), nightly: false, stop_at_failure: false }
    }

    /// Whether the cases that are added from now on belong to the nightly run only.
    pub fn nightly(&mut self, nightly: bool) -> &mut Self {
        self.nightly = nightly;
        self
    }

    /// After a failure the other cases cannot run, because each one builds on those before it.
    pub fn stop_at_failure(&mut self) {
        self.stop_at_failure = true;
    }

    /// Adds a case.
    pub fn case(&mut self, name: impl Into<String>, body: impl FnOnce(&mut F) -> Check + Send + 'static) {
        self.add(name.into(), false, Box::new(body));
    }

    /// Adds a case that is a row of docs/clients.md; its name is the command line.
    pub fn client_row(&mut self, command: &str, body: impl FnOnce(&mut F) -> Check + Send + 'static) {
        self.add(command.to_owned(), true, Box::new(body));
    }

    fn add(&mut self, name: String, client: bool, body: Body<F>) {
        self.cases.push(Case { name, nightly: self.nightly, client, body });
    }

    /// The group, ready to be run.
    pub fn build(self) -> AnyGroup {
        let Group { name, needs, setup, cases, stop_at_failure, .. } = self;
        let info = |case: &Case<F>| CaseInfo { name: case.name.clone(), nightly: case.nightly, client: case.client };
        let infos = cases.iter().map(info).collect();
        let bodies: Vec<Body<F>> = cases.into_iter().map(|case| case.body).collect();
        let run = move |env: &Arc<TestEnv>, run: &mut Run| run.all(env, setup, bodies, stop_at_failure);
        AnyGroup { name, needs, cases: infos, run: Box::new(run) }
    }
}

/// A case's name and kind.
pub struct CaseInfo {
    /// Its name within the group.
    pub name: String,
    /// Whether only the nightly run includes it.
    pub nightly: bool,
    /// Whether it is a row of docs/clients.md.
    pub client: bool,
}

/// A group whatever its fixture is.
pub struct AnyGroup {
    /// The first part of its cases' names.
    pub name: String,
    pub needs: Needs,
    /// In the order in which they run.
    pub cases: Vec<CaseInfo>,
    pub run: RunGroup,
}

/// The outcome of a case.
pub enum Outcome {
    Passed,
    Failed(String),
    Skipped(String),
}

/// A group while it runs.
pub struct Run {
    pub group: String,
    pub needs: Needs,
    /// Where each case's outcome goes; `None` for cases that are not wanted.
    pub senders: Vec<Option<Sender<Outcome>>>,
    pub names: Vec<String>,
    pub rows: Vec<bool>,
    pub settings: String,
    pub times: Vec<(String, Duration)>,
    pub failed: bool,
    pub results: Vec<ClientResult>,
}

/// The result of a client program of docs/clients.md.
pub struct ClientResult {
    /// The group of its case.
    pub group: String,
    /// Its command line, with names in place of addresses.
    pub command: String,
    /// The settings of the target that are not the default.
    pub settings: String,
    /// Whether it passed.
    pub passed: bool,
}

/// Runs `body`; a panic is a failure.
fn guarded<T>(body: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        Err(format!("panicked: {}", text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("?")))
    })
}

impl Run {
    /// A group that has not begun; `senders` has one for each case that is wanted.
    pub fn new(group: &AnyGroup, senders: Vec<Option<Sender<Outcome>>>) -> Run {
        Run {
            group: group.name.clone(),
            needs: group.needs,
            senders,
            names: group.cases.iter().map(|case| case.name.clone()).collect(),
            rows: group.cases.iter().map(|case| case.client).collect(),
            settings: String::new(),
            times: Vec::new(),
            failed: false,
            results: Vec::new(),
        }
    }

    fn all<F: Fixture>(
        &mut self,
        env: &Arc<TestEnv>,
        setup: impl FnOnce(&Arc<TestEnv>) -> Result<F, String>,
        bodies: Vec<Body<F>>,
        stop_at_failure: bool,
    ) {
        let began = Instant::now();
        let fixture = guarded(|| setup(env));
        self.times.push(("(fixture)".to_owned(), began.elapsed()));
        let mut fixture = match fixture {
            Ok(fixture) => fixture,
            Err(why) => return self.fail_all(&why),
        };
        self.settings = fixture.settings().to_owned();
        for (index, body) in bodies.into_iter().enumerate() {
            if self.senders[index].is_none() {
                continue;
            }
            if stop_at_failure && self.failed {
                self.report(index, Err("an earlier case of the group failed".to_owned()), Duration::ZERO);
                continue;
            }
            let began = Instant::now();
            let result = guarded(|| body(&mut fixture)).map_err(|what| format!("{what}\n{}", fixture.context()));
            self.report(index, result, began.elapsed());
        }
        if let (true, Some(key)) = (self.failed, self.needs.station) {
            env.distrust(key);
        }
    }

    fn report(&mut self, index: usize, result: Check, took: Duration) {
        let name = self.names[index].clone();
        if self.rows[index] {
            let (group, settings) = (self.group.clone(), self.settings.clone());
            self.results.push(ClientResult { group, command: name.clone(), settings, passed: result.is_ok() });
        }
        self.times.push((name, took));
        self.failed |= result.is_err();
        if let Some(sender) = self.senders[index].take() {
            // The receiver is dropped when the run is interrupted.
            let _ = sender.send(result.map_or_else(Outcome::Failed, |()| Outcome::Passed));
        }
    }

    /// The first wanted case has the reason, the others refer to it.
    fn fail_all(&mut self, why: &str) {
        let mut text = format!("the group's fixture: {why}");
        for index in 0..self.senders.len() {
            if self.senders[index].is_some() {
                self.report(
                    index,
                    Err(std::mem::replace(&mut text, "the group's fixture failed".to_owned())),
                    Duration::ZERO,
                );
            }
        }
    }
}
