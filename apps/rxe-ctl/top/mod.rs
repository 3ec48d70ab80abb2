//! The verb `top`: rates per lcore, service and queue pair between two snapshots.

mod rates;
mod view;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use rxe::CliError;
use rxe_inspect::client::Client;

use crate::output::pretty;
use rates::{Rates, Snapshot};

/// Sort key of the queue pairs, largest first.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum SortBy {
    /// Packets in both directions
    Packets,
    /// Retries
    Retries,
    /// Outstanding packets
    Outstanding,
}

/// Shows rates until the user quits; with `once` or `json`, returns those of one interval.
pub fn run(
    target: &mut Client,
    once: bool,
    json: bool,
    interval: Duration,
    mut sort: SortBy,
) -> Result<String, CliError> {
    let mut before = Snapshot::take(target)?;
    if once || json {
        std::thread::sleep(interval);
        let rates = Rates::between(&before, &Snapshot::take(target)?, sort);
        return Ok(if json { pretty(&rates) } else { view::text(&rates) });
    }
    if !std::io::stdout().is_terminal() {
        return Err(CliError::new("top needs a terminal on standard output: use --once to print one interval"));
    }
    let mut terminal = ratatui::try_init().map_err(terminal_failed)?;
    let mut rates = Rates::between(&before, &before, sort);
    let mut next = Instant::now() + interval;
    let outcome = loop {
        if let Err(error) = terminal.draw(|frame| view::draw(frame, &rates, sort)) {
            break Err(terminal_failed(error));
        }
        match event::poll(next.saturating_duration_since(Instant::now())) {
            Ok(true) => match event::read() {
                Ok(Event::Key(key)) if key.kind == KeyEventKind::Press => match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => break Ok(String::new()),
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => break Ok(String::new()),
                    KeyCode::Char('p') => sort = SortBy::Packets,
                    KeyCode::Char('r') => sort = SortBy::Retries,
                    KeyCode::Char('o') => sort = SortBy::Outstanding,
                    _ => {}
                },
                Ok(_) => {}
                Err(error) => break Err(terminal_failed(error)),
            },
            Ok(false) => {
                let snapshot = match Snapshot::take(target) {
                    Ok(snapshot) => snapshot,
                    Err(error) => break Err(error),
                };
                rates = Rates::between(&before, &snapshot, sort);
                before = snapshot;
                next = Instant::now() + interval;
            }
            Err(error) => break Err(terminal_failed(error)),
        }
        rates.sort(sort);
    };
    ratatui::restore();
    outcome
}

fn terminal_failed(error: std::io::Error) -> CliError {
    CliError::failed(format!("the terminal cannot be used: {error}"))
}
