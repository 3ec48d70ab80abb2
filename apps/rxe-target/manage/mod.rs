//! Management of a running target: the socket of `rxe-ctl`, and metrics for Prometheus.
//!
//! Both are served by threads of their own, started before DPDK pins the main thread to its core, so that they share no
//! core with an lcore that never sleeps. They read the target's state through an [`Inspector`], on request only.

mod addresses;
mod admission;
mod answers;
mod client_stats;
mod digest;
mod drain;
mod dump;
mod events;
mod exposition;
mod faults;
mod hang_up;
mod http;
mod metrics;
mod nvmf;
mod regions;
mod reload;
mod running;
mod runtime_folder;
mod socket;

use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use rxe::{CliError, cli_error};
use rxe_adapter::manage::{Capture, CaptureError, Inspector};
use rxe_inspect::capture::CaptureSettings;
use rxe_inspect::latency::Latency;
use rxe_inspect::report::{CounterGroup, Device};
use rxe_inspect::server::{Clients, Deadlines, Stream, converse};
use tracing::level_filters::LevelFilter;

use crate::config::{Config, MetricsAddress};
use crate::log::LogControl;
use crate::services::{MetricsRegistry, NvmfDisks};
pub use runtime_folder::RuntimeFolder;
use socket::Socket;

pub use client_stats::ManagementStats;
pub use drain::Drain;
pub use hang_up::HangUp;
pub use running::Running;

/// The parts of a running target that management uses.
#[derive(Clone)]
pub struct Managed {
    /// The adapter.
    pub inspector: Inspector,
    /// Ends it without cutting off clients.
    pub drain: Drain,
    /// Starts and stops its captures.
    pub capture: Capture,
    /// Counters of the services.
    pub registry: MetricsRegistry,
    /// The disks of the service `nvmf`.
    pub disks: NvmfDisks,
    /// Changes the log level.
    pub log: LogControl,
    /// EAL's `--file-prefix`.
    pub prefix: String,
    /// Counters of management itself.
    pub clients: ManagementStats,
    /// The configuration that it runs with.
    pub config: Running,
}

impl Managed {
    /// The adapter, completed by name, version and process of the program.
    fn device(&self) -> Device {
        Device {
            name: format!("rxe_{}", self.prefix),
            file_prefix: self.prefix.clone(),
            fw_ver: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            draining: self.drain.is_on(),
            ..self.inspector.device()
        }
    }

    /// Sets the log level, in the running target and its configuration.
    fn set_log(&self, config: &mut Config, level: LevelFilter) -> Result<(), String> {
        if !self.log.set(level) {
            return Err("the log has been closed".to_owned());
        }
        config.log = level;
        Ok(())
    }

    /// The times of turns, operations and commands.
    fn latency(&self) -> Latency {
        Latency { namespaces: self.disks.latencies(), ..self.inspector.latency() }
    }

    /// All counters but those of services.
    fn counters(&self) -> Vec<CounterGroup> {
        let mut groups = self.inspector.counters();
        let mut management = self.clients.group();
        management.counters.extend(events::counters(self.inspector.events().stats()));
        groups.push(management);
        groups
    }
}

/// Threads that wait for the target to start.
pub struct Management {
    stats: ManagementStats,
    to_socket: Sender<(UnixListener, Managed)>,
    to_metrics: Option<Sender<Managed>>,
    metrics_socket: Option<Socket>,
    to_capture: Sender<EarlyCapture>,
    to_reload: Option<Sender<Managed>>,
}

/// A capture from the start on, and the channel for its result.
type EarlyCapture = (Capture, CaptureSettings, Sender<Result<(), CaptureError>>);

/// Keeps the sockets in the file system; dropping it removes them.
pub struct Serving {
    _metrics: Option<Socket>,
    // In this order: only an empty folder can be removed.
    _socket: Option<Socket>,
    _folder: Option<RuntimeFolder>,
}

impl Management {
    /// Starts the threads, and listens for Prometheus at `metrics`; each `hang_up` reloads the configuration file.
    pub fn prepare(metrics: Option<&MetricsAddress>, hang_up: Option<HangUp>) -> Result<Management, CliError> {
        let stats = ManagementStats::default();
        let (to_socket, from_main) = channel::<(UnixListener, Managed)>();
        let clients = Clients::new(Deadlines::DEFAULT, Arc::clone(&stats.socket));
        spawn("rxe-ctl", move || {
            let Ok((listener, managed)) = from_main.recv() else { return };
            clients.serve_all(
                "rxe-ctl",
                || listener.accept().map(|(stream, _)| stream),
                move |client| {
                    converse(
                        client,
                        |request| answers::answer(&managed, request),
                        |client| events::send_all(client, managed.inspector.events()),
                    );
                },
            );
        })?;
        let (to_metrics, metrics_socket) = match metrics {
            Some(address) => {
                let (sender, socket) = listen_for_scrapes(address, &stats)?;
                (Some(sender), socket)
            }
            None => (None, None),
        };
        let (to_capture, from_main) = channel::<EarlyCapture>();
        // The thread that writes the file inherits the CPUs of this one.
        spawn("rxe-capture", move || {
            if let Ok((capture, settings, begun)) = from_main.recv() {
                let _ = begun.send(capture.start_early(settings));
            }
        })?;
        let to_reload = hang_up.map(reload_on).transpose()?;
        Ok(Management { stats, to_socket, to_metrics, metrics_socket, to_capture, to_reload })
    }

