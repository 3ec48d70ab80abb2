//! Records all packets in a pcapng file.
//!
//! Frames are copied into a queue of bounded length, which a thread of its own empties into the file: whoever handles packets does not
//! wait for the disk. What the queue has no room for is missing in the file and counted in its statistics.

use std::fs::{File, TryLockError};
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use rxe_inspect::pcapng::{BlockWriter, Interface, Packet, Statistics};

use crate::descriptors::out_of_the_way;
use crate::inside::spawn_without_signals;

/// Frames that wait for the disk, at most.
const QUEUE: usize = 8192;
/// No frame is longer.
const SNAPLEN: u32 = 65_535;

/// Why a capture cannot begin.
#[derive(Debug, thiserror::Error)]
#[error("the capture {path} cannot be written: {source}")]
pub struct CaptureError {
    path: PathBuf,
    source: io::Error,
}

/// The end of the queue that takes frames.
#[derive(Clone)]
pub struct Recorder {
    queue: SyncSender<Recorded>,
    dropped: Arc<AtomicU64>,
}

/// One frame.
struct Recorded {
    time: u64,
    sent: bool,
    bytes: Vec<u8>,
}

impl Recorder {
    /// Records a frame that the port sends or has received.
    pub fn see(&self, sent: bool, frame: &[u8]) {
        let recorded = Recorded { time: unix_nanos(), sent, bytes: frame.to_vec() };
        if self.queue.try_send(recorded).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A file that waits for its first frame.
pub struct Capture {
    writer: BlockWriter<BufWriter<Arc<File>>>,
    file: Arc<File>,
    path: PathBuf,
}

/// The descriptor of the file.
impl AsFd for Capture {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Capture {
    /// Creates the file. When another process writes it, as programs with several processes do, the number of this process is added
    /// to the name.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(path: &Path, interface: &str) -> Result<Capture, CaptureError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| CaptureError { path, source }
        };
        let (file, path) = match locked(path).map_err(failed(path))? {
            Some(file) => (file, path.to_owned()),
            None => {
                let mut own = path.as_os_str().to_owned();
                own.push(format!(".{}", std::process::id()));
                let own = PathBuf::from(own);
                (File::create(&own).map_err(failed(&own))?, own)
            }
        };
        let file = Arc::new(File::from(out_of_the_way(file.into())));
        let writer = BlockWriter::new(BufWriter::new(Arc::clone(&file)));
        let mut capture = Capture { writer, file, path };
        capture.begin(interface).map_err(failed(&capture.path.clone()))?;
        Ok(capture)
    }

    fn begin(&mut self, interface: &str) -> io::Result<()> {
        self.writer.section("rxe-run", "")?;
        let interface = Interface { name: interface.to_owned(), description: "UDP port 4791".to_owned(), mac: [0; 6] };
        self.writer.interface(&interface, SNAPLEN)?;
        self.writer.get_mut().flush()
    }

    /// Starts the thread that writes. It ends when all recorders are dropped.
    ///
    /// # Errors
    /// There are no more threads.
    pub fn start(self) -> io::Result<(Recorder, JoinHandle<()>)> {
        let (queue, frames) = sync_channel(QUEUE);
        let dropped = Arc::<AtomicU64>::default();
        let counted = Arc::clone(&dropped);
        let thread = spawn_without_signals("rxe-capture", move || {
            let Capture { writer, path, .. } = self;
            if let Err(error) = write(writer, &frames, &counted) {
                tracing::error!("the capture {} is broken off: {error}", path.display());
            }
        })?;
        Ok((Recorder { queue, dropped }, thread))
    }
}

/// The empty file, unless another process writes it.
fn locked(path: &Path) -> io::Result<Option<File>> {
    let file = File::options().write(true).create(true).truncate(false).open(path)?;
    match file.try_lock() {
        // A pipe has no length.
        Ok(()) if !file.metadata()?.is_file() => Ok(Some(file)),
        Ok(()) => file.set_len(0).map(|()| Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        // A file system without locks.
        Err(TryLockError::Error(_)) => Ok(Some(file)),
    }
}

fn write(
    mut writer: BlockWriter<BufWriter<Arc<File>>>,
    frames: &Receiver<Recorded>,
    dropped: &AtomicU64,
) -> io::Result<()> {
    let (start, mut received) = (unix_nanos(), 0);
    loop {
        let next = match frames.try_recv() {
            Ok(frame) => Some(frame),
            Err(TryRecvError::Disconnected) => None,
            Err(TryRecvError::Empty) => {
                writer.get_mut().flush()?;
                frames.recv().ok()
            }
        };
        let Some(Recorded { time, sent, bytes }) = next else { break };
        received += 1;
        let len = bytes.len() as u32;
        writer.packet(&Packet { interface: 0, time, sent, bytes: &bytes, len, comment: "" })?;
    }
    let dropped = dropped.load(Ordering::Relaxed);
    writer.statistics(&Statistics { interface: 0, start, end: unix_nanos(), received, dropped })?;
    writer.get_mut().flush()
}

fn unix_nanos() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rxe_testkit::pcapng;

    use super::*;

    #[test]
    fn all_frames_are_in_the_file_when_its_thread_has_ended() {
        let folder = std::env::temp_dir().join(format!("rxe-capture-test-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a.pcapng");
        fs::write(&path, [7; 10_000]).unwrap();
        let (recorder, thread) = Capture::create(&path, "lo").unwrap().start().unwrap();
        let of_another_process = Capture::create(&path, "lo").unwrap();
        assert_eq!(of_another_process.path, folder.join(format!("a.pcapng.{}", std::process::id())));
        let tap = recorder.clone();
        tap.see(true, &[1; 60]);
        recorder.see(false, &[2; 61]);
        drop((recorder, tap));
        thread.join().unwrap();
        let capture = pcapng::read(&path);
        let frames: Vec<_> = capture.packets.iter().map(|packet| (packet.sent, packet.bytes.clone())).collect();
        assert_eq!(frames, [(true, vec![1; 60]), (false, vec![2; 61])]);
        assert_eq!((capture.counted, capture.interfaces), (Some((2, 0)), vec!["lo".to_owned()]));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn an_error_names_the_file() {
        let error = Capture::create(Path::new("/no/such/folder/a.pcapng"), "lo").err().unwrap().to_string();
        assert!(error.starts_with("the capture /no/such/folder/a.pcapng cannot be written: "), "{error}");
    }
}
