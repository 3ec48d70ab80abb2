//! The verb `capture`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Subcommand;
use rxe_inspect::capture::{CaptureSettings, CaptureStatus, DEFAULT_SNAPLEN};
use rxe_inspect::client::Client;
use rxe_inspect::protocol::Request;

use crate::Failure;
use crate::cli::number;

/// What to do about captures.
#[derive(Subcommand, Debug)]
pub enum CaptureVerb {
    /// Write frames to a pcapng file until `capture stop`, or the target's end
    Start {
        /// The file, which the target writes; what is there is replaced
        #[arg(value_name = "FILE")]
        file: PathBuf,

        /// Only packets of this queue pair of the target, in both directions; 1 has the messages of the connection manager;
        /// may repeat
        #[arg(long, value_name = "QPN", value_parser = number)]
        qpn: Vec<u32>,

        /// Only frames from and to this address; may repeat
        #[arg(long, value_name = "IP")]
        peer: Vec<IpAddr>,

        /// Keep this many bytes of a frame
        #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_SNAPLEN)]
        snaplen: u32,

        /// End when the file has this size; with --files go on in the next one
        #[arg(long, value_name = "MIB")]
        size: Option<u32>,

        /// Write FILE_00001, FILE_00002 and so on, and keep this many of them
        #[arg(long, value_name = "N", requires = "size")]
        files: Option<u32>,
    },
    /// End the capture; its file is complete then
    Stop,
    /// The capture that is running, or was the last one
    Status,
}

/// Asks for it; returns how the capture is then.
pub fn run(target: &mut Client, verb: CaptureVerb) -> Result<CaptureStatus, Failure> {
    let request = match verb {
        CaptureVerb::Start { file, qpn: qpns, peer: peers, snaplen, size, files } => {
            // The target may be in another folder than we are.
            let file = std::path::absolute(&file)
                .map_err(|error| Failure::Mistake(format!("{} is no file ({error}): name one", file.display())))?;
            let settings = CaptureSettings { file, qpns, peers, snaplen, size, files };
            settings.check().map_err(Failure::Mistake)?;
            Request::CaptureStart { settings }
        }
        CaptureVerb::Stop => Request::CaptureStop,
        CaptureVerb::Status => Request::CaptureStatus,
    };
    Ok(target.ask(&request)?)
}

/// One line on what it does, and one on what came of it.
pub fn show(status: &CaptureStatus) -> String {
    let CaptureStatus { running, settings, file, seconds, frames, bytes, lost, ended } = status;
    let mut text = if *running { format!("capturing to {}", file.display()) } else { format!("{}", file.display()) };
    let mut only = |name: &str, values: Vec<String>| {
        if !values.is_empty() {
            text += &format!(", {name} {}", values.join(" "));
        }
    };
    only("qpn", settings.qpns.iter().map(|qpn| format!("{qpn:#x}")).collect());
    only("peer", settings.peers.iter().map(ToString::to_string).collect());
    only("snaplen", (settings.snaplen != DEFAULT_SNAPLEN).then(|| settings.snaplen.to_string()).into_iter().collect());
    only("size", settings.size.map(|size| format!("{size} MiB")).into_iter().collect());
    only("files", settings.files.map(|files| files.to_string()).into_iter().collect());
    text += &format!("\nframes {frames} lost {lost} bytes {bytes} time {seconds}s");
    if let Some(why) = ended {
        text += &format!("\nended: {why}");
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_is_two_lines_and_its_end_a_third() {
        let mut status = CaptureStatus {
            running: true,
            settings: CaptureSettings::new("/tmp/a.pcapng".into()),
            file: "/tmp/a.pcapng".into(),
            seconds: 61,
            frames: 7,
            bytes: 1000,
            lost: 1,
            ended: None,
        };
        assert_eq!(show(&status), "capturing to /tmp/a.pcapng\nframes 7 lost 1 bytes 1000 time 61s\n");
        status.running = false;
        status.ended = Some("it was stopped".to_owned());
        status.settings.qpns = vec![1, 0x11];
        status.settings.peers = vec!["10.0.0.2".parse().unwrap()];
        (status.settings.snaplen, status.settings.size, status.settings.files) = (128, Some(64), Some(3));
        assert_eq!(
            show(&status),
            "/tmp/a.pcapng, qpn 0x1 0x11, peer 10.0.0.2, snaplen 128, size 64 MiB, files 3\n\
             frames 7 lost 1 bytes 1000 time 61s\nended: it was stopped\n"
        );
    }
}
