//! One client's queue pairs, memory and keys, and what its lines do with them.

use std::collections::VecDeque;
use std::time::Duration;

use rxe_dpdk::rxe_proto::verbs::{
    Access, AddressHandle, AnyQueuePair, AnyWorkRequest, AsyncEvent, FastRegMr, MemoryRegion, MemoryWindow, Payload,
    ProtectionDomain, QpCaps, QpTransition, QpType, Qpn, RecvWr, RemoteAddr, RtrAttr, RtsAttr, SendOp, Sge,
    SharedReceiveQueue, SrqAttr, SrqInitAttr, Ud, UdAttr, WcOpcode, WcStatus, WindowBind, WindowKind, WorkCompletion,
};
use rxe_dpdk::rxe_proto::wire::{Gid, Path, PathMtu, Psn, udp_source_port, udp_source_port_ud};
use rxe_dpdk::service::{Context, PeerPath};

use crate::line::{Line, hex, pattern, read};

/// Length of the buffer.
const BUFFER: usize = 1 << 20;
const CAPS: QpCaps =
    QpCaps { max_send_wr: 32, max_recv_wr: 32, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 512 };
/// A client's access to our memory.
const REMOTE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);
/// READs and atomics outstanding, in both directions.
const DEPTH: u8 = 16;
/// How long a client waits for a completion or event.
const PATIENCE: Duration = Duration::from_secs(20);

/// The answer to a line: fields, now or later.
type Answer = Result<Option<String>, String>;

struct Qp {
    qp: AnyQueuePair,
    qp_type: QpType,
    /// Its receives are those of the shared receive queue.
    shared: bool,
    /// The client's queue pair, and for datagrams the way to it.
    peer: Qpn,
    ah: Option<AddressHandle>,
}

/// The event that a line waits for.
enum Waiting {
    Path(Open),
    Completion,
    Event,
}

/// A queue pair to make when the way to the client is known.
struct Open {
    qp_type: QpType,
    peer: Qpn,
    psn: Psn,
    path_mtu: PathMtu,
    qkey: u32,
    shared: bool,
}

/// See the [module](self).
pub struct Session {
    input: Vec<u8>,
    pd: ProtectionDomain,
    region: MemoryRegion,
    qps: Vec<Qp>,
    srq: Option<SharedReceiveQueue>,
    windows: Vec<MemoryWindow>,
    fast_regions: Vec<FastRegMr>,
    completions: VecDeque<WorkCompletion>,
    events: VecDeque<String>,
    waiting: Option<(u64, Waiting)>,
}

impl Session {
    /// A session with its buffer and nothing else.
    pub fn new(cx: &mut Context<'_>) -> Result<Session, String> {
        let pd = cx.device().alloc_pd();
        let memory = cx.alloc_memory(BUFFER).map_err(|error| error.to_string())?;
        let access = REMOTE | Access::LOCAL_WRITE | Access::MW_BIND;
        let region = cx.device().reg_mr(pd, memory, access).map_err(|error| error.to_string())?;
        Ok(Session {
            input: Vec::new(),
            pd,
            region,
            qps: Vec::new(),
            srq: None,
            windows: Vec::new(),
            fast_regions: Vec::new(),
            completions: VecDeque::new(),
            events: VecDeque::new(),
            waiting: None,
        })
    }

    /// Bytes from the client.
    pub fn received(&mut self, data: &[u8]) {
        self.input.extend_from_slice(data);
    }

