//! Rates as text and on a terminal, in the same tables.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table as Widget};

use super::SortBy;
use super::rates::Rates;
use crate::table::{Align, Table};

/// Maximum number of queue pairs in text output.
const TEXT_QPS: usize = 40;

/// A rate in at most five characters: 999, 1.23k, 45.6M.
fn short(rate: f64) -> String {
    // Adding 0 makes 0 of -0.
    let mut value = rate + 0.0;
    for unit in ["", "k", "M", "G", "T"] {
        if value < 999.5 {
            return match unit {
                "" if value < 9.95 && value.fract() > 0.05 => format!("{value:.1}"),
                "" => format!("{value:.0}"),
                _ if value < 9.995 => format!("{value:.2}{unit}"),
                _ if value < 99.95 => format!("{value:.1}{unit}"),
                _ => format!("{value:.0}{unit}"),
            };
        }
        value /= 1000.0;
    }
    format!("{value:.0}P")
}

fn headline(rates: &Rates) -> String {
    let (hours, minutes, seconds) = (rates.uptime / 3600, rates.uptime / 60 % 60, rates.uptime % 60);
    format!(
        "{}  up {hours}:{minutes:02}:{seconds:02}  {} lcores  {} queue pairs  rates over {:.1} s",
        rates.device,
        rates.lcores.len(),
        rates.qps.len(),
        rates.seconds
    )
}

fn tables(rates: &Rates) -> [Table; 3] {
    use Align::{Left, Right};
    let mut lcores = Table::new(
        "lcores",
        &[
            ("LCORE", Right),
            ("BUSY%", Right),
            ("RX/s", Right),
            ("TX/s", Right),
            ("RXbit/s", Right),
            ("TXbit/s", Right),
            ("COMPL/s", Right),
            ("RETX/s", Right),
            ("DROPS/s", Right),
        ],
    );
    lcores.rows.extend(rates.lcores.iter().map(|lcore| {
        let mut row = vec![lcore.lcore.to_string(), format!("{:.0}", lcore.busy)];
        let rates = [lcore.rx_pps, lcore.tx_pps, lcore.rx_bps, lcore.tx_bps, lcore.completions];
        row.extend(rates.into_iter().chain([lcore.retransmits, lcore.drops]).map(short));
        row
    }));
    let mut services = Table::new(
        "services",
        &[("SERVICE", Left), ("QPS", Right), ("CONNS", Right), ("NEW/s", Right), ("EXCH/s", Right), ("PKTS/s", Right)],
    );
    services.rows.extend(rates.services.iter().map(|service| {
        let mut row = vec![service.service.clone(), service.qps.to_string(), service.connections.to_string()];
        row.extend([service.new_connections, service.exchanges, service.packets].map(short));
        row
    }));
    let mut qps = Table::new(
        "queue pairs",
        &[
            ("LQPN", Left),
            ("TYPE", Left),
            ("STATE", Left),
            ("SERVICE", Left),
            ("PEER", Left),
            ("LCORE", Right),
            ("RX/s", Right),
            ("TX/s", Right),
            ("SENDS/s", Right),
            ("RECVS/s", Right),
            ("RETRY/s", Right),
            ("OUT", Right),
            ("WAITS", Left),
        ],
    );
    qps.rows.extend(rates.qps.iter().map(|qp| {
        let lqpn = format!("{:#x}", qp.lqpn);
        let mut row = vec![lqpn, qp.qp_type.clone(), qp.state.clone(), qp.service.clone(), qp.peer.clone()];
        row.push(qp.lcore.to_string());
        row.extend([qp.rx_pps, qp.tx_pps, qp.sends, qp.recvs, qp.retries].map(short));
        row.extend([qp.outstanding.to_string(), qp.waits.clone()]);
        row
    }));
    [lcores, services, qps]
}

/// One interval as text.
pub fn text(rates: &Rates) -> String {
    let mut text = headline(rates) + "\n";
    for mut table in tables(rates) {
        let hidden = table.rows.len().saturating_sub(TEXT_QPS);
        table.rows.truncate(TEXT_QPS);
        text += &format!("\n{}\n{}", table.title, table.text());
        if hidden > 0 {
            text += &format!("... and {hidden} more\n");
        }
    }
    text
}

/// The screen.
pub fn draw(frame: &mut Frame<'_>, rates: &Rates, sort: SortBy) {
    let tables = tables(rates);
    let [head, lcores, services, qps, foot] = Layout::vertical([
        Constraint::Length(1),
        // Rows with border and heading; the queue pairs use the remaining lines.
        Constraint::Length(3 + tables[0].rows.len().min(16) as u16),
        Constraint::Length(3 + tables[1].rows.len().min(16) as u16),
        Constraint::Min(4),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(headline(rates)).style(Style::new().add_modifier(Modifier::BOLD)), head);
    for (table, area) in tables.iter().zip([lcores, services, qps]) {
        frame.render_widget(widget(table), area);
    }
    let by = match sort {
        SortBy::Packets => "packets",
        SortBy::Retries => "retries",
        SortBy::Outstanding => "outstanding",
    };
    let foot_text = format!("q quit   sorted by {by}: p packets, r retries, o outstanding");
    frame.render_widget(Paragraph::new(foot_text).style(Style::new().add_modifier(Modifier::DIM)), foot);
}

fn widget(table: &Table) -> Widget<'_> {
    let alignment = |column: usize| match table.columns.get(column) {
        Some((_, Align::Right)) => Alignment::Right,
        _ => Alignment::Left,
    };
    let cell = |(column, text): (usize, &str)| {
        Cell::from(Text::from(Line::from(text.to_owned()).alignment(alignment(column))))
    };
    let header = Row::new(table.columns.iter().map(|(heading, _)| *heading).enumerate().map(cell));
    let rows = table.rows.iter().map(|row| Row::new(row.iter().map(String::as_str).enumerate().map(cell)));
    let widths = table.widths().into_iter().map(|width| Constraint::Length(width as u16));
    Widget::new(rows, widths)
        .header(header.style(Style::new().add_modifier(Modifier::BOLD)))
        .column_spacing(2)
        .block(Block::bordered().title(format!(" {} ", table.title)))
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn rates_have_at_most_five_characters() {
        let texts = [0.0, -0.0, 0.5, 7.0, 999.0, 1234.0, 45_600.0, 999_400.0, 999_900.0, 8.76e9, 1e18];
        let texts: Vec<String> = texts.into_iter().map(short).collect();
        assert_eq!(texts, ["0", "0", "0.5", "7", "999", "1.23k", "45.6k", "999k", "1.00M", "8.76G", "1000P"]);
    }
}
