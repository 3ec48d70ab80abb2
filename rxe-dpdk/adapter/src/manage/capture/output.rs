//! The file of a capture, or its ring of files.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rxe_inspect::capture::CaptureSettings;
use rxe_inspect::pcapng::{BlockWriter, Interface, Packet, Statistics};
use rxe_proto::cm::Handshake;

/// Buffer size of the writer, in bytes.
const BUFFER: usize = 256 << 10;

/// Upper bound of the bytes that the messages of a known connection take.
const KNOWN: u64 = 1024;

/// Whether a frame was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Written {
    /// It was.
    Yes,
    /// The file is full, and the settings allow no other.
    Full,
}

/// Writes frames to files, each a complete pcapng section.
#[derive(Debug)]
pub(super) struct Output {
    settings: CaptureSettings,
    /// By port number.
    interfaces: Vec<Interface>,
    writer: BlockWriter<BufWriter<File>>,
    path: PathBuf,
    /// Existing files except the newest.
    older: VecDeque<PathBuf>,
    /// Files created so far.
    number: u32,
    /// Bytes of the current file, and of all earlier ones.
    in_file: u64,
    in_others: u64,
    /// By interface: frames in the current file, and frames missing there.
    counts: Vec<(u64, u64)>,
    since: u64,
    /// How the connections were made that were known when the capture began, then.
    known: Vec<Handshake>,
    began: u64,
}

impl Output {
    /// Creates the first file. Each file begins with the messages of `known`, whose packets may follow.
    pub(super) fn create(
        settings: CaptureSettings,
        interfaces: Vec<Interface>,
        known: Vec<Handshake>,
    ) -> io::Result<Output> {
        let now = unix_nanos();
        let path = path(&settings, 1);
        let writer = open(&path)?;
        let counts = vec![(0, 0); interfaces.len()];
        let mut output = Output {
            settings,
            interfaces,
            writer,
            path,
            older: VecDeque::new(),
            number: 1,
            in_file: 0,
            in_others: 0,
            counts,
            since: now,
            known,
            began: now,
        };
        output.begin()?;
        output.flush()?;
        Ok(output)
    }

    /// The current file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.in_others + self.in_file
    }

    /// Writes a frame, into the next file if this one is full. `lost` frames are missing before it.
    pub(super) fn write(&mut self, packet: &Packet<'_>, lost: u32) -> io::Result<Written> {
        /// Upper bounds: the size of a packet block without bytes and comment, and of the statistics block per interface at
        /// the end of the file.
        const AROUND: usize = 64;
        const END: usize = 80;
        if let Some(mib) = self.settings.size {
            let end = self.interfaces.len() * END;
            let more = (packet.bytes.len() + packet.comment.len() + AROUND + end) as u64;
            if self.in_file + more > u64::from(mib) << 20 && self.counts.iter().any(|(frames, _)| *frames > 0) {
                let Some(files) = self.settings.files else { return Ok(Written::Full) };
                self.next_file(files)?;
            }
        }
        self.in_file += self.writer.packet(packet)?;
        if let Some((frames, missing)) = self.counts.get_mut(packet.interface as usize) {
            *frames += 1;
            *missing += u64::from(lost);
        }
        Ok(Written::Yes)
    }

    /// Makes everything written so far visible to readers of the file.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.writer.get_mut().flush()
    }

    /// Completes the current file.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        let end = unix_nanos();
        for (interface, (frames, missing)) in (0..).zip(&self.counts) {
            let statistics =
                Statistics { interface, start: self.since, end, received: frames + missing, dropped: *missing };
            self.in_file += self.writer.statistics(&statistics)?;
        }
        self.flush()
    }

    fn next_file(&mut self, files: u32) -> io::Result<()> {
        self.finish()?;
        self.number = self.number.saturating_add(1);
        let path = path(&self.settings, self.number);
        self.writer = open(&path)?;
        self.older.push_back(std::mem::replace(&mut self.path, path));
        while self.older.len() >= files as usize
            && let Some(oldest) = self.older.pop_front()
        {
            // Another process may have removed it.
            let _ = fs::remove_file(oldest);
        }
        self.in_others += std::mem::take(&mut self.in_file);
        self.counts.fill((0, 0));
        self.since = unix_nanos();
        self.begin()
    }

    fn begin(&mut self) -> io::Result<()> {
        let application = concat!("rxe-target ", env!("CARGO_PKG_VERSION"));
        self.in_file += self.writer.section(application, &describe(&self.settings))?;
        for interface in &self.interfaces {
            self.in_file += self.writer.interface(interface, self.settings.snaplen)?;
        }
        self.write_known()
    }

    /// Writes the messages of known connections, whole, in a quarter of the file at most. They are no frames of the capture.
    fn write_known(&mut self) -> io::Result<()> {
        let end = self.settings.size.map_or(u64::MAX, |mib| u64::from(mib) << 18);
        for handshake in &self.known {
            if self.in_file + KNOWN > end {
                break;
            }
            let comment = format!("before the capture: how queue pair {:#x} was connected", handshake.local_qpn.get());
            for (sent, frame) in handshake.frames() {
                self.in_file += self.writer.packet(&Packet {
                    interface: handshake.path.port.0.into(),
                    time: self.began,
                    sent,
                    bytes: &frame,
                    len: frame.len() as u32,
                    comment: &comment,
                })?;
            }
        }
        Ok(())
    }
}