    /// The next line, unless one still waits for its answer.
    pub fn next_line(&mut self) -> Option<String> {
        let end = self.input.iter().position(|&byte| byte == b'\n').filter(|_| self.waiting.is_none())?;
        let line: Vec<u8> = self.input.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line).trim().to_owned())
    }

    /// Whether a queue pair is the session's.
    pub fn has_qp(&self, qpn: Qpn) -> bool {
        self.qps.iter().any(|qp| qp.qp.qpn() == qpn)
    }

    /// Whether an event is of something of the session's.
    pub fn has_subject(&self, event: &AsyncEvent) -> bool {
        match *event {
            AsyncEvent::SrqLimitReached { srq } => self.srq == Some(srq.into()),
            // The completion queue is the service's, for all of its sessions.
            AsyncEvent::CqError { .. } => false,
            AsyncEvent::CommunicationEstablished { qpn }
            | AsyncEvent::QpError { qpn, .. }
            | AsyncEvent::SendQueueDrained { qpn }
            | AsyncEvent::LastWqeReached { qpn } => self.has_qp(qpn),
        }
    }

    /// Whether the line that waits has this token.
    pub fn waits_for(&self, token: u64) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.0 == token)
    }

    /// The line that waits has waited long enough.
    pub fn too_late(&mut self) -> String {
        self.waiting = None;
        format!("nothing within {} s", PATIENCE.as_secs())
    }

    /// A work request completed.
    pub fn completed(&mut self, wc: &WorkCompletion) -> Option<Result<String, String>> {
        self.completions.push_back(*wc);
        self.waiting.take_if(|waiting| matches!(waiting.1, Waiting::Completion))?;
        self.next_completion().map(Ok)
    }

    /// Something happened to the session's queue pairs or shared receive queue.
    pub fn happened(&mut self, event: &AsyncEvent) -> Option<Result<String, String>> {
        let (name, qpn, cause) = match *event {
            AsyncEvent::CommunicationEstablished { .. } | AsyncEvent::CqError { .. } => return None,
            AsyncEvent::QpError { qpn, cause } => ("qp_error", Some(qpn), format!(" cause={cause}")),
            AsyncEvent::SendQueueDrained { qpn } => ("drained", Some(qpn), String::new()),
            AsyncEvent::LastWqeReached { qpn } => ("last_wqe", Some(qpn), String::new()),
            AsyncEvent::SrqLimitReached { .. } => ("srq_limit", None, String::new()),
        };
        let qp = qpn.map(|qpn| format!(" qp={}", self.number(qpn))).unwrap_or_default();
        self.events.push_back(format!(" event={name}{qp}{cause}"));
        self.waiting.take_if(|waiting| matches!(waiting.1, Waiting::Event))?;
        self.events.pop_front().map(Ok)
    }

    /// The way to the client is known, or that there is none.
    pub fn path_resolved(&mut self, cx: &mut Context<'_>, path: Option<&PeerPath>) -> Option<Result<String, String>> {
        let (_, Waiting::Path(open)) = self.waiting.take()? else { return None };
        Some(match path {
            Some(path) => self.open(cx, &open, path.path.clone()),
            None => Err("there is no way to the GID".to_owned()),
        })
    }

    /// Carries out a line. `token` is the number of what it may have to wait for.
    pub fn execute(&mut self, cx: &mut Context<'_>, line: &str, token: u64) -> Answer {
        let line = Line::parse(line);
        let nothing = Ok(Some(String::new()));
        let memory = self.region.memory();
        match line.word {
            "open" => {
                let open = Session::wanted(&line)?;
                cx.resolve_path(Gid(line.gid()?).ip(), token);
                self.waiting = Some((token, Waiting::Path(open)));
                return Ok(None);
            }
            "wc" => return Ok(self.next_completion().or_else(|| self.wait(cx, token, Waiting::Completion))),
            "event" => return Ok(self.events.pop_front().or_else(|| self.wait(cx, token, Waiting::Event))),
            "srq" => {
                let attr = SrqInitAttr { max_wr: line.number("max")?, max_sge: 4, srq_limit: 0 };
                self.srq = Some(cx.device().create_srq(self.pd, attr).map_err(|error| error.to_string())?);
            }
            "limit" => {
                let srq = self.srq.ok_or("there is no shared receive queue")?;
                cx.device().modify_srq(srq, SrqAttr::limit(line.number("n")?)).map_err(|error| error.to_string())?;
            }
            "recv" => {
                let sges = self.sges(&line)?;
                let wr = RecvWr { wr_id: line.number("id")?, sges: &sges };
                let qp = self.qp(&line)?;
                let posted = match self.srq.filter(|_| qp.shared) {
                    Some(srq) => cx.device().post_srq_recv(srq, wr),
                    None => cx.device().post_recv(qp.qp, wr),
                };
                posted.map_err(|error| error.to_string())?;
            }
            "post" => self.post(cx, &line)?,
            "fill" => {
                let mut next = pattern(line.number("seed")?);
                for piece in line.pieces(BUFFER)? {
                    let bytes: Vec<u8> = (0..piece.length).map(|_| next()).collect();
                    memory.write(piece.offset, &bytes).map_err(|error| error.to_string())?;
                }
            }
            "check" => {
                let (mut next, mut at) = (pattern(line.number("seed")?), 0);
                for piece in line.pieces(BUFFER)? {
                    for have in read(memory, piece)? {
                        let want = next();
                        if have != want {
                            return Err(format!("byte {at} is {have:#04x}, not {want:#04x}"));
                        }
                        at += 1;
                    }
                }
            }
            "store" => {
                let stored = memory.store(line.number("off")?, line.number("value")?);
                stored.map_err(|error| error.to_string())?;
            }
            "load" => {
                let value = memory.load(line.number("off")?).map_err(|error| error.to_string())?;
                return Ok(Some(format!(" value={value}")));
            }
            "bytes" => {
                let mut bytes = vec![0; line.number::<usize>("len")?.min(256)];
                memory.read(line.number("off")?, &mut bytes).map_err(|error| error.to_string())?;
                return Ok(Some(format!(" bytes={}", hex(&bytes))));
            }
            "window" => {
                let kind = if line.text("type")? == "1" { WindowKind::Type1 } else { WindowKind::Type2 };
                let window = cx.device().alloc_mw(self.pd, kind).map_err(|error| error.to_string())?;
                self.windows.push(window);
                return Ok(Some(format!(" key={}", window.rkey())));
            }
            "fast" => {
                let [piece] = line.pieces(BUFFER)?[..] else { return Err("fast wants one piece".to_owned()) };
                let bytes = memory.slice(piece.offset, piece.length).ok_or("no such piece")?;
                let mut dev = cx.device();
                let region = dev.alloc_fast_reg_mr(self.pd, piece.length).map_err(|error| error.to_string())?;
                self.fast_regions.push(region);
                dev.map_fast_reg_mr(region, bytes).map_err(|error| error.to_string())?;
                return Ok(Some(format!(" key={}", region.rkey())));
            }
            "end" => self.end(cx)?,
            word => return Err(format!("{word} is no word here")),
        }
        nothing
    }

    /// Destroys everything but the session. An error when the client has not asked for all that happened.
    pub fn end(&mut self, cx: &mut Context<'_>) -> Result<(), String> {
        let mut dev = cx.device();
        // Windows go before the regions that they are bound to. An object that remains keeps the protection domain in use.
        for qp in self.qps.drain(..) {
            let _ = dev.destroy_qp(qp.qp);
            if let Some(ah) = qp.ah {
                let _ = dev.destroy_ah(ah);
            }
        }
        if let Some(srq) = self.srq.take() {
            let _ = dev.destroy_srq(srq);
        }
        for window in self.windows.drain(..) {
            let _ = dev.dealloc_mw(window);
        }
        for region in self.fast_regions.drain(..) {
            let _ = dev.dereg_fast_reg_mr(region);
        }
        let _ = dev.dereg_mr(&self.region);
        let freed = dev.dealloc_pd(self.pd);
        let (completions, events) = (self.completions.len(), self.events.len());
        if completions + events > 0 {
            return Err(format!("{completions} completions and {events} events that nobody asked for"));
        }
        freed.map_err(|error| error.to_string())
    }

    fn wait(&mut self, cx: &mut Context<'_>, token: u64, waiting: Waiting) -> Option<String> {
        cx.set_timer(PATIENCE, token);
        self.waiting = Some((token, waiting));
        None
    }

    fn wanted(line: &Line<'_>) -> Result<Open, String> {
        let mtu: usize = line.number("mtu")?;
        Ok(Open {
            qp_type: match line.text("type")? {
                "rc" => QpType::Rc,
                "uc" => QpType::Uc,
                "ud" => QpType::Ud,
                other => return Err(format!("type={other} is neither rc, uc nor ud")),
            },
            peer: Qpn::new(line.number("qpn")?),
            psn: Psn::new(line.number("psn")?),
            path_mtu: PathMtu::at_most(mtu).filter(|m| m.bytes() == mtu).ok_or(format!("mtu={mtu} is no path MTU"))?,
            qkey: line.number("qkey")?,
            shared: line.flag("srq"),
        })
    }

    fn open(&mut self, cx: &mut Context<'_>, open: &Open, mut path: Path) -> Result<String, String> {
        let Open { qp_type, peer, path_mtu, .. } = *open;
        let (attr, sq_psn) = (cx.qp_attr().with_caps(CAPS), cx.random_psn());
        let attr = if open.shared { attr.with_srq(self.srq.ok_or("there is no shared receive queue")?) } else { attr };
        let mut dev = cx.device();
        let qp = dev.create_qp_of_type(self.pd, qp_type, attr).map_err(|error| error.to_string())?;
        self.qps.push(Qp { qp, qp_type, shared: open.shared, peer, ah: None });
        let (qpn, gid) = (qp.qpn(), path.src);
        if qp_type == QpType::Ud {
            path.udp_src_port = udp_source_port_ud(qpn.get());
            let ah = dev.create_ah(self.pd, &path).map_err(|error| error.to_string())?;
            self.qps.iter_mut().filter(|other| other.qp == qp).for_each(|this| this.ah = Some(ah));
            let attr = UdAttr { port: path.port, qkey: open.qkey, path_mtu, sq_psn };
            let opened = qp.downcast::<Ud>(&dev).and_then(|qp| qp.open(&mut dev, attr));
            opened.map_err(|error| error.to_string())?;
        } else {
            path.udp_src_port = udp_source_port(0, qpn.get(), peer.get());
            let rtr = RtrAttr {
                path,
                path_mtu,
                dest_qpn: peer,
                rq_psn: open.psn,
                max_dest_rd_atomic: DEPTH,
                min_rnr_timer: 12,
            };
            let rts = RtsAttr { sq_psn, timeout: 14, retry_cnt: 7, rnr_retry: 7, max_rd_atomic: DEPTH };
            let access = REMOTE;
            for transition in [QpTransition::ToInit { access }, QpTransition::ToRtr(rtr), QpTransition::ToRts(rts)] {
                dev.modify_qp(qp, transition.into()).map_err(|error| error.to_string())?;
            }
        }
        let (psn, addr, rkey) = (sq_psn.get(), self.region.addr(), self.region.rkey());
        Ok(format!(" gid={} qpn={} psn={psn} addr={addr} rkey={rkey}", hex(&gid.0), qpn.get()))
    }

    fn qp(&self, line: &Line<'_>) -> Result<&Qp, String> {
        let number = line.optional("qp")?.unwrap_or(0);
        self.qps.get(number).ok_or_else(|| format!("there is no queue pair {number}"))
    }

    fn number(&self, qpn: Qpn) -> usize {
        self.qps.iter().position(|qp| qp.qp.qpn() == qpn).unwrap_or(usize::MAX)
    }

    fn sges(&self, line: &Line<'_>) -> Result<Vec<Sge>, String> {
        Ok(line.pieces(BUFFER)?.into_iter().map(|piece| piece.sge(&self.region)).collect())
    }

    fn post(&self, cx: &mut Context<'_>, line: &Line<'_>) -> Result<(), String> {
        let qp = self.qp(line)?;
        let op = self.operation(qp, line)?;
        let local = matches!(
            op,
            SendOp::BindWindow { .. }
                | SendOp::FastRegister { .. }
                | SendOp::LocalInvalidate { .. }
                | SendOp::Invalid { .. }
                | SendOp::Flush { .. }
        );
        let sges = if local { Vec::new() } else { self.sges(line)? };
        let mut data = Vec::new();
        let payload = if line.flag("inline") {
            for piece in line.pieces(BUFFER)? {
                data.extend(read(self.region.memory(), piece)?);
            }
            Payload::Inline(&data)
        } else {
            Payload::Sges(&sges)
        };
        let mut wr = AnyWorkRequest::new(op, payload).wr_id(line.number("id")?).signaled();
        if line.flag("fence") {
            wr = wr.fence();
        }
        if line.flag("solicited") {
            wr = wr.solicited();
        }
        cx.device().post_send(qp.qp, wr).map_err(|error| error.to_string())
    }

    fn operation(&self, qp: &Qp, line: &Line<'_>) -> Result<SendOp, String> {
        let remote = || Ok::<_, String>(RemoteAddr { addr: line.number("at")?, rkey: line.number("key")? });
        let access = || line.number("access").map(Access::from_bits_truncate);
        let imm = line.optional("imm")?;
        Ok(match line.text("op")? {
            "send" if qp.qp_type == QpType::Ud => {
                let ah = qp.ah.ok_or("there is no address handle")?;
                SendOp::Datagram { ah: ah.id(), qpn: qp.peer, qkey: line.number("qkey")?, imm }
            }
            "send" => match line.optional("inv")? {
                Some(rkey) => SendOp::SendInvalidate { rkey },
                None => SendOp::Send { imm },
            },
            "write" => SendOp::Write { remote: remote()?, imm },
            "read" => SendOp::Read { remote: remote()? },
            "add" => SendOp::FetchAdd { remote: remote()?, add: line.number("add")? },
            "cas" => {
                SendOp::CompareSwap { remote: remote()?, compare: line.number("compare")?, swap: line.number("swap")? }
            }
            "atomic_write" => SendOp::AtomicWrite { remote: remote()? },
            "flush" => SendOp::Flush {
                remote: remote()?,
                length: line.number("len")?,
                whole_region: line.flag("whole"),
                persistent: line.flag("persistent"),
            },
            "bind" => {
                let [piece] = line.pieces(BUFFER)?[..] else { return Err("bind wants one piece".to_owned()) };
                let bind = WindowBind {
                    region_key: self.region.rkey(),
                    addr: piece.sge(&self.region).addr,
                    len: piece.length as u64,
                    access: access()?,
                };
                SendOp::BindWindow { key: line.number("key")?, key_byte: None, bind }
            }
            "reg" => SendOp::FastRegister { key: line.number("key")?, addr: line.number("at")?, access: access()? },
            "local_inv" => SendOp::LocalInvalidate { key: line.number("key")? },
            other => return Err(format!("op={other} is no operation")),
        })
    }

    fn next_completion(&mut self) -> Option<String> {
        let wc = self.completions.pop_front()?;
        let mut text = format!(" qp={} id={} status={}", self.number(wc.qpn), wc.wr_id, wc.status as u8);
        if wc.status == WcStatus::Success {
            text += &format!(" op={} len={} solicited={}", name(wc.opcode), wc.byte_len, u8::from(wc.solicited));
            let rest = [("imm", wc.imm), ("inv", wc.invalidated_rkey), ("src", wc.src_qpn.map(Qpn::get))];
            for (name, value) in rest {
                text += &value.map(|value| format!(" {name}={value}")).unwrap_or_default();
            }
        }
        Some(text)
    }
}

fn name(opcode: WcOpcode) -> &'static str {
    match opcode {
        WcOpcode::Send => "send",
        WcOpcode::RdmaWrite => "write",
        WcOpcode::RdmaRead => "read",
        WcOpcode::CompSwap => "cas",
        WcOpcode::FetchAdd => "add",
        WcOpcode::BindMw => "bind",
        WcOpcode::LocalInv => "local_inv",
        WcOpcode::Flush => "flush",
        WcOpcode::AtomicWrite => "atomic_write",
        WcOpcode::RegMr => "reg",
        WcOpcode::Recv => "recv",
        WcOpcode::RecvRdmaWithImm => "recv_write",
    }
}
