//! The verbs: the requests that each sends to the target.

use clap::CommandFactory;
use rxe::{CliError, manual_pages};
use rxe_inspect::client::Client;
use rxe_inspect::protocol::Request;
use rxe_inspect::report::{self, CounterGroup, Device, LcoreResources, Mr, Qp, Service};
use serde_json::json;

use crate::cli::{Cli, SECTIONS, Setting, Verb};
use crate::output::{done, json_or_text, pretty};
use crate::{address, capture, config, digest, drain, events, fault, nvmf, region, service, show, stat, target, top};

/// Carries out the verb; returns the text to print.
pub fn run(cli: Cli) -> Result<String, CliError> {
    if let Verb::Generate { folder } = &cli.verb {
        return manual_pages::generate(Cli::command(), &SECTIONS, folder).map(|()| String::new());
    }
    let mut target = target::find(cli.file_prefix, cli.pid)?;
    let json = cli.json;
    if let Verb::Events { count } = cli.verb {
        return events::run(target, json, count).map(|()| String::new());
    }
    let target = &mut target;
    Ok(match cli.verb {
        Verb::Devices => json_or_text(json, &device(target)?, show::device::devices),
        Verb::Devinfo { verbose } => {
            json_or_text(json, &device(target)?, |device| show::device::devinfo(device, verbose))
        }
        Verb::Link { details, check } => {
            let device = device(target)?;
            if check && device.draining {
                return Err(CliError::failed("the target is being drained".to_owned()));
            }
            if check && device.ports.iter().any(|port| !port.up) {
                return Err(CliError::failed(show::device::down(&device)));
            }
            json_or_text(json, &device, |device| show::device::link(device, details))
        }
        Verb::Resource { details } => {
            let lcores: Vec<LcoreResources> = target.ask(&Request::Resources)?;
            let name = device(target)?.name;
            json_or_text(json, &lcores, |lcores| show::device::resource(&name, lcores, details))
        }
        Verb::Qp { qpn: Some(qpn) } => {
            let qp: Qp = target.ask(&Request::Qp { qpn })?;
            json_or_text(json, &qp, show::qp::qp)
        }
        Verb::Qp { qpn: None } => json_or_text(json, &qps(target)?, |qps| show::qp::qps(qps)),
        Verb::Mr { digest: Some(name), offset, length } => {
            json_or_text(json, &digest::of(target, &name, offset, length)?, show::memory::digest)
        }
        Verb::Mr { digest: None, .. } => {
            let mut mrs: Vec<Mr> = target.ask_all(|start| Request::Mrs { start })?;
            // A named region is known to every lcore under the same key.
            let mut seen = std::collections::HashSet::new();
            mrs.retain(|mr| mr.lcore.is_some() || seen.insert(mr.key));
            json_or_text(json, &mrs, |mrs| show::memory::mrs(mrs))
        }
        Verb::Region { what } => region::run(target, what, json)?,
        Verb::Nvmf { what } => nvmf::run(target, what, json)?,
        Verb::Address { what } => address::run(target, what, json)?,
        Verb::Config { what } => config::run(target, &what, json)?,
        Verb::Reload => config::reload(target, json)?,
        Verb::Connections => {
            let mut qps = qps(target)?;
            qps.retain(|qp| qp.connection.is_some());
            json_or_text(json, &qps, |qps| show::qp::connections(qps))
        }
        Verb::Stat { group, all, delta } => {
            let (sums, latency) = stat::ask(target, group.as_deref(), delta)?;
            if json {
                let mut groups = show::counters::counters_json(&sums);
                if let Some(latency) = latency {
                    groups[stat::LATENCY] = json!(latency);
                }
                pretty(&groups)
            } else {
                let latency = latency.map(|latency| show::latency::latency(&latency, all));
                show::counters::stat(&sums, all) + &latency.unwrap_or_default()
            }
        }
        Verb::Drops { all } => {
            let groups: Vec<CounterGroup> = target.ask(&Request::Counters)?;
            let drops = report::sum(&groups).into_iter().find(|(name, _)| name == "drop").map(|(_, drops)| drops);
            let drops = drops.unwrap_or_default();
            if json { pretty(&show::counters::drops_json(&drops)) } else { show::counters::drops(&drops, all) }
        }
        Verb::Services => {
            let services: Vec<Service> = target.ask(&Request::Services)?;
            json_or_text(json, &services, |services| show::counters::services(services))
        }
        Verb::Service { what } => service::run(target, what, json)?,
        Verb::Peers { what } => service::run_peers(target, what, json)?,
        Verb::Top { once, interval, sort } => top::run(target, once, json, interval, sort)?,
        Verb::Disconnect { qpn } => {
            target.tell(&Request::Disconnect { qpn })?;
            done(json)
        }
        Verb::Drain { deadline } => json_or_text(json, &drain::run(target, deadline)?, drain::show),
        Verb::Capture { what } => json_or_text(json, &capture::run(target, what)?, capture::show),
        Verb::Fault { what } => fault::run(target, &what, json)?,
        Verb::Set { what: Setting::Log { level } } => {
            target.tell(&Request::SetLog { level })?;
            done(json)
        }
        Verb::Generate { .. } | Verb::Events { .. } => String::new(),
    })
}

fn qps(target: &mut Client) -> Result<Vec<Qp>, CliError> {
    Ok(target.ask_all(|start| Request::Qps { start })?)
}

fn device(target: &mut Client) -> Result<Device, CliError> {
    Ok(target.ask(&Request::Device)?)
}
