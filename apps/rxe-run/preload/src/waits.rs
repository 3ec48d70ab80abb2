//! Waits for events: threads that read a byte of an event channel.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use rxe_uverbs::descriptors::File;

/// The files that some thread waits for.
///
/// A kernel keeps a file open while a thread is in a call of it. So a file that is closed meanwhile stays open in the
/// adapter, and the thread does not see an end of the channel.
#[derive(Default)]
pub struct Waits(Mutex<HashMap<File, Waiting>>);

#[derive(Default)]
struct Waiting {
    count: usize,
    closed: bool,
}

impl Waits {
    fn locked<T>(&self, change: impl FnOnce(&mut HashMap<File, Waiting>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A wait begins.
    pub fn begin(&self, file: File) {
        self.locked(|files| files.entry(file).or_default().count += 1);
    }

    /// A wait ends. Returns whether the file is to be closed now.
    pub fn end(&self, file: File) -> bool {
        self.locked(|files| {
            let Some(waiting) = files.get_mut(&file) else { return false };
            waiting.count -= 1;
            waiting.count == 0 && files.remove(&file).is_some_and(|waiting| waiting.closed)
        })
    }

    /// The program closes the file. Returns whether it is to be closed now.
    pub fn close(&self, file: File) -> bool {
        self.locked(|files| match files.get_mut(&file) {
            Some(waiting) => {
                waiting.closed = true;
                false
            }
            None => true,
        })
    }
}

#[cfg(test)]
mod tests {
    use rxe_uverbs::descriptors::Kind;

    use super::*;

    const FILE: File = File { kind: Kind::RdmaCm, handle: 1 };

    #[test]
    fn a_file_is_closed_when_no_thread_waits() {
        let waits = Waits::default();
        waits.begin(FILE);
        waits.begin(FILE);
        assert!(!waits.end(FILE) && !waits.end(FILE), "it is not closed yet");
        assert!(waits.close(FILE));
    }

    #[test]
    fn the_last_wait_of_a_closed_file_closes_it() {
        let waits = Waits::default();
        waits.begin(FILE);
        waits.begin(FILE);
        assert!(!waits.close(FILE));
        assert!(!waits.end(FILE));
        assert!(waits.end(FILE));
        assert!(!waits.end(FILE), "there is no such wait");
    }
}
