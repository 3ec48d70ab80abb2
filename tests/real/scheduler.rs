//! Runs groups beside each other, as many as there are slots; groups that need the same guest, and groups that measure
//! time, do not.
//!
//! Crate libtest-mimic prints the results and has the command line: every case is one of its trials, named `GROUP/CASE`,
//! which waits until the scheduler has run the case. Cases of the full product are marked as ignored, so that
//! `--include-ignored` runs everything.

use crate::env::TestEnv;
use crate::station::{Port, StationKey};
use crate::suite::{AnyGroup, CaseInfo, ClientResult, Group, Needs, Outcome, Run};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use rxe_testkit::process::locked;
use std::collections::{BTreeMap, HashSet};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

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
    /// Results of client programs.
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

    /// Number of groups that may run concurrently.
    fn slots(&self) -> usize {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        self.options.test_threads.unwrap_or(cpus.min(2)).max(1)
    }
}

/// A group that has not begun.
struct Pending {
    group: AnyGroup,
    run: Run,
}

#[derive(Default)]
struct Queue {
    pending: Vec<Pending>,
    running: Vec<Needs>,
}

/// The first of the waiting groups that may run beside the running ones.
fn next(waiting: impl IntoIterator<Item = Needs>, running: &[Needs]) -> Option<usize> {
    if running.iter().any(|needs| needs.alone) {
        return None;
    }
    let busy = |key: StationKey| running.iter().any(|needs| needs.station == Some(key));
    let may_run = |needs: Needs| needs.station.is_none_or(|key| !busy(key)) && (!needs.alone || running.is_empty());
    waiting.into_iter().position(may_run)
}

impl Queue {
    /// The first group that may run now.
    fn take(&mut self) -> Option<Pending> {
        let index = next(self.pending.iter().map(|pending| pending.group.needs), &self.running)?;
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
        let mut senders = Vec::new();
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
        }
        let wanted = senders.iter().flatten().count();
        if wanted == count {
            whole.insert(group.name.clone());
        }
        if wanted > 0 {
            let run = Run::new(&group, senders);
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

/// The group `scheduler`: its own rules.
pub fn group() -> AnyGroup {
    let mut group = Group::new("scheduler", Needs { bare: true, ..Needs::default() }, |_| Ok(()));
    let free = Needs::default();
    let on = |mtu| Needs { station: Some(StationKey::new(Port::Vhost, mtu)), ..Needs::default() };
    let alone = Needs { alone: true, ..free };
    let expect = |found: Option<usize>, expected| match found {
        found if found == expected => Ok(()),
        found => Err(format!("{found:?}, not {expected:?}")),
    };
    group.case("groups with the same guest run one after the other", move |()| {
        expect(next([on(1500), on(4200), free], &[on(1500)]), Some(1))?;
        expect(next([on(1500), free], &[on(1500)]), Some(1))?;
        expect(next([on(1500)], &[on(1500)]), None)
    });
    group.case("a group that measures time runs alone", move |()| {
        expect(next([alone, free], &[on(1500)]), Some(1))?;
        expect(next([alone], &[on(1500)]), None)?;
        expect(next([alone, free], &[]), Some(0))?;
        expect(next([free], &[alone]), None)
    });
    group.case("filters are parts of the group's name and of the case's", move |()| {
        let selects = |words: &[&str], group, case| {
            CommandLine::parse(words.iter().map(|word| word.to_string())).selects(group, case)
        };
        for (words, expected) in [
            (&[][..], true),
            (&["vhost"], true),
            (&["vhost-1500/ping", "other"], true),
            (&["--skip", "other", "vhost/rping"], true),
            (&["other"], false),
            (&["vhost/other"], false),
        ] {
            if selects(words, "vhost-1500", "rping -c") != expected {
                return Err(format!("{words:?}"));
            }
        }
        Ok(())
    });
    group.build()
}
