//! The verb `capture`.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use rxe::{CliError, cli_error};
use rxe_inspect::capture::{CaptureSettings, CaptureStatus, DEFAULT_SNAPLEN};
use rxe_inspect::client::Client;
use rxe_inspect::protocol::Request;

use crate::values::qpn;

/// The verbs of `capture`.
#[derive(Subcommand, Debug)]
pub enum CaptureVerb {
    /// Write frames to a pcapng file until `capture stop`, or until the target ends
    Start {
        /// The file, written by the target; an existing file is replaced
        #[arg(value_name = "FILE")]
        file: PathBuf,

        /// Only packets of this queue pair of the target, in both directions; queue pair 1 has the messages of the connection
        /// manager; may repeat
        #[arg(long, value_name = "QPN", value_parser = qpn)]
        qpn: Vec<u32>,

        /// Only frames from and to this address; may repeat
        #[arg(long, value_name = "IP")]
        peer: Vec<IpAddr>,

        /// Bytes to keep of each frame: 128 holds the headers of data, 346 also messages of the connection manager
        #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_SNAPLEN)]
        snaplen: u32,

        /// Maximum size of the file: the capture ends there, or with --files continues in the next file
        #[arg(long, value_name = "MIB")]
        size: Option<u32>,

        /// Write FILE_00001, FILE_00002 and so on, and keep the latest N
        #[arg(long, value_name = "N", requires = "size")]
        files: Option<u32>,
    },
    /// End the capture and complete its file
    Stop,
    /// Show the running capture, or the last one
    Status,
}

/// The file's absolute path, as the target's working directory may be another one.
fn named_file(file: &Path) -> Result<PathBuf, CliError> {
    if file == Path::new("-") {
        return cli_error!(
            "the target writes the capture, so it cannot go to standard output: name a file instead of '-'"
        );
    }
    std::path::absolute(file).map_err(|error| {
        CliError::new(format!("'{}' cannot be a file ({error}): name a file to write", file.display()))
    })
}

/// Sends the request; returns the status of the capture.
pub fn run(target: &mut Client, verb: CaptureVerb) -> Result<CaptureStatus, CliError> {
    let request = match verb {
        CaptureVerb::Start { file, qpn: qpns, peer: peers, snaplen, size, files } => {
            let file = named_file(&file)?;
            let settings = CaptureSettings { file, qpns, peers, snaplen, size, files };
            settings.check().map_err(CliError::new)?;
            Request::CaptureStart { settings }
        }
        CaptureVerb::Stop => Request::CaptureStop,
        CaptureVerb::Status => Request::CaptureStatus,
    };
    Ok(target.ask(&request)?)
}

/// One line with file and filters, one with the counts, and one with the reason if the capture has ended.
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
    fn help_says_how_long_a_message_of_the_connection_manager_is() {
        let mut verbs = CaptureVerb::augment_subcommands(clap::Command::new("capture"));
        let help = verbs.find_subcommand_mut("start").unwrap().render_long_help().to_string();
        let length = rxe_proto::cm::MAD_FRAME_LEN_MAX;
        let words: Vec<&str> = help.split_whitespace().collect();
        assert!(words.join(" ").contains(&format!("{length} also messages of the connection manager")), "{help}");
    }

    #[test]
    fn standard_output_is_no_file_of_a_capture() {
        let why = named_file("-".as_ref()).unwrap_err().to_string();
        assert_eq!(
            why,
            "the target writes the capture, so it cannot go to standard output: name a file instead of '-'"
        );
        assert!(named_file("./-".as_ref()).unwrap().is_absolute());
    }

    #[test]
    fn a_capture_has_two_lines_and_a_third_after_its_end() {
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
