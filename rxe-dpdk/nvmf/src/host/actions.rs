//! The action of each step of a session.

use rxe_proto::Duration;

use super::session::{ADMIN_QUEUE_SIZE, Action, EVENT_REQUEST_ID, Session};
use super::step::Step;
use crate::wire::identify::{Cns, IDENTIFY_LEN, IdentifyFields};
use crate::wire::log::{DISCOVERY_ENTRY_LEN, LogFields, LogId};
use crate::wire::private_data::QueueRequest;
use crate::wire::{
    AdminOpcode, CONNECT_DATA_LEN, Configuration, ConnectAttributes, ConnectCommand, ConnectData, DYNAMIC_CONTROLLER,
    EventMask, FeatureId, HostBuffer, PropertyGet, PropertySet, Register, SglDescriptor, Sqe,
};

/// Time between two reads of CSTS while the controller becomes ready.
const READY_INTERVAL: Duration = Duration::from_millis(1);
/// Time between two reads of CSTS during a shutdown.
const SHUTDOWN_INTERVAL: Duration = Duration::from_millis(100);

impl Session {
    /// The action of the current step.
    pub(super) fn action(&self, command_id: u16) -> Option<Action> {
        let send = |sqe| Some(Action::Send { qid: 0, delay: Duration::ZERO, sqe, capsule: None, buffer: None });
        let get = |register| PropertyGet::new(register).to_sqe(command_id);
        let configure = |configuration: Configuration| {
            let value = u64::from(configuration.0);
            PropertySet { target: PropertyGet::new(Register::Configuration), value }.to_sqe(command_id)
        };
        let identify = |cns, nsid| IdentifyFields::new(cns, nsid).to_sqe(command_id, self.part_of_buffer(IDENTIFY_LEN));
        let nsid = |index: usize| self.info.namespaces.get(index).map(|namespace| namespace.nsid);
        match self.step {
            Step::OpenQueue(qid) => Some(Action::OpenQueue { qid, request: self.queue_request(qid) }),
            Step::ConnectQueue(qid) => Some(self.connect(qid, command_id)),
            Step::GetCapabilities => send(get(Register::Capabilities)),
            Step::Configure => send(configure(Configuration::INITIAL)),
            Step::Enable => send(configure(Configuration::INITIAL.enabled())),
            Step::WaitReady => Some(self.poll(get(Register::Status), READY_INTERVAL)),
            Step::IdentifyController => send(identify(Cns::Controller, 0)),
            Step::SetQueues => {
                let queues = u32::from(self.config.io_queues.max(1) - 1);
                send(set_feature(command_id, FeatureId::NumberOfQueues, queues | queues << 16))
            }
            Step::SetEventMask => send(set_feature(command_id, FeatureId::AsyncEvents, EventMask::NAMESPACE.bits())),
            Step::ActiveNamespaces => send(identify(Cns::ActiveNamespaces, 0)),
            Step::Descriptors(index) => send(identify(Cns::Descriptors, nsid(index)?)),
            Step::Namespace(index) => send(identify(Cns::Namespace, nsid(index)?)),
            Step::DiscoveryHeader => send(self.discovery_log(command_id, 0)),
            Step::DiscoveryRecord(index) => send(self.discovery_log(command_id, index + 1)),
            Step::KeepAlive => send(Sqe::new(AdminOpcode::KeepAlive.code(), command_id)),
            Step::CloseQueue(qid) => Some(Action::CloseQueue { qid }),
            Step::Shutdown => send(configure(Configuration::INITIAL.enabled().shutdown())),
            Step::WaitShutdown => Some(self.poll(get(Register::Status), SHUTDOWN_INTERVAL)),
            Step::EventRequest | Step::Ready | Step::Closed => None,
        }
    }

    pub(super) fn event_request(&self) -> Action {
        let sqe = Sqe::new(AdminOpcode::AsyncEventRequest.code(), EVENT_REQUEST_ID);
        Action::Send { qid: 0, delay: Duration::ZERO, sqe, capsule: None, buffer: None }
    }

    /// A read of a register, later if it is not the first one.
    fn poll(&self, sqe: Sqe, interval: Duration) -> Action {
        let delay = if self.polls == 0 { Duration::ZERO } else { interval };
        Action::Send { qid: 0, delay, sqe, capsule: None, buffer: None }
    }

    fn part_of_buffer(&self, len: usize) -> SglDescriptor {
        SglDescriptor::Keyed(HostBuffer { len: len as u32, invalidate: false, ..self.buffer })
    }

    fn discovery_log(&self, command_id: u16, at: usize) -> Sqe {
        let mut fields = LogFields::new(LogId::Discovery, DISCOVERY_ENTRY_LEN as u64);
        fields.nsid = 0;
        fields.offset = (at * DISCOVERY_ENTRY_LEN) as u64;
        fields.to_sqe(command_id, self.part_of_buffer(DISCOVERY_ENTRY_LEN))
    }

    fn queue_size(&self, qid: u16) -> u16 {
        if qid == 0 { ADMIN_QUEUE_SIZE } else { self.info.queue_size.max(2) }
    }

    fn queue_request(&self, qid: u16) -> QueueRequest {
        let size = self.queue_size(qid);
        QueueRequest { qid, host_receives: size, host_sqsize: size - 1 }
    }

    fn connect(&self, qid: u16, command_id: u16) -> Action {
        let (controller, kato_ms) =
            if qid == 0 { (DYNAMIC_CONTROLLER, self.config.kato_ms) } else { (self.info.controller_id, 0) };
        let config = &self.config;
        let data = Box::new(ConnectData::new(config.host_id, controller, &config.subsystem, &config.host_nqn));
        let command =
            ConnectCommand { qid, sqsize: self.queue_size(qid) - 1, attributes: ConnectAttributes::empty(), kato_ms };
        let (descriptor, capsule, buffer) = if qid > 0 && self.connects_in_capsule() {
            (SglDescriptor::Capsule { offset: 0, len: CONNECT_DATA_LEN as u32 }, Some(data), None)
        } else {
            (self.part_of_buffer(CONNECT_DATA_LEN), None, Some(data))
        };
        let sqe = command.to_sqe(command_id, descriptor);
        Action::Send { qid, delay: Duration::ZERO, sqe, capsule, buffer }
    }
}

fn set_feature(command_id: u16, feature: FeatureId, value: u32) -> Sqe {
    Sqe::new(AdminOpcode::SetFeatures.code(), command_id).with_cdws([feature as u32, value, 0, 0, 0, 0])
}
