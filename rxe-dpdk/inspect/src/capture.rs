//! What to capture, and how far a capture is.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Bytes of a frame that are kept where nothing else is said: all of them.
pub const DEFAULT_SNAPLEN: u32 = 262_144;

/// A capture that is wanted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureSettings {
    /// The pcapng file, with its whole path. With `files`, what the names of the files are made of.
    pub file: PathBuf,
    /// Only RoCEv2 packets to and from these queue pairs of the target; all frames when there are none.
    #[serde(default)]
    pub qpns: Vec<u32>,
    /// Only frames from and to these addresses; all frames when there are none.
    #[serde(default)]
    pub peers: Vec<IpAddr>,
    /// How many bytes of a frame are kept.
    #[serde(default = "default_snaplen")]
    pub snaplen: u32,
    /// MiB after which the capture ends, or goes on in the next file.
    #[serde(default)]
    pub size: Option<u32>,
    /// How many files there are at most: then the oldest goes. `None` makes one file.
    #[serde(default)]
    pub files: Option<u32>,
}

fn default_snaplen() -> u32 {
    DEFAULT_SNAPLEN
}

impl CaptureSettings {
    /// Everything into one file.
    pub fn new(file: PathBuf) -> CaptureSettings {
        CaptureSettings { file, qpns: Vec::new(), peers: Vec::new(), snaplen: DEFAULT_SNAPLEN, size: None, files: None }
    }

    /// Whether it can be.
    ///
    /// # Errors
    /// A sentence that says what to change.
    pub fn check(&self) -> Result<(), String> {
        /// Queue pairs, and addresses, that are looked for at once.
        const MOST: usize = 16;
        let within = |value: Option<u32>, least, most| value.is_none_or(|value| (least..=most).contains(&value));
        let file = self.file.display();
        if !self.file.is_absolute() {
            return Err(format!("the capture file {file} needs its whole path, from the root on"));
        }
        if self.file.file_name().is_none() {
            return Err(format!("{file} names no file: add the capture file's name"));
        }
        if self.qpns.len() > MOST || self.peers.len() > MOST {
            return Err(format!("a capture looks for at most {MOST} queue pairs and {MOST} peers: leave some out"));
        }
        if self.qpns.iter().any(|qpn| *qpn >= 1 << 24) {
            return Err("queue pair numbers go from 0 to 0xffffff".to_owned());
        }
        if !within(Some(self.snaplen), 64, DEFAULT_SNAPLEN) {
            return Err(format!("snaplen {} does not do: it goes from 64 to {DEFAULT_SNAPLEN} bytes", self.snaplen));
        }
        if !within(self.size, 1, 1 << 20) {
            return Err("the size of a capture file goes from 1 to 1048576 MiB".to_owned());
        }
        if !within(self.files, 2, 10_000) {
            return Err("the files of a capture are from 2 to 10000".to_owned());
        }
        if self.files.is_some() && self.size.is_none() {
            return Err("a capture in several files needs to know when one is full: give their size too".to_owned());
        }
        Ok(())
    }
}

/// A capture as it is now, or was at its end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CaptureStatus {
    /// Whether it goes on.
    pub running: bool,
    /// What was wanted.
    pub settings: CaptureSettings,
    /// The file that was written last.
    pub file: PathBuf,
    /// How long it has been running, or ran, in seconds.
    pub seconds: u64,
    /// Frames in the files, those of files that are gone too.
    pub frames: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Frames that are missing because the file could not be written fast enough.
    pub lost: u64,
    /// Why it ended, in a sentence; `None` while it runs.
    pub ended: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_a_sentence() {
        let right = CaptureSettings::new("/tmp/a.pcapng".into());
        let ring = CaptureSettings { size: Some(1), files: Some(2), ..right.clone() };
        assert_eq!((right.check(), ring.check()), (Ok(()), Ok(())));
        for (wrong, part) in [
            (CaptureSettings { file: "a.pcapng".into(), ..right.clone() }, "a.pcapng needs its whole path"),
            (CaptureSettings { file: "/".into(), ..right.clone() }, "/ names no file"),
            (CaptureSettings { qpns: vec![7; 17], ..right.clone() }, "at most 16"),
            (CaptureSettings { qpns: vec![1 << 24], ..right.clone() }, "from 0 to 0xffffff"),
            (CaptureSettings { snaplen: 63, ..right.clone() }, "snaplen 63 does not do"),
            (CaptureSettings { size: Some(0), ..right.clone() }, "from 1 to 1048576 MiB"),
            (CaptureSettings { files: Some(1), size: Some(1), ..right.clone() }, "from 2 to 10000"),
            (CaptureSettings { files: Some(2), ..right.clone() }, "give their size too"),
        ] {
            let sentence = wrong.check().unwrap_err();
            assert!(sentence.contains(part), "{sentence}");
        }
    }

    #[test]
    fn only_the_file_must_be_said() {
        let settings: CaptureSettings = serde_json::from_str(r#"{"file":"/a"}"#).unwrap();
        assert_eq!(settings, CaptureSettings::new("/a".into()));
        let all = CaptureSettings {
            qpns: vec![1, 0x11],
            peers: vec!["10.0.0.2".parse().unwrap()],
            size: Some(10),
            files: Some(3),
            ..settings
        };
        let text = serde_json::to_string(&all).unwrap();
        assert_eq!(serde_json::from_str::<CaptureSettings>(&text).unwrap(), all, "{text}");
        assert!(serde_json::from_str::<CaptureSettings>(r#"{"file":"/a","x":1}"#).is_err());
    }
}
