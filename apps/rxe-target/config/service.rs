//! Sections `[service.NAME]` of the configuration file: settings of single services.

use std::collections::BTreeMap;

use rxe::{CliError, cli_error};
use rxe_adapter::texts::Text;
use rxe_proto::wire::PrefixList;
use serde::Deserialize;

use super::nvmf::{NvmfConfig, NvmfSection};
use super::peers::{self, Peers};
use super::service_values::{
    Budget, ClientMemory, DatagramCount, DatagramLength, MessageLength, Patience, Pause, QueuePairs,
};

/// Idle times of the services that have no other setting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IdleTimeouts {
    pub rping: rxe_proto::Duration,
    pub rdma_server: rxe_proto::Duration,
    pub ucmatose: rxe_proto::Duration,
    pub cmtime: rxe_proto::Duration,
    pub udaddy: rxe_proto::Duration,
    pub rdma_example: rxe_proto::Duration,
    pub rsocket: rxe_proto::Duration,
    pub rc_example: rxe_proto::Duration,
}

impl Default for IdleTimeouts {
    fn default() -> IdleTimeouts {
        let seconds = rxe_proto::Duration::from_secs;
        IdleTimeouts {
            rping: seconds(60),
            rdma_server: seconds(60),
            // Its client only receives, and the service ends the connection.
            ucmatose: seconds(15),
            // A connection lasts until the client has made all of its connections.
            cmtime: seconds(60),
            udaddy: seconds(30),
            rdma_example: seconds(60),
            rsocket: seconds(30),
            rc_example: seconds(10),
        }
    }
}

/// The section of such a service.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct IdleSection {
    peers: Option<Peers>,
    idle_timeout: Option<Text<Patience>>,
}

/// Settings of the service `mckey`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MckeyConfig {
    /// Datagrams for each host that joins a group.
    pub count: u32,
    /// Length of each in bytes.
    pub size: usize,
    /// Delay between the join of a host and the datagrams.
    pub send_after: rxe_proto::Duration,
    /// How long the service stays in a group without traffic.
    pub idle_timeout: rxe_proto::Duration,
}

impl Default for MckeyConfig {
    fn default() -> MckeyConfig {
        MckeyConfig {
            count: 10,
            size: 100,
            send_after: rxe_proto::Duration::from_secs(1),
            idle_timeout: rxe_proto::Duration::from_secs(30),
        }
    }
}

/// `[service.mckey]`.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct MckeySection {
    peers: Option<Peers>,
    count: Option<Text<DatagramCount>>,
    size: Option<Text<DatagramLength>>,
    send_after: Option<Text<Pause>>,
    idle_timeout: Option<Text<Patience>>,
}

/// Settings of the service `perftest`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PerftestConfig {
    /// Time after which an idle client is disconnected.
    pub idle_timeout: rxe_proto::Duration,
    /// Maximum length of a message in bytes. Each client takes that much memory.
    pub max_message: usize,
    /// Bytes for the messages of all clients of an lcore; those of one address have at most half of it.
    pub budget: usize,
    /// Maximum number of queue pairs of the clients of one address on an lcore, without those of connections.
    pub queue_pairs: usize,
    /// Bytes of the first WRITE to an ib_write_lat client: at least the size of its messages, at most its memory, which
    /// holds 4096 bytes or one message.
    pub write_lat_size: usize,
    /// A client that is silent for this long is ib_write_lat, whose server sends first.
    pub write_lat_after: rxe_proto::Duration,
}

impl Default for PerftestConfig {
    fn default() -> PerftestConfig {
        PerftestConfig {
            idle_timeout: rxe_proto::Duration::from_secs(60),
            max_message: 8 << 20,
            budget: 1 << 30,
            queue_pairs: 1024,
            write_lat_size: 4096,
            write_lat_after: rxe_proto::Duration::from_secs(5),
        }
    }
}

/// `[service.perftest]`.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PerftestSection {
    peers: Option<Peers>,
    idle_timeout: Option<Text<Patience>>,
    max_message: Option<Text<MessageLength>>,
    budget: Option<Text<Budget>>,
    queue_pairs: Option<Text<QueuePairs>>,
    write_lat_size: Option<Text<MessageLength>>,
    write_lat_after: Option<Text<Pause>>,
}