/// Creates or truncates a file. Only its owner may read it, as it contains payload. Links are not followed: who can write to the
/// folder would choose what a target with more rights overwrites.
fn open(path: &Path) -> io::Result<BlockWriter<BufWriter<File>>> {
    const NOT_ORDINARY: &str = "it is a pipe or a device: name an ordinary file";
    // Opening a pipe must not wait for a reader.
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    let opened = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).custom_flags(flags).open(path);
    let refused = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => refused("it is a symbolic link: name the file itself"),
        // A pipe without a reader.
        Some(libc::ENXIO) => refused(NOT_ORDINARY),
        _ => error,
    })?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(refused(NOT_ORDINARY));
    }
    if found.nlink() > 1 {
        return Err(refused("it has more than one name (hard links): name another file"));
    }
    file.set_len(0)?;
    Ok(BlockWriter::new(BufWriter::with_capacity(BUFFER, file)))
}

/// The file, or file number `number` of a ring: FILE_00001.pcapng for FILE.pcapng.
fn path(settings: &CaptureSettings, number: u32) -> PathBuf {
    if settings.files.is_none() {
        return settings.file.clone();
    }
    let mut name = settings.file.file_stem().unwrap_or_default().to_owned();
    name.push(format!("_{number:05}"));
    if let Some(extension) = settings.file.extension() {
        name.push(".");
        name.push(extension);
    }
    settings.file.with_file_name(name)
}

/// A description of the filter; empty without one.
fn describe(settings: &CaptureSettings) -> String {
    let list = |what: &str, items: Vec<String>| (!items.is_empty()).then(|| format!("{what} {}", items.join(", ")));
    let qpns = list("queue pairs", settings.qpns.iter().map(|qpn| format!("{qpn:#x}")).collect());
    let peers = list("peers", settings.peers.iter().map(ToString::to_string).collect());
    let only: Vec<String> = [qpns, peers].into_iter().flatten().collect();
    if only.is_empty() { String::new() } else { format!("only {}", only.join(" and ")) }
}

