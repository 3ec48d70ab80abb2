//! Exports named memory regions: docs/region-protocol.md is the contract with clients.
//!
//! The private data of the REQ names the region (empty: the first); that of the REP tells where it is, how long, and
//! its key. From then on the client READs, WRITEs and does atomics on it, and we do nothing, except that
//! [watched](super::watch) regions are looked at.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use rxe_dpdk::service::{Accept, Context, Decision, EndReason, Listen, QpSpec, Service};
use rxe_dpdk::worker::{NamedRegion, QpCaps};
use rxe_proto::cm::{ConnId, ConnectRequest};
use rxe_proto::mem::Access;
use rxe_proto::transport::{Qpn, RecvWr, WcStatus, WorkCompletion};
use rxe_proto::wire::cm::RejReason;

use super::factory::Factory;
use super::tally::{Book, Tally, caller};
use super::watch::{LOOK, Look, Watch};
use crate::config::{MAX_REGION_NAME, RegionSpec};
use crate::print;

/// The name that users select the service by.
pub const NAME: &str = "region";
/// READs and atomics that a client may have outstanding.
const RESPONDER_RESOURCES: u8 = 16;
/// What a client may do with a region.
/// FLUSH comes to something only where the configuration offers it.
const PEER_ACCESS: Access =
    Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC).union(Access::FLUSH_GLOBAL);
/// Receives without buffers, which WRITEs with immediate data use up.
const RECEIVES: u32 = 16;
/// Length of the description in the REP.
const DESCRIPTION: usize = 24 + MAX_REGION_NAME;
/// Most private data of a REJ.
const MAX_REFUSAL: usize = 148;

/// Which region the private data of a REQ asks for.
#[derive(PartialEq, Eq, Debug)]
enum Wanted<'a> {
    /// The first.
    First,
    /// The one with this name.
    Named(&'a str),
    /// What is there is no name.
    Nonsense,
}

impl Wanted<'_> {
    fn parse(private_data: &[u8]) -> Wanted<'_> {
        let end = private_data.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
        match std::str::from_utf8(&private_data[..end]) {
            Ok("") => Wanted::First,
            // Zeros may follow a name, not interrupt it.
            Ok(name) if !name.contains('\0') => Wanted::Named(name),
            _ => Wanted::Nonsense,
        }
    }

    /// Finds the region among `names`, or words the refusal.
    fn find<'n>(&self, names: impl Iterator<Item = &'n str> + Clone) -> Result<usize, String> {
        let known = || {
            let list: Vec<&str> = names.clone().collect();
            if list.is_empty() { "no region is exported".to_owned() } else { format!("known: {}", list.join(", ")) }
        };
        let mut text = match self {
            Wanted::First if names.clone().next().is_some() => return Ok(0),
            Wanted::First => known(),
            Wanted::Named(name) => match names.clone().position(|n| n == *name) {
                Some(index) => return Ok(index),
                None => format!("unknown region '{}'; {}", name.escape_debug(), known()),
            },
            Wanted::Nonsense => format!("the private data is no region name; {}", known()),
        };
        text.truncate(text.floor_char_boundary(MAX_REFUSAL));
        Err(text)
    }
}

/// The private data of the REP.
fn describe(name: &str, address: u64, length: u64, rkey: u32) -> Vec<u8> {
    let mut description = Vec::with_capacity(DESCRIPTION);
    description.extend_from_slice(&address.to_be_bytes());
    description.extend_from_slice(&length.to_be_bytes());
    description.extend_from_slice(&rkey.to_be_bytes());
    description.extend_from_slice(&[0; 4]);
    description.extend_from_slice(name.as_bytes());
    description.resize(DESCRIPTION, 0);
    description
}

/// The service on one lcore.
struct Region {
    /// Live connections.
    clients: HashMap<Qpn, SocketAddr>,
    /// The names of the regions to watch, and the watches: on one worker.
    watched: Arc<[String]>,
    watches: Vec<Watch>,
    tally: Tally,
}

impl Region {
    fn open(cx: &mut Context<'_>, region: &NamedRegion) -> Result<Qpn, (RejReason, String)> {
        let caps =
            QpCaps { max_send_wr: 1, max_recv_wr: RECEIVES, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let qp = cx
            .create_qp(&QpSpec::rc(region.pd, caps, PEER_ACCESS))
            .map_err(|error| (RejReason::NoQp, format!("no queue pair: {error}")))?;
        for _ in 0..RECEIVES {
            if let Err(error) = cx.post_recv(qp, &RecvWr { wr_id: 0, sges: &[] }) {
                cx.destroy_qp(qp);
                return Err((RejReason::NoResources, format!("no receive queue: {error}")));
            }
        }
        Ok(qp)
    }
}

impl Service for Region {
    fn start(&mut self, cx: &mut Context<'_>) {
        if cx.worker() == 0 {
            let watched = cx.regions().iter().filter(|region| self.watched.contains(&region.name));
            self.watches = watched.map(|region| Watch::new(&region.name, region.mr.memory().clone())).collect();
        }
        if !self.watches.is_empty() {
            cx.set_timer(LOOK, 0);
        }
    }

