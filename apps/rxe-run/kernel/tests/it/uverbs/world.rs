//! Two adapters and the link between them, in memory, with virtual time.

use std::net::{IpAddr, Ipv4Addr};

use nix::errno::Errno;
use rxe_proto::transport::{Engine, EngineConfig, Qpn};
use rxe_proto::wire::{Frame, Gid, PathMtu, TxFrames, classify};
use rxe_proto::{Duration, Instant};
use rxe_uverbs::local::Local;
use rxe_uverbs::uverbs::{Mapped, Uverbs};

/// One adapter.
pub struct Side {
    pub uverbs: Uverbs,
    pub engine: Engine,
    pub local: Local,
    pub now: Instant,
}

impl Side {
    fn new(number: u8, config: &EngineConfig) -> Side {
        let config = EngineConfig { worker: number, seed: [number + 1; 32], ..config.clone() };
        let config = Uverbs::engine_config(config);
        let address = IpAddr::from(Ipv4Addr::new(127, 0, 0, 2 + number));
        let local = Local {
            address,
            gids: vec![Gid::from(address); 2],
            interface: "lo".into(),
            ifindex: 1,
            path_mtu: PathMtu::Mtu4096,
            node_guid: 0x0200_00FF_FE00_0000 + u64::from(number),
        };
        let engine = Engine::new(config);
        Side { uverbs: Uverbs::new(local.clone(), engine.config()), engine, local, now: Instant::ZERO }
    }

    /// The GID that its packets come from.
    pub fn gid(&self) -> Gid {
        self.local.gids[1]
    }

    /// One `write` to the device.
    pub fn write(&mut self, context: u32, bytes: &[u8]) -> Result<(), Errno> {
        self.uverbs.command(&mut self.engine, self.now, context, bytes, Mapped::of_command(bytes))
    }

    /// The work of the engine's owner after each turn.
    pub fn finish_turn(&mut self) {
        while let Some(event) = self.engine.poll_event() {
            self.uverbs.async_event(&mut self.engine, event);
        }
        self.uverbs.deliver(&mut self.engine);
    }
}

/// Sides 0 and 1, and what the link does to packets.
pub struct World {
    pub sides: [Side; 2],
    /// One of so many packets is lost; 0 loses none. Not at regular intervals: what is repeated could lose the same packet each time.
    pub lose_every: u64,
    packets: u64,
}

impl World {
    pub fn new() -> World {
        World::with(&EngineConfig::default())
    }

    pub fn with(config: &EngineConfig) -> World {
        World { sides: [Side::new(0, config), Side::new(1, config)], lose_every: 0, packets: 0 }
    }

    /// Moves what both sides have to send, once; without any, goes on to the next deadline. False when nothing is left to
    /// happen.
    pub fn turn(&mut self) -> bool {
        let mut moved = false;
        let mut sent = [TxFrames::default(), TxFrames::default()];
        for (side, tx) in self.sides.iter_mut().zip(&mut sent) {
            moved |= side.uverbs.pull_sends(&mut side.engine);
            moved |= side.engine.transmit(side.now, tx) > 0;
        }
        for (from, tx) in sent.into_iter().enumerate() {
            for (port, frame) in tx.frames {
                self.packets += 1;
                let draw = self.packets.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
                if self.lose_every != 0 && draw.is_multiple_of(self.lose_every) {
                    continue;
                }
                // A packet whose memory has gone while it was written is made void.
                let Ok(Frame::Roce(packet)) = classify(&frame) else { continue };
                let to = match packet.dst_gid() {
                    gid if gid.ip().is_multicast() => 1 - from,
                    gid => self.sides.iter().position(|side| side.gid() == gid).expect("an address of the two sides"),
                };
                let side = &mut self.sides[to];
                side.uverbs.pull_receives(&mut side.engine, Qpn::new(packet.dest_qp()));
                side.engine.receive(side.now, port, &packet);
            }
        }
        self.sides.iter_mut().for_each(Side::finish_turn);
        let deadline = self.sides.iter().filter_map(|side| side.engine.next_timeout()).min();
        let later = self.sides[0].now + Duration::from_micros(1);
        let now = if moved { later } else { deadline.map_or(later, |at| at.max(later)) };
        for side in &mut self.sides {
            side.now = now;
            side.engine.handle_timeout(now);
        }
        moved || deadline.is_some()
    }

    /// Turns until `done` says so.
    pub fn run(&mut self, mut done: impl FnMut(&mut World) -> bool) {
        for _ in 0..100_000 {
            if done(self) {
                return;
            }
            self.turn();
        }
        panic!("it never came");
    }

    /// Turns until nothing is left to happen.
    pub fn settle(&mut self) {
        for _ in 0..100_000 {
            if !self.turn() {
                return;
            }
        }
        panic!("it never ends");
    }
}
