//! The structures of `rdma/rdma_user_cm.h`, ABI version 4, and those of other headers that they contain.
//!
//! Numbers are in the byte order of the machine unless a field says otherwise. Socket addresses are plain bytes here;
//! [`address`](super::address) reads and writes them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Room for private data in commands and events.
pub const PRIVATE_DATA_LEN: usize = 256;

/// A `struct sockaddr_in6`, which has room for a `struct sockaddr_in` too.
pub type SockaddrIn6 = [u8; 28];

/// A `struct sockaddr_storage`.
pub type SockaddrStorage = [u8; 128];

/// Numbers of commands.
pub mod cmd {
    pub const CREATE_ID: u32 = 0;
    pub const DESTROY_ID: u32 = 1;
    pub const BIND_IP: u32 = 2;
    pub const RESOLVE_IP: u32 = 3;
    pub const RESOLVE_ROUTE: u32 = 4;
    pub const QUERY_ROUTE: u32 = 5;
    pub const CONNECT: u32 = 6;
    pub const LISTEN: u32 = 7;
    pub const ACCEPT: u32 = 8;
    pub const REJECT: u32 = 9;
    pub const DISCONNECT: u32 = 10;
    pub const INIT_QP_ATTR: u32 = 11;
    pub const GET_EVENT: u32 = 12;
    pub const GET_OPTION: u32 = 13;
    pub const SET_OPTION: u32 = 14;
    pub const NOTIFY: u32 = 15;
    pub const JOIN_IP_MCAST: u32 = 16;
    pub const LEAVE_MCAST: u32 = 17;
    pub const MIGRATE_ID: u32 = 18;
    pub const QUERY: u32 = 19;
    pub const BIND: u32 = 20;
    pub const RESOLVE_ADDR: u32 = 21;
    pub const JOIN_MCAST: u32 = 22;
}

/// Numbers of events, from `rdma/rdma_cma.h`.
pub mod event {
    pub const ADDR_RESOLVED: u32 = 0;
    pub const ADDR_ERROR: u32 = 1;
    pub const ROUTE_RESOLVED: u32 = 2;
    pub const CONNECT_REQUEST: u32 = 4;
    pub const CONNECT_RESPONSE: u32 = 5;
    pub const UNREACHABLE: u32 = 7;
    pub const REJECTED: u32 = 8;
    pub const ESTABLISHED: u32 = 9;
    pub const DISCONNECTED: u32 = 10;
    pub const MULTICAST_JOIN: u32 = 12;
    pub const TIMEWAIT_EXIT: u32 = 15;
}

/// Gives a structure the traits to copy it from and to the program.
macro_rules! structures {
    ($($(#[$doc:meta])* pub struct $name:ident { $($(#[$field_doc:meta])* pub $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
            pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

            #[cfg(test)]
            impl super::layout::Layout for $name {
                const FIELDS: &'static [(&'static str, usize)] =
                    &[$((stringify!($field), std::mem::offset_of!($name, $field)),)*];
            }
        )*
    };
}

