//! Queries about an id: QUERY_ROUTE and QUERY.

use std::net::SocketAddr;

use nix::errno::Errno;
use rxe_proto::wire::DEFAULT_PKEY;
use rxe_proto::wire::cm::ServiceId;
use zerocopy::{FromZeros, IntoBytes};

use super::id::{HOP_LIMIT, Id, PathRecord};
use super::{Host, RdmaCm, abi, address, check_room, respond};
use crate::user;

/// The port of the adapter.
pub const PORT: u8 = 1;
/// "The value is exactly this": how a path record gives path MTU, rate and lifetime.
const EXACTLY: u8 = 2;
/// A device without an index: librdmacm finds it by its GUID.
const NO_INDEX: u32 = u32::MAX;
/// Flags of a path: for management datagrams, primary, both directions.
pub const PATH_FLAGS: u32 = 1 | 1 << 1 | 1 << 3 | 1 << 5;

impl RdmaCm {
    /// QUERY_ROUTE.
    pub(super) fn query_route(
        &mut self,
        host: &mut Host<'_>,
        file: u32,
        command: &abi::Query,
        room: usize,
    ) -> Result<(), Errno> {
        check_room(room, std::mem::offset_of!(abi::QueryRouteResp, ibdev_index))?;
        let id = self.id(file, command.id)?;
        let mut response = abi::QueryRouteResp::new_zeroed();
        response.src_addr = address::write(id.source);
        response.dst_addr = address::write(id.dest);
        if id.attached {
            response.node_guid = host.local.node_guid.to_be_bytes();
            response.ibdev_index = NO_INDEX;
            response.port_num = PORT;
            match &id.path {
                Some(path) => {
                    response.num_paths = 1;
                    response.ib_route[0] = user_path(path);
                }
                None => {
                    response.ib_route[0].sgid = address::gid(id.source).0;
                    response.ib_route[0].dgid = address::gid(id.dest).0;
                    response.ib_route[0].pkey = DEFAULT_PKEY.to_be_bytes();
                }
            }
        }
        respond(command.response, &response, room)
    }

    /// QUERY.
    pub(super) fn query(
        &mut self,
        host: &mut Host<'_>,
        file: u32,
        command: &abi::Query,
        room: usize,
    ) -> Result<(), Errno> {
        let id = self.id(file, command.id)?;
        match command.option {
            0 => {
                check_room(room, std::mem::offset_of!(abi::QueryAddrResp, ibdev_index))?;
                let mut response = device(host, id);
                (response.src_addr, response.dst_addr) =
                    (address::write_storage(id.source), address::write_storage(id.dest));
                (response.src_size, response.dst_size) =
                    (address::size(&response.src_addr), address::size(&response.dst_addr));
                respond(command.response, &response, room)
            }
            1 => query_path(id, command.response, room),
            2 => {
                check_room(room, std::mem::offset_of!(abi::QueryAddrResp, ibdev_index))?;
                let mut response = device(host, id);
                let (source, dest) =
                    if id.attached { (address::gid(id.source), address::gid(id.dest)) } else { Default::default() };
                let service = |address: Option<SocketAddr>| {
                    ServiceId::new(id.space, address.map_or(0, |address| address.port())).0
                };
                (response.src_addr, response.src_size) = address::write_ib(response.pkey, source.0, service(id.source));
                (response.dst_addr, response.dst_size) = address::write_ib(response.pkey, dest.0, service(id.dest));
                respond(command.response, &response, room)
            }
            _ => Err(Errno::ENOSYS),
        }
    }
}

/// The adapter of an id.
fn device(host: &Host<'_>, id: &Id) -> abi::QueryAddrResp {
    let mut response = abi::QueryAddrResp::new_zeroed();
    if id.attached {
        response.node_guid = host.local.node_guid.to_be_bytes();
        response.ibdev_index = NO_INDEX;
        response.port_num = PORT;
        response.pkey = DEFAULT_PKEY.to_be_bytes();
    }
    response
}

fn query_path(id: &Id, to: u64, room: usize) -> Result<(), Errno> {
    check_room(room, size_of::<abi::QueryPathResp>())?;
    let mut response = Vec::new();
    let num_paths = u32::from(id.path.is_some());
    response.extend_from_slice(abi::QueryPathResp { num_paths, reserved: 0 }.as_bytes());
    if let Some(path) = &id.path
        && room >= response.len() + size_of::<abi::PathRecData>()
    {
        let record = abi::PathRecData { flags: PATH_FLAGS, reserved: 0, path_rec: path_record(path) };
        response.extend_from_slice(record.as_bytes());
    }
    user::write(to, &response)
}

fn user_path(path: &PathRecord) -> abi::UserPathRec {
    abi::UserPathRec {
        dgid: path.dest.0,
        sgid: path.source.0,
        flow_label: path.flow_label.to_be_bytes(),
        reversible: 1,
        mtu: u32::from(path.mtu.code()),
        pkey: DEFAULT_PKEY.to_be_bytes(),
        hop_limit: HOP_LIMIT,
        traffic_class: path.traffic_class,
        mtu_selector: EXACTLY,
        rate_selector: EXACTLY,
        packet_life_time_selector: EXACTLY,
        packet_life_time: path.life_time,
        ..abi::UserPathRec::new_zeroed()
    }
}

fn path_record(path: &PathRecord) -> abi::PathRecord {
    abi::PathRecord {
        dgid: path.dest.0,
        sgid: path.source.0,
        flow_label_hop_limit: (path.flow_label << 8 | u32::from(HOP_LIMIT)).to_be_bytes(),
        traffic_class: path.traffic_class,
        reversible_numb_path: 1 << 7,
        pkey: DEFAULT_PKEY.to_be_bytes(),
        mtu: EXACTLY << 6 | path.mtu.code(),
        rate: EXACTLY << 6,
        packet_life_time: EXACTLY << 6 | path.life_time & 0x3F,
        ..abi::PathRecord::new_zeroed()
    }
}
