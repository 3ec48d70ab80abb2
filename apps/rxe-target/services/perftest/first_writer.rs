//! Plays the server of ib_write_lat on a client's queue pair; the rules are in [`write_lat`](super::write_lat).

use rxe_dpdk::service::Context;
use rxe_proto::verbs::{
    Access, AnyQueuePair, Device, MemoryRegion, QpError, Rc, RemoteAddr, Sge, Transition, Uc, WcOpcode, WorkCompletion,
    WorkRequest,
};
use rxe_proto::wire::Psn;
use rxe_proto::{Duration, Instant};

use super::test_qp::{PEER_ACCESS, Sink};
use super::write_lat::{BLANK, Rally, Stroke};
use crate::services::out_of_band::Peer;

/// An RC client's adapter acknowledges the first WRITE at once. One that does not within this time is UC.
const ACKNOWLEDGED: Duration = Duration::from_millis(200);
/// After this idle time the client may have switched to twice the size.
const SILENCE: Duration = Duration::from_secs(1);

/// Stage of the test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// The first WRITE is outstanding, on an RC queue pair.
    Rc { since: Instant },
    /// The client receives our WRITEs. Its own first one shows the size.
    Served,
    /// Both ends write by turns.
    Rally { rally: Rally, since: Instant, beyond: bool },
}

/// The server of one ib_write_lat client.
pub struct FirstWriter {
    qp: AnyQueuePair,
    /// Source of our WRITEs.
    source: MemoryRegion,
    remote: RemoteAddr,
    first: usize,
    stage: Stage,
    /// Messages written.
    pub strokes: u64,
}

impl FirstWriter {
    /// Posts the first WRITE, of `first` bytes.
    pub fn start(
        cx: &mut Context<'_>,
        qp: AnyQueuePair,
        sink: &Sink,
        remote: RemoteAddr,
        first: usize,
    ) -> Result<FirstWriter, String> {
        let memory = cx.alloc_memory(sink.region.len() as usize).map_err(|error| error.to_string())?;
        let source = cx.device().reg_mr(sink.pd, memory, Access::LOCAL_WRITE).map_err(|error| error.to_string())?;
        let stage = Stage::Rc { since: cx.now() };
        let mut writer = FirstWriter { qp, source, remote, first, stage, strokes: 0 };
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
    pub fn completed(&mut self, wc: &WorkCompletion) {
        if wc.opcode == WcOpcode::RdmaWrite && matches!(self.stage, Stage::Rc { .. }) {
            self.stage = Stage::Served;
        }
    }

    /// Starts again with a UC queue pair, as the client does not acknowledge like RC.
    pub fn begin_again(&mut self, cx: &mut Context<'_>, peer: &Peer, psn: Psn) -> Result<(), String> {
        self.stage = Stage::Served;
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
            _ if byte(0) == BLANK => None,
            _ => Rally::find(self.first, byte),
        };
        match moved {
            Some((rally, stroke)) => {
                self.stage = Stage::Rally { rally, since: now, beyond: false };
                self.stroke(cx, stroke)
            }
            None => Ok(()),
        }
    }

    /// Deregisters the source.
    pub fn close(&self, cx: &mut Context<'_>) {
        let _ = cx.device().dereg_mr(&self.source);
    }
}
