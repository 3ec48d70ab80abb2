//! The adapter of this process.

use rxe_uverbs::adapter::{self, Adapter, AdapterError};
use rxe_uverbs::backend::Backend;
use rxe_uverbs::descriptors::Descriptors;
use rxe_uverbs::settings::Settings;

pub use adapter::local;

/// The adapter with these settings. An address that they name may be one of another process of this user.
///
/// # Errors
/// There is none; the error says what to do.
pub fn new(settings: &Settings, descriptors: &'static Descriptors) -> Result<Box<dyn Backend>, AdapterError> {
    Ok(Box::new(Adapter::new(settings, descriptors)?))
}
