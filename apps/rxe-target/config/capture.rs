//! The section `[capture]`: frames into a file from the start on.

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use rxe::{CliError, cli_error};
use rxe_adapter::texts::Text;
use rxe_inspect::capture::{CaptureSettings, DEFAULT_SNAPLEN};
use serde::Deserialize;

use super::sourced::Sourced;

/// File of `--capture`, as an absolute path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CaptureFile(pub PathBuf);

impl FromStr for CaptureFile {
    type Err = CliError;

    fn from_str(text: &str) -> Result<CaptureFile, CliError> {
        match std::path::absolute(text) {
            Ok(path) => Ok(CaptureFile(path)),
            Err(error) => cli_error!("'{text}' cannot be a file ({error}): name a file to write, as /tmp/rxe.pcapng"),
        }
    }
}

/// A whole number.
#[derive(Clone, Copy, Debug)]
struct Number(u32);

impl FromStr for Number {
    type Err = CliError;

    fn from_str(text: &str) -> Result<Number, CliError> {
        match text.parse() {
            Ok(number) => Ok(Number(number)),
            Err(_) => cli_error!("'{text}' is not a whole number from 0 to {}", u32::MAX),
        }
    }
}

/// The address of a peer.
#[derive(Clone, Copy, Debug)]
struct Peer(IpAddr);

impl FromStr for Peer {
    type Err = CliError;

    fn from_str(text: &str) -> Result<Peer, CliError> {
        match text.parse() {
            Ok(ip) => Ok(Peer(ip)),
            Err(_) => cli_error!("'{text}' is not an IP address"),
        }
    }
}

/// The section as the file has it.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureSection {
    /// Required, unless `--capture` gives the file.
    file: Option<PathBuf>,
    peers: Option<Vec<Text<Peer>>>,
    snaplen: Option<Text<Number>>,
    size: Option<Text<Number>>,
    files: Option<Text<Number>>,
}

impl CaptureSection {
    fn over(&self, file: PathBuf) -> CaptureSettings {
        CaptureSettings {
            peers: self.peers.iter().flatten().map(|peer| peer.0.0).collect(),
            snaplen: self.snaplen.as_ref().map_or(DEFAULT_SNAPLEN, |number| number.0.0),
            size: self.size.as_ref().map(|number| number.0.0),
            files: self.files.as_ref().map(|number| number.0.0),
            ..CaptureSettings::new(file)
        }
    }
}

/// The capture of the section and `--capture`, if there is one. The option replaces the section's file.
pub fn resolve(
    section: Option<Sourced<CaptureSection>>,
    flag: Option<Sourced<CaptureFile>>,
) -> Result<Option<CaptureSettings>, CliError> {
    let (section, mut origin) = section.map(|section| (section.value, section.origin)).unzip();
    let section = section.unwrap_or_default();
    let mut file = section.file.clone();
    if let Some(flag) = flag {
        file = Some(flag.value.0);
        origin = origin.or(Some(flag.origin));
    }
    let Some(settings) = file.map(|file| section.over(file)) else { return Ok(None) };
    match (settings.check(), origin) {
        (Err(problem), Some(origin)) => cli_error!("{origin}: {problem}"),
        (Err(problem), None) => cli_error!("{problem}"),
        (Ok(()), _) => Ok(Some(settings)),
    }
}
