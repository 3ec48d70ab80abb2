//! The verb `region`.

use clap::Subcommand;
use rxe::CliError;
use rxe_inspect::client::Client;
use rxe_inspect::protocol::Request;
use rxe_inspect::report::Region;

use crate::output::{done, json_or_text};
use crate::table::{Align, Table};

/// The verbs of `region`.
#[derive(Subcommand, Debug)]
pub enum RegionVerb {
    /// List the regions: number of keys, size, queue pairs that can reach them, and options
    List,
    /// Add a region. Clients find it when the verb returns
    ///
    /// The region is lost with the target unless its configuration file has it too.
    Add {
        /// The region, as for --region of rxe-target; a file is named by its absolute path
        #[arg(value_name = "NAME=SIZE[*COUNT][,watch][,read-only][,domain=NAME][,file=PATH]")]
        region: String,
    },
    /// Remove a region and give its memory back. A region that queue pairs can reach stays
    Remove {
        /// Its name; of numbered regions what comes before the number
        name: String,

        /// Remove it although queue pairs can reach it: their next request for it is a remote access error
        #[arg(long)]
        force: bool,
    },
}

/// Carries out the verb; returns the text to print.
pub fn run(target: &mut Client, verb: RegionVerb, json: bool) -> Result<String, CliError> {
    match verb {
        RegionVerb::List => {
            let regions: Vec<Region> = target.ask(&Request::Regions)?;
            return Ok(json_or_text(json, &regions, |regions| show(regions)));
        }
        RegionVerb::Add { region } => target.tell(&Request::AddRegion { region })?,
        RegionVerb::Remove { name, force } => target.tell(&Request::RemoveRegion { name, force })?,
    }
    Ok(done(json))
}

fn show(regions: &[Region]) -> String {
    let columns = [
        ("NAME", Align::Left),
        ("KEYS", Align::Right),
        ("SIZE", Align::Right),
        ("QPS", Align::Right),
        ("OPTIONS", Align::Left),
    ];
    let mut table = Table::new("", &columns);
    table.rows = regions
        .iter()
        .map(|region| {
            let (keys, size, users) = (region.count.unwrap_or(1), region.size, region.users);
            let options = [
                region.lost.then(|| "lost".to_owned()),
                region.watch.then(|| "watch".to_owned()),
                region.read_only.then(|| "read-only".to_owned()),
                region.domain.as_ref().map(|domain| format!("domain={domain}")),
                (!region.peers.is_empty()).then(|| format!("peers={}", region.peers.join("|"))),
                region.file.as_ref().map(|file| format!("file={file}")),
            ];
            let options: Vec<String> = options.into_iter().flatten().collect();
            let options = if options.is_empty() { "-".to_owned() } else { options.join(",") };
            vec![region.name.clone(), keys.to_string(), size.to_string(), users.to_string(), options]
        })
        .collect();
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_a_table() {
        let plain = Region { name: "a".to_owned(), size: 1 << 20, users: 3, ..Region::default() };
        let full = Region {
            name: "many".to_owned(),
            size: 4096,
            count: Some(100),
            read_only: true,
            domain: Some("d".to_owned()),
            file: Some("/dev/shm/many".to_owned()),
            peers: vec!["10.0.0.0/24".to_owned(), "fd00::/8".to_owned()],
            ..Region::default()
        };
        let text = show(&[plain, full]);
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[0], ["NAME", "KEYS", "SIZE", "QPS", "OPTIONS"]);
        assert_eq!(words[1], ["a", "1", "1048576", "3", "-"]);
        let options = "read-only,domain=d,peers=10.0.0.0/24|fd00::/8,file=/dev/shm/many";
        assert_eq!(words[2], ["many", "100", "4096", "0", options]);
    }
}
