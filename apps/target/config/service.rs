//! Sections `[service.NAME]` of the configuration file: what single services can be told.

use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

use super::values::{Size, Text};
use crate::mistake::{Mistake, mistake};

/// What a client may use at least: the receives of 256 queue pairs.
const MIN_PINGPONG_MEMORY: usize = 1 << 20;
/// What one queue pair's buffers can be at most: the length of a message is 31 bits.
const MAX_MEMORY: usize = 1 << 30;

/// How long a silent client is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience(Duration);

impl FromStr for Patience {
    type Err = Mistake;

    fn from_str(text: &str) -> Result<Patience, Mistake> {
        let seconds = text.strip_suffix('s').map(str::trim_end).and_then(|digits| digits.parse().ok());
        match seconds {
            Some(seconds) if (1..=86_400).contains(&seconds) => Ok(Patience(Duration::from_secs(seconds))),
            _ => mistake!("'{text}' is not a patience: it goes from 1s to 86400s in whole seconds, as 30s"),
        }
    }
}

/// Memory for one client of the pingpongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ClientMemory(usize);

impl FromStr for ClientMemory {
    type Err = Mistake;

    fn from_str(text: &str) -> Result<ClientMemory, Mistake> {
        let Size(bytes) = text.parse()?;
        if (MIN_PINGPONG_MEMORY..=MAX_MEMORY).contains(&bytes) {
            Ok(ClientMemory(bytes))
        } else {
            mistake!("'{text}' is not a client's memory: it goes from 1M to 1G")
        }
    }
}

/// What the service `pingpong` can be told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PingpongConfig {
    /// How long a client is kept that sends nothing.
    pub idle_timeout: rxe_proto::Duration,
    /// Bytes of one client's receives. A message may be as long as its share: half of it, or with ibv_srq_pingpong half
    /// of what there is for each queue pair; less 40 bytes for datagrams.
    pub memory: usize,
}

impl Default for PingpongConfig {
    fn default() -> PingpongConfig {
        PingpongConfig { idle_timeout: rxe_proto::Duration::from_secs(10), memory: 4 << 20 }
    }
}

/// `[service.pingpong]`.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PingpongSection {
    idle_timeout: Option<Text<Patience>>,
    memory: Option<Text<ClientMemory>>,
}

/// Everything below `[service]`.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceSections {
    #[serde(default)]
    pingpong: PingpongSection,
}

fn patience(given: Option<&Text<Patience>>, default: rxe_proto::Duration) -> rxe_proto::Duration {
    given.map_or(default, |Text(Patience(time))| rxe_proto::Duration::from_secs(time.as_secs()))
}

impl ServiceSections {
    /// What `pingpong` is told.
    pub fn pingpong(&self) -> PingpongConfig {
        let default = PingpongConfig::default();
        PingpongConfig {
            idle_timeout: patience(self.pingpong.idle_timeout.as_ref(), default.idle_timeout),
            memory: self.pingpong.memory.as_ref().map_or(default.memory, |Text(ClientMemory(bytes))| *bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ServiceSections, String> {
        toml::from_str(text).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn what_is_said_replaces_the_default() {
        assert_eq!(read("").map(|s| s.pingpong()), Ok(PingpongConfig::default()));
        let given = read("[pingpong]\nidle-timeout = \"90s\"\nmemory = \"16M\"\n").map(|s| s.pingpong());
        let idle_timeout = rxe_proto::Duration::from_secs(90);
        assert_eq!(given, Ok(PingpongConfig { idle_timeout, memory: 16 << 20 }));
    }

    #[test]
    fn values_name_their_range() {
        for (text, sentence) in [
            (
                "[pingpong]\nidle-timeout = 10\n",
                "'10' is not a patience: it goes from 1s to 86400s in whole seconds, as 30s",
            ),
            (
                "[pingpong]\nidle-timeout = \"0s\"\n",
                "'0s' is not a patience: it goes from 1s to 86400s in whole seconds, as 30s",
            ),
            ("[pingpong]\nmemory = \"64K\"\n", "'64K' is not a client's memory: it goes from 1M to 1G"),
            ("[pingpong]\nmemory = 0\n", "'0' is not a size: write bytes, or a number with K, M or G, as 64M"),
        ] {
            assert_eq!(read(text).map(|_| ()), Err(sentence.to_owned()), "{text}");
        }
        assert!(read("[pingpong]\nsize = 1\n").is_err() && read("[ping]\n").is_err());
    }
}
