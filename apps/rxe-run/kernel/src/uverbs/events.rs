//! Asynchronous events.

use rxe_proto::transport::{AsyncEvent, Engine, QpEventType, QpState, Qpn};

use super::abi::{AsyncEventDesc, event};
use super::context::Context;
use super::table::ContextId;
use super::{PORT, Uverbs};

/// A change of the port, or of its addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortEvent {
    /// The link came up (`IBV_EVENT_PORT_ACTIVE`).
    Active,
    /// The link went down (`IBV_EVENT_PORT_ERR`).
    Error,
    /// The table of GIDs changed (`IBV_EVENT_GID_CHANGE`).
    GidChange,
}

impl Context {
    /// Writes an asynchronous event. False when the program does not get it.
    fn push_event(&mut self, element: u64, event_type: u32) -> bool {
        let event = AsyncEventDesc { element, event_type, reserved: 0 };
        self.events.as_mut().is_some_and(|events| events.channel.push(event))
    }

    /// Takes back the events of an object that the program has not read. Returns how many.
    pub(super) fn take_back(&mut self, user_handle: u64, is_of: impl Fn(u32) -> bool) -> u32 {
        let Some(events) = &mut self.events else { return 0 };
        events.channel.take_back(|event| event.element == user_handle && is_of(event.event_type))
    }

    /// Passes on events that waited for the program to read others.
    pub(super) fn flush_channels(&mut self) {
        if let Some(events) = &mut self.events {
            events.channel.flush();
        }
        for channel in self.channels.values_mut() {
            channel.flush();
        }
    }
}

impl Uverbs {
    /// Passes an event of the engine to the program. Call it for each event, in order.
    pub fn async_event(&mut self, engine: &mut Engine, event: AsyncEvent) {
        match event {
            AsyncEvent::CommunicationEstablished { qpn } => self.qp_event(qpn, Some(event::COMM_EST)),
            AsyncEvent::SendQueueDrained { qpn } => {
                let wanted = self.qp_by_number(qpn).is_some_and(|(_, _, qp)| qp.attr.en_sqd_async_notify != 0);
                self.qp_event(qpn, wanted.then_some(event::SQ_DRAINED));
            }
            AsyncEvent::LastWqeReached { qpn } => self.qp_event(qpn, Some(event::QP_LAST_WQE_REACHED)),
            AsyncEvent::QpError { qpn, cause } => {
                let Some((handle, _, _)) = self.qp_by_number(qpn) else { return };
                // Receives that the engine did not have yet are flushed, too.
                self.pull_receives_of(engine, handle);
                self.note_state(handle, QpState::Error);
                self.qp_event(qpn, cause.event_type().map(error_event));
            }
            AsyncEvent::CqError { cq } => {
                let Some(&handle) = self.cq_of.get(&cq) else { return };
                let Some((owner, cq)) = self.cqs.entry_mut(handle) else { return };
                if push(&mut self.contexts, owner, cq.user_handle, event::CQ_ERR) {
                    cq.async_events = cq.async_events.wrapping_add(1);
                }
            }
            AsyncEvent::SrqLimitReached { srq } => {
                let Some(&handle) = self.srq_of.get(&srq) else { return };
                let Some((owner, srq)) = self.srqs.entry_mut(handle) else { return };
                srq.limit = 0;
                if push(&mut self.contexts, owner, srq.user_handle, event::SRQ_LIMIT_REACHED) {
                    srq.events = srq.events.wrapping_add(1);
                }
            }
        }
    }

    /// Passes a change of the port to all programs. Queries show the port's state from then on.
    pub fn port_event(&mut self, event: PortEvent) {
        let event_type = match event {
            PortEvent::Active => event::PORT_ACTIVE,
            PortEvent::Error => event::PORT_ERR,
            PortEvent::GidChange => event::GID_CHANGE,
        };
        self.port_is_up = event == PortEvent::Active || self.port_is_up && event != PortEvent::Error;
        for context in &mut self.contexts {
            context.push_event(PORT.into(), event_type);
        }
    }

    fn qp_event(&mut self, qpn: Qpn, event_type: Option<u32>) {
        let Some(event_type) = event_type else { return };
        let Some(&handle) = self.qp_of.get(&qpn) else { return };
        let Some((owner, qp)) = self.qps.entry_mut(handle) else { return };
        if push(&mut self.contexts, owner, qp.user_handle, event_type) {
            qp.events = qp.events.wrapping_add(1);
        }
    }
}

fn push(contexts: &mut [Context], owner: ContextId, element: u64, event_type: u32) -> bool {
    let context = contexts.iter_mut().find(|context| context.id == owner);
    context.is_some_and(|context| context.push_event(element, event_type))
}

fn error_event(event_type: QpEventType) -> u32 {
    match event_type {
        QpEventType::Fatal => event::QP_FATAL,
        QpEventType::RequestError => event::QP_REQ_ERR,
        QpEventType::AccessError => event::QP_ACCESS_ERR,
    }
}
