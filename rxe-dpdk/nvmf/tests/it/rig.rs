//! A target with two subsystems, and a host that sends single commands.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

use rxe_nvmf::controller::{
    AdminReply, ConnectError, ControllerId, Event, FenceId, Granted, Portal, QueueKey, Target, TargetConfig,
};
use rxe_nvmf::io::IoQueue;
use rxe_nvmf::subsystem::{AllowedHosts, BlockSize, Namespace, Subsystem};
use rxe_nvmf::wire::private_data::QueueRequest;
use rxe_nvmf::wire::{
    AdminOpcode, ConnectAttributes, ConnectCommand, ConnectData, Cqe, HostBuffer, Nqn, PropertyGet, PropertySet,
    Register, SglDescriptor, Sqe, Status,
};
use rxe_proto::{Duration, Instant};

pub const OPEN: &str = "nqn.2024-01.test:open";
pub const LISTED: &str = "nqn.2024-01.test:listed";
pub const HOST: &str = "nqn.2024-01.host:one";
pub const OTHER_HOST: &str = "nqn.2024-01.host:two";

/// The address of every host.
pub const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9));

pub fn nqn(text: &str) -> Nqn {
    text.parse().expect("an NQN")
}

/// A buffer of the host whose key the response is to invalidate.
pub fn buffer(len: u32) -> SglDescriptor {
    SglDescriptor::Keyed(HostBuffer { addr: 0x1000, len, rkey: 42, invalidate: true })
}

pub struct Rig {
    pub target: Target,
    pub now: Instant,
    next_key: u64,
    fences: HashMap<QueueKey, FenceId>,
}

/// A connected and enabled controller.
#[derive(Clone, Copy, Debug)]
pub struct Admin {
    pub key: QueueKey,
    pub controller: ControllerId,
}

impl Rig {
    /// Subsystem [`OPEN`] for every host with namespaces 1 and 2, and [`LISTED`] for [`HOST`] with namespace 1.
    pub fn new() -> Rig {
        Rig::with(TargetConfig::default())
    }

    pub fn with(config: TargetConfig) -> Rig {
        let portal = Portal { address: [192, 0, 2, 1].into(), port: 4420 };
        let mut target = Target::new(TargetConfig { portals: vec![portal], ..config });
        let mut open = Subsystem::new(nqn(OPEN));
        open.namespaces = vec![
            Namespace::new(&open.nqn, 1, 1000, BlockSize::B512),
            Namespace::new(&open.nqn, 2, 100, BlockSize::B4096),
        ];
        let mut listed = Subsystem::new(nqn(LISTED));
        listed.hosts = AllowedHosts::Only([nqn(HOST)].into());
        listed.namespaces = vec![Namespace::new(&listed.nqn, 1, 1000, BlockSize::B512)];
        target.add_subsystem(open).expect("valid");
        target.add_subsystem(listed).expect("valid");
        let mut rig = Rig { target, now: Instant::ZERO, next_key: 1, fences: HashMap::new() };
        rig.events();
        rig
    }

    pub fn advance(&mut self, by: Duration) {
        self.now += by;
        self.target.poll(self.now);
    }

    pub fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.target.next_event()).collect()
    }

    /// Accepts the connection of a queue.
    pub fn open(&mut self, qid: u16) -> QueueKey {
        let key = QueueKey(self.next_key);
        self.next_key += 1;
        let size = if qid == 0 { 32 } else { 128 };
        let request = QueueRequest { qid, host_receives: size, host_sqsize: size - 1 };
        self.target.accept(self.now, key, &request).expect("accepted");
        key
    }

    /// A Connect with these fields.
    pub fn try_connect(
        &mut self,
        key: QueueKey,
        command: ConnectCommand,
        controller: u16,
        subsystem: &str,
        host: &str,
    ) -> Result<Granted, Box<ConnectError>> {
        let data = ConnectData::new([7; 16], controller, &nqn(subsystem), &nqn(host));
        let sqe = command.to_sqe(0x1000, buffer(1024));
        self.target.connect(self.now, key, CLIENT, &sqe, &data).map_err(Box::new)
    }

    /// Opens and connects an admin queue.
    pub fn connect_only(&mut self, subsystem: &str, host: &str) -> Result<Admin, Box<ConnectError>> {
        let key = self.open(0);
        let controller = self.try_connect(key, connect(0, 31), 0xFFFF, subsystem, host)?.controller;
        Ok(Admin { key, controller })
    }

    /// Opens and connects an admin queue, and enables the controller.
    pub fn connect(&mut self, subsystem: &str, host: &str) -> Admin {
        let admin = self.connect_only(subsystem, host).expect("connected");
        self.configure(admin, 0x0046_0061);
        admin
    }

    /// Opens and connects an I/O queue.
    pub fn connect_io(&mut self, admin: Admin, qid: u16, subsystem: &str, host: &str) -> (QueueKey, IoQueue) {
        let key = self.open(qid);
        let granted =
            self.try_connect(key, connect(qid, 127), admin.controller.get(), subsystem, host).expect("connected");
        self.fences.insert(key, granted.fence.expect("an I/O queue"));
        (key, IoQueue::new(granted.io_queue.expect("an I/O queue")))
    }

    /// An I/O queue ends, and no command of it is in the storage.
    pub fn lose_io(&mut self, key: QueueKey) {
        self.target.disconnected(key);
        self.target.fenced(self.fences.remove(&key).expect("an I/O queue"));
    }

    /// Writes CC.
    pub fn configure(&mut self, admin: Admin, value: u64) {
        let set = PropertySet { target: PropertyGet::new(Register::Configuration), value };
        assert!(self.status(admin, &set.to_sqe(1)).is_success());
    }

    /// Reads a register.
    pub fn register(&mut self, admin: Admin, register: Register) -> u64 {
        self.complete(admin, &PropertyGet::new(register).to_sqe(2)).0.result()
    }

    /// Sends an admin command that is answered at once.
    pub fn complete(&mut self, admin: Admin, sqe: &Sqe) -> (Cqe, Option<Vec<u8>>) {
        match self.target.admin(self.now, admin.controller, sqe) {
            AdminReply::Complete { data, response } => (response.cqe, data.map(|data| data.bytes)),
            other => panic!("{other:?}"),
        }
    }

    pub fn status(&mut self, admin: Admin, sqe: &Sqe) -> Status {
        self.complete(admin, sqe).0.status()
    }

    /// Data of an admin command that succeeds.
    pub fn data(&mut self, admin: Admin, sqe: &Sqe) -> Vec<u8> {
        let (cqe, data) = self.complete(admin, sqe);
        assert!(cqe.status().is_success(), "{}", cqe.status());
        data.expect("data")
    }

    /// Sends an Asynchronous Event Request.
    pub fn request_event(&mut self, admin: Admin, command_id: u16) -> AdminReply {
        self.target.admin(self.now, admin.controller, &Sqe::new(AdminOpcode::AsyncEventRequest.code(), command_id))
    }
}

/// A Connect with a keep alive timeout of 5 s.
pub fn connect(qid: u16, sqsize: u16) -> ConnectCommand {
    ConnectCommand { qid, sqsize, attributes: ConnectAttributes::empty(), kato_ms: 5000 }
}

/// A Set Features.
pub fn set_feature(feature: u32, value: u32) -> Sqe {
    Sqe::new(AdminOpcode::SetFeatures.code(), 3).with_cdws([feature, value, 0, 0, 0, 0])
}
