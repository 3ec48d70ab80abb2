//! The table of limits in docs/security.md: each bound is read from the source or the documented configuration, and each row
//! names the counters of its refusal and the tests that reach the bound. `RXE_WRITE_DOCS=1` writes the table.

mod rows;

use std::fmt::Write;

use self::rows::{Bound, ROWS, Row};
use super::{read, root};

const PAGE: &str = "docs/security.md";
const BEGIN: &str = "<!-- generated: limits -->\n";
const END: &str = "<!-- end of limits -->\n";

/// The value of an arithmetic expression of the source: numbers, names of the same file, `*`, `/` and `<<`, from left to right.
fn evaluate(file: &str, expression: &str) -> u64 {
    let text = read(file);
    let mut value = None;
    let mut operator = "";
    for word in expression.split_whitespace() {
        if matches!(word, "*" | "/" | "<<") {
            operator = word;
            continue;
        }
        let number = word.replace('_', "").parse().unwrap_or_else(|_| {
            let (_, rest) =
                text.split_once(&format!("const {word}: usize = ")).unwrap_or_else(|| panic!("{file}: {word}"));
            evaluate(file, rest.split(';').next().unwrap())
        });
        value = Some(match (value, operator) {
            (None, _) => number,
            (Some(left), "*") => left * number,
            (Some(left), "/") => left / number,
            (Some(left), "<<") => left << number,
            other => panic!("{file}: {expression}: {other:?}"),
        });
    }
    value.unwrap_or_else(|| panic!("{file}: {expression}"))
}

fn source(file: &str, words: &str) -> u64 {
    let text = read(file);
    // Behind the declaration of a field is its type.
    let rest = text.split(words).skip(1).find(|rest| !rest.starts_with(['u', 'i']));
    let rest = rest.unwrap_or_else(|| panic!("{file}: there is no '{words}'"));
    evaluate(file, rest.split([';', ',']).next().unwrap())
}

impl Bound {
    fn text(&self) -> String {
        match *self {
            Bound::Key(key) => {
                let config = read("conf/target.toml");
                let line = config.lines().find_map(|line| line.strip_prefix(&format!("#: {key} = ")));
                let value = line.unwrap_or_else(|| panic!("conf/target.toml: there is no {key}"));
                // Without the line there is no limit.
                if key == "requests-per-second" { format!("`{key}` (none)") } else { format!("{value} (`{key}`)") }
            }
            Bound::In(section, key) => {
                let config = read("conf/target.toml");
                let keys = config.split_once(&format!("#: [{section}]\n")).map(|(_, keys)| keys);
                let keys = keys.and_then(|keys| keys.split("\n#: [").next()).unwrap_or_default();
                let value = keys.lines().find_map(|line| line.strip_prefix(&format!("#: {key} = ")));
                let value = value.unwrap_or_else(|| panic!("conf/target.toml: [{section}] has no {key}"));
                format!("{} (`{key}` of `[{section}]`)", value.trim_matches('"'))
            }
            Bound::Source(file, words) => source(file, words).to_string(),
            Bound::Of(front, file, words) => format!("{front}{}", source(file, words)),
            Bound::Words(words) => words.to_owned(),
        }
    }
}

/// The names of all counters and drop reasons, from their declarations.
fn counter_exists(name: &str) -> bool {
    const DECLARATIONS: [&str; 12] = [
        "rxe-dpdk/src/runtime/port_reports.rs",
        "rxe-dpdk/proto/src/cm/stats.rs",
        "rxe-dpdk/proto/src/transport/stats.rs",
        "rxe-dpdk/proto/src/wire/drop.rs",
        "rxe-dpdk/service/src/control/stats.rs",
        "rxe-dpdk/service/src/service_host/stats.rs",
        "rxe-dpdk/adapter/src/host_stats.rs",
        "rxe-dpdk/adapter/src/worker/stats.rs",
        "rxe-dpdk/adapter/src/worker/injector/mod.rs",
        "rxe-dpdk/inspect/src/server/clients.rs",
        "apps/rxe-target/manage/events.rs",
        "apps/rxe-target/services/metrics.rs",
    ];
    DECLARATIONS.iter().any(|file| {
        let text = read(file);
        text.contains(&format!("\"{name}\"")) || text.lines().any(|line| line.trim() == format!("{name},"))
    })
}

fn table() -> String {
    let mut text =
        "| what a peer can fill | bound | share of one peer | beyond it | counters |\n|---|---|---|---|---|\n"
            .to_owned();
    for Row { table, bound, share, refusal, counters, .. } in ROWS {
        let counters: Vec<String> = counters.iter().map(|name| format!("`{name}`")).collect();
        let (bound, share, counters) = (bound.text(), share.text(), counters.join(", "));
        writeln!(text, "| {table} | {bound} | {share} | {refusal} | {counters} |").unwrap();
    }
    text
}

#[test]
fn the_table_of_limits_is_that_of_the_source() {
    for Row { table, counters, tests, .. } in ROWS {
        for name in *counters {
            assert!(counter_exists(name), "{table}: there is no counter {name}");
        }
        assert!(!tests.is_empty(), "{table}: no test reaches the bound");
        for (file, function) in *tests {
            assert!(read(file).contains(&format!("fn {function}(")), "{table}: there is no fn {function} in {file}");
        }
    }
    let page = read(PAGE);
    let (front, rest) = page.split_once(BEGIN).expect("a place for the table");
    let (present, behind) = rest.split_once(END).expect("the end of the table");
    let table = table();
    if std::env::var_os("RXE_WRITE_DOCS").is_some() {
        std::fs::write(root().join(PAGE), [front, BEGIN, &table, END, behind].concat()).unwrap();
    } else {
        assert_eq!(present, table, "RXE_WRITE_DOCS=1 cargo test --test docs writes it");
    }
}
