//! docs/clients.md: client programs that ran against the target, with their flags and results.
//!
//! A run writes the file when RXE_WRITE_DOCS is set (`make docs`): each group that ran whole replaces its own column, so
//! the groups can also be run one by one. Without it, the commands of all groups are compared with those in the file,
//! whether they run or not, and the settings of the groups that ran.

use crate::Check;
use crate::env::{root, target_binary, write_docs};
use crate::scheduler::Finished;
use crate::suite::{AnyGroup, ClientResult, Group, Needs};
use rxe_testkit::process;
use std::collections::HashMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// One table: its title and its columns, each a group of cases and its wire.
struct Section {
    title: &'static str,
    columns: &'static [(&'static str, &'static str)],
}

const VHOST: &str = "vhost-user, MTU 1500";
const VHOST_4200: &str = "vhost-user, MTU 4200";

const SECTIONS: [Section; 9] = [
    Section { title: "ibv_*_pingpong", columns: &[("pingpong-1500", VHOST), ("pingpong-4200", VHOST_4200)] },
    Section { title: "perftest", columns: &[("perftest-1500", VHOST), ("perftest-4200", VHOST_4200)] },
    Section {
        title: "perftest over the connection manager",
        columns: &[("perftest-cm-1500", VHOST), ("perftest-cm-4200", "vhost-user, MTU 4200, two lcores")],
    },
    Section {
        title: "rping, rdma_client, rdma_xclient, rdma-example",
        columns: &[
            ("vhost-1500", VHOST),
            ("vhost-4200", VHOST_4200),
            ("af_packet-1500", "net_af_packet, MTU 1500"),
            ("af_packet-4200", "net_af_packet, MTU 4200"),
        ],
    },
    Section { title: "ucmatose, udaddy, cmtime", columns: &[("rdmacm-1500", VHOST), ("rdmacm-4200", VHOST_4200)] },
    Section { title: "mckey", columns: &[("mckey-1500", VHOST), ("mckey-4200", "vhost-user, MTU 4200, two lcores")] },
    Section {
        title: "The RC example of the manual",
        columns: &[("rc-example-1500", VHOST), ("rc-example-4200", VHOST_4200)],
    },
    Section { title: "rstream, riostream", columns: &[("rsocket-1500", VHOST), ("rsocket-4200", VHOST_4200)] },
    Section {
        title: "One of each",
        columns: &[
            ("clients-af_packet", "net_af_packet, MTU 1500"),
            ("clients-lossy", "vhost-user, MTU 4200, 1 % of the frames lost each way"),
        ],
    },
];

const INTRODUCTION: &str = "\
# Client programs

The programs below are Debian's, unmodified, run by a Linux guest with soft-RoCE against `rxe-target` with its default
services, two regions and `--idle sleep`. The first row of each table has what else was configured on the target for the
commands of a column, or none. Each other row is a command, and each entry `ok` a test that checks exit code and output.
The tests write this file (`make docs`), and fail when its commands are not theirs.
`make test` runs each program once or a few times in the guest, and with more flags under `rxe-run`, without a guest (`tests/verbs`);
`make nightly` runs all of them.

In the commands, `IPV4` and `IPV6` are the target's addresses, `MYIP` is the guest's, and `GID4` and `GID6` are the
numbers of the guest's GIDs of these addresses. `rdma_example_client` speaks as the client of the well-known rdma-example
does, `rc_example_client` as that of the manual \"RDMA Aware Networks Programming\"; both are in `tests/clients`.
";

/// One column.
#[derive(Clone, Default)]
struct Column {
    /// Settings of the target, date, kernel, tools and version of the run.
    run: Vec<String>,
    /// Commands and their results, in the order of the run.
    results: Vec<(String, String)>,
}

type Columns = HashMap<String, Column>;

/// First cell of the row of a table with the settings of each column.
const SETTINGS: &str = "settings of the target";

fn file() -> PathBuf {
    root().join("docs/clients.md")
}

