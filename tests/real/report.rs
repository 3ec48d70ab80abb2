//! Named cases and their results, printed as cargo's own harness prints them.

use crate::Check;
use crate::client_table;
use std::collections::HashSet;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

/// Collects results of cases named `GROUP/CASE`.
pub struct Report {
    filters: Vec<String>,
    group: String,
    passed: usize,
    filtered: usize,
    failed: Vec<(String, String)>,
    began: Instant,
    /// What client programs came to, for docs/clients.md.
    clients: Vec<ClientResult>,
    /// Groups of which the filters left cases out.
    partial: HashSet<String>,
}

/// What one client program came to.
pub struct ClientResult {
    /// The group of its case.
    pub group: String,
    /// Its command line, with names in place of addresses.
    pub command: String,
    /// The settings of the target that are not the default.
    pub settings: String,
    /// Whether it did what it has to.
    pub passed: bool,
}

impl Report {
    /// With no filter all cases run.
    pub fn new(filters: Vec<String>) -> Report {
        Report {
            filters,
            group: String::new(),
            passed: 0,
            filtered: 0,
            failed: Vec::new(),
            began: Instant::now(),
            clients: Vec::new(),
            partial: HashSet::new(),
        }
    }

    /// Opens a group; false when the filters leave it out.
    pub fn group(&mut self, name: &str) -> bool {
        self.group = name.to_owned();
        self.filters.is_empty() || self.filters.iter().any(|f| name.contains(f.split('/').next().unwrap_or("")))
    }

    /// Whether a filter is this very name, for groups that do not run otherwise.
    pub fn named(&self, group: &str) -> bool {
        self.filters.iter().any(|filter| filter.split('/').next() == Some(group))
    }

    fn wanted(&self, name: &str) -> bool {
        let matches = |filter: &String| {
            let (group, case) = filter.split_once('/').unwrap_or((filter, ""));
            self.group.contains(group) && name.contains(case)
        };
        self.filters.is_empty() || self.filters.iter().any(matches)
    }

    /// Runs one case of the open group. What `context` returns is added to the text of a failure.
    pub fn case(&mut self, name: &str, context: impl Fn() -> String, body: impl FnOnce() -> Check) -> bool {
        if !self.wanted(name) {
            self.filtered += 1;
            self.partial.insert(self.group.clone());
            return true;
        }
        let full = format!("{}/{name}", self.group);
        print!("test {full} ... ");
        let _ = std::io::stdout().flush();
        let began = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            Err(format!("panicked: {}", text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("?")))
        });
        let seconds = began.elapsed().as_secs_f32();
        match result {
            Ok(()) => {
                println!("ok ({seconds:.1} s)");
                self.passed += 1;
                true
            }
            Err(what) => {
                println!("FAILED ({seconds:.1} s)");
                let text = format!("{what}\n{}", context());
                for line in text.trim_end().lines() {
                    println!("    {line}");
                }
                self.failed.push((full, what));
                false
            }
        }
    }

    /// Runs a client program as a case, and notes it for docs/clients.md.
    pub fn client(
        &mut self,
        command: &str,
        settings: &str,
        context: impl Fn() -> String,
        body: impl FnOnce() -> Check,
    ) {
        let passed = self.case(command, context, body);
        let (command, settings) = (command.to_owned(), settings.to_owned());
        self.clients.push(ClientResult { group: self.group.clone(), command, settings, passed });
    }

    /// Compares docs/clients.md with the client programs that ran, or writes it anew.
    pub fn client_table(&mut self, kernel: &str) {
        let mut results = std::mem::take(&mut self.clients);
        results.retain(|result| !self.partial.contains(&result.group));
        if results.is_empty() {
            return;
        }
        self.group = "documents".to_owned();
        self.fixture("docs/clients.md has what ran", || client_table::keep(&results, kernel));
    }

    /// Sets a fixture up as a case of its own: `None`, and a failed case, when that does not work.
    pub fn fixture<T>(&mut self, name: &str, body: impl FnOnce() -> Result<T, String>) -> Option<T> {
        let mut made = None;
        let filters = std::mem::take(&mut self.filters); // a fixture is always needed
        self.case(name, String::new, || {
            made = Some(body()?);
            Ok(())
        });
        self.filters = filters;
        made
    }

    /// Says loudly what this machine could not run.
    pub fn skipped(&mut self, why: &str, is_failure: bool) {
        let line = "*".repeat(100);
        println!("{line}\nSKIPPED: the real-kernel tests did not run: {why}\n{line}");
        if is_failure {
            self.failed.push(("real-kernel tests".to_owned(), format!("skipped, which CI counts as a failure: {why}")));
        }
    }

    /// Prints the summary.
    pub fn finish(self) -> ExitCode {
        if !self.failed.is_empty() {
            println!("\nfailures:");
            for (name, what) in &self.failed {
                println!("    {name}: {}", what.lines().next().unwrap_or(""));
            }
        }
        let verdict = if self.failed.is_empty() { "ok" } else { "FAILED" };
        println!(
            "\ntest result: {verdict}. {} passed; {} failed; 0 ignored; 0 measured; {} filtered out; finished in {:.1}s\n",
            self.passed,
            self.failed.len(),
            self.filtered,
            self.began.elapsed().as_secs_f32()
        );
        if self.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
