//! Two devices and the link between them, in memory: the owner's part of every example.

// Each example uses its own part.
#![allow(dead_code)]

use std::error::Error;
use std::net::Ipv4Addr;

use rxe_proto::verbs::{Adapter, CompletionQueue, Engine, EngineConfig, WorkCompletion};
use rxe_proto::wire::{Frame, Gid, MacAddr, Path, TxFrames, classify};
use rxe_proto::{Duration, Instant};

/// Error of an example.
pub type Failure = Box<dyn Error>;

/// Ends 0 and 1 of a link. A frame that one writes arrives at the other a microsecond later, except those that are
/// lost.
pub struct Link {
    engines: [Engine; 2],
    now: Instant,
    frames: u64,
    lose_every: Option<u64>,
}

impl Link {
    /// A link that loses every `lose_every`th frame, if that is given.
    pub fn new(lose_every: Option<u64>) -> Link {
        Link::with_config(lose_every, &EngineConfig::default())
    }

    /// Such a link between engines with these settings, which need neither worker nor seed.
    pub fn with_config(lose_every: Option<u64>, config: &EngineConfig) -> Link {
        let engine = |worker| Engine::new(EngineConfig { worker, seed: [worker + 1; 32], ..config.clone() });
        Link { engines: [engine(0), engine(1)], now: Instant::ZERO, frames: 0, lose_every }
    }

    /// The device at `end`.
    pub fn device(&mut self, end: usize) -> Adapter<'_> {
        Adapter::new(&mut self.engines[end], self.now)
    }

    /// The address of `end`.
    pub fn gid(end: usize) -> Gid {
        Gid::from(Ipv4Addr::new(10, 0, 0, 1 + end as u8))
    }

    /// The path from `end` to the other one.
    pub fn path(end: usize) -> Path {
        let mac = |end: usize| MacAddr([2, 0, 0, 0, 0, 1 + end as u8]);
        let (src, dst) = (Link::gid(end), Link::gid(1 - end));
        Path { src_mac: mac(end), dst_mac: mac(1 - end), src, dst, ..Path::default() }
    }

    /// Frames written by both ends.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Moves all frames that the ends have to send, once. When there are none, goes on to the next deadline. False when
    /// nothing is left to happen.
    pub fn turn(&mut self) -> bool {
        let mut moved = false;
        let mut tx = [TxFrames::default(), TxFrames::default()];
        for (engine, tx) in self.engines.iter_mut().zip(&mut tx) {
            moved |= engine.transmit(self.now, tx) > 0;
        }
        self.now += Duration::from_micros(1);
        for (end, tx) in tx.into_iter().enumerate() {
            for (port, frame) in tx.frames {
                self.frames += 1;
                if self.lose_every.is_some_and(|every| self.frames.is_multiple_of(every)) {
                    continue;
                }
                // Other frames would go to the host stack.
                if let Ok(Frame::Roce(packet)) = classify(&frame) {
                    self.engines[1 - end].receive(self.now, port, &packet);
                }
            }
        }
        let deadline = self.engines.iter().filter_map(Engine::next_timeout).min();
        if let Some(at) = deadline.filter(|&at| !moved || at <= self.now) {
            self.now = self.now.max(at);
            self.engines.iter_mut().for_each(|engine| engine.handle_timeout(self.now));
            moved = true;
        }
        moved
    }

    /// The next completion in `cq` at `end`.
    ///
    /// # Errors
    /// When the work request failed, and when nothing is left that could bring a completion.
    pub fn completion(&mut self, end: usize, cq: CompletionQueue) -> Result<WorkCompletion, Failure> {
        loop {
            if let Some(wc) = self.device(end).poll_cq_one(cq) {
                return Ok(wc.success().map_err(|status| format!("end {end}, work request {}: {status}", wc.wr_id))?);
            }
            if !self.turn() {
                return Err(format!("end {end} waits for a completion that never comes").into());
            }
        }
    }
}
