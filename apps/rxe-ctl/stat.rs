//! Counters: all of them, those of one group, or what was counted within an interval.

use std::thread;
use std::time::Duration;

use rxe::{CliError, cli_error};
use rxe_inspect::client::Client;
use rxe_inspect::latency::Latency;
use rxe_inspect::protocol::Request;
use rxe_inspect::report::{self, Counter, CounterGroup};

/// A group's name in the output of rdma_rxe's counters, which are part of `transport`.
const HW_COUNTERS: &str = "hw_counters";

/// The name of the group of histograms.
pub const LATENCY: &str = "latency";

/// The groups of every target.
pub const GROUPS: [&str; 15] = [
    HW_COUNTERS,
    "worker",
    "rx_fault",
    "tx_fault",
    "transport",
    "service",
    "capture",
    "drop",
    "control",
    "cm",
    "output",
    "host",
    "port",
    "management",
    LATENCY,
];

/// Counters by group, summed over lcores and ports.
pub type Sums = Vec<(String, Vec<Counter>)>;

/// The counters and the histograms, or with `interval` by how much they grow within it; of one group, if one is named.
pub fn ask(
    target: &mut Client,
    group: Option<&str>,
    interval: Option<Duration>,
) -> Result<(Sums, Option<Latency>), CliError> {
    let mut sums = sums(target)?;
    let wants_latency = group.is_none_or(|group| group == LATENCY);
    let mut latency = if wants_latency { Some(latency_of(target)?) } else { None };
    // A wrong name is an error at once.
    let wanted = only(sums.clone(), group)?;
    let Some(interval) = interval else { return Ok((wanted, latency)) };
    thread::sleep(interval);
    sums = grown(&sums, self::sums(target)?);
    if let Some(before) = latency.take() {
        let mut now = latency_of(target)?;
        now.subtract(&before);
        latency = Some(now);
    }
    Ok((only(sums, group)?, latency))
}

fn latency_of(target: &mut Client) -> Result<Latency, CliError> {
    Ok(target.ask(&Request::Latency)?)
}

fn sums(target: &mut Client) -> Result<Sums, CliError> {
    let groups: Vec<CounterGroup> = target.ask(&Request::Counters)?;
    Ok(report::sum(&groups))
}

/// The growth of each counter. One that is new counts from zero.
fn grown(before: &Sums, mut now: Sums) -> Sums {
    for (group, counters) in &mut now {
        let Some((_, before)) = before.iter().find(|(name, _)| name == group) else { continue };
        for counter in counters {
            if let Some(before) = before.iter().find(|before| before.name == counter.name) {
                counter.value = counter.value.wrapping_sub(before.value);
            }
        }
    }
    now
}

/// The group of this name.
fn only(mut sums: Sums, group: Option<&str>) -> Result<Sums, CliError> {
    let Some(group) = group else { return Ok(sums) };
    if group == LATENCY {
        return Ok(Sums::new());
    }
    let name = if group == HW_COUNTERS { "transport" } else { group };
    if !sums.iter().any(|(group, _)| group == name) {
        let names: Vec<&str> = sums.iter().map(|(name, _)| name.as_str()).collect();
        return cli_error!(
            "there is no group '{group}' of counters: they are {HW_COUNTERS}, {}, {LATENCY}",
            names.join(", ")
        );
    }
    sums.retain(|(group, _)| group == name);
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(groups: &[(&str, &[(&str, u64)])]) -> Sums {
        let counter = |&(name, value): &(&str, u64)| Counter { name: name.to_owned(), value };
        groups.iter().map(|(group, counters)| ((*group).to_owned(), counters.iter().map(counter).collect())).collect()
    }

    #[test]
    fn growth_is_counted_per_counter() {
        let before = sums(&[("cm", &[("rx_req", 3), ("rx_rtu", u64::MAX)])]);
        let now = sums(&[("cm", &[("rx_req", 7), ("rx_rtu", 1), ("rx_rep", 2)]), ("drop", &[("injected", 5)])]);
        let grown = grown(&before, now);
        assert_eq!(
            grown,
            sums(&[("cm", &[("rx_req", 4), ("rx_rtu", 2), ("rx_rep", 2)]), ("drop", &[("injected", 5)])])
        );
    }

    #[test]
    fn a_group_is_chosen_by_name() {
        let all = sums(&[("transport", &[]), ("cm", &[])]);
        let names =
            |group| only(all.clone(), group).map(|sums| sums.into_iter().map(|(name, _)| name).collect::<Vec<_>>());
        assert_eq!(names(None).ok(), Some(vec!["transport".to_owned(), "cm".to_owned()]));
        assert_eq!(names(Some("cm")).ok(), Some(vec!["cm".to_owned()]));
        assert_eq!(names(Some("latency")).ok(), Some(Vec::new()));
        assert_eq!(names(Some("hw_counters")).ok(), Some(vec!["transport".to_owned()]));
        assert_eq!(
            names(Some("cn")).expect_err("no such group").to_string(),
            "there is no group 'cn' of counters: they are hw_counters, transport, cm, latency"
        );
    }
}
