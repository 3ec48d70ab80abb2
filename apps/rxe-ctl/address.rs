//! The verb `address`.

use clap::Subcommand;
use rxe::CliError;
use rxe_inspect::client::Client;
use rxe_inspect::protocol::Request;
use rxe_inspect::report::Address;

use crate::output::{done, json_or_text};
use crate::table::{Align, Table};

/// The verbs of `address`.
#[derive(Subcommand, Debug)]
pub enum AddressVerb {
    /// List the addresses of the ports, and the number of queue pairs that use each
    List,
    /// Add an address to a port. Peers can use it when the verb returns
    ///
    /// The address is lost with the target unless its configuration file has it too.
    Add {
        /// The address, as for --address of rxe-target
        #[arg(value_name = "[portN:]IP/PREFIX")]
        address: String,
    },
    /// Remove an address. One that clients use stays
    Remove {
        /// The address, without a prefix length
        #[arg(value_name = "IP")]
        address: String,

        /// Remove it although clients use it: they are disconnected
        #[arg(long)]
        force: bool,
    },
}

/// Carries out the verb; returns the text to print.
pub fn run(target: &mut Client, verb: AddressVerb, json: bool) -> Result<String, CliError> {
    match verb {
        AddressVerb::List => {
            let addresses: Vec<Address> = target.ask(&Request::Addresses)?;
            return Ok(json_or_text(json, &addresses, |addresses| show(addresses)));
        }
        AddressVerb::Add { address } => target.tell(&Request::AddAddress { address })?,
        AddressVerb::Remove { address, force } => target.tell(&Request::RemoveAddress { address, force })?,
    }
    Ok(done(json))
}

fn show(addresses: &[Address]) -> String {
    let columns = [("PORT", Align::Right), ("QPS", Align::Right), ("ADDRESS", Align::Left)];
    let mut table = Table::new("", &columns);
    let row = |address: &Address| vec![address.port.to_string(), address.users.to_string(), address.address.clone()];
    table.rows = addresses.iter().map(row).collect();
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_a_table() {
        let address = |port, address: &str, users| Address { port, address: address.to_owned(), users };
        let text = show(&[address(0, "10.0.0.1/24", 3), address(1, "fd00::1/64", 0)]);
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words, [["PORT", "QPS", "ADDRESS"], ["0", "3", "10.0.0.1/24"], ["1", "0", "fd00::1/64"]]);
    }
}
