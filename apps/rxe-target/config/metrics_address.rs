//! Where the metrics for Prometheus are served.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rxe::{CliError, cli_error};

/// A listening socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MetricsAddress {
    /// A TCP port of a kernel interface.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetricsAddress::Tcp(address) => address.fmt(f),
            MetricsAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for MetricsAddress {
    type Err = CliError;

    fn from_str(text: &str) -> Result<MetricsAddress, CliError> {
        if let Some(path) = text.strip_prefix("unix:") {
            // The folder in which the target was started is not where somebody looks for the socket.
            return if Path::new(path).is_absolute() {
                Ok(MetricsAddress::Unix(path.into()))
            } else {
                cli_error!("'{text}' has no absolute path: write one, as unix:/run/rxe/metrics.sock")
            };
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if address.port() == 0 => {
                cli_error!(
                    "'{text}' has no port number: write one from 1 to 65535, as {}",
                    SocketAddr::new(address.ip(), 9479)
                )
            }
            Ok(address) => Ok(MetricsAddress::Tcp(address)),
            Err(_) => cli_error!(
                "'{text}' is not an address of this machine with a port: write ADDR:PORT, as 127.0.0.1:9479 or [::]:9479, \
                 or unix:PATH for a socket in the file system"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> String {
        text.parse::<MetricsAddress>().expect_err(text).to_string()
    }

    #[test]
    fn metrics_are_served_at_an_address_with_a_port_or_on_a_socket_with_an_absolute_path() {
        assert!("[::1]:80".parse::<MetricsAddress>().is_ok());
        assert!(wrong("localhost:80").contains("write ADDR:PORT"));
        assert_eq!("unix:/run/m.sock".parse(), Ok(MetricsAddress::Unix("/run/m.sock".into())));
        assert_eq!(
            wrong("unix:m.sock"),
            "'unix:m.sock' has no absolute path: write one, as unix:/run/rxe/metrics.sock"
        );
        assert_eq!(
            wrong("127.0.0.1:0"),
            "'127.0.0.1:0' has no port number: write one from 1 to 65535, as 127.0.0.1:9479"
        );
    }
}
