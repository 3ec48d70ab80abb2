//! SET_OPTION.

use nix::errno::Errno;
use rxe_proto::wire::PathMtu;
use zerocopy::FromBytes;

use super::abi::event;
use super::events::Param;
use super::id::{Id, PathRecord, State, qp_type};
use super::query::PATH_FLAGS;
use super::{Host, RdmaCm, abi, address};
use crate::user;

/// Most bytes of an option: six paths, more than librdmacm has.
const MAX_OPTION_LEN: u32 = 6 * size_of::<abi::PathRecData>() as u32;

mod level {
    pub const ID: u32 = 0;
    pub const IB: u32 = 1;
}

mod id_option {
    pub const TOS: u32 = 0;
    pub const REUSEADDR: u32 = 1;
    pub const AFONLY: u32 = 2;
    pub const ACK_TIMEOUT: u32 = 3;
}

mod ib_option {
    pub const PATH: u32 = 1;
}

impl RdmaCm {
    /// SET_OPTION.
    pub(super) fn set_option(&mut self, host: &mut Host<'_>, file: u32, command: &abi::SetOption) -> Result<(), Errno> {
        if command.optlen > MAX_OPTION_LEN {
            return Err(Errno::EINVAL);
        }
        self.id(file, command.id)?;
        let mut value = vec![0; command.optlen as usize];
        user::read(command.optval, &mut value)?;
        match (command.level, command.optname) {
            (level::ID, name) => set_id_option(self.id_mut(file, command.id)?, name, &value),
            (level::IB, ib_option::PATH) => self.set_path(host, file, command.id, &value),
            _ => Err(Errno::ENOSYS),
        }
    }

    /// Sets a path that the program supplies, instead of RESOLVE_ROUTE.
    fn set_path(&mut self, host: &Host<'_>, file: u32, handle: u32, value: &[u8]) -> Result<(), Errno> {
        let (paths, rest) = value.as_chunks::<{ size_of::<abi::PathRecData>() }>();
        if !rest.is_empty() {
            return Err(Errno::EINVAL);
        }
        let mut paths = paths.iter().filter_map(|bytes| abi::PathRecData::read_from_bytes(bytes).ok());
        let record = paths.find(|path| path.flags == PATH_FLAGS).ok_or(Errno::EINVAL)?.path_rec;
        self.check_events(file)?;
        let id = self.attached(file, handle)?;
        if id.state != State::AddressResolved {
            return Err(Errno::EINVAL);
        }
        id.path = Some(PathRecord {
            // On Ethernet the GIDs of a path are the IP addresses, whatever the record says.
            source: address::gid(id.source),
            dest: address::gid(id.dest),
            flow_label: u32::from_be_bytes(record.flow_label_hop_limit) >> 8 & 0xF_FFFF,
            traffic_class: record.traffic_class,
            mtu: PathMtu::from_code(record.mtu & 0x3F).map_or(host.local.path_mtu, |mtu| mtu.min(host.local.path_mtu)),
            life_time: record.packet_life_time & 0x1F,
        });
        id.state = State::RouteResolved;
        self.queue(handle, event::ROUTE_RESOLVED, 0, Param::None);
        Ok(())
    }
}

fn set_id_option(id: &mut Id, name: u32, value: &[u8]) -> Result<(), Errno> {
    match (name, value) {
        (id_option::TOS, &[type_of_service]) => id.type_of_service = Some(type_of_service),
        (id_option::REUSEADDR, &[a, b, c, d]) => {
            let reuse = [a, b, c, d] != [0; 4];
            if id.state != State::Idle && (!reuse || id.state == State::Listening) {
                return Err(Errno::EINVAL);
            }
            id.reuse_address = reuse;
        }
        (id_option::AFONLY, &[a, b, c, d]) => {
            if !matches!(id.state, State::Idle | State::Bound) {
                return Err(Errno::EINVAL);
            }
            (id.family_only_set, id.family_only) = (true, [a, b, c, d] != [0; 4]);
        }
        (id_option::ACK_TIMEOUT, &[timeout]) => {
            if !matches!(id.qp_type, qp_type::RC | qp_type::XRC_INI) {
                return Err(Errno::EINVAL);
            }
            id.ack_timeout = Some(timeout);
        }
        (id_option::TOS | id_option::REUSEADDR | id_option::AFONLY | id_option::ACK_TIMEOUT, _) => {
            return Err(Errno::EINVAL);
        }
        _ => return Err(Errno::ENOSYS),
    }
    Ok(())
}
