//! Settings and status of a capture.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Default bytes recorded of a frame: all of them.
pub const DEFAULT_SNAPLEN: u32 = 262_144;

/// The settings of a capture.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureSettings {
    /// The pcapng file, an absolute path. With `files`, each file has a number in front of the extension.
    pub file: PathBuf,
    /// Only RoCEv2 packets to and from these queue pairs of the target; an empty list records all frames.
    #[serde(default)]
    pub qpns: Vec<u32>,
    /// Only frames from and to these addresses; an empty list records all frames.
    #[serde(default)]
    pub peers: Vec<IpAddr>,
    /// Bytes recorded of a frame.
    #[serde(default = "default_snaplen")]
    pub snaplen: u32,
    /// Size of a file in MiB; a full file ends the capture, or with `files` starts the next file.
    #[serde(default)]
    pub size: Option<u32>,
    /// Maximum number of files in the ring; the oldest is deleted. `None` is one file.
    #[serde(default)]
    pub files: Option<u32>,
}

fn default_snaplen() -> u32 {
    DEFAULT_SNAPLEN
}

impl CaptureSettings {
    /// Records all frames into one file.
    pub fn new(file: PathBuf) -> CaptureSettings {
        CaptureSettings { file, qpns: Vec::new(), peers: Vec::new(), snaplen: DEFAULT_SNAPLEN, size: None, files: None }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// A sentence that says what to change.
    pub fn check(&self) -> Result<(), String> {
        /// Maximum number of queue pairs, and of addresses.
        const MOST: usize = 16;
        let within = |value: Option<u32>, least, most| value.is_none_or(|value| (least..=most).contains(&value));
        let file = self.file.display();
        if !self.file.is_absolute() {
            return Err(format!("the capture file {file} needs an absolute path"));
        }
        if self.file.file_name().is_none() {
            return Err(format!("{file} names no file: add the capture file's name"));
        }
        if self.qpns.len() > MOST || self.peers.len() > MOST {
            return Err(format!("a capture filters by at most {MOST} queue pairs and {MOST} peers: leave some out"));
        }
        if self.qpns.iter().any(|qpn| *qpn >= 1 << 24) {
            return Err("queue pair numbers go from 0 to 0xffffff".to_owned());
        }
        if !within(Some(self.snaplen), 64, DEFAULT_SNAPLEN) {
            return Err(format!("snaplen {} is out of range: from 64 to {DEFAULT_SNAPLEN} bytes", self.snaplen));
        }
        if !within(self.size, 1, 1 << 20) {
            return Err("the size of a capture file goes from 1 to 1048576 MiB".to_owned());
        }
        if !within(self.files, 2, 10_000) {
            return Err("the number of capture files goes from 2 to 10000".to_owned());
        }
        if self.files.is_some() && self.size.is_none() {
            return Err("a capture in several files needs a size: give the size of a file too".to_owned());
        }
        Ok(())
    }
}

/// The status of a capture, now or at its end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CaptureStatus {
    /// Whether the capture runs; false after its end.
    pub running: bool,
    /// Settings of the capture.
    pub settings: CaptureSettings,
    /// The file that was written last.
    pub file: PathBuf,
    /// Duration so far, or in total, in seconds.
    pub seconds: u64,
    /// Frames written, including those of deleted files.
    pub frames: u64,
    /// Bytes written, including those of deleted files.
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
    fn invalid_settings_are_named_in_a_sentence() {
        let right = CaptureSettings::new("/tmp/a.pcapng".into());
        let ring = CaptureSettings { size: Some(1), files: Some(2), ..right.clone() };
        assert_eq!((right.check(), ring.check()), (Ok(()), Ok(())));
        for (wrong, part) in [
            (CaptureSettings { file: "a.pcapng".into(), ..right.clone() }, "a.pcapng needs an absolute path"),
            (CaptureSettings { file: "/".into(), ..right.clone() }, "/ names no file"),
            (CaptureSettings { qpns: vec![7; 17], ..right.clone() }, "at most 16"),
            (CaptureSettings { qpns: vec![1 << 24], ..right.clone() }, "from 0 to 0xffffff"),
            (CaptureSettings { snaplen: 63, ..right.clone() }, "snaplen 63 is out of range"),
            (CaptureSettings { size: Some(0), ..right.clone() }, "from 1 to 1048576 MiB"),
            (CaptureSettings { files: Some(1), size: Some(1), ..right.clone() }, "from 2 to 10000"),
            (CaptureSettings { files: Some(2), ..right.clone() }, "give the size of a file too"),
        ] {
            let sentence = wrong.check().unwrap_err();
            assert!(sentence.contains(part), "{sentence}");
        }
    }

    #[test]
    fn only_the_file_is_required() {
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
