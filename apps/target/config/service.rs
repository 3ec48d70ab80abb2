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

/// A short wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pause(u64);

impl FromStr for Pause {
    type Err = Mistake;

    fn from_str(text: &str) -> Result<Pause, Mistake> {
        let (digits, unit) = match text.strip_suffix("ms") {
            Some(digits) => (digits, 1),
            None => (text.strip_suffix('s').unwrap_or_default(), 1000),
        };
        match digits.trim_end().parse::<u64>().ok().and_then(|number| number.checked_mul(unit)) {
            Some(millis) if (1..=60_000).contains(&millis) => Ok(Pause(millis)),
            _ => mistake!("'{text}' is not a wait: it goes from 1ms to 60s in whole ms or s, as 2500ms"),
        }
    }
}

/// The longest message that a service takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct MessageLength(usize);

impl FromStr for MessageLength {
    type Err = Mistake;

    fn from_str(text: &str) -> Result<MessageLength, Mistake> {
        let Size(bytes) = text.parse()?;
        if (1..=MAX_MEMORY).contains(&bytes) {
            Ok(MessageLength(bytes))
        } else {
            mistake!("'{text}' is not the length of a message: it goes from 1 to 1G")
        }
    }
}

/// What the service `perftest` can be told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PerftestConfig {
    /// How long a client is kept that sends nothing.
    pub idle_timeout: rxe_proto::Duration,
    /// The longest message, in bytes. Each client takes as much memory.
    pub max_message: usize,
    /// Bytes of the first WRITE to an ib_write_lat client: at least the size of its messages, at most its memory, which
    /// holds 4096 bytes or one message.
    pub write_lat_size: usize,
    /// After such a silence a client is taken for ib_write_lat, whose server begins.
    pub write_lat_after: rxe_proto::Duration,
}

impl Default for PerftestConfig {
    fn default() -> PerftestConfig {
        PerftestConfig {
            idle_timeout: rxe_proto::Duration::from_secs(60),
            max_message: 8 << 20,
            write_lat_size: 4096,
            write_lat_after: rxe_proto::Duration::from_secs(5),
        }
    }
}

/// `[service.perftest]`.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PerftestSection {
    idle_timeout: Option<Text<Patience>>,
    max_message: Option<Text<MessageLength>>,
    write_lat_size: Option<Text<MessageLength>>,
    write_lat_after: Option<Text<Pause>>,
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
    #[serde(default)]
    perftest: PerftestSection,
}

fn patience(given: Option<&Text<Patience>>, default: rxe_proto::Duration) -> rxe_proto::Duration {
    given.map_or(default, |Text(Patience(time))| rxe_proto::Duration::from_secs(time.as_secs()))
}

impl ServiceSections {
    /// What `perftest` is told.
    pub fn perftest(&self) -> Result<PerftestConfig, Mistake> {
        let default = PerftestConfig::default();
        let length = |given: &Option<Text<MessageLength>>, default| given.as_ref().map_or(default, |text| text.0.0);
        let after = self.perftest.write_lat_after.as_ref();
        let config = PerftestConfig {
            idle_timeout: patience(self.perftest.idle_timeout.as_ref(), default.idle_timeout),
            max_message: length(&self.perftest.max_message, default.max_message),
            write_lat_size: length(&self.perftest.write_lat_size, default.write_lat_size),
            write_lat_after: after
                .map_or(default.write_lat_after, |Text(Pause(millis))| rxe_proto::Duration::from_millis(*millis)),
        };
        if self.perftest.write_lat_size.is_some() && config.write_lat_size > config.max_message {
            return mistake!(
                "[service.perftest] write-lat-size is {} bytes and max-message {}: make max-message as large",
                config.write_lat_size,
                config.max_message
            );
        }
        Ok(config)
    }

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
        assert_eq!(read("").map(|s| s.perftest()), Ok(Ok(PerftestConfig::default())));
        let text = "[perftest]\nidle-timeout = \"90s\"\nmax-message = \"64K\"\nwrite-lat-size = 8192\nwrite-lat-after = \"5s\"\n";
        let (max_message, write_lat_size) = (65536, 8192);
        let write_lat_after = rxe_proto::Duration::from_secs(5);
        let given = PerftestConfig { idle_timeout, max_message, write_lat_size, write_lat_after };
        assert_eq!(read(text).map(|s| s.perftest()), Ok(Ok(given)));
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
            (
                "[perftest]\nwrite-lat-after = \"2m\"\n",
                "'2m' is not a wait: it goes from 1ms to 60s in whole ms or s, as 2500ms",
            ),
            ("[perftest]\nmax-message = \"2G\"\n", "'2G' is not the length of a message: it goes from 1 to 1G"),
            ("[pingpong]\nmemory = 0\n", "'0' is not a size: write bytes, or a number with K, M or G, as 64M"),
        ] {
            assert_eq!(read(text).map(|_| ()), Err(sentence.to_owned()), "{text}");
        }
        let together = |text: &str| read(text).map(|s| s.perftest().map_err(|mistake| mistake.to_string()));
        let wrong = "[service.perftest] write-lat-size is 8192 bytes and max-message 4096: make max-message as large";
        let text = "[perftest]\nwrite-lat-size = \"8K\"\nmax-message = \"4K\"\n";
        assert_eq!(together(text), Ok(Err(wrong.to_owned())));
        assert!(read("[pingpong]\nsize = 1\n").is_err() && read("[ping]\n").is_err());
    }
}
