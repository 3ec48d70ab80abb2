//! Named cases and their results, printed as cargo's own harness prints them.

use crate::Check;
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
}

impl Report {
    /// With no filter all cases run.
    pub fn new(filters: Vec<String>) -> Report {
        Report { filters, group: String::new(), passed: 0, filtered: 0, failed: Vec::new(), began: Instant::now() }
    }

    /// Opens a group; false when the filters leave it out.
    pub fn group(&mut self, name: &str) -> bool {
        self.group = name.to_owned();
        self.filters.is_empty() || self.filters.iter().any(|f| name.contains(f.split('/').next().unwrap_or("")))
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
