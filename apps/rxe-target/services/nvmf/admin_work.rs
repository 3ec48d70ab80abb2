//! Commands that need memory for admin commands.

use rxe_nvmf::controller::ControllerId;
use rxe_nvmf::wire::{HostBuffer, Sqe};
use rxe_proto::verbs::Qpn;

/// A command that needs memory for admin commands.
#[derive(Clone, Copy, Debug)]
pub enum AdminWork {
    /// A Connect, whose data are to be fetched.
    Connect {
        /// The queue pair.
        queue: Qpn,
        /// The host's memory.
        from: HostBuffer,
    },
    /// A command with data for the host.
    Command {
        /// The queue pair.
        queue: Qpn,
        /// The receive of the command.
        slot: u16,
        /// The controller.
        controller: ControllerId,
        /// The command.
        sqe: Sqe,
    },
}

impl AdminWork {
    /// Its queue pair.
    pub fn queue(&self) -> Qpn {
        match *self {
            AdminWork::Connect { queue, .. } | AdminWork::Command { queue, .. } => queue,
        }
    }
}
