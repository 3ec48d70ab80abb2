//! Plays the server of ib_write_lat on a client's queue pair; the rules are in [`write_lat`](super::write_lat).

use std::net::IpAddr;

use rxe_proto::verbs::{
    Access, AnyQueuePair, Device, MemoryRegion, QpError, QpErrorCause, Rc, RemoteAddr, Sge, Transition, Uc, WcOpcode,
    WorkCompletion, WorkRequest,
};
use rxe_proto::wire::Psn;
use rxe_proto::{Duration, Instant};
use rxe_service::{Context, Lease, Standing};

use super::account::Account;
use super::refusals::{not_write_lat, unknown_write_lat_size};
use super::test_qp::{PEER_ACCESS, Sink};
use super::write_lat::{BLANK, Rally, Stroke, longer};
use crate::services::out_of_band::Peer;

/// An RC client's adapter acknowledges the first WRITE at once. One that does not within this time is UC.
const ACKNOWLEDGED: Duration = Duration::from_millis(200);
/// After this idle time the client may have switched to twice the size.
const SILENCE: Duration = Duration::from_secs(1);
/// After this idle time the messages of a client that has not written yet are longer than ours.
const LONGER: Duration = Duration::from_secs(3);

/// Stage of the test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// The first WRITE is outstanding, on an RC queue pair.
    Rc { since: Instant },
    /// The client receives our WRITEs, of `extent` bytes at most. Its own first one shows the size.
    Served { since: Instant, extent: usize },
    /// Both ends write by turns.
    Rally { rally: Rally, since: Instant, beyond: bool },
}

/// The server of one ib_write_lat client.
pub struct FirstWriter {
    qp: AnyQueuePair,
    /// Source of our WRITEs.
    source: MemoryRegion,
    lease: Lease,
    remote: RemoteAddr,
    first: usize,
    stage: Stage,
    /// Messages written.
    pub strokes: u64,
    /// The client has not written to any WRITE that its memory here allows.
    pub is_exhausted: bool,
}

impl FirstWriter {
    /// Posts the first WRITE, of `first` bytes, for `client`. Its source is memory that
    /// [`close`](FirstWriter::close) gives back.
    pub fn start(
        cx: &mut Context<'_>,
        account: &Account,
        client: IpAddr,
        qp: AnyQueuePair,
        sink: &Sink,
        remote: RemoteAddr,
        first: usize,
    ) -> Result<FirstWriter, String> {
        // Its WRITEs show that it is there.
        let lease = account.lend(cx, client, sink.region.len() as usize, Standing::Proven)?;
        let source = match cx.device().reg_mr(sink.pd, lease.memory().clone(), Access::LOCAL_WRITE) {
            Ok(source) => source,
            Err(error) => {
                cx.take_back(lease);
                return Err(error.to_string());
            }
        };
        let stage = Stage::Rc { since: cx.now() };
        let mut writer = FirstWriter { qp, source, lease, remote, first, stage, strokes: 0, is_exhausted: false };
        let target = sink.region.memory();
        let started = target
            .fill(0, target.len(), BLANK)
            .and_then(|()| writer.source.memory().fill(0, first, 1))
            .map_err(|error| error.to_string())
            .and_then(|()| writer.write(cx, 0, first));
        match started {
            Ok(()) => Ok(writer),
            Err(error) => {
                writer.close(cx);
                Err(error)
            }
        }
    }

    /// Posts a WRITE of `length` bytes at `offset` of both ends' buffers.
    fn write(&mut self, cx: &mut Context<'_>, offset: usize, length: usize) -> Result<(), String> {
        let remote = RemoteAddr { addr: self.remote.addr + offset as u64, ..self.remote };
        let sge = Sge { addr: self.source.addr() + offset as u64, length: length as u32, lkey: self.source.lkey() };
        let sges = [sge];
        let wr = WorkRequest::<Rc>::write(&sges, remote).signaled();
        cx.device().post_send(self.qp, wr.into()).map_err(|error| error.to_string())?;
        self.strokes += 1;
        Ok(())
    }

    fn stroke(&mut self, cx: &mut Context<'_>, stroke: Stroke) -> Result<(), String> {
        let Stroke { size, counter } = stroke;
        self.source.memory().write(size - 1, &[counter]).map_err(|error| error.to_string())?;
        self.write(cx, 0, size)
    }

