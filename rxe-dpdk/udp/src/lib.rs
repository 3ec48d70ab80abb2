//! A RoCEv2 port on an ordinary kernel UDP socket.
//!
//! RoCEv2 packets are UDP datagrams to port 4791, so a program without privileges can exchange them with any other end: a program
//! on the same machine, `rxe-target`, the rxe of a Linux kernel, or a network card. Routing, ARP and neighbour discovery are the
//! kernel's. [`UdpPort`] is the port of an engine of [`rxe_proto`] at one IPv4 or IPv6 address: a queue of frames to transmit, and
//! bursts of received frames. The engine reads and writes whole frames, so the port writes Ethernet, IP and UDP headers in front of
//! what the kernel delivers, and sends what is behind them in the engine's frames. UDP port 4791 of an address belongs to one socket,
//! so each program of a machine needs an address of its own; on the loopback interface there are 127.0.0.2, 127.0.0.3 and so on.
//!
//! ```text
//!      ┌────────────────────────────────── one turn ──────────────────────────────────┐
//!      │                                                                              │
//!   wait ──> receive ──> next_frame ──> classify ──> Engine::receive ──> Engine::transmit ──> flush
//!  ppoll     recvmmsg     headers, identification                            UdpTx: stage     ICRCs, sendmmsg
//! ```
//!
//! ```no_run
//! use rxe_proto::Instant;
//! use rxe_proto::verbs::{Engine, EngineConfig};
//! use rxe_proto::wire::{Frame, PortId, ROCE_UDP_PORT, classify};
//! use rxe_udp::{UdpConfig, UdpPort};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut port = UdpPort::open(UdpConfig::new("127.0.0.2".parse()?))?;
//! let mut engine = Engine::new(EngineConfig { udp_src_port: Some(ROCE_UDP_PORT), ..EngineConfig::default() });
//! let start = std::time::Instant::now();
//! let now = || Instant::from_nanos(start.elapsed().as_nanos() as u64);
//! loop {
//!     let mut burst = port.receive();
//!     while let Some(frame) = burst.next_frame() {
//!         if let Ok(Frame::Roce(packet)) = classify(frame) {
//!             engine.receive(now(), PortId(0), &packet);
//!         }
//!     }
//!     engine.handle_timeout(now());
//!     engine.transmit(now(), port.tx());
//!     port.tx().flush();
//!     // While frames are staged, because the kernel accepts no more, the wait ends when there is room for them.
//!     if !engine.wants_transmit() || port.tx().waiting() > 0 {
//!         port.wait(engine.next_timeout().map(|at| at - now()))?;
//!     }
//! }
//! # }
//! ```
//!
//! # Frames to send
//!
//! The ICRC covers fields that the kernel writes, so a frame must have what the kernel writes: UDP source port 4791
//! ([`EngineConfig::udp_src_port`](rxe_proto::verbs::EngineConfig::udp_src_port), and for MADs the parameter of
//! [`write_mad`](rxe_proto::cm::write_mad)), which the socket is bound to, IPv4 identification 0 and the flag "don't fragment". A
//! [`Path`](rxe_proto::wire::Path) has no VLAN; its MAC addresses do not matter, and the kernel chooses the IPv6 flow label. Its
//! traffic class and hop limit become the packet's.
//!
//! # Multicast
//!
//! A port receives the datagrams to the groups that it has [joined](UdpReceiver::join) on its interface. As with Linux's rxe these
//! include its own, and other programs of the machine that have joined the group receive them, too.
//!
//! # Identifications
//!
//! Linux's rxe and network cards number their IPv4 packets. The socket does not show these identifications, but the ICRC covers
//! them. The port computes them from the ICRC, which then finds a damaged packet with a probability of 1 - 2^-15 instead of
//! 1 - 2^-32; `identification_recovered` of [`UdpStats`] counts such packets, and
//! [`recover_identification`](UdpConfig::recover_identification) switches this off. Of a peer that sends identification 0, as this
//! port does, the first packets, those to queue pair 1 and every eighth one are examined, and the others keep all 32 bits; IPv6
//! packets always do.
//!
//! # Cost
//!
//! A burst costs one system call in each direction; nothing is allocated per packet. The kernel's path of a UDP datagram costs more
//! than the engine. Packets of the same length to the same peer pass it together, as one datagram (`UDP_SEGMENT`, `UDP_GRO`), on the
//! loopback interface always, elsewhere to peers that send from UDP port 4791, as only sockets do. `cargo run --release -p rxe-udp --example pingpong` measures both.

mod config;
mod error;
mod frame;
pub mod host;
mod identification;
mod local;
mod options;
mod port;
mod rx;
mod segmentation;
mod socket;
mod stats;
mod tx;
mod wake;

pub use config::UdpConfig;
pub use error::{GroupError, OpenError, RouteError};
pub use local::{Interface, Route, route_to};
pub use port::{Routes, UdpPort, UdpReceiver};
pub use rx::{MAX_GROUPS, RxBurst};
pub use stats::UdpStats;
pub use tx::{Tap, UdpTx};
pub use wake::Waker;