fn cells(line: &str) -> Vec<String> {
    let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
    inner.split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect()
}

/// Parses the file.
fn parse(text: &str) -> Columns {
    let mut columns = Columns::new();
    // The groups of the current table.
    let mut groups: Option<Vec<String>> = None;
    for line in text.lines() {
        if !line.starts_with('|') {
            groups = None;
            continue;
        }
        let mut row = cells(line);
        let first = row.remove(0);
        match &groups {
            None => groups = Some(row),
            Some(_) if first.starts_with("---") => {}
            Some(names) if names.first().is_some_and(|name| name == "wire") => {
                columns.entry(first).or_default().run.extend(row.split_off(1));
            }
            Some(names) if first == SETTINGS => {
                for (name, settings) in names.iter().zip(row) {
                    columns.entry(name.clone()).or_default().run = vec![settings];
                }
            }
            Some(names) => {
                for (name, result) in names.iter().zip(row).filter(|(_, result)| !result.is_empty()) {
                    columns.entry(name.clone()).or_default().results.push((first.clone(), result));
                }
            }
        }
    }
    columns
}

/// All commands of a section. Its columns list them in the same order, but not all have all of them.
fn commands<'c>(section: &Section, columns: &'c Columns) -> Vec<&'c str> {
    let mut all: Vec<&str> = Vec::new();
    for (group, _) in section.columns {
        let mut at = 0;
        for (command, _) in columns.get(*group).iter().flat_map(|column| &column.results) {
            match all.iter().position(|known| known == command) {
                Some(place) => at = place + 1,
                None => {
                    all.insert(at, command);
                    at += 1;
                }
            }
        }
    }
    all
}

fn text(columns: &Columns) -> String {
    let mut text = INTRODUCTION.to_owned();
    for section in &SECTIONS {
        let ran: Vec<&str> = section.columns.iter().map(|(group, _)| *group).collect();
        let ran: Vec<&str> = ran.into_iter().filter(|group| columns.contains_key(*group)).collect();
        if ran.is_empty() {
            continue;
        }
        let _ = write!(text, "\n## {}\n\n| command |", section.title);
        ran.iter().for_each(|group| text += &format!(" {group} |"));
        let _ = write!(text, "\n|---|{}\n| {SETTINGS} |", "---|".repeat(ran.len()));
        for group in &ran {
            let settings = columns.get(*group).and_then(|column| column.run.first()).map_or("none", String::as_str);
            let mark = if settings == "none" { "" } else { "`" };
            let _ = write!(text, " {mark}{settings}{mark} |");
        }
        text.push('\n');
        for command in commands(section, columns) {
            let _ = write!(text, "| `{command}` |");
            for group in &ran {
                let results = columns.get(*group).map_or(&[][..], |column| &column.results);
                let result = results.iter().find(|(known, _)| known == command);
                text += &result.map_or(" |".to_owned(), |(_, result)| format!(" {result} |"));
            }
            text.push('\n');
        }
    }
    text += "\n## The runs\n\n| tests | wire | date | guest's kernel | clients | target |\n|---|---|---|---|---|---|\n";
    for (group, wire) in SECTIONS.iter().flat_map(|section| section.columns) {
        if let Some(column) = columns.get(*group) {
            let run = column.run.get(1..).unwrap_or_default();
            let _ = writeln!(text, "| {group} | {wire} | {} |", run.join(" | "));
        }
    }
    text
}

/// Standard output of a program, trimmed.
fn output(program: &str, arguments: &[&str]) -> Result<String, String> {
    let done = process::run(Command::new(program).args(arguments), Duration::from_secs(20))?;
    if done.code == 0 { Ok(done.stdout.trim().to_owned()) } else { Err(format!("{program}: {}", done.stderr)) }
}

/// Date, kernel and versions of the run.
fn this_run(kernel: &str) -> Result<Vec<String>, String> {
    // The guest's programs are copies of the host's.
    let version = |package: &str| output("dpkg-query", &["-W", "-f=${Version}", package]);
    let clients = format!("perftest {}, rdma-core {}", version("perftest")?, version("rdmacm-utils")?);
    Ok(vec![output("date", &["-u", "+%F"])?, kernel.to_owned(), clients, output(target_binary(), &["--version"])?])
}