    /// Handles the completion of a WRITE.
    pub fn completed(&mut self, now: Instant, wc: &WorkCompletion) {
        if wc.opcode == WcOpcode::RdmaWrite && matches!(self.stage, Stage::Rc { .. }) {
            self.stage = self.served(now);
        }
    }

    /// The stage after the first WRITE.
    fn served(&self, now: Instant) -> Stage {
        Stage::Served { since: now, extent: self.first }
    }

    /// Why the client's adapter has refused a WRITE, unless that is no surprise. The client was silent for `silence` before
    /// the first one.
    pub fn refusal(&self, cause: QpErrorCause, silence: Duration) -> Option<String> {
        if !matches!(cause, QpErrorCause::PeerAccess | QpErrorCause::PeerInvalidRequest) {
            return None;
        }
        match self.stage {
            Stage::Rc { .. } => Some(not_write_lat(silence)),
            Stage::Served { extent, .. } if extent > self.first => Some(unknown_write_lat_size(self.first)),
            // It has finished, and its memory is no longer there.
            _ => None,
        }
    }

    /// Starts again with a UC queue pair, as the client does not acknowledge like RC.
    pub fn begin_again(&mut self, cx: &mut Context<'_>, peer: &Peer, psn: Psn) -> Result<(), String> {
        self.stage = self.served(cx.now());
        self.reconnect_as_uc(&mut cx.device(), peer, psn).map_err(|error| error.to_string())?;
        self.write(cx, 0, self.first)
    }

    fn reconnect_as_uc(&self, dev: &mut Device<'_>, peer: &Peer, psn: Psn) -> Result<(), QpError> {
        dev.modify_qp(self.qp, Transition::to_reset())?;
        let qp = dev.set_qp_type::<Uc>(self.qp)?;
        dev.modify_qp(qp, Transition::to_init(PEER_ACCESS))?;
        peer.connect(dev, qp, psn)
    }

    /// Whether the first WRITE is not acknowledged yet.
    pub fn is_unanswered(&self) -> bool {
        matches!(self.stage, Stage::Rc { .. })
    }

    /// Polls the memory and posts the next WRITE if it is due. Call it in each iteration of the worker's loop. `told` is the
    /// client's queue pair and our first PSN, where the client may be UC.
    pub fn poll(&mut self, cx: &mut Context<'_>, told: Option<(&Peer, Psn)>, sink: &Sink) -> Result<(), String> {
        let memory = sink.region.memory();
        let byte = |at: usize| {
            let mut byte = [BLANK];
            // The offset is inside: it is below the limit.
            let _ = memory.read(at, &mut byte);
            byte[0]
        };
        let now = cx.now();
        let moved = match self.stage {
            Stage::Rally { rally, since, beyond } => {
                let limit = memory.len();
                let silent = now.saturating_since(since) >= SILENCE;
                if silent && !beyond && rally.beyond() < limit {
                    self.stage = Stage::Rally { rally, since: now, beyond: true };
                    self.source.memory().write(rally.beyond(), &[1]).map_err(|error| error.to_string())?;
                    return self.write(cx, rally.beyond(), 1);
                }
                rally.look(limit, byte)
            }
            Stage::Rc { since } if byte(0) == BLANK && now.saturating_since(since) >= ACKNOWLEDGED => {
                return match told {
                    Some((peer, psn)) => self.begin_again(cx, peer, psn),
                    None => Ok(()),
                };
            }
            Stage::Served { since, extent } if byte(0) == BLANK => {
                if now.saturating_since(since) < LONGER || self.is_exhausted {
                    return Ok(());
                }
                let longer = longer(extent);
                self.is_exhausted = longer > memory.len();
                if self.is_exhausted {
                    return Ok(());
                }
                self.stage = Stage::Served { since: now, extent: longer };
                self.source.memory().write(longer - 1, &[1]).map_err(|error| error.to_string())?;
                return self.write(cx, longer - 1, 1);
            }
            Stage::Served { extent, .. } => Rally::find(self.first, extent, byte),
            Stage::Rc { .. } if byte(0) == BLANK => None,
            Stage::Rc { .. } => Rally::find(self.first, self.first, byte),
        };
        match moved {
            Some((rally, stroke)) => {
                self.stage = Stage::Rally { rally, since: now, beyond: false };
                self.stroke(cx, stroke)
            }
            None => Ok(()),
        }
    }

    /// Deregisters the source and gives its memory back.
    pub fn close(self, cx: &mut Context<'_>) {
        let _ = cx.device().dereg_mr(&self.source);
        cx.take_back(self.lease);
    }
}
