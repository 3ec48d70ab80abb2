//! All namespaces of one worker.

use crate::backend::{Backend, Completion, Full, Operation, Submitted};
use crate::error::{RingError, StorageError};
use crate::io::{Io, ZERO_BUDGET};
use crate::ring::Ring;

/// A namespace of a [`Storage`]. The number of a removed namespace is used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NamespaceId(u32);

/// The namespaces of one worker, and the ring that they share. It can be created on any thread, and is used on one at a
/// time.
///
/// Dropping it waits for all operations that the kernel has.
pub struct Storage {
    namespaces: Vec<Option<Box<dyn Backend>>>,
    /// The namespaces with operations that are not complete: only these are polled.
    active: Vec<u32>,
    io: Io,
}

impl Storage {
    /// Storage with a ring for files and block devices, or without one for memory only.
    #[must_use]
    pub fn new(ring: Option<Ring>) -> Storage {
        Storage { namespaces: Vec::new(), active: Vec::new(), io: Io::new(ring) }
    }

    /// Adds a namespace.
    ///
    /// # Errors
    ///
    /// [`RingError`] when it needs a ring and there is none, or the ring has no room for its files.
    pub fn add(&mut self, mut backend: Box<dyn Backend>) -> Result<NamespaceId, RingError> {
        backend.attach(&mut self.io)?;
        let number = self.namespaces.iter().position(Option::is_none).unwrap_or_else(|| {
            self.namespaces.push(None);
            self.namespaces.len() - 1
        });
        self.namespaces[number] = Some(backend);
        Ok(NamespaceId(number as u32))
    }

    /// Removes a namespace. Waits for the operations that the kernel has, and appends the completions of all of its
    /// operations to `completed`, and those of other namespaces that arrive meanwhile. To avoid the wait, call it when
    /// nothing is [outstanding](Backend::outstanding).
    ///
    /// # Errors
    ///
    /// [`RingError::Enter`] when the ring failed; the operations are not reported then.
    pub fn remove(&mut self, namespace: NamespaceId, completed: &mut Vec<Completion>) -> Result<(), RingError> {
        let drained = self.drain(namespace.0 as usize, completed);
        if let Some(mut backend) = self.namespaces.get_mut(namespace.0 as usize).and_then(Option::take) {
            backend.detach(&mut self.io);
        }
        // Its number is used again.
        self.active.retain(|number| *number != namespace.0);
        drained
    }

    /// The instance of a namespace: its size, memory and counters.
    #[must_use]
    pub fn get(&self, namespace: NamespaceId) -> Option<&dyn Backend> {
        self.namespaces.get(namespace.0 as usize)?.as_deref()
    }

    /// The instance of a namespace, for [`Backend::resize`].
    pub fn get_mut(&mut self, namespace: NamespaceId) -> Option<&mut (dyn Backend + 'static)> {
        self.namespaces.get_mut(namespace.0 as usize)?.as_deref_mut()
    }

    /// Starts an operation. The caller chooses the token; tokens of different namespaces share one space.
    ///
    /// An operation of a namespace that is not there is done, with [`StorageError::Closed`].
    ///
    /// # Errors
    ///
    /// [`Full`]: nothing was started.
    #[inline]
    pub fn submit(&mut self, namespace: NamespaceId, token: u64, operation: Operation<'_>) -> Result<Submitted, Full> {
        match self.namespaces.get_mut(namespace.0 as usize) {
            Some(Some(backend)) => {
                let was_idle = backend.outstanding() == 0;
                let submitted = backend.submit(&mut self.io, token, operation);
                if was_idle && submitted == Ok(Submitted::Pending) {
                    self.active.push(namespace.0);
                }
                submitted
            }
            _ => Ok(Submitted::Done(Err(StorageError::Closed))),
        }
    }

    /// Ends an operation before its next request, see [`Backend::cancel`]. Its completion is reported.
    pub fn cancel(&mut self, namespace: NamespaceId, token: u64) {
        if let Some(Some(backend)) = self.namespaces.get_mut(namespace.0 as usize) {
            backend.cancel(token);
        }
    }

    /// Submits what was started since the last turn, and appends completions of all namespaces to `completed`. Call it
    /// once per turn of the worker's loop: it makes at most one system call, and none when there is nothing to submit.
    ///
    /// # Errors
    ///
    /// [`RingError::Enter`] when the ring failed: its operations will not complete.
    pub fn turn(&mut self, completed: &mut Vec<Completion>) -> Result<(), RingError> {
        let result = match &mut self.io.ring {
            Some(ring) => ring.turn(),
            None => Ok(()),
        };
        self.poll(completed);
        result
    }

    /// As [`turn`](Self::turn), but sleeps until the kernel has completed a request, if it has one. For tools and
    /// tests.
    ///
    /// # Errors
    ///
    /// As [`turn`](Self::turn).
    pub fn wait(&mut self, completed: &mut Vec<Completion>) -> Result<(), RingError> {
        if let Some(ring) = &mut self.io.ring {
            ring.wait()?;
        }
        self.turn(completed)
    }