/// Nanoseconds since 1970.
pub(super) fn unix_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rxe_proto::Instant;
    use rxe_proto::cm::{AcceptParams, Cm, CmConfig, CmEvent, ConnectParams, LocalAddresses, MadPath};
    use rxe_proto::transport::Qpn;
    use rxe_proto::wire::{Gid, MacAddr, PathMtu, PortId, Psn};
    use rxe_testkit::pcapng;

    use super::*;

    /// A folder that is removed when this is dropped.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let folder = std::env::temp_dir().join(format!("rxe-capture-{}-{name}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            Folder(folder)
        }

        fn names(&self) -> Vec<String> {
            let mut names: Vec<String> =
                fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn ports() -> Vec<Interface> {
        vec![Interface { name: "eth0".into(), description: "port 1".into(), mac: Default::default() }]
    }

    fn packet(bytes: &[u8]) -> Packet<'_> {
        Packet { interface: 0, time: 7, sent: false, bytes, len: bytes.len() as u32, comment: "" }
    }

    /// The kinds of the blocks of a file.
    fn blocks(path: &Path) -> Vec<u32> {
        let bytes = fs::read(path).unwrap();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let (mut at, mut kinds) = (0, Vec::new());
        while at < bytes.len() {
            kinds.push(word(at));
            let len = word(at + 4) as usize;
            assert_eq!(word(at + len - 4) as usize, len, "both ends say the same");
            at += len;
        }
        kinds
    }

    #[test]
    fn a_ring_keeps_the_newest_files_each_complete() {
        let folder = Folder::new("ring");
        let settings =
            CaptureSettings { size: Some(1), files: Some(2), ..CaptureSettings::new(folder.0.join("a.b.pcapng")) };
        let mut output = Output::create(settings, ports(), Vec::new()).unwrap();
        let frame = [5; 60_000];
        // 17 of them fit into a MiB.
        for _ in 0..40 {
            assert_eq!(output.write(&packet(&frame), 1).unwrap(), Written::Yes);
        }
        output.finish().unwrap();
        assert_eq!(folder.names(), ["a.b_00002.pcapng", "a.b_00003.pcapng"]);
        let mut full = vec![0x0A0D_0D0A, 1];
        full.extend([6; 17]);
        full.push(5);
        assert_eq!(blocks(&folder.0.join("a.b_00002.pcapng")), full);
        assert_eq!(blocks(output.path()), [0x0A0D_0D0A, 1, 6, 6, 6, 6, 6, 6, 5]);
        let files = folder.names().iter().map(|name| folder.0.join(name).metadata().unwrap().len()).sum::<u64>();
        assert_eq!(output.bytes(), files + full_len(&folder, "a.b_00002.pcapng"), "those that are gone too");
    }

    fn full_len(folder: &Folder, name: &str) -> u64 {
        folder.0.join(name).metadata().unwrap().len()
    }

    /// A connection that a peer requested.
    fn handshake(qpn: u32) -> Handshake {
        struct Local;
        impl LocalAddresses for Local {
            fn is_local(&self, _: PortId, _: Gid) -> bool {
                true
            }
            fn path_mtu(&self, _: PortId) -> PathMtu {
                PathMtu::Mtu1024
            }
        }
        let [ours, theirs] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(Ipv4Addr::from);
        let path = MadPath {
            port: PortId(0),
            local_mac: MacAddr::default(),
            peer_mac: MacAddr::default(),
            vlan: None,
            local: ours.into(),
            peer: theirs.into(),
            traffic_class: 0,
        };
        let ports = (40000, 4420);
        let mut peer = Cm::new(CmConfig::new(7, [7; 32]));
        let back = MadPath { local: path.peer, peer: path.local, ..path.clone() };
        let params = ConnectParams::new(back, ports, Qpn::new(0x77), Psn::new(0), PathMtu::Mtu1024);
        peer.connect(Instant::ZERO, params).unwrap();
        let mut cm = Cm::new(CmConfig::new(1, [1; 32]));
        cm.handle_mad(Instant::ZERO, &path, &*peer.poll_transmit().unwrap().mad, &Local).unwrap();
        let Some(CmEvent::ConnectRequest(request)) = cm.poll_event() else { panic!() };
        let accept = AcceptParams {
            qpn: Qpn::new(qpn),
            starting_psn: Psn::new(0),
            responder_resources: 1,
            initiator_depth: 1,
            rnr_retry_count: 7,
            flow_control: false,
            srq: false,
            private_data: Vec::new(),
        };
        cm.accept(Instant::ZERO, request.conn, accept).unwrap();
        cm.handshakes(0).next().unwrap()
    }

    #[test]
    fn each_file_begins_with_the_messages_of_known_connections_in_a_quarter_of_it() {
        let folder = Folder::new("known");
        let settings = CaptureSettings {
            size: Some(1),
            files: Some(2),
            snaplen: 64,
            ..CaptureSettings::new(folder.0.join("a.pcapng"))
        };
        let handshake = handshake(0x11);
        let mut output = Output::create(settings.clone(), ports(), vec![handshake.clone()]).unwrap();
        for _ in 0..18 {
            assert_eq!(output.write(&packet(&[5; 60_000]), 0).unwrap(), Written::Yes);
        }
        output.finish().unwrap();
        for (file, frames) in [("a_00001.pcapng", 17), ("a_00002.pcapng", 1)] {
            let capture = pcapng::read(&folder.0.join(file));
            let head: Vec<(bool, Vec<u8>)> =
                capture.packets[..2].iter().map(|packet| (packet.sent, packet.bytes.clone())).collect();
            assert_eq!(head, handshake.frames());
            assert_eq!(capture.packets[1].comment, "before the capture: how queue pair 0x11 was connected");
            assert_eq!((capture.packets.len(), capture.counted), (2 + frames, Some((frames as u64, 0))));
        }
        let many = Output::create(settings, ports(), vec![handshake; 1000]).unwrap();
        assert!((1 << 18) - 2 * KNOWN < many.bytes() && many.bytes() <= 1 << 18, "{}", many.bytes());
    }

    #[test]
    fn a_single_file_ends_when_it_is_full() {
        let folder = Folder::new("full");
        let settings = CaptureSettings { size: Some(1), ..CaptureSettings::new(folder.0.join("a")) };
        let mut output = Output::create(settings, ports(), Vec::new()).unwrap();
        let frame = [5; 200_000];
        let written = (0..10).take_while(|_| output.write(&packet(&frame), 0).unwrap() == Written::Yes).count();
        assert_eq!(written, 5);
        output.finish().unwrap();
        assert!(output.path().metadata().unwrap().len() <= 1 << 20);
        assert_eq!(folder.names(), ["a"]);
    }

    #[test]
    fn a_file_is_no_longer_than_asked_for_to_its_last_block() {
        let folder = Folder::new("exact");
        let settings = CaptureSettings { size: Some(1), ..CaptureSettings::new(folder.0.join("a")) };
        let mut output = Output::create(settings, ports(), Vec::new()).unwrap();
        while output.write(&packet(&[5; 20]), 0).unwrap() == Written::Yes {}
        output.finish().unwrap();
        let len = output.path().metadata().unwrap().len();
        assert!((1 << 20) - 200 < len && len <= 1 << 20, "{len}");
    }

    #[test]
    fn only_regular_files_are_accepted() {
        let folder = Folder::new("refused");
        let create =
            |path: PathBuf| Output::create(CaptureSettings::new(path), ports(), Vec::new()).map(drop).unwrap_err();
        assert_eq!(create(folder.0.join("none/a")).kind(), io::ErrorKind::NotFound);
        let pipe = folder.0.join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in ["/dev/null".into(), pipe] {
            assert_eq!(create(path).to_string(), "it is a pipe or a device: name an ordinary file");
        }
        assert_eq!(create(folder.0.clone()).kind(), io::ErrorKind::IsADirectory);
    }

    /// Who can write to the folder must not choose what a target with more rights overwrites.
    #[test]
    fn links_to_other_files_are_not_followed() {
        let folder = Folder::new("links");
        let victim = folder.0.join("victim");
        fs::write(&victim, b"precious").unwrap();
        let (symbolic, hard) = (folder.0.join("symbolic.pcapng"), folder.0.join("hard.pcapng"));
        std::os::unix::fs::symlink(&victim, &symbolic).unwrap();
        fs::hard_link(&victim, &hard).unwrap();
        for link in [symbolic, hard] {
            assert!(open(&link).is_err(), "{}", link.display());
            assert_eq!(fs::read(&victim).unwrap(), b"precious");
        }
        let own = folder.0.join("own.pcapng");
        fs::write(&own, b"of the capture before").unwrap();
        assert!(open(&own).is_ok() && fs::read(&own).unwrap().is_empty(), "an earlier capture is replaced");
    }

    #[test]
    fn the_comment_names_the_filter() {
        let mut settings = CaptureSettings::new("/a".into());
        assert_eq!(describe(&settings), "");
        settings.qpns = vec![1, 0x11];
        settings.peers = vec!["10.0.0.2".parse().unwrap()];
        assert_eq!(describe(&settings), "only queue pairs 0x1, 0x11 and peers 10.0.0.2");
    }
}
