//! The identity of a running command.

/// Identifies a command until its completion. It cannot be copied: each command is completed once.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "every command is completed"]
pub struct CommandTag {
    pub(super) command_id: u16,
    /// The key that the response invalidates.
    pub(super) invalidate: Option<u32>,
}

impl CommandTag {
    /// The command id.
    #[must_use]
    pub const fn command_id(&self) -> u16 {
        self.command_id
    }
}
