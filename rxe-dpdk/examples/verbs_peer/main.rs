//! Verbs carried out for a program at the other end, one line over TCP each: the peer of a test that has a verbs
//! interface of its own and wants to see how the two get along.
//!
//! `verbs_peer --in-memory --no-pci --vdev=net_af_packet0,iface=veth1 -- 10.77.0.1/24 fd77::1/64`
//!
//! A client connects to TCP port 4799 and writes a line; it is answered by one line, `ok` with fields or `error` with a
//! sentence, and writes the next one. Fields are `name=value`, numbers decimal. `sge=OFFSET:LENGTH,...` are pieces of our
//! buffer (1 MiB, one per stream), `qp=N` is the stream's N-th queue pair (from 0, the default), `id` is a work
//! request's own number.
//!
//! | line | what it does |
//! |---|---|
//! | `open type=rc\|uc\|ud gid= qpn= psn= mtu= qkey= srq=0\|1` | a queue pair in RTS, its peer as named; tells our `gid qpn psn addr rkey` |
//! | `srq max=` | the shared receive queue of the queue pairs that are opened with `srq=1` |
//! | `limit n=` | arms the limit event of the shared receive queue |
//! | `recv qp= id= sge=` | posts a receive (to the shared receive queue, if the queue pair has one) |
//! | `post qp= id= op= sge= ...` | posts to the send queue, see below; `fence=1 solicited=1 inline=1` are its flags |
//! | `wc` | waits for the next completion; tells `qp id status`, on success `op len imm inv src solicited` too |
//! | `event` | waits for the next event; tells `event` and `qp`, `cause` |
//! | `fill sge= seed=`, `check sge= seed=` | writes pseudo-random bytes, or compares with them |
//! | `store off= value=`, `load off=`, `bytes off= len=` | 8 bytes as a number; some bytes in hexadecimal digits |
//! | `window type=1\|2`, `fast sge=` | makes a memory window, or a fast region with these bytes staged; tells its `key` |
//! | `end` | destroys everything; an error if completions or events were left |
//! | `stop` | ends the program |
//!
//! Operations: `send` (`imm=` or `inv=`; on UD `qkey=`), `write` (`at= key=`, `imm=`), `read`, `add` (`add=`), `cas`
//! (`compare= swap=`), `atomic_write`, `flush` (`len= whole=1 persistent=1`), all with `at= key=`; and on our side alone
//! `bind` (a window's `key=` to the piece `sge=` with `access=`), `reg` (a fast region's `key= at= access=`), `local_inv`
//! (`key=`). Numbers of status and access are those of libibverbs.

mod line;
mod session;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rxe_dpdk::eal::Eal;
use rxe_dpdk::runtime::{PortSettings, Runtime, RuntimeConfig, StopHandle};
use rxe_dpdk::rxe_proto::transport::AsyncEvent;
use rxe_dpdk::rxe_proto::verbs::WorkCompletion;
use rxe_dpdk::rxe_proto::wire::Cidr;
use rxe_dpdk::service::{Context, Listen, PeerPath, Service, ServiceFactory, StreamId};
use rxe_dpdk::worker::IdlePolicy;

use session::Session;

const USAGE: &str = "usage: verbs_peer [EAL options] -- IP/PREFIX...";
const PORT: u16 = 4799;
/// The token of the timer that ends the program; what lines wait for have tokens from 1 on.
const STOP: u64 = 0;
/// Time for the answer to `stop` to reach the client.
const FAREWELL: Duration = Duration::from_millis(100);

struct Factory(Arc<OnceLock<StopHandle>>);

impl ServiceFactory for Factory {
    fn name(&self) -> &'static str {
        "verbs-peer"
    }
    fn listen(&self) -> Vec<Listen> {
        vec![Listen::Tcp { port: PORT }]
    }
    fn create(&self, _worker: usize) -> Box<dyn Service> {
        Box::new(VerbsPeer { sessions: HashMap::new(), token: 0, stop: Arc::clone(&self.0) })
    }
}

/// The sessions of one lcore, one per stream.
struct VerbsPeer {
    sessions: HashMap<StreamId, Session>,
    /// The last number given to something that is waited for.
    token: u64,
    stop: Arc<OnceLock<StopHandle>>,
}

