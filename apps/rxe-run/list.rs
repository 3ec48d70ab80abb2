//! `--list`: the running programs.

use std::time::Duration;

use rxe_uverbs::instance::Running;

const HEAD: [&str; 5] = ["ADDRESS", "DEVICE", "PID", "UPTIME", "PROGRAM"];

/// A table of the programs.
pub fn table(running: &[Running]) -> String {
    let rows: Vec<[String; 5]> = std::iter::once(HEAD.map(str::to_owned)).chain(running.iter().map(row)).collect();
    let mut widths = [0; 5];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.len().max(*width);
        }
    }
    let line = |row: &[String; 5]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

fn row(running: &Running) -> [String; 5] {
    let info = &running.info;
    [info.address.to_string(), info.device.clone(), info.pid.to_string(), uptime(running.uptime), info.program.clone()]
}

/// The two largest units.
fn uptime(time: Duration) -> String {
    let (minutes, seconds) = (time.as_secs() / 60, time.as_secs() % 60);
    let (hours, minutes) = (minutes / 60, minutes % 60);
    match (hours / 24, hours % 24) {
        (0, 0) if minutes == 0 => format!("{seconds}s"),
        (0, 0) => format!("{minutes}m{seconds:02}s"),
        (0, hours) => format!("{hours}h{minutes:02}m"),
        (days, hours) => format!("{days}d{hours:02}h"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use rxe_uverbs::instance::Info;

    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let running = |address: [u8; 4], pid, seconds, program: &str| Running {
            info: Info { address: address.into(), device: "rxe0".to_owned(), pid, program: program.to_owned() },
            uptime: Duration::from_secs(seconds),
            folder: PathBuf::new(),
        };
        let two = [running([127, 0, 0, 1], 42, 7, "rping -s"), running([10, 77, 0, 100], 43_210, 125, "ib_write_bw")];
        let expected = "\
            ADDRESS      DEVICE  PID    UPTIME  PROGRAM\n\
            127.0.0.1    rxe0    42     7s      rping -s\n\
            10.77.0.100  rxe0    43210  2m05s   ib_write_bw\n";
        assert_eq!(table(&two), expected);
        assert_eq!(table(&[]), "ADDRESS  DEVICE  PID  UPTIME  PROGRAM\n");
    }

    #[test]
    fn times_have_two_units() {
        let text = |seconds| uptime(Duration::from_secs(seconds));
        assert_eq!([text(0), text(59), text(60), text(3_599)], ["0s", "59s", "1m00s", "59m59s"]);
        assert_eq!([text(3_600), text(86_399), text(90_000)], ["1h00m", "23h59m", "1d01h"]);
    }
}
