//! Address handles.

use std::collections::BTreeSet;

use nix::errno::Errno;
use rxe_proto::transport::{AhId, Engine};

use super::Uverbs;
use super::abi::{CreateAh, CreateAhResp, DestroyAh, RxeCreateAhResp};
use super::command::Command;
use super::path::{Route, path, route_of_ah};
use super::table::{ContextId, Table};

/// An address handle.
#[derive(Debug)]
struct Ah {
    id: AhId,
    pd: u32,
    route: Route,
}

/// The destination of a datagram, as a work request names it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Destination {
    /// By number, from 1.
    Handle(u32),
    /// By route: rdma-core before version 34.
    Route(Route),
}

/// The address handles of all contexts.
#[derive(Debug)]
pub(super) struct Ahs {
    table: Table<Ah>,
    /// By protection domain and route, for providers that name the route in work requests.
    routes: BTreeSet<(u32, Route, u32)>,
}

impl Ahs {
    /// No address handles yet, and at most `max`.
    pub(super) fn new(max: u32) -> Ahs {
        Ahs { table: Table::new(max), routes: BTreeSet::new() }
    }

    /// The engine's address handle for a datagram of a queue pair of `pd`.
    #[inline]
    pub(super) fn find(&self, context: ContextId, pd: u32, destination: Destination) -> Option<AhId> {
        match destination {
            Destination::Handle(number) => self.table.get(context, number.checked_sub(1)?).map(|ah| ah.id),
            Destination::Route(route) => self.on_route(pd, route),
        }
    }

    #[cold]
    fn on_route(&self, pd: u32, route: Route) -> Option<AhId> {
        let (of, found, handle) = *self.routes.range((pd, route, 0)..).next()?;
        if (of, found) == (pd, route) { self.table.at(handle).map(|ah| ah.id) } else { None }
    }

    /// Handles of the address handles that a context created.
    pub(super) fn handles_of(&self, context: ContextId) -> Vec<u32> {
        self.table.handles_of(context)
    }
}

impl Uverbs {
    /// CREATE_AH
    pub(super) fn create_ah(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        let request = command.call.request::<CreateAh>()?;
        let route = route_of_ah(&request.attr)?;
        let pd = self.pd(command.context, request.pd_handle)?;
        let path = path(&self.local, &route)?;
        self.ahs.table.check_room()?;
        let id = command.engine.create_ah(pd, &path).map_err(|_| Errno::ENOMEM)?;
        let ah_handle = self.ahs.table.insert(command.context, Ah { id, pd: request.pd_handle, route })?;
        self.ahs.routes.insert((request.pd_handle, route, ah_handle));
        respond(command, ah_handle).inspect_err(|_| self.remove_ah(command.engine, ah_handle))
    }

    /// DESTROY_AH
    pub(super) fn destroy_ah(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        let request = command.call.request::<DestroyAh>()?;
        self.ahs.table.get(command.context, request.ah_handle).ok_or(Errno::ENOENT)?;
        self.remove_ah(command.engine, request.ah_handle);
        Ok(())
    }

    /// Destroys an address handle.
    pub(super) fn remove_ah(&mut self, engine: &mut Engine, handle: u32) {
        if let Some(ah) = self.ahs.table.remove(handle) {
            self.ahs.routes.remove(&(ah.pd, ah.route, handle));
            // The engine has as many as this table.
            let _ = engine.destroy_ah(ah.id);
        }
    }
}

fn respond(command: &Command<'_>, ah_handle: u32) -> Result<(), Errno> {
    command.call.respond(&CreateAhResp { ah_handle })?;
    // A provider that does not ask for the number puts the route into each work request.
    if command.call.has_provider_room::<RxeCreateAhResp>() {
        command.call.respond_provider(&RxeCreateAhResp { ah_num: ah_handle + 1, reserved: 0 })?;
    }
    Ok(())
}
