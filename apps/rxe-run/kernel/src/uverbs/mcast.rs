//! Multicast groups.

use nix::errno::Errno;
use rxe_proto::transport::{Engine, MulticastError, QpType};
use rxe_proto::wire::Gid;

use super::Uverbs;
use super::abi::Mcast;
use super::command::Command;

impl Uverbs {
    /// ATTACH_MCAST
    ///
    /// The engine knows a queue pair's port from INIT on, and forgets its groups in RESET; a program may attach it in any
    /// state and keeps the groups. So the groups are kept here, too.
    pub(super) fn attach_mcast(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        let request = command.call.request::<Mcast>()?;
        let group = Gid(request.gid);
        let qp = self.qps.get_mut(command.context, request.qp_handle).ok_or(Errno::EINVAL)?;
        if qp.groups.contains(&group) {
            return Ok(());
        }
        if qp.qp_type != QpType::Ud || !group.ip().is_multicast() {
            return Err(Errno::EINVAL);
        }
        if qp.groups.len() >= self.limits.mcast_groups as usize {
            return Err(Errno::ENOMEM);
        }
        match command.engine.attach_multicast(qp.qpn, group) {
            Ok(()) | Err(MulticastError::NoPort) => {}
            Err(MulticastError::TooManyGroups(_) | MulticastError::TooManyQueuePairs(_)) => return Err(Errno::ENOMEM),
            Err(_) => return Err(Errno::EINVAL),
        }
        qp.groups.push(group);
        if !self.members.contains(&request.qp_handle) {
            self.members.push(request.qp_handle);
        }
        Ok(())
    }

    /// DETACH_MCAST
    pub(super) fn detach_mcast(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        let request = command.call.request::<Mcast>()?;
        let group = Gid(request.gid);
        let qp = self.qps.get_mut(command.context, request.qp_handle).ok_or(Errno::EINVAL)?;
        let at = qp.groups.iter().position(|&of| of == group).ok_or(Errno::EINVAL)?;
        qp.groups.remove(at);
        // In RESET the engine has no groups.
        let _ = command.engine.detach_multicast(qp.qpn, group);
        if qp.groups.is_empty() {
            self.members.retain(|&member| member != request.qp_handle);
        }
        Ok(())
    }

    /// Attaches a queue pair that has just got its port to its groups again.
    pub(super) fn rejoin_groups(&mut self, engine: &mut Engine, handle: u32) {
        let Some(qp) = self.qps.at(handle) else { return };
        for &group in &qp.groups {
            if let Err(error) = engine.attach_multicast(qp.qpn, group) {
                tracing::warn!("queue pair {} is not in multicast group {group}: {error}", qp.qpn);
            }
        }
    }
}
