//! A host that connects again while the target does not know yet that its earlier connections are dead, as after a crash: its
//! Connect waits until the commands that these have brought are complete, so that none changes what the host writes then. They go
//! on if the host lives: it may have several connections. Commands whose data the host has not sent yet do not count, as a dead
//! host does not send them.

use rxe_nvmf::controller::QueueKey;
use rxe_proto::verbs::Qpn;
use rxe_service::Context;

use super::command::Awaited;
use super::instance::{Nvmf, key_of, qpn_of, worker_of};

/// A request to another worker: reply when the commands of these queues that are in progress now are complete.
#[derive(Clone)]
pub struct Quiesce {
    /// The queue pair of the Connect that waits.
    pub connect: QueueKey,
    /// The queues.
    pub queues: Vec<QueueKey>,
}

/// The reply.
pub struct Quiet(pub QueueKey);

impl Nvmf {
    /// Lets the commands of queues end before the Connect of `qpn` goes on. Returns the number of workers that will reply.
    pub(super) fn quiesce(&mut self, cx: &mut Context<'_>, qpn: Qpn, queues: Vec<QueueKey>) -> usize {
        let mut workers: Vec<usize> = queues.iter().copied().map(worker_of).collect();
        workers.sort_unstable();
        workers.dedup();
        let request = Quiesce { connect: key_of(cx.worker(), qpn), queues };
        let own = cx.worker();
        let is_awaited = |worker: &usize| {
            if *worker == own {
                return self.await_commands(cx, &request);
            }
            cx.send_to_instance(*worker, Box::new(request.clone()));
            true
        };
        workers.iter().copied().filter(is_awaited).count()
    }

    /// Notes the commands of queues of this worker. Returns whether there are some.
    pub(super) fn await_commands(&mut self, cx: &Context<'_>, request: &Quiesce) -> bool {
        let own = cx.worker();
        let queues: Vec<Qpn> =
            request.queues.iter().filter(|key| worker_of(**key) == own).map(|key| qpn_of(*key)).collect();
        let of_queues = self.commands.iter().filter(|(_, command)| {
            command.queue.is_some_and(|queue| queues.contains(&queue)) && !command.waits_for_host()
        });
        let commands: Vec<(usize, u64)> = of_queues.map(|(index, command)| (index, command.number)).collect();
        let is_awaited = !commands.is_empty();
        if is_awaited {
            self.awaited.push(Awaited { connect: request.connect, commands });
        }
        is_awaited
    }

    /// Replies to Connects whose commands are complete.
    pub(super) fn reply_quiet(&mut self, cx: &mut Context<'_>) {
        let commands = &self.commands;
        let is_left =
            |&(index, number): &(usize, u64)| commands.get(index).is_some_and(|command| command.number == number);
        let quiet = self.awaited.extract_if(.., |awaited| {
            awaited.commands.retain(is_left);
            awaited.commands.is_empty()
        });
        let quiet: Vec<QueueKey> = quiet.map(|awaited| awaited.connect).collect();
        for connect in quiet {
            if worker_of(connect) == cx.worker() {
                self.is_quiet(cx, connect);
            } else {
                cx.send_to_instance(worker_of(connect), Box::new(Quiet(connect)));
            }
        }
    }

    /// A worker has replied.
    pub(super) fn is_quiet(&mut self, cx: &mut Context<'_>, connect: QueueKey) {
        let deferred = self.deferred.iter_mut().find(|deferred| deferred.queue == qpn_of(connect));
        if let Some(awaited) = deferred.and_then(|deferred| deferred.awaited.as_mut()) {
            *awaited = awaited.saturating_sub(1);
            self.retry_connects(cx);
        }
    }
}
