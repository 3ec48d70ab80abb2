//! Services of a running adapter.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;

use rxe_inspect::report::Service;
use rxe_proto::wire::{PortId, PrefixList};
use rxe_service::ControlChange;
use rxe_service::change::Change;

use super::{InspectError, Inspector, ServiceInfo};
use crate::worker::orders::{Order, PeersOrder};

/// Why a request to a service failed. Each message is one sentence.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ServiceError {
    /// A worker does not answer.
    #[error(transparent)]
    Inspect(#[from] InspectError),
    /// No service has this name.
    #[error("the target does not run the service '{0}': rxe-ctl service list shows the services")]
    NoSuchService(String),
    /// The service refuses.
    #[error("the service {service}: {sentence}")]
    Refused {
        /// The service.
        service: String,
        /// Its reason.
        sentence: String,
    },
}

impl Inspector {
    /// The services, without their own counters.
    pub fn services(&self) -> Vec<Service> {
        let services = self.0.services.iter().flat_map(|info| info.names.iter().map(move |name| (name, info)));
        let report = |(name, info): (&&str, &ServiceInfo)| Service {
            name: (*name).to_owned(),
            listens: info.listens.clone(),
            stopped: info.stopped.load(Ordering::Relaxed),
            counters: Vec::new(),
        };
        services.map(report).collect()
    }

    /// Stops a service: it refuses new clients from now on, connection requests with reason 28, SIDR requests with status 2,
    /// TCP streams with a reset. With `force` its clients are disconnected; else they go on. Services that share a port stop
    /// together.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub fn stop_service(&self, name: &str, force: bool) -> Result<(), ServiceError> {
        let service = self.set_stopped(name, true)?;
        if force {
            self.change_all(|reply| Change::DisconnectService { service, reply })?;
        }
        Ok(())
    }

    /// Starts a service that was stopped.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub fn start_service(&self, name: &str) -> Result<(), ServiceError> {
        self.set_stopped(name, false).map(|_| ())
    }

    /// Sets the allowed peers of a service; `None` is everyone. Clients that it has stay. Services that share a port have the
    /// same list.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub fn set_service_peers(&self, name: &str, peers: Option<PrefixList>) -> Result<(), ServiceError> {
        let service = self.service(name)?;
        let (reply, done) = sync_channel(1);
        self.change_control(ControlChange::SetAllowed { service, peers, reply })?;
        Ok(self.wait(0, &done)?)
    }

    /// Sets the allowed peers of a port; `None` is everyone. Packets from other addresses are dropped from now on, those of
    /// connections that exist too.
    ///
    /// # Errors
    /// [`InspectError::Stopped`]; [`InspectError::NoAnswer`], where the lcore has the order and still applies it.
    pub fn set_port_peers(&self, port: PortId, peers: Option<&PrefixList>) -> Result<(), InspectError> {
        let sent = (0..self.workers()).map(|worker| {
            let (reply, done) = sync_channel(1);
            self.order(worker, Order::Peers(PeersOrder { port, peers: peers.cloned(), reply }))?;
            Ok((worker, done))
        });
        let sent: Vec<_> = sent.collect::<Result<_, InspectError>>()?;
        sent.into_iter().try_for_each(|(worker, done)| self.wait(worker, &done))
    }

    fn set_stopped(&self, name: &str, stopped: bool) -> Result<usize, ServiceError> {
        let service = self.service(name)?;
        let (reply, done) = sync_channel(1);
        self.change_control(ControlChange::SetStopped { service, stopped, reply })?;
        self.wait(0, &done)?;
        self.0.services[service].stopped.store(stopped, Ordering::Relaxed);
        Ok(service)
    }

    /// The number of a service.
    fn service(&self, name: &str) -> Result<usize, ServiceError> {
        let service = self.0.services.iter().position(|info| info.names.contains(&name));
        service.ok_or_else(|| ServiceError::NoSuchService(name.to_owned()))
    }

    /// Sends a change to the control side, which is on worker 0.
    fn change_control(&self, change: ControlChange) -> Result<(), InspectError> {
        let worker = self.0.workers.first().ok_or(InspectError::Stopped)?;
        worker.change(Change::Control(change)).map_err(|_| InspectError::Stopped)
    }

    /// Sends a request to all instances of a service, in its own language; see
    /// [`Service::manage`](rxe_service::Service::manage). Returns their answers, by worker number.
    ///
    /// # Errors
    /// [`ServiceError`]; instances on other workers may have carried out the request.
    pub fn manage_service(&self, name: &str, request: &str) -> Result<Vec<String>, ServiceError> {
        let service = self.service(name)?;
        let request: Arc<str> = request.into();
        let answers =
            self.change_all(|reply| Change::ManageService { service, request: Arc::clone(&request), reply })?;
        let refused = |sentence| ServiceError::Refused { service: name.to_owned(), sentence };
        answers.into_iter().map(|answer| answer.map_err(refused)).collect()
    }
}
