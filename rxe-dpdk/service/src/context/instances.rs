//! Messages to the instances of a service on other workers.

use std::any::Any;

use super::Context;
use crate::messages::{InstanceMessage, ToWorker};

impl Context<'_> {
    /// Number of workers. Each has one instance of this service.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Sends a message to this service's instance on worker number `worker`, which may be this one.
    /// [`Service::instance_message`](crate::service::Service::instance_message) is called there with it, in a later turn. Messages
    /// of one worker to another, or to itself, keep their order. A message does not end the pause of a worker that sleeps.
    ///
    /// The call never blocks, and the message is never refused, as a lost one might be the end of something. So the service
    /// bounds the number of messages that are not delivered yet: what a peer can cause at will needs an answer of the other
    /// instance before the next one, or credits. A worker delivers at most 256 messages of instances per turn. A service that
    /// sends many has the box sent back and uses it again, so that none is allocated.
    ///
    /// A message is dropped, on any thread, if there is no such worker, or if that worker ends before it has delivered the
    /// message. The sender does not learn of it.
    pub fn send_to_instance(&mut self, worker: usize, message: Box<dyn Any + Send>) {
        let (from, service) = (self.worker(), self.accounting.service);
        let message = InstanceMessage { service, from, message };
        if worker == from {
            self.own_messages.push_back(message);
        } else if let Some(mailbox) = self.workers.get(worker) {
            // A worker that has ended has dropped its mailbox, and the error has the message.
            let _ = mailbox.send(ToWorker::InstanceMessage(message));
        }
    }
}
