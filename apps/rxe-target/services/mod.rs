//! The services of rxe-target; `docs/services.md` lists them with their ports and clients.
//!
//! Where several services listen on one port, the first in the order of the list below that recognizes a request accepts
//! it. `pingpong` and `perftest` share their port, and one [service](port18515) tells their clients apart. Every service is one
//! file or folder: a state machine that needs no DPDK and is tested alone, and a thin
//! [`Service`](rxe_service::Service) around it.

mod cmtime;
mod endpoint;
mod factory;
#[cfg(test)]
mod floods;
mod idle;
mod mckey;
mod metrics;
#[cfg(test)]
mod network;
mod nvmf;
mod out_of_band;
mod perftest;
mod pingpong;
mod port18515;
mod port7471;
mod rc_example;
mod rdma_example;
mod rdma_server;
mod region;
mod region_request;
mod rping;
mod rsocket;
mod ucmatose;
mod udaddy;
mod usage;
mod watch;

use rxe::{CliError, cli_error};
use rxe_proto::wire::cm::PortSpace;
use rxe_service::{Listen, ServiceFactory};

use crate::config::Config;

pub use metrics::{MetricsRegistry, describe as describe_counter, names as service_counter_names};
pub use nvmf::{ADMISSION as NVMF_ADMISSION, Disks as NvmfDisks, NAME as NVMF, Shared as NvmfShared};
pub use region_request::{RegionOptions, RegionRequest};

/// Makes the factory of a service, unless another one's does its work too.
type Make = fn(&Config, &MetricsRegistry, &NvmfDisks) -> Option<Box<dyn ServiceFactory>>;

/// All services, in the order in which they are asked whether they claim a request.
const ALL: [(&str, Make); 13] = [
    (rping::NAME, |config, registry, _| Some(Box::new(rping::factory(config.idle_timeouts.rping, registry)))),
    (rdma_server::NAME, |config, registry, _| {
        Some(Box::new(rdma_server::factory(config.idle_timeouts.rdma_server, registry)))
    }),
    (ucmatose::NAME, |config, registry, _| Some(Box::new(ucmatose::factory(config.idle_timeouts.ucmatose, registry)))),
    (cmtime::NAME, |config, registry, _| Some(Box::new(cmtime::factory(config.idle_timeouts.cmtime, registry)))),
    (udaddy::NAME, |config, registry, _| Some(Box::new(udaddy::factory(config.idle_timeouts.udaddy, registry)))),
    (rdma_example::NAME, |config, registry, _| {
        Some(Box::new(rdma_example::factory(config.idle_timeouts.rdma_example, registry)))
    }),
    (region::NAME, |config, registry, _| {
        Some(Box::new(region::factory(config.region_port, &config.regions, registry)))
    }),
    (rsocket::NAME, |config, registry, _| Some(Box::new(rsocket::factory(config.idle_timeouts.rsocket, registry)))),
    (rc_example::NAME, |config, registry, _| {
        Some(Box::new(rc_example::factory(config.idle_timeouts.rc_example, registry)))
    }),
    (mckey::NAME, |config, registry, _| Some(Box::new(mckey::factory(config.mckey.clone(), registry)))),
    // One port, one factory for both.
    (pingpong::NAME, |config, registry, _| port18515::factory(config, registry)),
    (perftest::NAME, |config, registry, _| {
        port18515::factory(config, registry).filter(|one| one.name() == perftest::NAME)
    }),
    (nvmf::NAME, |config, registry, disks| nvmf::factory(&config.nvmf, registry, disks)),
];

/// The names of all services.
pub fn names() -> Vec<&'static str> {
    ALL.iter().map(|(name, _)| *name).collect()
}

/// The names of the services that share the port of the service `name`, its own included.
pub fn sharing(name: &str) -> Vec<&'static str> {
    let shared = [pingpong::NAME, perftest::NAME];
    if shared.contains(&name) { shared.to_vec() } else { names().into_iter().filter(|other| *other == name).collect() }
}

/// The services that `config` selects.
pub struct Chosen {
    /// The factories of the services.
    pub factories: Vec<Box<dyn ServiceFactory>>,
    /// Their metrics.
    pub registry: MetricsRegistry,
    /// The disks of the service `nvmf`.
    pub disks: NvmfDisks,
}

