//! Groups of cases, and the scheduler that runs them.
//!
//! A group is a fixture (a guest with a target, for example) and named cases that use it one after the other. Groups run
//! beside each other, as many as there are slots; groups that need the same guest, and groups that measure time, do not.
//! Crate libtest-mimic prints the results and has the command line: every case is one of its trials, named `GROUP/CASE`,
//! which waits until the scheduler has run the case. Cases of the full product are marked as ignored, so that
//! `--include-ignored` runs everything.

use crate::Check;
use crate::env::TestEnv;
use crate::station::StationKey;
use crate::support::process::locked;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use std::collections::{BTreeMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// What the cases of a group share. It is made before the first case that runs and dropped after the last one.
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

/// What a group needs for itself while it runs.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    /// The guest that it shares with other groups.
    pub station: Option<StationKey>,
    /// No other group may run at the same time: it measures time, or takes all CPUs.
    pub alone: bool,
    /// It runs without root, hugepages and QEMU.
    pub bare: bool,
}

/// A group of cases with fixture `F`, as it is being put together.
pub struct Group<F> {
    name: String,
    needs: Needs,
    setup: Box<dyn FnOnce(&Arc<TestEnv>) -> Result<F, String> + Send>,
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

/// What is known of a case before it runs.
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
    needs: Needs,
    /// In the order in which they run.
    pub cases: Vec<CaseInfo>,
    run: Box<dyn FnOnce(&Arc<TestEnv>, &mut Run) + Send>,
}

/// What became of a case.
enum Outcome {
    Passed,
    Failed(String),
    Skipped(String),
}

/// A group while it runs.
struct Run {
    group: String,
    needs: Needs,
    /// Where each case's outcome goes; `None` for cases that are not wanted.
    senders: Vec<Option<Sender<Outcome>>>,
    names: Vec<String>,
    rows: Vec<bool>,
    settings: String,
    times: Vec<(String, Duration)>,
    failed: bool,
    results: Vec<ClientResult>,
}

/// What one client program of docs/clients.md came to.
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
            // The receiver is gone when the run was given up.
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

/// How long a group took, and its cases.
pub struct GroupTime {
    name: String,
    took: Duration,
    cases: Vec<(String, Duration)>,
}

/// The result of a run.
pub struct Finished {
    /// Whether a case failed.
    pub failed: bool,
    /// What client programs came to.
    pub clients: Vec<ClientResult>,
    /// Groups in which all cases ran.
    pub whole: HashSet<String>,
    times: Vec<GroupTime>,
}

/// The command line: libtest-mimic's options, and any number of filters, each `GROUP` or `GROUP/CASE` (parts of names).
pub struct CommandLine {
    options: Arguments,
    filters: Vec<String>,
}

impl CommandLine {
    /// Takes the words apart.
    pub fn parse(words: impl Iterator<Item = String>) -> CommandLine {
        const WITH_VALUE: [&str; 6] = ["--test-threads", "--logfile", "--skip", "--color", "--format", "-Z"];
        let (mut options, mut filters) = (vec!["real".to_owned()], Vec::new());
        let mut value = false;
        for word in words {
            if value || word.starts_with('-') {
                value = !value && WITH_VALUE.contains(&word.as_str());
                options.push(word);
            } else {
                filters.push(word);
            }
        }
        let mut options = Arguments::from_iter(options);
        options.include_ignored |= std::env::var_os("RXE_NIGHTLY").is_some_and(|v| !v.is_empty());
        CommandLine { options, filters }
    }

    /// Whether the cases of the full product run as well.
    pub fn full(&self) -> bool {
        self.options.include_ignored || self.options.ignored
    }

    /// Whether the cases of the full product are left out.
    fn quick(&self) -> bool {
        !self.full() && !self.options.list
    }

    /// Whether names are to be printed and nothing is to run.
    pub fn list(&self) -> bool {
        self.options.list
    }

    fn selects(&self, group: &str, case: &str) -> bool {
        let matches = |filter: &String| {
            let (in_group, in_case) = filter.split_once('/').unwrap_or((filter, ""));
            if self.options.exact {
                return in_group == group && (in_case.is_empty() || in_case == case);
            }
            group.contains(in_group) && case.contains(in_case)
        };
        self.filters.is_empty() || self.filters.iter().any(matches)
    }

    /// How many groups may run at once.
    fn slots(&self) -> usize {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        self.options.test_threads.unwrap_or(cpus.min(2)).max(1)
    }
}

/// A group that waits for its turn.
struct Pending {
    group: AnyGroup,
    run: Run,
}

#[derive(Default)]
struct Queue {
    pending: Vec<Pending>,
    running: Vec<Needs>,
}

impl Queue {
    /// The first group that can run now.
    fn take(&mut self) -> Option<Pending> {
        if self.running.iter().any(|needs| needs.alone) {
            return None;
        }
        let busy = |key: StationKey| self.running.iter().any(|needs| needs.station == Some(key));
        let free = |needs: Needs| needs.station.is_none_or(|key| !busy(key));
        let alone = |needs: Needs| !needs.alone || self.running.is_empty();
        let index = self.pending.iter().position(|p| free(p.group.needs) && alone(p.group.needs))?;
        let taken = self.pending.remove(index);
        self.running.push(taken.group.needs);
        Some(taken)
    }

    fn done(&mut self, needs: Needs) {
        if let Some(index) = self.running.iter().position(|running| *running == needs) {
            self.running.swap_remove(index);
        }
    }
}

/// Where groups run: in `env`, or nowhere, for a reason.
pub type Place<'a> = Result<&'a Arc<TestEnv>, &'a str>;

