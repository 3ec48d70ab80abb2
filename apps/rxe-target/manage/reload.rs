//! The configuration file is read again: `rxe-ctl reload`, and SIGHUP.
//!
//! Afterwards the target runs as the file says. What cannot be changed while it runs is named, and so is what is refused because
//! clients use it.

use rxe_inspect::reload::Reload;
use toml::{Table, Value};

use super::{Managed, addresses, admission, faults, nvmf, regions};
use crate::config::{Config, Port, RegionSpec};
use crate::services;

/// Reloads the configuration file.
pub fn reload(managed: &Managed) -> Result<Reload, String> {
    let Some(source) = managed.config.source() else {
        return Err("the target was started without --config, so there is no file to read: change it by rxe-ctl, or \
                    start it with --config FILE"
            .to_owned());
    };
    let wanted = source.read().and_then(|settings| Config::resolve(settings, &services::names()));
    let wanted = wanted.map_err(|error| error.to_string())?;
    services::factories(&wanted).map_err(|error| error.to_string())?;
    let mut config = managed.config.lock();
    let report = Reload { file: source.file.display().to_string(), ..Reload::default() };
    let mut change = Change { managed, config: &mut config, report };
    change.log(&wanted);
    change.ports(&wanted);
    change.services(&wanted);
    change.regions(&wanted);
    change.faults(&wanted);
    change.nvmf(&wanted);
    change.capture(&wanted);
    change.report.needs_restart.extend(fixed(&change.config.to_table(), &wanted.to_table()));
    log(&change.report);
    Ok(change.report)
}

fn log(report: &Reload) {
    let file = &report.file;
    for line in &report.applied {
        tracing::info!("{file}: applied: {line}");
    }
    for line in &report.refused {
        tracing::warn!("{file}: refused: {line}");
    }
    for line in &report.needs_restart {
        tracing::warn!("{file}: needs a restart: {line}");
    }
    if report.is_empty() {
        tracing::info!("{file}: the target runs as it says");
    }
}

/// A reload in progress.
struct Change<'a> {
    managed: &'a Managed,
    config: &'a mut Config,
    report: Reload,
}

