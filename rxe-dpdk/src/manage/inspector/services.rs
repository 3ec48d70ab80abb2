//! Services of a running adapter.

use std::sync::Arc;

use rxe_service::change::Change;

use super::{InspectError, Inspector};

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
    /// Sends a request to all instances of a service, in its own language; see
    /// [`Service::manage`](rxe_service::Service::manage). Returns their answers, by worker number.
    ///
    /// # Errors
    /// [`ServiceError`]; instances on other workers may have carried out the request.
    pub fn manage_service(&self, name: &str, request: &str) -> Result<Vec<String>, ServiceError> {
        let service = self.0.services.iter().position(|info| info.names.contains(&name));
        let service = service.ok_or_else(|| ServiceError::NoSuchService(name.to_owned()))?;
        let request: Arc<str> = request.into();
        let answers =
            self.change_all(|reply| Change::ManageService { service, request: Arc::clone(&request), reply })?;
        let refused = |sentence| ServiceError::Refused { service: name.to_owned(), sentence };
        answers.into_iter().map(|answer| answer.map_err(refused)).collect()
    }
}
