//! Messages between the instances of a service.

use rxe_proto::Instant;
use rxe_proto::transport::Engine;

use super::ServiceHost;
use crate::messages::InstanceMessage;

/// Most messages of other workers' instances per turn, and of this worker's instances to themselves: when each message is answered
/// by another, packets must not wait.
pub(super) const INSTANCE_MESSAGES_PER_TURN: usize = 256;

impl ServiceHost {
    /// Delivers the messages that the worker's instances have sent to themselves before this call.
    #[cold]
    pub(super) fn deliver_own_messages(&mut self, now: Instant, engine: &mut Engine) {
        for _ in 0..self.own_messages.len().min(INSTANCE_MESSAGES_PER_TURN) {
            let Some(message) = self.own_messages.pop_front() else { return };
            self.deliver_instance_message(now, engine, message);
        }
    }

    pub(super) fn deliver_instance_message(&mut self, now: Instant, engine: &mut Engine, message: InstanceMessage) {
        let InstanceMessage { service, from, message } = message;
        self.stats.instance_messages.inc();
        self.call(now, engine, service, |s, cx| s.instance_message(cx, from, message));
    }
}
