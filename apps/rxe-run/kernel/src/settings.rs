//! Settings, which `rxe-run` passes in the environment.

use std::env;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

/// Environment variable: the address of the adapter. Without it the first free loopback address is taken.
pub const ADDRESS: &str = "RXE_ADDRESS";
/// Environment variable: the name of the device.
pub const DEVICE: &str = "RXE_DEVICE";
/// Environment variable: minimum severity of log lines on standard error.
pub const LOG: &str = "RXE_LOG";
/// Environment variable: the pcapng file for all packets.
pub const CAPTURE: &str = "RXE_CAPTURE";

/// The name of the device when none is given.
pub const DEFAULT_DEVICE: &str = "rxe0";
/// Values of [`LOG`], the least severe last.
pub const LOG_LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The settings of one process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The address of the adapter; `None` for the first free loopback address.
    pub address: Option<IpAddr>,
    /// The name of the device.
    pub device: String,
    /// Minimum severity of log lines.
    pub log: tracing::metadata::LevelFilter,
    /// The file for all packets.
    pub capture: Option<PathBuf>,
}

/// A variable of the environment cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{variable} is {value:?}: set it to {wanted}")]
pub struct SettingsError {
    variable: &'static str,
    value: OsString,
    wanted: &'static str,
}

impl Settings {
    /// The settings in the environment of this process.
    ///
    /// # Errors
    /// A value is not one of its variable.
    pub fn from_env() -> Result<Settings, SettingsError> {
        Settings::from(|variable| env::var_os(variable).filter(|value| !value.is_empty()))
    }

    fn from(value: impl Fn(&str) -> Option<OsString>) -> Result<Settings, SettingsError> {
        Ok(Settings {
            address: parsed(&value, ADDRESS, "an IPv4 or IPv6 address of this machine", |text| text.parse().ok())?,
            device: parsed(&value, DEVICE, DEVICE_NAMES, |text| is_device_name(text).then(|| text.to_owned()))?
                .unwrap_or_else(|| DEFAULT_DEVICE.to_owned()),
            log: parsed(&value, LOG, "off, error, warn, info, debug or trace", |text| text.parse().ok())?
                .unwrap_or(tracing::metadata::LevelFilter::WARN),
            capture: value(CAPTURE).map(PathBuf::from),
        })
    }
}

fn parsed<T>(
    value: impl Fn(&str) -> Option<OsString>,
    variable: &'static str,
    wanted: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, SettingsError> {
    let Some(value) = value(variable) else { return Ok(None) };
    match value.to_str().and_then(parse) {
        Some(parsed) => Ok(Some(parsed)),
        None => Err(SettingsError { variable, value, wanted }),
    }
}

/// The names that [`is_device_name`] accepts, as the end of a sentence.
pub const DEVICE_NAMES: &str = "a name that begins with rxe, of at most 63 letters, digits, `_`, `-` and `.`";

/// Whether libibverbs finds a device of this name: its rxe provider takes devices whose names begin with `rxe`.
#[must_use]
pub fn is_device_name(name: &str) -> bool {
    let may_be_part = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    name.starts_with("rxe") && name.len() < 64 && name.chars().all(may_be_part)
}

#[cfg(test)]
mod tests {
    use tracing::metadata::LevelFilter;

    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let value = |wanted: &str| {
            variables.iter().find(|(variable, _)| *variable == wanted).map(|(_, value)| OsString::from(value))
        };
        Settings::from(value).map_err(|error| error.to_string())
    }

    #[test]
    fn without_variables_there_are_defaults() {
        let expected = Settings { address: None, device: "rxe0".to_owned(), log: LevelFilter::WARN, capture: None };
        assert_eq!(settings(&[]), Ok(expected));
    }

    #[test]
    fn variables_are_read() {
        let variables = [(ADDRESS, "fd00::1"), (DEVICE, "rxe_b"), (LOG, "debug"), (CAPTURE, "/tmp/a.pcapng")];
        let expected = Settings {
            address: Some("fd00::1".parse().unwrap()),
            device: "rxe_b".to_owned(),
            log: LevelFilter::DEBUG,
            capture: Some(PathBuf::from("/tmp/a.pcapng")),
        };
        assert_eq!(settings(&variables), Ok(expected));
    }

    #[test]
    fn a_wrong_value_is_named_with_its_variable() {
        let address = settings(&[(ADDRESS, "10.0.0.1/24")]).unwrap_err();
        assert_eq!(address, r#"RXE_ADDRESS is "10.0.0.1/24": set it to an IPv4 or IPv6 address of this machine"#);
        assert!(settings(&[(LOG, "loud")]).unwrap_err().starts_with(r#"RXE_LOG is "loud": set it to off, "#));
        for name in ["mlx5_0", "rxe/0", "rxe 0", "rxe\n", &format!("rxe{}", "0".repeat(61))] {
            assert!(settings(&[(DEVICE, name)]).is_err(), "{name}");
        }
    }
}
