//! The live view: what is going on per lcore, service and queue pair, as rates between two looks.

mod rates;
mod view;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use rxe_inspect::client::Client;

use crate::Failure;
use crate::cli::SortBy;
use crate::verbs::pretty;
use rates::{Look, Rates};

/// Looks at the target until the user has seen enough, or `once`.
pub fn run(
    target: &mut Client,
    once: bool,
    json: bool,
    interval: Duration,
    mut sort: SortBy,
) -> Result<String, Failure> {
    let mut before = Look::take(target)?;
    if once || json {
        std::thread::sleep(interval);
        let rates = Rates::between(&before, &Look::take(target)?, sort);
        return Ok(if json { pretty(&rates) } else { view::text(&rates) });
    }
    if !std::io::stdout().is_terminal() {
        return Err(Failure::Mistake("top needs a terminal: print one interval with --once".to_owned()));
    }
    let mut terminal = ratatui::try_init()?;
    let mut rates = Rates::between(&before, &before, sort);
    let mut next = Instant::now() + interval;
    let outcome = loop {
        if let Err(error) = terminal.draw(|frame| view::draw(frame, &rates, sort)) {
            break Err(error.into());
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
                Err(error) => break Err(error.into()),
            },
            Ok(false) => {
                let look = match Look::take(target) {
                    Ok(look) => look,
                    Err(error) => break Err(error),
                };
                rates = Rates::between(&before, &look, sort);
                before = look;
                next = Instant::now() + interval;
            }
            Err(error) => break Err(error.into()),
        }
        rates.sort(sort);
    };
    ratatui::restore();
    outcome
}