    /// Appends the completions that have arrived.
    fn poll(&mut self, completed: &mut Vec<Completion>) {
        let Storage { namespaces, active, io } = self;
        io.zero_budget = ZERO_BUDGET;
        // None is always the last one to get a part of it.
        if active.len() > 1 {
            active.rotate_left(1);
        }
        active.retain(|number| {
            let Some(Some(backend)) = namespaces.get_mut(*number as usize) else { return false };
            backend.poll(io, completed);
            backend.outstanding() > 0
        });
    }

    /// Completes the operations of a namespace that is to be removed. The others are polled too, as their completions
    /// may occupy the ring.
    fn drain(&mut self, number: usize, completed: &mut Vec<Completion>) -> Result<(), RingError> {
        if let Some(Some(backend)) = self.namespaces.get_mut(number) {
            backend.close();
        }
        loop {
            self.poll(completed);
            match self.namespaces.get(number) {
                Some(Some(backend)) if backend.outstanding() > 0 => {}
                _ => return Ok(()),
            }
            if let Some(ring) = &mut self.io.ring {
                ring.wait()?;
            }
        }
    }

    /// Number of operations that are not complete. The worker must not sleep unless it is 0.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        let backend = |number: &u32| self.namespaces.get(*number as usize)?.as_ref();
        self.active.iter().filter_map(backend).map(|backend| backend.outstanding()).sum()
    }

    /// The ring, for its counters.
    #[must_use]
    pub fn ring(&self) -> Option<&Ring> {
        self.io.ring.as_ref()
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        let mut completed = Vec::new();
        for number in 0..self.namespaces.len() {
            // A ring that failed keeps what the kernel may still use.
            let _ = self.remove(NamespaceId(number as u32), &mut completed);
            completed.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::error::OpenError;
    use crate::geometry::{BlockSize, Geometry};
    use crate::stats::StorageStats;

    #[test]
    fn storage_is_created_on_one_thread_and_used_on_another() {
        fn sent<T: Send>(_: &T) {}
        sent(&Storage::new(None));
    }

    /// Completes each operation at the second poll.
    #[derive(Default)]
    struct Slow {
        operations: Vec<(u64, bool)>,
        polls: Arc<AtomicUsize>,
        stats: Arc<StorageStats>,
    }

    impl Backend for Slow {
        fn geometry(&self) -> Geometry {
            Geometry { block_size: BlockSize::B512, blocks: 1 }
        }

        fn submit(&mut self, _io: &mut Io, token: u64, _operation: Operation<'_>) -> Result<Submitted, Full> {
            self.operations.push((token, false));
            Ok(Submitted::Pending)
        }

        fn poll(&mut self, _io: &mut Io, completed: &mut Vec<Completion>) {
            self.polls.fetch_add(1, Ordering::Relaxed);
            let done = self.operations.extract_if(.., |(_, polled)| std::mem::replace(polled, true));
            completed.extend(done.map(|(token, _)| Completion { token, result: Ok(()) }));
        }

        fn outstanding(&self) -> usize {
            self.operations.len()
        }

        fn resize(&mut self) -> Result<Geometry, OpenError> {
            Ok(self.geometry())
        }

        fn stats(&self) -> &Arc<StorageStats> {
            &self.stats
        }
    }

    #[test]
    fn only_namespaces_with_operations_are_polled() {
        let mut storage = Storage::new(None);
        let polls: [Arc<AtomicUsize>; 3] = Default::default();
        let namespaces = polls.each_ref().map(|polls| {
            storage.add(Box::new(Slow { polls: Arc::clone(polls), ..Slow::default() })).expect("it needs no ring")
        });
        for token in [7, 8] {
            assert_eq!(storage.submit(namespaces[1], token, Operation::Flush), Ok(Submitted::Pending));
        }
        assert_eq!(storage.outstanding(), 2);
        let mut completed = Vec::new();
        for _ in 0..5 {
            storage.turn(&mut completed).expect("no ring fails");
        }
        assert_eq!(completed.iter().map(|of| of.token).collect::<Vec<_>>(), [7, 8]);
        assert_eq!(polls.each_ref().map(|polls| polls.load(Ordering::Relaxed)), [0, 2, 0]);
        // A namespace that was removed while it was active, and the next one of its number.
        assert_eq!(storage.submit(namespaces[2], 9, Operation::Flush), Ok(Submitted::Pending));
        storage.remove(namespaces[2], &mut completed).expect("no ring fails");
        let namespace = storage.add(Box::new(Slow::default())).expect("it needs no ring");
        assert_eq!((namespace, storage.outstanding()), (namespaces[2], 0));
        assert_eq!(storage.submit(namespace, 10, Operation::Flush), Ok(Submitted::Pending));
        assert_eq!(storage.outstanding(), 1);
    }
}
