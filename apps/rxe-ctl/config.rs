//! The verbs `config` and `reload`.

use std::io::{self, Write};

use clap::Subcommand;
use rxe::CliError;
use rxe_inspect::client::Client;
use rxe_inspect::protocol::Request;
use rxe_inspect::reload::Reload;
use serde_json::json;

use crate::output::pretty;

/// The verbs of `config`.
#[derive(Subcommand, Debug)]
pub enum ConfigVerb {
    /// Print a configuration file that would start the target as it runs
    ///
    /// It has all settings, those of the command line and of rxe-ctl included. With --json it is one string.
    Dump,
}

/// Carries out the verb; returns the text to print.
pub fn run(target: &mut Client, verb: &ConfigVerb, json: bool) -> Result<String, CliError> {
    let ConfigVerb::Dump = verb;
    let text: String = target.ask(&Request::Config)?;
    Ok(if json { pretty(&json!(text)) } else { text })
}

/// Reloads the configuration file; returns the text to print.
///
/// # Errors
/// The target does not reload, or something was refused.
pub fn reload(target: &mut Client, json: bool) -> Result<String, CliError> {
    let done: Reload = target.ask(&Request::Reload)?;
    let text = if json { pretty(&json!(done)) } else { show(&done) };
    if done.refused.is_empty() {
        return Ok(text);
    }
    // Standard output may be closed, as by `head`.
    let _ = io::stdout().write_all(text.as_bytes());
    Err(CliError::failed(format!("the target refused {} of the changes", done.refused.len())))
}

fn show(reload: &Reload) -> String {
    let line = |what: &'static str| move |item: &String| format!("{what}: {item}\n");
    let mut text: String = reload.applied.iter().map(line("applied")).collect();
    text.extend(reload.refused.iter().map(line("refused")));
    text.extend(reload.needs_restart.iter().map(line("needs a restart")));
    if text.is_empty() { format!("the target runs as {} says\n", reload.file) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_has_a_line_for_each_change() {
        let list = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect();
        let mut reload = Reload { file: "/etc/rxe/target.toml".to_owned(), ..Reload::default() };
        assert_eq!(show(&reload), "the target runs as /etc/rxe/target.toml says\n");
        reload.applied = list(&["log", "region a was added"]);
        reload.refused = list(&["region b: 1 queue pairs can reach it"]);
        reload.needs_restart = list(&["idle"]);
        assert_eq!(
            show(&reload),
            "applied: log\napplied: region a was added\nrefused: region b: 1 queue pairs can reach it\n\
             needs a restart: idle\n"
        );
    }
}
