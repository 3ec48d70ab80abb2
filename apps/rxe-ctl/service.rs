//! The verbs `service` and `peers`.

use clap::Subcommand;
use rxe::CliError;
use rxe_inspect::client::Client;
use rxe_inspect::protocol::Request;
use rxe_inspect::report::{AllowedPeers, Service};

use crate::output::{done, json_or_text};
use crate::show;
use crate::table::{Align, Table};

/// The verbs of `service`.
#[derive(Subcommand, Debug)]
pub enum ServiceVerb {
    /// List the services, their listeners and counters, as the verb `services` does
    List,
    /// Stop a service: it refuses new clients, and those that it has go on. Services that share a port stop together
    Stop {
        /// Its name
        name: String,

        /// Disconnect its clients too
        #[arg(long)]
        force: bool,
    },
    /// Start a service that was stopped. One that the target was started without needs a restart of the target
    Start {
        /// Its name
        name: String,
    },
}

/// The verbs of `peers`.
#[derive(Subcommand, Debug)]
pub enum PeersVerb {
    /// List the ports, services and regions with the networks that they serve
    List,
    /// Replace the list of a port, service or region; without a network everyone is served
    ///
    /// A port drops packets from other addresses from then on, those of its connections too. A service or region refuses new
    /// clients; those that it has go on.
    Set {
        /// port0 (or another number), service:NAME or region:NAME
        #[arg(value_name = "PORT|SERVICE|REGION")]
        of: String,

        /// A network or address to serve, for example 10.0.0.0/24
        #[arg(value_name = "PREFIX")]
        peers: Vec<String>,
    },
}

/// Carries out a verb of `service`; returns the text to print.
pub fn run(target: &mut Client, verb: ServiceVerb, json: bool) -> Result<String, CliError> {
    match verb {
        ServiceVerb::List => {
            let services: Vec<Service> = target.ask(&Request::Services)?;
            return Ok(json_or_text(json, &services, |services| show::counters::services(services)));
        }
        ServiceVerb::Stop { name, force } => target.tell(&Request::StopService { name, force })?,
        ServiceVerb::Start { name } => target.tell(&Request::StartService { name })?,
    }
    Ok(done(json))
}

/// Carries out a verb of `peers`; returns the text to print.
pub fn run_peers(target: &mut Client, verb: PeersVerb, json: bool) -> Result<String, CliError> {
    match verb {
        PeersVerb::List => {
            let lists: Vec<AllowedPeers> = target.ask(&Request::Peers)?;
            Ok(json_or_text(json, &lists, |lists| show_peers(lists)))
        }
        PeersVerb::Set { of, peers } => {
            target.tell(&Request::SetPeers { of, peers })?;
            Ok(done(json))
        }
    }
}

fn show_peers(lists: &[AllowedPeers]) -> String {
    let mut table = Table::new("", &[("SERVED BY", Align::Left), ("PEERS", Align::Left)]);
    table.rows.extend(lists.iter().map(|AllowedPeers { of, peers }| {
        vec![of.clone(), if peers.is_empty() { "all".to_owned() } else { peers.join(" ") }]
    }));
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_peers_are_a_table() {
        let list = |of: &str, peers: &[&str]| AllowedPeers {
            of: of.to_owned(),
            peers: peers.iter().map(|network| (*network).to_owned()).collect(),
        };
        let text = show_peers(&[list("port0", &[]), list("service:rping", &["10.0.0.0/24", "fd00::/8"])]);
        assert_eq!(text, "SERVED BY      PEERS\nport0          all\nservice:rping  10.0.0.0/24 fd00::/8\n");
    }
}