    fn timer(&mut self, cx: &mut Context<'_>, _token: u64) {
        self.watches.retain_mut(|watch| {
            let (line, stays) = match watch.look() {
                Look::Nothing => return true,
                Look::Show(line) => (line, true),
                Look::Last(line) => (line + ", which ends the watch", false),
            };
            self.tally.texts_shown.inc();
            print(&format!("{line}\n"));
            stays
        });
        if !self.watches.is_empty() {
            cx.set_timer(LOOK, 0);
        }
    }

    fn connect_request(&mut self, cx: &mut Context<'_>, request: &ConnectRequest) -> Decision {
        let wanted = Wanted::parse(&request.private_data);
        let found = wanted.find(cx.regions().iter().map(|region| region.name.as_str()));
        let region = match found.map(|index| cx.regions().get(index).cloned()) {
            Ok(Some(region)) => region,
            // Not reached: the index came from this list.
            Ok(None) => return self.tally.reject(cx.now(), request, RejReason::ConsumerDefined, "no such region"),
            Err(text) => return self.tally.reject(cx.now(), request, RejReason::ConsumerDefined, text),
        };
        match Region::open(cx, &region) {
            Ok(qp) => {
                self.tally.connections.inc();
                self.clients.insert(qp, caller(request));
                Decision::Accept(Accept {
                    qp,
                    responder_resources: RESPONDER_RESOURCES,
                    initiator_depth: 0,
                    private_data: describe(&region.name, region.mr.addr(), region.mr.len(), region.mr.rkey()),
                })
            }
            Err((reason, why)) => self.tally.reject(cx.now(), request, reason, why),
        }
    }

    fn disconnected(&mut self, cx: &mut Context<'_>, _conn: ConnId, qp: Qpn, reason: EndReason) {
        if let Some(client) = self.clients.remove(&qp) {
            self.tally.gone(cx.now(), client, reason);
        }
    }

    fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) {
        // A WRITE with immediate data took a receive: put it back. A failure shows as an error of the queue pair.
        if wc.status == WcStatus::Success
            && self.clients.contains_key(&wc.qpn)
            && cx.post_recv(wc.qpn, &RecvWr { wr_id: 0, sges: &[] }).is_err()
        {
            self.tally.post_failures.inc();
        }
    }
}

/// Makes the service, which listens on `port` and watches those of the `regions` that say so.
pub fn factory(port: u16, regions: &[RegionSpec], book: &Book) -> Factory {
    let watched: Arc<[String]> =
        regions.iter().filter(|region| region.watch).map(|region| region.name.clone()).collect();
    let create = move |tally| -> Box<dyn Service> {
        Box::new(Region { clients: HashMap::new(), watched: Arc::clone(&watched), watches: Vec::new(), tally })
    };
    Factory::new(NAME, vec![Listen::cm(port)], create, book)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn padded(text: &[u8]) -> [u8; 56] {
        let mut data = [0; 56];
        data[..text.len()].copy_from_slice(text);
        data
    }

    #[test]
    fn names_come_zero_padded() {
        assert_eq!(Wanted::parse(&padded(b"")), Wanted::First);
        assert_eq!(Wanted::parse(&padded(b"scratch")), Wanted::Named("scratch"));
        assert_eq!(Wanted::parse(&padded(b"a\0b")), Wanted::Nonsense);
        assert_eq!(Wanted::parse(&padded(&[0xFF])), Wanted::Nonsense);
        assert_eq!(Wanted::parse(&[b'x'; 56]), Wanted::Named(&"x".repeat(56)));
    }

    #[test]
    fn refusals_name_what_there_is() {
        let names = ["scratch", "big"];
        let find = |wanted: Wanted<'_>| wanted.find(names.iter().copied());
        assert_eq!(find(Wanted::First), Ok(0));
        assert_eq!(find(Wanted::Named("big")), Ok(1));
        assert_eq!(find(Wanted::Named("bug")), Err("unknown region 'bug'; known: scratch, big".to_owned()));
        assert_eq!(find(Wanted::Nonsense), Err("the private data is no region name; known: scratch, big".to_owned()));
        assert_eq!(Wanted::First.find([].into_iter()), Err("no region is exported".to_owned()));
        let many = ["ä".repeat(16), "ö".repeat(16), "ü".repeat(16), "é".repeat(16), "è".repeat(16)];
        let text = Wanted::Named("x").find(many.iter().map(String::as_str)).expect_err("unknown");
        assert!(text.len() <= MAX_REFUSAL && text.starts_with("unknown region 'x'; known: "));
    }

    #[test]
    fn the_description_is_laid_out_as_documented() {
        let description = describe("scratch", 0x1122_3344_5566_7788, 0x10_0000, 0xAABB_CCDD);
        assert_eq!(description.len(), 56);
        assert_eq!(description[..8], [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
        assert_eq!(description[8..16], [0, 0, 0, 0, 0, 0x10, 0, 0]);
        assert_eq!(description[16..24], [0xAA, 0xBB, 0xCC, 0xDD, 0, 0, 0, 0]);
        assert_eq!(&description[24..31], b"scratch");
        assert!(description[31..].iter().all(|b| *b == 0));
    }
}