/// Whether a column has these commands and no others.
fn same(group: &str, known: Option<&Column>, commands: &[String]) -> Check {
    let listed: Vec<&String> = known.iter().flat_map(|column| &column.results).map(|(command, _)| command).collect();
    if let Some(command) = commands.iter().find(|command| !listed.contains(command)) {
        return Err(format!("docs/clients.md lacks `{command}` of {group}: run `make docs`"));
    }
    if let Some(command) = listed.into_iter().find(|command| !commands.contains(command)) {
        return Err(format!("docs/clients.md has `{command}` of {group}, which is no case of it: run `make docs`"));
    }
    Ok(())
}

/// Whether the file has the settings that a group had.
fn same_settings(group: &str, known: Option<&Column>, results: &[&ClientResult]) -> Check {
    let listed = known.and_then(|column| column.run.first()).map_or("", String::as_str);
    match results.iter().find(|result| result.settings != listed) {
        None => Ok(()),
        Some(other) => {
            let settings = &other.settings;
            Err(format!("docs/clients.md has the settings `{listed}` for {group}, not `{settings}`: run `make docs`"))
        }
    }
}

/// Groups of another kernel are named after it and have no column.
fn has_column(group: &str) -> bool {
    SECTIONS.iter().any(|section| section.columns.iter().any(|(name, _)| *name == group))
}

fn read() -> Result<(String, Columns), String> {
    let before = std::fs::read_to_string(file()).map_err(|e| format!("docs/clients.md: {e}"))?;
    let columns = parse(&before);
    Ok((before, columns))
}

/// The group `documents`: the file has the commands of these groups.
pub fn group(groups: &[AnyGroup]) -> AnyGroup {
    let mut documents = Group::new("documents", Needs { bare: true, ..Needs::default() }, |_| Ok(()));
    if write_docs() {
        return documents.build();
    }
    let commands = |group: &AnyGroup| {
        let rows = group.cases.iter().filter(|case| case.client);
        (group.name.clone(), rows.map(|case| case.name.clone()).collect::<Vec<_>>())
    };
    let groups: Vec<_> = groups.iter().filter(|group| has_column(&group.name)).map(commands).collect();
    documents.case("docs/clients.md has the commands of the tests", move |()| {
        let (before, columns) = read()?;
        if text(&columns) != before {
            return Err("docs/clients.md is not as a run writes it: change the tests and run `make docs`".to_owned());
        }
        groups.iter().try_for_each(|(group, commands)| same(group, columns.get(group), commands))
    });
    documents.build()
}

/// Compares the settings of groups that ran with those in the file; or, if that is asked for, writes the results of
/// groups that ran whole into it.
pub fn keep(finished: &Finished, kernel: &str) -> Check {
    let mut groups = finished.clients_by_group();
    groups.retain(|group, _| has_column(group));
    if !write_docs() {
        let (_, columns) = read()?;
        return groups.iter().try_for_each(|(group, results)| same_settings(group, columns.get(*group), results));
    }
    groups.retain(|group, _| finished.whole.contains(*group));
    let mut columns = read().map(|(_, columns)| columns).unwrap_or_default();
    let run = this_run(kernel)?;
    for (group, results) in groups {
        // All cases of a group have the same target.
        let settings = results.first().map_or_else(String::new, |result| result.settings.clone());
        let run: Vec<String> = std::iter::once(settings).chain(run.iter().cloned()).collect();
        let results = results.iter().map(|result| {
            (result.command.clone(), if result.passed { "ok".to_owned() } else { "**failed**".to_owned() })
        });
        columns.insert(group.to_owned(), Column { run, results: results.collect() });
    }
    std::fs::write(file(), text(&columns)).map_err(|e| format!("docs/clients.md: {e}"))
}