    /// Starts a capture from the first frame on. Call it before the target runs.
    pub fn capture(&self, capture: Capture, settings: CaptureSettings) -> Result<(), CliError> {
        let (begun, answer) = channel();
        let _ = self.to_capture.send((capture, settings, begun));
        match answer.recv() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => cli_error!("{error}"),
            Err(_) => cli_error!("the thread that starts the capture has ended"),
        }
    }

    /// Counters of the clients of the socket and of the metrics.
    pub fn stats(&self) -> ManagementStats {
        self.stats.clone()
    }

    /// Starts to serve `managed`. If the socket cannot be created, the target runs without it and logs a warning.
    pub fn start(self, managed: Managed, folder: Option<RuntimeFolder>) -> Serving {
        if let Some(metrics) = self.to_metrics {
            // Sending fails only if the thread has ended.
            let _ = metrics.send(managed.clone());
        }
        if let Some(reload) = self.to_reload {
            let _ = reload.send(managed.clone());
        }
        // `RuntimeFolder::take` has logged why there is none.
        let _metrics = self.metrics_socket;
        let Some(folder) = folder else { return Serving { _metrics, _socket: None, _folder: None } };
        let path = folder.socket();
        let socket = match Socket::bind(&path, 0o600, "another target with this --file-prefix is running") {
            Ok((socket, listener)) => {
                let _ = self.to_socket.send((listener, managed));
                Some(socket)
            }
            Err(error) => {
                let path = path.display();
                tracing::warn!("rxe-ctl cannot reach this target: its socket {path} cannot be created: {error}");
                None
            }
        };
        Serving { _metrics, _socket: socket, _folder: Some(folder) }
    }
}

/// Reloads the configuration file on each signal. Returns where to send the target.
fn reload_on(hang_up: HangUp) -> Result<Sender<Managed>, CliError> {
    let (sender, from_main): (_, Receiver<Managed>) = channel();
    spawn("rxe-reload", move || {
        let Ok(managed) = from_main.recv() else { return };
        while hang_up.wait() {
            if let Err(why) = reload::reload(&managed) {
                tracing::error!("SIGHUP: {why}");
            }
        }
    })?;
    Ok(sender)
}

/// Listens at `address`. Returns where to send what is served, and the socket in the file system, if it is one.
fn listen_for_scrapes(
    address: &MetricsAddress,
    stats: &ManagementStats,
) -> Result<(Sender<Managed>, Option<Socket>), CliError> {
    let listening = match address {
        MetricsAddress::Tcp(address) => TcpListener::bind(address).map(|listener| {
            let sender = serve_metrics(stats, move || listener.accept().map(|(stream, _)| stream));
            (sender, None)
        }),
        // Whoever may enter the folder may read the metrics, as whoever reaches an address.
        MetricsAddress::Unix(path) => Socket::bind(path, 0o666, "a process listens there").map(|(socket, listener)| {
            let sender = serve_metrics(stats, move || listener.accept().map(|(stream, _)| stream));
            (sender, Some(socket))
        }),
    };
    match listening {
        Ok((sender, socket)) => Ok((sender?, socket)),
        Err(error) => cli_error!(
            "the metrics cannot be served at {address} ({}): choose another address with --metrics",
            sentence(&error)
        ),
    }
}

fn serve_metrics<S: Stream>(
    stats: &ManagementStats,
    accept: impl Fn() -> io::Result<S> + Send + 'static,
) -> Result<Sender<Managed>, CliError> {
    let (sender, from_main): (_, Receiver<Managed>) = channel();
    let clients = Clients::new(Deadlines::DEFAULT, Arc::clone(&stats.metrics));
    spawn("rxe-metrics", move || {
        let Ok(managed) = from_main.recv() else { return };
        clients.serve_all("rxe-metrics", accept, move |client| {
            http::serve(client, || metrics::text(&managed));
        });
    })?;
    Ok(sender)
}

/// A system error without errno's number.
fn sentence(error: &io::Error) -> String {
    error.to_string().split(" (os error").next().unwrap_or_default().to_owned()
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), CliError> {
    match thread::Builder::new().name(name.to_owned()).spawn(work) {
        Ok(_) => Ok(()),
        Err(error) => cli_error!("the thread {name} cannot be started ({}): allow more threads", sentence(&error)),
    }
}
