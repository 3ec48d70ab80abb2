//! Services of a running adapter.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;

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
        /// The service's reason, a sentence.
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
        Ok(self.change_control(|reply| ControlChange::SetAllowed { service, peers, reply })?)
    }

    /// Sets the allowed peers of a port; `None` is everyone. Packets from other addresses are dropped from now on, those of
    /// connections that exist too.
    ///
    /// # Errors
    /// [`InspectError::Stopped`]; [`InspectError::NoAnswer`], where the lcore has the order and still applies it.
    pub fn set_port_peers(&self, port: PortId, peers: Option<&PrefixList>) -> Result<(), InspectError> {
        let peers = |reply| PeersOrder { port, peers: peers.cloned(), reply };
        self.exchange_all(|worker, reply| self.order(worker, Order::Peers(peers(reply)))).map(drop)
    }

    fn set_stopped(&self, name: &str, stopped: bool) -> Result<usize, ServiceError> {
        let service = self.service(name)?;
        self.change_control(|reply| ControlChange::SetStopped { service, stopped, reply })?;
        self.0.services[service].stopped.store(stopped, Ordering::Relaxed);
        Ok(service)
    }

    /// The number of a service.
    fn service(&self, name: &str) -> Result<usize, ServiceError> {
        let service = self.0.services.iter().position(|info| info.names.contains(&name));
        service.ok_or_else(|| ServiceError::NoSuchService(name.to_owned()))
    }

    /// Changes the control side, which is on worker 0.
    fn change_control(&self, change: impl FnOnce(SyncSender<()>) -> ControlChange) -> Result<(), InspectError> {
        self.change(0, |reply| Change::Control(change(reply)))
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