impl Change<'_> {
    /// Notes what became of a change.
    fn note(&mut self, what: String, done: Result<(), String>) {
        match done {
            Ok(()) => self.report.applied.push(what),
            Err(why) => self.report.refused.push(format!("{what}: {why}")),
        }
    }

    fn log(&mut self, wanted: &Config) {
        if self.config.log != wanted.log {
            let done = self.managed.set_log(self.config, wanted.log);
            self.note(format!("set the log level to {}", wanted.log), done);
        }
    }

    fn ports(&mut self, wanted: &Config) {
        if self.config.ports.len() != wanted.ports.len() {
            self.report.needs_restart.push("the number of ports".to_owned());
        }
        for (number, wanted) in (0..).zip(&wanted.ports) {
            let Some(port) = self.config.ports.get(usize::from(number)).cloned() else { return };
            self.addressing(number, &port, wanted);
            let peers = &wanted.restrictions.peers;
            if port.restrictions.peers != *peers {
                let done = admission::set_port(self.managed, self.config, number, peers.clone());
                self.note(format!("set the allowed peers of port{number}"), done);
            }
        }
    }

    fn addressing(&mut self, number: u16, port: &Port, wanted: &Port) {
        let parts = |port: &Port| (port.addresses.clone(), port.gateways.clone(), port.routes.clone());
        if parts(port) == parts(wanted) {
            return;
        }
        let what = format!("set the addresses and routes of port{number}");
        // First those that come, so that they are there if one that goes is in use.
        let stays = |ip| wanted.addresses.iter().any(|address| address.ip == ip);
        let mut all = wanted.clone();
        all.addresses.extend(port.addresses.iter().filter(|address| !stays(address.ip)));
        if all.addresses.len() > wanted.addresses.len()
            && all.addresses.len() > port.addresses.len()
            && let Err(why) = addresses::set(self.managed, self.config, number, &all, false)
        {
            return self.note(what, Err(why));
        }
        let done = addresses::set(self.managed, self.config, number, wanted, false);
        self.note(what, done);
    }

    fn services(&mut self, wanted: &Config) {
        let is_wanted = |name: &str| wanted.services.iter().any(|service| service == name);
        for name in services::names() {
            // Services that share a port stop and start together, so this may change with each.
            let running = self.managed.inspector.services().into_iter().find(|service| service.name == name);
            match (running.map(|service| service.stopped), is_wanted(name)) {
                (None, true) => self.report.needs_restart.push(format!("the service {name}")),
                (Some(true), true) => {
                    let done = self.managed.inspector.start_service(name).map_err(|error| error.to_string());
                    self.note(format!("start the service {name}"), done);
                }
                (Some(false), false) if services::sharing(name).into_iter().any(is_wanted) => {
                    self.report.needs_restart.push(format!("the service {name}"));
                }
                (Some(false), false) => {
                    let done = self.managed.inspector.stop_service(name, false).map_err(|error| error.to_string());
                    self.note(format!("stop the service {name}"), done);
                }
                (None | Some(true), false) | (Some(false), true) => {}
            }
        }
        for name in self.config.services.clone() {
            let peers = wanted.service_peers.get(name.as_str());
            if self.config.service_peers.get(name.as_str()) != peers {
                let done = admission::set_service(self.managed, self.config, &name, peers.cloned());
                self.note(format!("set the allowed peers of the service {name}"), done);
            }
        }
    }

    fn regions(&mut self, wanted: &Config) {
        let before = self.config.regions.clone();
        let find = |regions: &[RegionSpec], name: &str| regions.iter().find(|region| region.name == name).cloned();
        for RegionSpec { name, .. } in &before {
            if find(&wanted.regions, name).is_none() {
                let done = regions::remove_from(self.managed, self.config, name, false);
                self.note(format!("remove the region {name}"), done);
            }
        }
        for region in &wanted.regions {
            let name = &region.name;
            let Some(old) = find(&before, name) else {
                let done = regions::add_spec(self.managed, self.config, region.clone());
                self.note(format!("add the region {name}"), done);
                continue;
            };
            if old == *region {
                continue;
            }
            // The keys stay; the region service has the rest.
            if old.settings() == region.settings() {
                let done = regions::change_options(self.managed, self.config, region.clone());
                self.note(format!("set watch and the allowed peers of the region {name}"), done);
            } else {
                self.report.needs_restart.push(format!("the region {name}: its memory and keys stay as they are"));
            }
        }
        let names = |regions: &[RegionSpec], others: &[RegionSpec]| -> Vec<String> {
            let common = regions.iter().filter(|region| find(others, &region.name).is_some());
            common.map(|region| region.name.clone()).collect()
        };
        if names(&self.config.regions, &wanted.regions) != names(&wanted.regions, &self.config.regions) {
            self.report.needs_restart.push("the order of the regions".to_owned());
        }
    }

    fn faults(&mut self, wanted: &Config) {
        if self.managed.inspector.fault_rules() == wanted.faults {
            return;
        }
        let done = faults::clear(self.managed).and_then(|()| {
            wanted.faults.iter().try_for_each(|rule| faults::add_rule(self.managed, rule.clone()).map(drop))
        });
        if done.is_ok() {
            self.config.faults.clone_from(&wanted.faults);
        }
        self.note("set the fault rules".to_owned(), done);
    }

    fn nvmf(&mut self, wanted: &Config) {
        if self.managed.disks.get().is_some() {
            let nvmf::Changes { done, needs_restart } = nvmf::apply(self.managed, self.config, &wanted.nvmf);
            done.into_iter().for_each(|(what, done)| self.note(what, done));
            self.report.needs_restart.extend(needs_restart);
        } else if !wanted.nvmf.subsystems.is_empty() && wanted.services.iter().any(|name| name == services::NVMF) {
            self.report.needs_restart.push("the service nvmf, which was started without a subsystem".to_owned());
        }
    }

    fn capture(&mut self, wanted: &Config) {
        if self.config.capture == wanted.capture {
            return;
        }
        let capture = &self.managed.capture;
        if capture.status().is_ok_and(|status| status.running) {
            // It may have ended by now.
            let _ = capture.stop();
        }
        let (what, done) = match &wanted.capture {
            Some(settings) => {
                let done = capture.start(settings.clone()).map_err(|error| error.to_string());
                (format!("start a capture to {}", settings.file.display()), done)
            }
            None => ("stop the capture".to_owned(), Ok(())),
        };
        if done.is_ok() {
            self.config.capture.clone_from(&wanted.capture);
        }
        self.note(what, done);
    }
}