/// Settings of the service `pingpong`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PingpongConfig {
    /// Time after which an idle client is disconnected.
    pub idle_timeout: rxe_proto::Duration,
    /// Bytes of one client's receives, of which there are two: a message may be half as long, less 40 bytes for datagrams.
    /// Each queue pair of ibv_srq_pingpong beyond the second adds a quarter of it, while the budget allows.
    pub memory: usize,
    /// Bytes for the messages of all clients of an lcore; those of one address have at most half of it.
    pub budget: usize,
}

impl Default for PingpongConfig {
    fn default() -> PingpongConfig {
        PingpongConfig { idle_timeout: rxe_proto::Duration::from_secs(10), memory: 4 << 20, budget: 256 << 20 }
    }
}

/// `[service.pingpong]`.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PingpongSection {
    peers: Option<Peers>,
    idle_timeout: Option<Text<Patience>>,
    memory: Option<Text<ClientMemory>>,
    budget: Option<Text<Budget>>,
}

/// `[service.region]`.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RegionSection {
    peers: Option<Peers>,
}

/// Everything below `[service]`.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct ServiceSections {
    rping: IdleSection,
    rdma_server: IdleSection,
    ucmatose: IdleSection,
    cmtime: IdleSection,
    udaddy: IdleSection,
    rdma_example: IdleSection,
    region: RegionSection,
    rsocket: IdleSection,
    rc_example: IdleSection,
    mckey: MckeySection,
    pingpong: PingpongSection,
    perftest: PerftestSection,
    nvmf: NvmfSection,
}

fn patience(given: Option<&Text<Patience>>, default: rxe_proto::Duration) -> rxe_proto::Duration {
    given.map_or(default, |Text(Patience(time))| rxe_proto::Duration::from_secs(time.as_secs()))
}