impl VerbsPeer {
    /// Sends what a session has to say.
    fn answer(cx: &mut Context<'_>, stream: StreamId, answer: Option<Result<String, String>>) {
        match answer {
            Some(Ok(fields)) => cx.stream_send(stream, format!("ok{fields}\n").as_bytes()),
            Some(Err(why)) => cx.stream_send(stream, format!("error {why}\n").as_bytes()),
            None => {}
        }
    }

    /// Lets the session that `wanted` picks take something in, and sends its answer.
    fn tell(
        &mut self,
        cx: &mut Context<'_>,
        wanted: impl Fn(&Session) -> bool,
        take: impl FnOnce(&mut Session, &mut Context<'_>) -> Option<Result<String, String>>,
    ) {
        if let Some((stream, session)) = self.sessions.iter_mut().find(|(_, session)| wanted(session)) {
            let answer = take(session, cx);
            VerbsPeer::answer(cx, *stream, answer);
        }
    }
}

impl Service for VerbsPeer {
    fn stream_opened(&mut self, cx: &mut Context<'_>, stream: StreamId, _local: SocketAddr, _peer: SocketAddr) {
        match Session::new(cx) {
            Ok(session) => drop(self.sessions.insert(stream, session)),
            Err(why) => {
                VerbsPeer::answer(cx, stream, Some(Err(why)));
                cx.stream_close(stream);
            }
        }
    }

    fn stream_data(&mut self, cx: &mut Context<'_>, stream: StreamId, data: &[u8]) {
        let Some(session) = self.sessions.get_mut(&stream) else { return };
        session.received(data);
        while let Some(line) = session.next_line() {
            self.token += 1;
            let answer = match line.as_str() {
                "stop" => {
                    cx.set_timer(FAREWELL, STOP);
                    Some(Ok(String::new()))
                }
                line => session.execute(cx, line, self.token).transpose(),
            };
            VerbsPeer::answer(cx, stream, answer);
        }
    }

    fn stream_closed(&mut self, cx: &mut Context<'_>, stream: StreamId, _reset: bool) {
        if let Some(mut session) = self.sessions.remove(&stream) {
            // Nobody is left to hear what was not as it should be.
            let _ = session.end(cx);
        }
    }

    fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) {
        self.tell(cx, |session| session.has_qp(wc.qpn), |session, _| session.completed(wc));
    }

    fn async_event(&mut self, cx: &mut Context<'_>, event: &AsyncEvent) {
        self.tell(cx, |session| session.has_subject(event), |session, _| session.happened(event));
    }

    fn path_resolved(&mut self, cx: &mut Context<'_>, token: u64, path: Option<&PeerPath>) {
        self.tell(cx, |session| session.waits_for(token), |session, cx| session.path_resolved(cx, path));
    }

    fn timer(&mut self, cx: &mut Context<'_>, token: u64) {
        if token == STOP {
            self.stop.get().inspect(|stop| stop.stop());
        }
        self.tell(cx, |session| session.waits_for(token), |session, _| Some(Err(session.too_late())));
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let split = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let addresses: Result<Vec<Cidr>, _> = words.iter().skip(split + 1).map(|word| word.parse()).collect();
    match addresses {
        Ok(addresses) if !addresses.is_empty() => match run(&words[..split], addresses) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("verbs_peer: {error}");
                ExitCode::from(2)
            }
        },
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Whether nothing was lost on the way.
fn run(eal: &[String], addresses: Vec<Cidr>) -> Result<bool, Box<dyn std::error::Error>> {
    let eal = Eal::init(eal)?;
    let config = RuntimeConfig {
        ports: vec![PortSettings { addresses, ..PortSettings::default() }],
        idle: IdlePolicy::Sleep(Duration::from_micros(50)),
        ..RuntimeConfig::default()
    };
    let stop = Arc::new(OnceLock::new());
    let runtime = Runtime::new(eal, config, vec![Box::new(Factory(Arc::clone(&stop)))])?;
    // Set once, before anything runs.
    let _ = stop.set(runtime.stop_handle());
    println!("{}", runtime.ready_line());
    let summary = runtime.run()?;
    print!("{summary}");
    Ok(summary.mbufs_leaked == 0)
}