/// The services that `config` chooses.
///
/// # Errors
/// They cannot run together, in a sentence.
pub fn factories(config: &Config) -> Result<Chosen, CliError> {
    let (registry, disks) = (MetricsRegistry::default(), NvmfDisks::default());
    let chosen: Vec<Box<dyn ServiceFactory>> = ALL
        .iter()
        .filter(|(name, _)| config.services.iter().any(|n| n == name))
        .filter_map(|(_, make)| make(config, &registry, &disks))
        .collect();
    if chosen.is_empty() && config.services.iter().any(|name| name == nvmf::NAME) {
        return cli_error!(
            "the service nvmf has no disk: add [[service.nvmf.subsystem]] to the configuration, see docs/nvmf.md"
        );
    }
    for factory in &chosen {
        let mut names = factory.name().split(',');
        let lists = names.clone().map(|name| config.service_peers.get(name));
        if let (Some(first), Some(other)) = (names.next(), names.next())
            && lists.clone().any(|list| lists.clone().next() != Some(list))
        {
            return cli_error!(
                "the services {first} and {other} share a port, so they serve the same peers: give both the same 'peers'"
            );
        }
    }
    if chosen.iter().any(|factory| factory.name() == region::NAME) {
        // The only port that users choose.
        let port = config.region_port;
        let takes = |listen: &Listen| matches!(listen, Listen::Cm { space: PortSpace::Tcp, port: p, .. } if *p == port);
        let others = chosen.iter().filter(|factory| factory.name() != region::NAME);
        if let Some(other) = others.into_iter().find(|factory| factory.listen().iter().any(takes)) {
            let names = other.name().replace(',', ", ");
            return cli_error!(
                "the services {names} and region want the same port {port}: choose another with --region-port"
            );
        }
    }
    Ok(Chosen { factories: chosen, registry, disks })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rxe_proto::wire::PrefixList;

    use super::*;
    use crate::config;

    fn config(region_port: u16, services: &[&str]) -> Config {
        let text =
            "[[port]]\naddresses = [\"10.0.0.1/24\"]\n[[service.nvmf.subsystem]]\nnqn = \"nqn.2026-01.test:disk\"\n";
        let settings = config::parse(Path::new("t.toml"), text).unwrap_or_else(|error| panic!("{error}"));
        let mut config = Config::resolve(settings, &names()).unwrap_or_else(|error| panic!("{error}"));
        config.region_port = region_port;
        config.services = services.iter().map(|name| (*name).to_owned()).collect();
        config
    }

    #[test]
    fn every_name_makes_its_service() {
        let Chosen { factories: all, .. } =
            factories(&config(4792, &names())).unwrap_or_else(|error| panic!("{error}"));
        // One factory has both names of those that share a port.
        assert_eq!(all.iter().flat_map(|factory| factory.name().split(',')).collect::<Vec<_>>(), names());
        assert_eq!(all.len(), names().len() - 1);
        for name in names() {
            let Chosen { factories: one, .. } =
                factories(&config(4792, &[name])).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(one.iter().map(|factory| factory.name()).collect::<Vec<_>>(), [name]);
        }
        assert_eq!(factories(&config(7174, &["region"])).map(|chosen| chosen.factories.len()).ok(), Some(1));
    }

    #[test]
    fn nvmf_alone_needs_a_subsystem() {
        let mut config = config(4792, &[nvmf::NAME]);
        assert!(factories(&config).is_ok());
        config.nvmf.subsystems.clear();
        assert_eq!(
            factories(&config).map(|_| ()).expect_err("nothing to serve").to_string(),
            "the service nvmf has no disk: add [[service.nvmf.subsystem]] to the configuration, see docs/nvmf.md"
        );
    }

    #[test]
    fn services_on_one_port_have_the_same_peers() {
        let mut config = config(4792, &names());
        let list: PrefixList = ["10.0.0.0/24".parse().expect("a network")].into_iter().collect();
        config.service_peers.insert(pingpong::NAME, list.clone());
        assert_eq!(
            factories(&config).map(|_| ()).expect_err("two lists").to_string(),
            "the services pingpong and perftest share a port, so they serve the same peers: give both the same 'peers'"
        );
        config.service_peers.insert(perftest::NAME, list);
        assert!(factories(&config).is_ok());
    }

    #[test]
    fn a_port_taken_twice_is_a_sentence() {
        let error = factories(&config(7174, &names())).map(|_| ()).expect_err("port clash");
        assert_eq!(
            error.to_string(),
            "the services rping and region want the same port 7174: choose another with --region-port"
        );
        // The same number in the UDP port space is another port.
        assert_eq!(factories(&config(7174, &["udaddy", "region"])).map(|chosen| chosen.factories.len()).ok(), Some(2));
    }
}
