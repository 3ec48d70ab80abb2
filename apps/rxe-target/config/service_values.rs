//! Values of settings of single services.

use std::str::FromStr;
use std::time::Duration;

use rxe::{CliError, cli_error};

use super::values::Size;

/// Minimum memory per client, in bytes: the receives of 256 queue pairs.
const MIN_PINGPONG_MEMORY: usize = 1 << 20;
/// Minimum memory for all clients of an lcore, in bytes.
const MIN_BUDGET: usize = 16 << 20;
/// Maximum number of queue pairs of a client: that of perftest's `-q`.
const MAX_QUEUE_PAIRS: usize = 16384;
/// Maximum size of a queue pair's buffers: the length of a message has 31 bits.
const MAX_MEMORY: usize = 1 << 30;

/// Time after which an idle client is disconnected, as an option's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience(pub Duration);

impl FromStr for Patience {
    type Err = CliError;

    fn from_str(text: &str) -> Result<Patience, CliError> {
        let seconds = text.strip_suffix('s').map(str::trim_end).and_then(|digits| digits.parse().ok());
        match seconds {
            Some(seconds) if (1..=86_400).contains(&seconds) => Ok(Patience(Duration::from_secs(seconds))),
            _ => cli_error!("'{text}' is not an idle time: it goes from 1s to 86400s in whole seconds, as 30s"),
        }
    }
}

/// Memory for one client of the service `pingpong`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientMemory(pub usize);

impl FromStr for ClientMemory {
    type Err = CliError;

    fn from_str(text: &str) -> Result<ClientMemory, CliError> {
        let Size(bytes) = text.parse()?;
        if (MIN_PINGPONG_MEMORY..=MAX_MEMORY).contains(&bytes) {
            Ok(ClientMemory(bytes))
        } else {
            cli_error!("'{text}' is not a client's memory: it goes from 1M to 1G")
        }
    }
}

/// Memory for all clients of a service on one lcore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget(pub usize);

impl FromStr for Budget {
    type Err = CliError;

    fn from_str(text: &str) -> Result<Budget, CliError> {
        let Size(bytes) = text.parse()?;
        if bytes >= MIN_BUDGET {
            Ok(Budget(bytes))
        } else {
            cli_error!("'{text}' is not the memory of all clients of an lcore: it is 16M or more")
        }
    }
}

/// Number of queue pairs of the clients of one address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueuePairs(pub usize);

impl FromStr for QueuePairs {
    type Err = CliError;

    fn from_str(text: &str) -> Result<QueuePairs, CliError> {
        match text.parse() {
            Ok(count) if (1..=MAX_QUEUE_PAIRS).contains(&count) => Ok(QueuePairs(count)),
            _ => cli_error!("'{text}' is not a number of queue pairs: it goes from 1 to {MAX_QUEUE_PAIRS}"),
        }
    }
}

/// A delay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pause(pub u64);

impl FromStr for Pause {
    type Err = CliError;

    fn from_str(text: &str) -> Result<Pause, CliError> {
        let (digits, unit) = match text.strip_suffix("ms") {
            Some(digits) => (digits, 1),
            None => (text.strip_suffix('s').unwrap_or_default(), 1000),
        };
        match digits.trim_end().parse::<u64>().ok().and_then(|number| number.checked_mul(unit)) {
            Some(millis) if (1..=60_000).contains(&millis) => Ok(Pause(millis)),
            _ => cli_error!("'{text}' is not a delay: it goes from 1ms to 60s in whole ms or s, as 2500ms"),
        }
    }
}

/// Maximum length of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageLength(pub usize);

impl FromStr for MessageLength {
    type Err = CliError;

    fn from_str(text: &str) -> Result<MessageLength, CliError> {
        let Size(bytes) = text.parse()?;
        if (1..=MAX_MEMORY).contains(&bytes) {
            Ok(MessageLength(bytes))
        } else {
            cli_error!("'{text}' is not the length of a message: it goes from 1 to 1G")
        }
    }
}

/// Number of datagrams for one listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatagramCount(pub u32);

impl FromStr for DatagramCount {
    type Err = CliError;

    fn from_str(text: &str) -> Result<DatagramCount, CliError> {
        match text.parse() {
            Ok(count) if (1..=1000).contains(&count) => Ok(DatagramCount(count)),
            _ => cli_error!("'{text}' is not a number of datagrams: it goes from 1 to 1000"),
        }
    }
}

/// Length of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatagramLength(pub usize);

impl FromStr for DatagramLength {
    type Err = CliError;

    fn from_str(text: &str) -> Result<DatagramLength, CliError> {
        match text.parse() {
            Ok(Size(bytes)) if bytes <= 4096 => Ok(DatagramLength(bytes)),
            _ => cli_error!("'{text}' is not the length of a datagram: it goes from 1 to 4096"),
        }
    }
}
