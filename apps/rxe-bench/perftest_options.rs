//! perftest's options that have no meaning here: accepted where nothing changes, explained where something else does it.

use clap::Args;
use rxe::{CliError, cli_error};

/// Hidden options: users paste command lines of perftest.
#[derive(Args, Clone, Debug, Default)]
pub struct PerftestOptions {
    /// No warning about the CPU's frequency, of which there is none.
    #[arg(short = 'F', long = "CPU-freq", hide = true)]
    cpu_freq: bool,

    /// Connections by the connection manager, as always.
    #[arg(short = 'R', long = "rdma_cm", hide = true)]
    rdma_cm: bool,

    /// The target's port.
    #[arg(short, long, value_name = "PORT", hide = true)]
    port: Option<u16>,

    /// The transport service: RC.
    #[arg(short, long, value_name = "TYPE", hide = true)]
    connection: Option<String>,

    #[arg(short = 'd', long = "ib-dev", value_name = "DEVICE", hide = true)]
    device: Option<String>,

    #[arg(short = 'x', long = "gid-index", value_name = "INDEX", hide = true)]
    gid_index: Option<String>,

    #[arg(short = 'i', long = "ib-port", value_name = "PORT", hide = true)]
    ib_port: Option<String>,

    #[arg(short = 'u', long = "qp-timeout", value_name = "CODE", hide = true)]
    qp_timeout: Option<String>,
}

impl PerftestOptions {
    /// The target's port, if it is given this way.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// Refuses options that would change the test.
    pub fn check(&self) -> Result<(), CliError> {
        if let Some(connection) = self.connection.as_deref().filter(|given| !given.eq_ignore_ascii_case("RC")) {
            return cli_error!("-c {connection}: the bench uses reliable connections only: leave it out");
        }
        let device = "the bench is the adapter itself: EAL's --vdev or -a in front of `--` selects its port";
        for (option, value, why) in [
            ("-d", &self.device, device),
            ("-i", &self.ib_port, device),
            ("-x", &self.gid_index, "--address is its GID"),
            ("-u", &self.qp_timeout, "the timeout follows from the measured round trip"),
        ] {
            if let Some(value) = value {
                return cli_error!("{option} {value}: {why}; leave it out");
            }
        }
        Ok(())
    }
}
