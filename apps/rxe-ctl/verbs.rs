//! The verbs: what each asks of the target.

use clap::CommandFactory;
use rxe_inspect::client::Client;
use rxe_inspect::protocol::Request;
use rxe_inspect::report::{self, CounterGroup, Device, LcoreResources, Mr, Qp, Service};
use serde::Serialize;

use crate::cli::{Cli, Setting, Verb};
use crate::{Failure, capture, fault, generate, show, target, top};

/// Does what the command line says; returns what is to be printed.
pub fn run(cli: Cli) -> Result<String, Failure> {
    if let Verb::Generate { folder } = &cli.verb {
        return generate::generate(Cli::command(), folder).map(|()| String::new()).map_err(Failure::Mistake);
    }
    let target = &mut target::find(cli.file_prefix.as_deref())?;
    let json = cli.json;
    match cli.verb {
        Verb::Devices => device(target, json, show::devices),
        Verb::Devinfo { verbose } => device(target, json, |device| show::devinfo(device, verbose)),
        Verb::Link { details, check } => {
            let device: Device = target.ask(&Request::Device)?;
            if check && device.ports.iter().any(|port| !port.up) {
                return Err(Failure::Down(show::down(&device)));
            }
            either(json, &device, |device| show::link(device, details))
        }
        Verb::Resource { details } => {
            let lcores: Vec<LcoreResources> = target.ask(&Request::Resources)?;
            let name = target.ask::<Device>(&Request::Device)?.name;
            either(json, &lcores, |lcores| show::resource(&name, lcores, details))
        }
        Verb::Qp { qpn: Some(qpn) } => {
            let qp: Qp = target.ask(&Request::Qp { qpn })?;
            either(json, &qp, show::qp)
        }
        Verb::Qp { qpn: None } => either(json, &qps(target)?, |qps| show::qps(qps)),
        Verb::Mr => {
            let mut mrs: Vec<Mr> = target.ask_all(|start| Request::Mrs { start })?;
            // A region with a name is known to every lcore under the same key.
            let mut seen = std::collections::HashSet::new();
            mrs.retain(|mr| mr.lcore.is_some() || seen.insert(mr.key));
            either(json, &mrs, |mrs| show::mrs(mrs))
        }
        Verb::Connections => {
            let mut qps = qps(target)?;
            qps.retain(|qp| qp.connection.is_some());
            either(json, &qps, |qps| show::connections(qps))
        }
        Verb::Stat { all } => {
            let groups: Vec<CounterGroup> = target.ask(&Request::Counters)?;
            let sums = report::sum(&groups);
            if json { Ok(pretty(&show::counters_json(&sums))) } else { Ok(show::stat(&sums, all)) }
        }
        Verb::Drops { all } => {
            let groups: Vec<CounterGroup> = target.ask(&Request::Counters)?;
            let drops = report::sum(&groups).into_iter().find(|(name, _)| name == "drop").map(|(_, drops)| drops);
            let drops = drops.unwrap_or_default();
            if json { Ok(pretty(&show::drops_json(&drops))) } else { Ok(show::drops(&drops, all)) }
        }
        Verb::Services => {
            let services: Vec<Service> = target.ask(&Request::Services)?;
            either(json, &services, |services| show::services(services))
        }
        Verb::Top { once, interval, sort } => top::run(target, once, json, interval, sort),
        Verb::Disconnect { qpn } => {
            target.tell(&Request::Disconnect { qpn })?;
            Ok(done(json))
        }
        Verb::Capture { what } => either(json, &capture::run(target, what)?, capture::show),
        Verb::Fault { what } => fault::run(target, &what, json),
        Verb::Set { what: Setting::Log { level } } => {
            target.tell(&Request::SetLog { level })?;
            Ok(done(json))
        }
        Verb::Generate { .. } => Ok(String::new()),
    }
}

fn qps(target: &mut Client) -> Result<Vec<Qp>, Failure> {
    Ok(target.ask_all(|start| Request::Qps { start })?)
}

fn device(target: &mut Client, json: bool, show: impl FnOnce(&Device) -> String) -> Result<String, Failure> {
    let device: Device = target.ask(&Request::Device)?;
    either(json, &device, show)
}

/// JSON, or what `show` makes of it.
pub fn either<T: Serialize>(json: bool, value: &T, show: impl FnOnce(&T) -> String) -> Result<String, Failure> {
    Ok(if json { pretty(value) } else { show(value) })
}

/// Nothing more to say: for JSON something that can be read.
pub fn done(json: bool) -> String {
    if json { "null\n".to_owned() } else { String::new() }
}

/// JSON for people and programs.
pub fn pretty<T: Serialize>(value: &T) -> String {
    // Reports have no keys but texts, so this does not fail.
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}
