//! Named cases.

use crate::Check;
use crate::place::Place;

/// A case.
pub struct Case {
    /// Its name, `GROUP/COMMAND`.
    pub name: String,
    /// Whether only the nightly run has it.
    pub nightly: bool,
    /// Its body.
    pub body: Box<dyn FnOnce(&Place) -> Check + Send>,
}

impl Case {
    /// A case that always runs.
    pub fn new(name: impl Into<String>, body: impl FnOnce(&Place) -> Check + Send + 'static) -> Case {
        Case { name: name.into(), nightly: false, body: Box::new(body) }
    }

    /// A case of the nightly run.
    pub fn nightly(name: impl Into<String>, body: impl FnOnce(&Place) -> Check + Send + 'static) -> Case {
        Case { nightly: true, ..Case::new(name, body) }
    }
}
