//! The adapter of this process.

use rxe_uverbs::adapter::{Adapter, AdapterError};
use rxe_uverbs::backend::Backend;
use rxe_uverbs::descriptors::Descriptors;
use rxe_uverbs::settings::Settings;

/// The adapter with these settings.
///
/// # Errors
/// There is none; the error says what to do.
pub fn new(settings: &Settings, descriptors: &'static Descriptors) -> Result<Box<dyn Backend>, AdapterError> {
    Ok(Box::new(Adapter::new(settings, descriptors)?))
}