/// Runs the cases that the command line selects, and prints their results. Without a place only bare groups run.
pub fn run(command_line: CommandLine, groups: Vec<AnyGroup>, place: Place) -> Finished {
    let mut trials = Vec::new();
    let mut queue = Queue::default();
    let mut whole = HashSet::new();
    let must_run = std::env::var_os("CI").is_some_and(|v| !v.is_empty());
    for group in groups {
        let count = group.cases.len();
        let (mut senders, mut names, mut rows) = (Vec::new(), Vec::new(), Vec::new());
        for case in &group.cases {
            let (sender, receiver) = channel();
            let trial = trial(&group.name, case, receiver);
            let options = &command_line.options;
            let runs = command_line.selects(&group.name, &case.name);
            let wanted = runs && !options.is_filtered_out(&trial) && !options.is_ignored(&trial);
            match place {
                Err(why) if wanted && !group.needs.bare => {
                    let outcome = if must_run { Outcome::Failed } else { Outcome::Skipped };
                    let _ = sender.send(outcome(format!("cannot run here: {why}")));
                    senders.push(None);
                }
                _ => senders.push(wanted.then_some(sender)),
            }
            // Lines of cases that are left out would hide the others.
            if runs && !(case.nightly && command_line.quick()) {
                trials.push(trial);
            }
            names.push(case.name.clone());
            rows.push(case.client);
        }
        let wanted = senders.iter().flatten().count();
        if wanted == count {
            whole.insert(group.name.clone());
        }
        if wanted > 0 {
            let run = Run {
                group: group.name.clone(),
                needs: group.needs,
                senders,
                names,
                rows,
                settings: String::new(),
                times: Vec::new(),
                failed: false,
                results: Vec::new(),
            };
            queue.pending.push(Pending { group, run });
        }
    }
    let slots = command_line.slots();
    let mut options = command_line.options;
    // The trials only wait: in one thread their results come in the order of the list.
    options.test_threads = Some(1);
    let shared = (Mutex::new(queue), Condvar::new());
    let done = Mutex::new((Vec::new(), Vec::new()));
    // Bare groups use nothing of it.
    let nowhere = Arc::new(TestEnv::nowhere());
    let env = place.unwrap_or(&nowhere);
    let conclusion = std::thread::scope(|scope| {
        if !options.list {
            for _ in 0..slots {
                scope.spawn(|| work(&shared, env, &done));
            }
        }
        libtest_mimic::run(&options, trials)
    });
    let (times, clients) = done.into_inner().unwrap_or_else(|e| e.into_inner());
    Finished { failed: conclusion.has_failed(), clients, whole, times }
}

fn trial(group: &str, case: &CaseInfo, outcome: Receiver<Outcome>) -> Trial {
    let body = move || match outcome.recv() {
        Ok(Outcome::Passed) => Ok(Completion::Completed),
        Ok(Outcome::Skipped(why)) => Ok(Completion::ignored_with(why)),
        Ok(Outcome::Failed(what)) => Err(Failed::from(what)),
        Err(_) => Err(Failed::from("its group ended before it")),
    };
    Trial::ignorable_test(format!("{group}/{}", case.name), body).with_ignored_flag(case.nightly)
}

/// Runs groups until none is left.
fn work(
    (queue, changed): &(Mutex<Queue>, Condvar),
    env: &Arc<TestEnv>,
    done: &Mutex<(Vec<GroupTime>, Vec<ClientResult>)>,
) {
    loop {
        let mut state = locked(queue);
        let taken = loop {
            if state.pending.is_empty() {
                return;
            }
            match state.take() {
                Some(taken) => break taken,
                None => state = changed.wait(state).unwrap_or_else(|e| e.into_inner()),
            }
        };
        drop(state);
        let Pending { group, mut run } = taken;
        let began = Instant::now();
        (group.run)(env, &mut run);
        let took = began.elapsed();
        eprintln!("group {}: {:.1} s", group.name, took.as_secs_f32());
        let mut state = locked(queue);
        state.done(group.needs);
        // The last group of a station takes it down.
        if let Some(key) = group.needs.station
            && !state.pending.iter().any(|pending| pending.group.needs.station == Some(key))
        {
            env.take_down(key);
        }
        drop(state);
        changed.notify_all();
        let mut done = locked(done);
        done.0.push(GroupTime { name: group.name, took, cases: run.times });
        done.1.extend(run.results);
    }
}

impl Finished {
    /// The time of every group, the slowest first, and the ten slowest cases.
    pub fn summary(&mut self) -> String {
        let mut text = "seconds by group:\n".to_owned();
        self.times.sort_by_key(|group| std::cmp::Reverse(group.took));
        for group in &self.times {
            text += &format!("{:8.1}  {}\n", group.took.as_secs_f32(), group.name);
        }
        let cases =
            self.times.iter().flat_map(|group| group.cases.iter().map(|(name, took)| (&group.name, name, took)));
        let mut cases: Vec<_> = cases.collect();
        cases.sort_by_key(|(_, _, took)| std::cmp::Reverse(**took));
        text += "the ten slowest cases:\n";
        for (group, name, took) in cases.into_iter().take(10) {
            text += &format!("{:8.1}  {group}/{name}\n", took.as_secs_f32());
        }
        text
    }

    /// Client programs by group.
    pub fn clients_by_group(&self) -> BTreeMap<&str, Vec<&ClientResult>> {
        let mut groups: BTreeMap<&str, Vec<&ClientResult>> = BTreeMap::new();
        for result in &self.clients {
            groups.entry(&result.group).or_default().push(result);
        }
        groups
    }
}
