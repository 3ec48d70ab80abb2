//! Sockets of the kernel, as /proc/net shows them, and free ports.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};

/// State `TCP_LISTEN`.
const LISTEN: &str = "0A";

/// A TCP port that was free just now.
///
/// # Errors
/// There is none.
pub fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|listener| listener.local_addr());
    listener.map(|address| address.port()).map_err(|error| format!("no free TCP port: {error}"))
}

/// Whether a TCP socket listens on the port.
pub fn listens(port: u16) -> bool {
    let is = |row: &Row| row.local.ends_with(&format!(":{port:04X}")) && row.state == LISTEN;
    rows("tcp").iter().chain(&rows("tcp6")).any(is)
}

/// A socket.
struct Row {
    local: String,
    state: String,
}

fn rows(protocol: &str) -> Vec<Row> {
    let text = fs::read_to_string(format!("/proc/net/{protocol}")).unwrap_or_default();
    let row = |line: &str| {
        let mut words = line.split_whitespace().map(str::to_owned);
        let (local, state) = (words.nth(1)?, words.nth(1)?);
        Some(Row { local, state })
    };
    text.lines().skip(1).filter_map(row).collect()
}
