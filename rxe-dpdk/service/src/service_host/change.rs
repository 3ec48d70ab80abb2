//! Changes that management makes: see [`Change`].

use rxe_proto::Instant;
use rxe_proto::mem::{MemoryRegion, RegisterError};
use rxe_proto::transport::Engine;

use super::ServiceHost;
use crate::change::{Change, RegionHead};
use crate::messages::ToControl;
use crate::regions::NamedRegion;

impl ServiceHost {
    /// Makes a change and answers. Management may have given up waiting, which is no loss.
    #[cold]
    pub(super) fn change(&mut self, now: Instant, engine: &mut Engine, change: Change) {
        match change {
            Change::StageRegion { head, part, reply } => {
                let staged = self.keep_count(engine, |host, engine| host.stage_region(engine, &head, &part));
                let _ = reply.try_send(staged);
            }
            Change::PublishRegion { at, reply } => {
                self.keep_count(engine, |host, engine| host.publish_region(now, engine, at));
                let _ = reply.try_send(());
            }
            Change::CountRegionUsers { name, reply } => {
                let region = self.regions.iter().find(|region| region.name == name);
                let _ = reply.try_send(region.map_or(0, |region| engine.keys().pd_users(region.pd)));
            }
            Change::WithdrawRegion { name, force, reply } => {
                let withdrawn = self.keep_count(engine, |host, engine| host.withdraw_region(now, engine, &name, force));
                let _ = reply.try_send(withdrawn);
            }
            Change::ReleaseRegion { most, reply } => {
                let left = self.keep_count(engine, |host, engine| host.release_region(engine, most));
                let _ = reply.try_send(left);
            }
            Change::DisconnectService { service, reply } => {
                let _ = reply.try_send(self.disconnect_service(service));
            }
            Change::Control(change) => self.send(ToControl::Change(change)),
            Change::ManageService { service, request, reply } => {
                let answer = if service < self.services.len() {
                    self.call(now, engine, service, |s, cx| s.manage(cx, &request))
                } else {
                    Err("there is no such service".to_owned())
                };
                let _ = reply.try_send(answer);
            }
        }
    }

    fn disconnect_service(&self, service: usize) -> usize {
        let connections = self.connections.iter().filter(|(_, connection)| connection.service == service);
        let streams = self.streams.iter().filter(|(_, owner)| **owner == service);
        let ends = connections.map(|(&conn, _)| ToControl::Disconnect { conn });
        let ends = ends.chain(streams.map(|(&stream, _)| ToControl::StreamReset { stream }));
        ends.map(|end| self.send(end)).count()
    }

    /// Keys that come or go by `change` are not of clients: those count as left when the adapter stops.
    fn keep_count<T>(&mut self, engine: &mut Engine, change: impl FnOnce(&mut ServiceHost, &mut Engine) -> T) -> T {
        let before = engine.keys().len();
        let result = change(self, engine);
        self.first_keys = (self.first_keys + engine.keys().len()).saturating_sub(before);
        result
    }

    fn stage_region(
        &mut self,
        engine: &mut Engine,
        head: &RegionHead,
        part: &[MemoryRegion],
    ) -> Result<(), RegisterError> {
        let RegionHead { name, is_numbered, domain, file } = head;
        let staged = self.staged_region.get_or_insert_with(|| {
            let shares = |region: &&NamedRegion| domain.is_some() && region.domain == *domain;
            let pd = self.regions.iter().find(shares).map(|region| region.pd);
            NamedRegion {
                name: name.clone(),
                is_numbered: *is_numbered,
                pd: pd.unwrap_or_else(|| engine.keys_mut().alloc_pd()),
                mrs: Vec::new(),
                domain: domain.clone(),
                file: file.clone(),
            }
        });
        for mr in part {
            staged.mrs.push(engine.keys_mut().adopt(staged.pd, mr)?);
        }
        Ok(())
    }

    fn publish_region(&mut self, now: Instant, engine: &mut Engine, at: usize) {
        let Some(region) = self.staged_region.take() else { return };
        let name = region.name.clone();
        self.regions.insert(at.min(self.regions.len()), region);
        for service in 0..self.services.len() {
            self.call(now, engine, service, |s, cx| s.region_added(cx, &name));
        }
    }

    fn withdraw_region(&mut self, now: Instant, engine: &mut Engine, name: &str, force: bool) -> Result<(), u32> {
        let Some(at) = self.regions.iter().position(|region| region.name == name) else { return Ok(()) };
        let users = engine.keys().pd_users(self.regions[at].pd);
        if users > 0 && !force {
            return Err(users);
        }
        self.staged_region = Some(self.regions.remove(at));
        for service in 0..self.services.len() {
            self.call(now, engine, service, |s, cx| s.region_removed(cx, name));
        }
        Ok(())
    }

    fn release_region(&mut self, engine: &mut Engine, most: usize) -> usize {
        let Some(mut region) = self.staged_region.take() else { return 0 };
        let left = region.mrs.len().saturating_sub(most);
        for mr in region.mrs.drain(left..) {
            // Windows cannot be bound to it: its access lacks MW_BIND.
            let _ = engine.keys_mut().deregister(mr.rkey());
        }
        if left > 0 {
            self.staged_region = Some(region);
            return left;
        }
        if !self.regions.iter().any(|other| other.pd == region.pd) {
            self.retired_pds.push(region.pd);
        }
        // A domain whose queue pairs are not destroyed yet is freed with a later region.
        self.retired_pds.retain(|pd| engine.keys_mut().dealloc_pd(*pd).is_err());
        0
    }
}