structures! {
    /// Starts every command.
    pub struct CmdHdr {
        pub cmd: u32,
        /// Bytes of the command behind this header.
        pub r#in: u16,
        /// Bytes that the response may have.
        pub out: u16,
    }

    pub struct CreateId {
        pub uid: u64,
        pub response: u64,
        pub ps: u16,
        pub qp_type: u8,
        pub reserved: [u8; 5],
    }

    pub struct CreateIdResp {
        pub id: u32,
    }

    pub struct DestroyId {
        pub response: u64,
        pub id: u32,
        pub reserved: u32,
    }

    pub struct DestroyIdResp {
        pub events_reported: u32,
    }

    pub struct BindIp {
        pub response: u64,
        pub addr: SockaddrIn6,
        pub id: u32,
    }

    pub struct Bind {
        pub id: u32,
        pub addr_size: u16,
        pub reserved: u16,
        pub addr: SockaddrStorage,
    }

    pub struct ResolveIp {
        pub src_addr: SockaddrIn6,
        pub dst_addr: SockaddrIn6,
        pub id: u32,
        pub timeout_ms: u32,
    }

    pub struct ResolveAddr {
        pub id: u32,
        pub timeout_ms: u32,
        pub src_size: u16,
        pub dst_size: u16,
        pub reserved: u32,
        pub src_addr: SockaddrStorage,
        pub dst_addr: SockaddrStorage,
    }

    pub struct ResolveRoute {
        pub id: u32,
        pub timeout_ms: u32,
    }

    pub struct Query {
        pub response: u64,
        pub id: u32,
        pub option: u32,
    }

    /// `struct ib_user_path_rec`.
    pub struct UserPathRec {
        pub dgid: [u8; 16],
        pub sgid: [u8; 16],
        pub dlid: u16,
        pub slid: u16,
        pub raw_traffic: u32,
        /// Big-endian.
        pub flow_label: [u8; 4],
        pub reversible: u32,
        pub mtu: u32,
        /// Big-endian.
        pub pkey: [u8; 2],
        pub hop_limit: u8,
        pub traffic_class: u8,
        pub numb_path: u8,
        pub sl: u8,
        pub mtu_selector: u8,
        pub rate_selector: u8,
        pub rate: u8,
        pub packet_life_time_selector: u8,
        pub packet_life_time: u8,
        pub preference: u8,
    }

    pub struct QueryRouteResp {
        /// Big-endian.
        pub node_guid: [u8; 8],
        pub ib_route: [UserPathRec; 2],
        pub src_addr: SockaddrIn6,
        pub dst_addr: SockaddrIn6,
        pub num_paths: u32,
        pub port_num: u8,
        pub reserved: [u8; 3],
        pub ibdev_index: u32,
        pub reserved1: u32,
    }

    pub struct QueryAddrResp {
        /// Big-endian.
        pub node_guid: [u8; 8],
        pub port_num: u8,
        pub reserved: u8,
        /// Big-endian.
        pub pkey: [u8; 2],
        pub src_size: u16,
        pub dst_size: u16,
        pub src_addr: SockaddrStorage,
        pub dst_addr: SockaddrStorage,
        pub ibdev_index: u32,
        pub reserved1: u32,
    }

    /// `struct rdma_ucm_query_path_resp`, before its array of [`PathRecData`].
    pub struct QueryPathResp {
        pub num_paths: u32,
        pub reserved: u32,
    }

    /// `struct ib_path_rec_data`.
    pub struct PathRecData {
        pub flags: u32,
        pub reserved: u32,
        pub path_rec: PathRecord,
    }

    /// A PathRecord of subnet administration. Its numbers are big-endian.
    pub struct PathRecord {
        pub service_id: [u8; 8],
        pub dgid: [u8; 16],
        pub sgid: [u8; 16],
        pub dlid: [u8; 2],
        pub slid: [u8; 2],
        /// 4 bits raw traffic, 20 bits flow label, 8 bits hop limit.
        pub flow_label_hop_limit: [u8; 4],
        pub traffic_class: u8,
        /// Bit 7: the path is reversible; number of paths.
        pub reversible_numb_path: u8,
        pub pkey: [u8; 2],
        /// 12 bits QoS class, 4 bits service level.
        pub qos_class_sl: [u8; 2],
        /// 2 bits selector, 6 bits path MTU code.
        pub mtu: u8,
        /// 2 bits selector, 6 bits rate.
        pub rate: u8,
        /// 2 bits selector, 6 bits packet lifetime.
        pub packet_life_time: u8,
        pub preference: u8,
        pub reserved: [u8; 6],
    }

    pub struct ConnParam {
        pub qp_num: u32,
        pub qkey: u32,
        pub private_data: [u8; PRIVATE_DATA_LEN],
        pub private_data_len: u8,
        pub srq: u8,
        pub responder_resources: u8,
        pub initiator_depth: u8,
        pub flow_control: u8,
        pub retry_count: u8,
        pub rnr_retry_count: u8,
        pub valid: u8,
    }

    pub struct UdParam {
        pub qp_num: u32,
        pub qkey: u32,
        pub ah_attr: AhAttr,
        pub private_data: [u8; PRIVATE_DATA_LEN],
        pub private_data_len: u8,
        pub reserved: [u8; 7],
    }

    /// `struct rdma_ucm_ece`: enhanced connection establishment, which the rxe provider does not have.
    pub struct Ece {
        pub vendor_id: u32,
        pub attr_mod: u32,
    }

    pub struct Connect {
        pub conn_param: ConnParam,
        pub id: u32,
        pub reserved: u32,
        pub ece: Ece,
    }

    pub struct Listen {
        pub id: u32,
        pub backlog: u32,
    }

    pub struct Accept {
        pub uid: u64,
        pub conn_param: ConnParam,
        pub id: u32,
        pub reserved: u32,
        pub ece: Ece,
    }

    pub struct Reject {
        pub id: u32,
        pub private_data_len: u8,
        pub reason: u8,
        pub reserved: [u8; 2],
        pub private_data: [u8; PRIVATE_DATA_LEN],
    }

    pub struct Disconnect {
        pub id: u32,
    }

    pub struct InitQpAttr {
        pub response: u64,
        pub id: u32,
        pub qp_state: u32,
    }

    pub struct Notify {
        pub id: u32,
        pub event: u32,
    }

    pub struct JoinIpMcast {
        pub response: u64,
        pub uid: u64,
        pub addr: SockaddrIn6,
        pub id: u32,
    }

    pub struct JoinMcast {
        pub response: u64,
        pub uid: u64,
        pub id: u32,
        pub addr_size: u16,
        pub join_flags: u16,
        pub addr: SockaddrStorage,
    }

    pub struct GetEvent {
        pub response: u64,
    }

    pub struct EventResp {
        pub uid: u64,
        pub id: u32,
        pub event: u32,
        pub status: i32,
        /// A [`UdParam`], or a [`ConnParam`] and zeros.
        pub param: [u8; size_of::<UdParam>()],
        pub reserved: u32,
        pub ece: Ece,
    }

    pub struct SetOption {
        pub optval: u64,
        pub id: u32,
        pub level: u32,
        pub optname: u32,
        pub optlen: u32,
    }

    pub struct MigrateId {
        pub response: u64,
        pub id: u32,
        pub fd: u32,
    }

    pub struct MigrateResp {
        pub events_reported: u32,
    }

    /// `struct ib_uverbs_global_route`.
    pub struct GlobalRoute {
        pub dgid: [u8; 16],
        pub flow_label: u32,
        pub sgid_index: u8,
        pub hop_limit: u8,
        pub traffic_class: u8,
        pub reserved: u8,
    }

    /// `struct ib_uverbs_ah_attr`.
    pub struct AhAttr {
        pub grh: GlobalRoute,
        pub dlid: u16,
        pub sl: u8,
        pub src_path_bits: u8,
        pub static_rate: u8,
        pub is_global: u8,
        pub port_num: u8,
        pub reserved: u8,
    }

    /// `struct ib_uverbs_qp_attr`.
    pub struct QpAttr {
        pub qp_attr_mask: u32,
        pub qp_state: u32,
        pub cur_qp_state: u32,
        pub path_mtu: u32,
        pub path_mig_state: u32,
        pub qkey: u32,
        pub rq_psn: u32,
        pub sq_psn: u32,
        pub dest_qp_num: u32,
        pub qp_access_flags: u32,
        pub ah_attr: AhAttr,
        pub alt_ah_attr: AhAttr,
        pub max_send_wr: u32,
        pub max_recv_wr: u32,
        pub max_send_sge: u32,
        pub max_recv_sge: u32,
        pub max_inline_data: u32,
        pub pkey_index: u16,
        pub alt_pkey_index: u16,
        pub en_sqd_async_notify: u8,
        pub sq_draining: u8,
        pub max_rd_atomic: u8,
        pub max_dest_rd_atomic: u8,
        pub min_rnr_timer: u8,
        pub port_num: u8,
        pub timeout: u8,
        pub retry_cnt: u8,
        pub rnr_retry: u8,
        pub alt_port_num: u8,
        pub alt_timeout: u8,
        pub reserved: [u8; 5],
    }
}
