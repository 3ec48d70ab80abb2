//! Multicast groups: JOIN_MCAST and LEAVE_MCAST.

use std::net::IpAddr;

use nix::errno::Errno;
use rxe_proto::transport::Qpn;
use rxe_proto::wire::Gid;
use rxe_proto::wire::mad::RDMA_UDP_QKEY;
use rxe_udp::MAX_GROUPS;
use zerocopy::FromZeros;

use super::abi::event;
use super::channel::Event;
use super::events::Param;
use super::id::{PathRecord, State};
use super::{Action, Host, RdmaCm, abi, address, check_room, qp_attr, respond};

/// How a program is in a group.
mod join_flag {
    pub const FULL_MEMBER: u16 = 0;
    pub const SEND_ONLY: u16 = 1;
}

/// An id's membership in a multicast group.
#[derive(Debug)]
pub struct Membership {
    id: u32,
    group: IpAddr,
    /// It only sends, so the adapter does not join the group for it.
    send_only: bool,
    /// Events that the program has read.
    pub events_reported: u32,
}

impl RdmaCm {
    /// JOIN_IP_MCAST.
    pub(super) fn join_ip_multicast(
        &mut self,
        host: &mut Host<'_>,
        file: u32,
        command: &abi::JoinIpMcast,
        room: usize,
    ) -> Result<(), Errno> {
        if address::size(&command.addr) == 0 {
            return Err(Errno::EINVAL);
        }
        let mut addr = [0; size_of::<abi::SockaddrStorage>()];
        addr[..command.addr.len()].copy_from_slice(&command.addr);
        let join = abi::JoinMcast {
            response: command.response,
            uid: command.uid,
            id: command.id,
            addr_size: address::size(&command.addr),
            join_flags: join_flag::FULL_MEMBER,
            addr,
        };
        self.join_multicast(host, file, &join, room)
    }

    /// JOIN_MCAST.
    pub(super) fn join_multicast(
        &mut self,
        host: &mut Host<'_>,
        file: u32,
        command: &abi::JoinMcast,
        room: usize,
    ) -> Result<(), Errno> {
        check_room(room, size_of::<abi::CreateIdResp>())?;
        if command.addr_size == 0 || command.addr_size != address::size(&command.addr) {
            return Err(Errno::EINVAL);
        }
        let send_only = match command.join_flags {
            join_flag::FULL_MEMBER => false,
            join_flag::SEND_ONLY => true,
            _ => return Err(Errno::EINVAL),
        };
        let id = self.attached(file, command.id)?;
        if !matches!(id.state, State::Bound | State::AddressResolved) || !id.is_datagram() {
            return Err(Errno::EINVAL);
        }
        let group = address::read(&command.addr).ok_or(Errno::EAFNOSUPPORT)?.ip();
        if !group.is_multicast() {
            return Err(Errno::EINVAL);
        }
        if group.is_ipv4() != host.local.address.is_ipv4() {
            return Err(Errno::EAFNOSUPPORT);
        }
        self.check_events(file)?;
        if !send_only && !self.groups.contains_key(&group) && self.groups.len() >= MAX_GROUPS {
            return Err(Errno::ENOMEM);
        }
        let membership = Membership { id: command.id, group, send_only, events_reported: 0 };
        let handle = self.memberships.insert(membership).ok_or(Errno::ENOMEM)?;
        if let Err(errno) = respond(command.response, &abi::CreateIdResp { id: handle }, room) {
            self.memberships.remove(handle);
            return Err(errno);
        }
        if !send_only {
            let members = self.groups.entry(group).or_default();
            *members += 1;
            if *members == 1 {
                self.actions.push_back(Action::JoinGroup(group));
            }
        }
        let id = self.id_mut(file, command.id)?;
        id.multicasts.push(handle);
        if id.qkey == 0 {
            id.qkey = RDMA_UDP_QKEY;
        }
        let mut param = Param::ud(&[]);
        param.qp_num = Qpn::MULTICAST.get();
        param.qkey = id.qkey;
        param.ah_attr = qp_attr::ah_attr(
            host.local,
            &PathRecord {
                source: Gid::from(host.local.address),
                dest: Gid::from(group),
                flow_label: 0,
                traffic_class: 0,
                mtu: host.local.path_mtu,
                life_time: 0,
            },
        );
        let response = abi::EventResp {
            uid: command.uid,
            id: handle,
            event: event::MULTICAST_JOIN,
            param: Param::Ud(param).to_bytes(),
            ..abi::EventResp::new_zeroed()
        };
        // As with other events, none for an id that the program has not accepted.
        if id.uid != 0
            && let Some(channel) = self.channels.get_mut(&file)
        {
            channel.push(Event { id: command.id, multicast: Some(handle), request: None, response });
        }
        Ok(())
    }

    /// LEAVE_MCAST.
    pub(super) fn leave_multicast(&mut self, file: u32, command: &abi::DestroyId, room: usize) -> Result<(), Errno> {
        check_room(room, size_of::<abi::DestroyIdResp>())?;
        let handle = command.id;
        let membership = self.memberships.get(handle).ok_or(Errno::ENOENT)?;
        let (owner, events_reported) = (membership.id, membership.events_reported);
        self.id_mut(file, owner)?.multicasts.retain(|&multicast| multicast != handle);
        self.leave(handle);
        if let Some(channel) = self.channels.get_mut(&file) {
            channel.extract(|event| event.multicast == Some(handle));
        }
        respond(command.response, &abi::DestroyIdResp { events_reported }, room)
    }

    /// Ends a membership.
    pub(super) fn leave(&mut self, handle: u32) {
        let Some(membership) = self.memberships.remove(handle) else { return };
        if membership.send_only {
            return;
        }
        let group = membership.group;
        if let Some(members) = self.groups.get_mut(&group) {
            *members -= 1;
            if *members == 0 {
                self.groups.remove(&group);
                self.actions.push_back(Action::LeaveGroup(group));
            }
        }
    }
}