impl ServiceSections {
    /// The allowed peers of the services that restrict them, by the service's name.
    pub fn peers(&self) -> Result<BTreeMap<&'static str, PrefixList>, CliError> {
        let all = [
            ("rping", &self.rping.peers),
            ("rdma-server", &self.rdma_server.peers),
            ("ucmatose", &self.ucmatose.peers),
            ("cmtime", &self.cmtime.peers),
            ("udaddy", &self.udaddy.peers),
            ("rdma-example", &self.rdma_example.peers),
            ("region", &self.region.peers),
            ("rsocket", &self.rsocket.peers),
            ("rc-example", &self.rc_example.peers),
            ("mckey", &self.mckey.peers),
            ("pingpong", &self.pingpong.peers),
            ("perftest", &self.perftest.peers),
            ("nvmf", &self.nvmf.peers),
        ];
        let mut lists = BTreeMap::new();
        for (name, given) in all {
            if let Some(Peers(networks)) = given
                && let Some(list) = peers::resolve(networks)?
            {
                lists.insert(name, list);
            }
        }
        Ok(lists)
    }

    /// Idle times of the services that have no other setting.
    pub fn idle_timeouts(&self) -> IdleTimeouts {
        let default = IdleTimeouts::default();
        let given = |section: &IdleSection, default| patience(section.idle_timeout.as_ref(), default);
        IdleTimeouts {
            rping: given(&self.rping, default.rping),
            rdma_server: given(&self.rdma_server, default.rdma_server),
            ucmatose: given(&self.ucmatose, default.ucmatose),
            cmtime: given(&self.cmtime, default.cmtime),
            udaddy: given(&self.udaddy, default.udaddy),
            rdma_example: given(&self.rdma_example, default.rdma_example),
            rsocket: given(&self.rsocket, default.rsocket),
            rc_example: given(&self.rc_example, default.rc_example),
        }
    }

    /// Settings of `mckey`.
    pub fn mckey(&self) -> MckeyConfig {
        let (given, default) = (&self.mckey, MckeyConfig::default());
        let after = given.send_after.as_ref();
        MckeyConfig {
            count: given.count.as_ref().map_or(default.count, |Text(DatagramCount(count))| *count),
            size: given.size.as_ref().map_or(default.size, |Text(DatagramLength(bytes))| *bytes),
            send_after: after
                .map_or(default.send_after, |Text(Pause(millis))| rxe_proto::Duration::from_millis(*millis)),
            idle_timeout: patience(given.idle_timeout.as_ref(), default.idle_timeout),
        }
    }

    /// Settings of `perftest`.
    pub fn perftest(&self) -> Result<PerftestConfig, CliError> {
        let default = PerftestConfig::default();
        let length = |given: &Option<Text<MessageLength>>, default| given.as_ref().map_or(default, |text| text.0.0);
        let after = self.perftest.write_lat_after.as_ref();
        let config = PerftestConfig {
            idle_timeout: patience(self.perftest.idle_timeout.as_ref(), default.idle_timeout),
            max_message: length(&self.perftest.max_message, default.max_message),
            budget: self.perftest.budget.as_ref().map_or(default.budget, |Text(Budget(bytes))| *bytes),
            queue_pairs: self.perftest.queue_pairs.as_ref().map_or(default.queue_pairs, |Text(QueuePairs(n))| *n),
            write_lat_size: length(&self.perftest.write_lat_size, default.write_lat_size),
            write_lat_after: after
                .map_or(default.write_lat_after, |Text(Pause(millis))| rxe_proto::Duration::from_millis(*millis)),
        };
        if self.perftest.write_lat_size.is_some() && config.write_lat_size > config.max_message {
            return cli_error!(
                "[service.perftest] write-lat-size is {} bytes and max-message {}: make max-message as large",
                config.write_lat_size,
                config.max_message
            );
        }
        Ok(config)
    }

    /// Settings of `nvmf`.
    pub fn nvmf(&self) -> Result<NvmfConfig, CliError> {
        self.nvmf.resolve()
    }

    /// Settings of `pingpong`.
    pub fn pingpong(&self) -> PingpongConfig {
        let default = PingpongConfig::default();
        let memory = self.pingpong.memory.as_ref().map_or(default.memory, |Text(ClientMemory(bytes))| *bytes);
        // One address has half of it: a few clients get what they want.
        let enough = default.budget.max(8 * memory);
        PingpongConfig {
            idle_timeout: patience(self.pingpong.idle_timeout.as_ref(), default.idle_timeout),
            memory,
            budget: self.pingpong.budget.as_ref().map_or(enough, |Text(Budget(bytes))| *bytes),
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
    fn settings_replace_the_defaults() {
        assert_eq!(read("").map(|s| s.pingpong()), Ok(PingpongConfig::default()));
        let given =
            read("[pingpong]\nidle-timeout = \"90s\"\nmemory = \"16M\"\nbudget = \"32M\"\n").map(|s| s.pingpong());
        let idle_timeout = rxe_proto::Duration::from_secs(90);
        assert_eq!(given, Ok(PingpongConfig { idle_timeout, memory: 16 << 20, budget: 32 << 20 }));
        let large = read("[pingpong]\nmemory = \"64M\"\n").map(|s| s.pingpong().budget);
        assert_eq!(large, Ok(512 << 20), "enough for a client to have all of it");
        assert_eq!(read("").map(|s| s.perftest().ok()), Ok(Some(PerftestConfig::default())));
        let text = "[perftest]\nidle-timeout = \"90s\"\nmax-message = \"64K\"\nbudget = \"2G\"\nqueue-pairs = 9\n\
                    write-lat-size = 8192\nwrite-lat-after = \"5s\"\n";
        let (max_message, budget, queue_pairs, write_lat_size) = (65536, 2 << 30, 9, 8192);
        let write_lat_after = rxe_proto::Duration::from_secs(5);
        let given = PerftestConfig { idle_timeout, max_message, budget, queue_pairs, write_lat_size, write_lat_after };
        assert_eq!(read(text).map(|s| s.perftest().ok()), Ok(Some(given)));
    }

    #[test]
    fn every_service_with_an_idle_timeout_has_one_key_for_it() {
        assert_eq!(read("").map(|s| s.idle_timeouts()), Ok(IdleTimeouts::default()));
        let names = ["rping", "rdma-server", "ucmatose", "cmtime", "udaddy", "rdma-example", "rsocket", "rc-example"];
        let text: String = names.iter().map(|name| format!("[{name}]\nidle-timeout = \"7s\"\n")).collect();
        let (text, all) = (&text, rxe_proto::Duration::from_secs(7));
        let IdleTimeouts { rping, rdma_server, ucmatose, cmtime, udaddy, rdma_example, rsocket, rc_example } =
            read(text).map(|s| s.idle_timeouts()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!([rping, rdma_server, ucmatose, cmtime, udaddy, rdma_example, rsocket, rc_example], [all; 8]);
        let text = "[mckey]\ncount = 3\nsize = \"1K\"\nsend-after = \"10ms\"\nidle-timeout = \"7s\"\n";
        let send_after = rxe_proto::Duration::from_millis(10);
        let given = MckeyConfig { count: 3, size: 1024, send_after, idle_timeout: all };
        assert_eq!(read(text).map(|s| s.mckey()), Ok(given));
    }

    #[test]
    fn every_service_can_have_a_list_of_peers() {
        let names = crate::services::names();
        let text: String = names.iter().map(|name| format!("[{name}]\npeers = [\"10.0.0.0/24\"]\n")).collect();
        let lists = read(&text).map(|s| s.peers().unwrap_or_else(|error| panic!("{error}")));
        let mut sorted = names.clone();
        sorted.sort_unstable();
        assert_eq!(lists.map(|lists| lists.into_keys().collect()), Ok(sorted));
        let empty = "the list of peers is empty, so that nobody is served: leave it out to serve all";
        assert_eq!(read("[rping]\npeers = []\n").map(|_| ()), Err(empty.to_owned()));
    }

    #[test]
    fn values_name_their_range() {
        for (text, sentence) in [
            (
                "[pingpong]\nidle-timeout = 10\n",
                "'10' is not an idle time: it goes from 1s to 86400s in whole seconds, as 30s",
            ),
            (
                "[pingpong]\nidle-timeout = \"0s\"\n",
                "'0s' is not an idle time: it goes from 1s to 86400s in whole seconds, as 30s",
            ),
            ("[pingpong]\nmemory = \"64K\"\n", "'64K' is not a client's memory: it goes from 1M to 1G"),
            (
                "[perftest]\nwrite-lat-after = \"2m\"\n",
                "'2m' is not a delay: it goes from 1ms to 60s in whole ms or s, as 2500ms",
            ),
            ("[perftest]\nmax-message = \"2G\"\n", "'2G' is not the length of a message: it goes from 1 to 1G"),
            ("[perftest]\nbudget = \"8M\"\n", "'8M' is not the memory of all clients of an lcore: it is 16M or more"),
            ("[perftest]\nqueue-pairs = 0\n", "'0' is not a number of queue pairs: it goes from 1 to 16384"),
            ("[mckey]\ncount = 0\n", "'0' is not a number of datagrams: it goes from 1 to 1000"),
            ("[mckey]\nsize = \"5K\"\n", "'5K' is not the length of a datagram: it goes from 1 to 4096"),
            ("[mckey]\nsize = \"100 bytes\"\n", "'100 bytes' is not the length of a datagram: it goes from 1 to 4096"),
            ("[pingpong]\nmemory = 0\n", "'0' is not a size: write bytes, or a number with K, M or G, as 64M"),
        ] {
            assert_eq!(read(text).map(|_| ()), Err(sentence.to_owned()), "{text}");
        }
        let together = |text: &str| read(text).map(|s| s.perftest().map_err(|error| error.to_string()));
        let wrong = "[service.perftest] write-lat-size is 8192 bytes and max-message 4096: make max-message as large";
        let text = "[perftest]\nwrite-lat-size = \"8K\"\nmax-message = \"4K\"\n";
        assert_eq!(together(text), Ok(Err(wrong.to_owned())));
        assert!(read("[pingpong]\nsize = 1\n").is_err() && read("[ping]\n").is_err());
    }
}