/// Sections that can be changed while the target runs, at least in part, and are treated above.
const CHANGED: [&str; 7] = ["log", "services", "port", "region", "service", "capture", "fault"];
/// Keys of ports that cannot.
const FIXED_OF_PORTS: [&str; 4] = ["strict-pkey", "pin-mac", "vlan", "mtu"];

/// The settings that differ and cannot be changed.
fn fixed(running: &Table, wanted: &Table) -> Vec<String> {
    let top = differing(running, wanted).into_iter().filter(|key| !CHANGED.contains(&key.as_str()));
    let mut names: Vec<String> = top.flat_map(|key| in_section(&key, running.get(&key), wanted.get(&key))).collect();
    let services = |table: &Table| table.get("service").and_then(Value::as_table).cloned().unwrap_or_default();
    let (old, new) = (services(running), services(wanted));
    for service in differing(&old, &new) {
        let section = format!("service.{service}");
        let keys = in_section(&section, old.get(&service), new.get(&service));
        let changed = |key: &String| key.ends_with(" peers") || key == "[service.nvmf] subsystem";
        names.extend(keys.into_iter().filter(|key| !changed(key)));
    }
    let ports = |table: &Table| table.get("port").and_then(Value::as_array).cloned().unwrap_or_default();
    for (number, (old, new)) in ports(running).iter().zip(&ports(wanted)).enumerate() {
        let keys = FIXED_OF_PORTS.into_iter().filter(|key| old.get(key) != new.get(key));
        names.extend(keys.map(|key| format!("{key} of port{number}")));
    }
    names
}

/// The names of the settings of a section that differ, or that of the setting.
fn in_section(name: &str, running: Option<&Value>, wanted: Option<&Value>) -> Vec<String> {
    let table = |value: Option<&Value>| value.and_then(Value::as_table).cloned();
    match (table(running), table(wanted)) {
        (None, None) => vec![name.to_owned()],
        (running, wanted) => {
            let keys = differing(&running.unwrap_or_default(), &wanted.unwrap_or_default());
            keys.into_iter().map(|key| format!("[{name}] {key}")).collect()
        }
    }
}

/// The keys whose values differ.
fn differing(a: &Table, b: &Table) -> Vec<String> {
    let mut keys: Vec<&String> = a.keys().chain(b.keys()).collect();
    keys.sort();
    keys.dedup();
    keys.into_iter().filter(|key| a.get(*key) != b.get(*key)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config;

    fn table(text: &str) -> Table {
        let settings = config::parse(Path::new("t.toml"), text).unwrap_or_else(|error| panic!("{error}"));
        let config = Config::resolve(settings, &services::names()).unwrap_or_else(|error| panic!("{error}"));
        config.to_table()
    }

    #[test]
    fn settings_that_need_a_restart_are_named_by_their_keys() {
        let port = "[[port]]\naddresses = [\"10.0.0.1/24\"]\n";
        let plain = table(port);
        assert_eq!(fixed(&plain, &plain), [""; 0]);
        let other = table(&format!(
            "idle = \"spin\"\nlog = \"debug\"\n[eal]\nargs = [\"-l\", \"1\"]\n[limits]\nconnections = 10\npending = 10\n\
             [metrics]\nlisten = \"127.0.0.1:9479\"\n[service.mckey]\ncount = 3\npeers = [\"10.0.0.0/8\"]\n\
             [transport]\nkeep-alive = 0\n{port}mtu = 1500\npeers = [\"10.0.0.0/8\"]\n[[region]]\nname = \"a\"\nsize = 64\n"
        ));
        assert_eq!(
            fixed(&plain, &other),
            [
                "[eal] args",
                "idle",
                "[limits] connections",
                "[limits] connections-per-address",
                "[limits] pending",
                "[metrics] listen",
                "[transport] keep-alive",
                "[service.mckey] count",
                "mtu of port0",
            ]
        );
    }
}
