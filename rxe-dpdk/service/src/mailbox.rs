//! Channels between the control side and the workers' service hosts, and from one service host to another. With one worker both
//! ends of control's channels are on one thread and still use them, so that there is one way only.
//!
//! They are unbounded, so that no lcore blocks; docs/architecture.md ("Bounds") says what limits the number of unread messages. A
//! worker that ends drops its unread messages.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use crate::change::Change;
use crate::inspect::Question;
use crate::messages::{ToControl, ToWorker};

/// The control side's end.
#[derive(Debug)]
pub struct ControlMailbox {
    pub(crate) workers: Vec<Sender<ToWorker>>,
    pub(crate) inbox: Receiver<ToControl>,
}

/// The end of one worker's service host.
#[derive(Debug)]
pub struct WorkerMailbox {
    pub(crate) inbox: Receiver<ToWorker>,
    pub(crate) outbox: Sender<ToControl>,
    /// The way to each worker's inbox, this one included.
    pub(crate) workers: Arc<[Sender<ToWorker>]>,
}

/// Asks a worker questions, and changes it, from any thread.
#[derive(Clone, Debug)]
pub struct WorkerInspector(Sender<ToWorker>);

/// The worker has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stopped;

impl WorkerInspector {
    /// Sends a question. The worker answers the next time that it reads its mail.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn ask(&self, question: Question) -> Result<(), Stopped> {
        self.0.send(ToWorker::Inspect(question)).map_err(|_| Stopped)
    }

    /// Sends a change. The worker makes it the next time that it reads its mail.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn change(&self, change: Change) -> Result<(), Stopped> {
        self.0.send(ToWorker::Change(Box::new(change))).map_err(|_| Stopped)
    }
}

impl ControlMailbox {
    /// One inspector per worker.
    pub fn inspectors(&self) -> Vec<WorkerInspector> {
        self.workers.iter().cloned().map(WorkerInspector).collect()
    }
}

/// Connects the control side with `workers` service hosts.
pub fn mailboxes(workers: usize) -> (ControlMailbox, Vec<WorkerMailbox>) {
    let (outbox, control) = mpsc::channel();
    let (senders, inboxes): (Vec<_>, Vec<_>) = (0..workers).map(|_| mpsc::channel()).unzip();
    let all: Arc<[Sender<ToWorker>]> = senders.clone().into();
    let mailbox = |inbox| WorkerMailbox { inbox, outbox: outbox.clone(), workers: Arc::clone(&all) };
    let mailboxes = inboxes.into_iter().map(mailbox);
    (ControlMailbox { workers: senders, inbox: control }, mailboxes.collect())
}

/// Questions to an adapter without services, which has no other mail.
#[derive(Debug)]
pub struct Questions(Receiver<ToWorker>);

impl Questions {
    /// The next question that has arrived.
    pub fn take(&mut self) -> Option<Question> {
        loop {
            // Other mail gets no reply. It is about services and named regions, of which there are none.
            if let ToWorker::Inspect(question) = self.0.try_recv().ok()? {
                return Some(question);
            }
        }
    }
}

/// Connects an adapter without services with those who ask.
pub fn questions() -> (WorkerInspector, Questions) {
    let (asker, inbox) = mpsc::channel();
    (WorkerInspector(asker), Questions(inbox))
}
