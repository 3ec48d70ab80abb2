//! The adapter of this process.

use rxe_uverbs::adapter::Adapter;
use rxe_uverbs::backend::Backend;
use rxe_uverbs::descriptors::Descriptors;
use rxe_uverbs::settings::Settings;

/// The adapter with these settings.
///
/// # Errors
/// There is none; the error says what to do.
pub fn new(
    settings: &Settings,
    descriptors: &'static Descriptors,
) -> Result<Box<dyn Backend>, Box<dyn std::error::Error>> {
    Ok(Box::new(Adapter::new(settings, descriptors)?))
}
