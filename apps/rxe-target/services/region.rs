//! Exports named memory regions: docs/region-protocol.md is the contract with clients.
//!
//! The private data of the REQ names the region (empty: the first); that of the REP tells where it is, how long, and
//! its key. `NAME*` names the directory of numbered regions, which tells so of each. From then on the client READs,
//! WRITEs and does atomics on it, and we do nothing, except that [watched](super::watch) regions are looked at.

use std::collections::HashMap;
use std::net::SocketAddr;

use rxe_adapter::output;
use rxe_proto::cm::{ConnId, ConnectRequest};
use rxe_proto::verbs::{
    Access, MemoryRegion, ProtectionDomain, QpCaps, Qpn, QueuePair, Rc, RecvWr, WcStatus, WorkCompletion,
};
use rxe_proto::wire::Gid;
use rxe_proto::wire::cm::RejReason;
use rxe_service::{Accept, Context, Decision, EndReason, Listen, QpMap, Service};
use rxe_service::{RegionNames, Which};

use super::factory::Factory;
use super::metrics::{MetricsRegistry, ServiceMetrics, caller};
use super::region_request::{RegionOptions, RegionRequest};
use super::watch::{LOOK, Look, Watch};
use crate::config::{MAX_REGION_NAME, RegionSpec};

/// The name that users select the service by.
pub const NAME: &str = "region";
/// READs and atomics that a client may have outstanding.
const RESPONDER_RESOURCES: u8 = 16;
/// A client's access to a region. FLUSH is effective only where the configuration offers it.
const PEER_ACCESS: Access =
    Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC).union(Access::FLUSH_GLOBAL);
/// Receives without buffers, which WRITEs with immediate data use up.
const RECEIVES: u32 = 16;
/// Length of what says where a region is.
const PLACE: usize = 24;
/// Length of the description in the REP.
const DESCRIPTION: usize = PLACE + MAX_REGION_NAME;
/// Most private data of a REJ.
const MAX_REFUSAL: usize = 148;

/// The region that the private data of a REQ asks for.
#[derive(PartialEq, Eq, Debug)]
enum Wanted<'a> {
    /// The first.
    First,
    /// The one with this name.
    Named(&'a str),
    /// The bytes are no name.
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

    /// Finds what is wanted: the position of its names among `exported`, and which of them it is; or words the refusal. Each
    /// of `exported` comes with whether it serves the client: those that do not are named to nobody.
    fn find<'n>(
        &self,
        exported: impl Iterator<Item = (RegionNames<'n>, bool)> + Clone,
    ) -> Result<(usize, Which), String> {
        let known = || {
            let list: Vec<String> =
                exported.clone().filter(|(_, serves)| *serves).map(|(names, _)| names.to_string()).collect();
            if list.is_empty() { "no region is exported".to_owned() } else { format!("known: {}", list.join(", ")) }
        };
        let named =
            |name: &str| exported.clone().enumerate().find_map(|(at, (n, serves))| Some((at, n.find(name)?, serves)));
        let mut text = match self {
            Wanted::First => match exported.clone().position(|(_, serves)| serves) {
                Some(at) => return Ok((at, Which::Number(0))),
                None => known(),
            },
            Wanted::Named(name) => match named(name) {
                Some((at, which, true)) => return Ok((at, which)),
                Some((_, _, false)) => format!("the region '{}' does not serve your address", name.escape_debug()),
                None => format!("unknown region '{}'; {}", name.escape_debug(), known()),
            },
            Wanted::Nonsense => format!("the private data is no region name; {}", known()),
        };
        text.truncate(text.floor_char_boundary(MAX_REFUSAL));
        Err(text)
    }
}

/// Where a region is: an entry of a directory, and how the private data of the REP begins.
fn place(mr: &MemoryRegion) -> [u8; PLACE] {
    let mut place = [0; PLACE];
    place[..8].copy_from_slice(&mr.addr().to_be_bytes());
    place[8..16].copy_from_slice(&mr.len().to_be_bytes());
    place[16..20].copy_from_slice(&mr.rkey().to_be_bytes());
    place
}

/// The private data of the REP.
fn describe(name: &str, mr: &MemoryRegion) -> Vec<u8> {
    let mut description = Vec::with_capacity(DESCRIPTION);
    description.extend_from_slice(&place(mr));
    description.extend_from_slice(name.as_bytes());
    description.resize(DESCRIPTION, 0);
    description
}

/// The service on one lcore.
struct Region {
    /// Live connections.
    clients: QpMap<SocketAddr>,
    /// Where each of the numbered regions is, for peers to READ; by their name.
    directories: HashMap<String, MemoryRegion>,
    /// What the configuration and management say about regions, by their name.
    options: HashMap<String, RegionOptions>,
    /// The watched regions: on one worker.
    watches: Vec<Watch>,
    /// The timer of the watches is set.
    looks: bool,
    metrics: ServiceMetrics,
}

impl Region {
    /// Makes the directory of numbered regions. Requests for one for which there is no memory are refused.
    fn list(&mut self, cx: &mut Context<'_>, name: &str) {
        let Some(region) = cx.regions().iter().find(|region| region.is_numbered && region.name == name) else { return };
        let places: Vec<u8> = region.mrs.iter().flat_map(place).collect();
        let pd = region.pd.into();
        let Ok(memory) = cx.alloc_memory(places.len()) else { return };
        // As long as what is written.
        let _ = memory.write(0, &places);
        if let Ok(directory) = cx.device().reg_mr(pd, memory, Access::REMOTE_READ) {
            self.directories.insert(name.to_owned(), directory);
        }
    }

    /// Watches a region if its options say so.
    fn watch(&mut self, cx: &mut Context<'_>, name: &str) {
        if cx.worker() != 0 || !self.options.get(name).is_some_and(|options| options.watch) {
            return;
        }
        let region = cx.regions().iter().find(|region| region.name == name);
        let Some(memory) = region.and_then(|region| Some(region.mrs.first()?.memory().clone())) else { return };
        self.watches.push(Watch::new(name, memory));
        self.look_again(cx);
    }

    /// Sets the timer, unless it is set or there is nothing to look at.
    fn look_again(&mut self, cx: &mut Context<'_>) {
        if !self.looks && !self.watches.is_empty() {
            self.looks = true;
            cx.set_timer(LOOK, 0);
        }
    }

    /// Whether a region serves a peer.
    fn serves(&self, name: &str, peer: Gid) -> bool {
        let peers = self.options.get(name).and_then(|options| options.peers.as_ref());
        peers.is_none_or(|peers| peers.contains(peer))
    }

    fn open(cx: &mut Context<'_>, pd: ProtectionDomain) -> Result<QueuePair<Rc>, (RejReason, String)> {
        let caps =
            QpCaps { max_send_wr: 1, max_recv_wr: RECEIVES, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let attr = cx.qp_attr().with_caps(caps);
        let mut dev = cx.device();
        let qp = dev
            .create_qp_in_init(pd, attr, PEER_ACCESS)
            .map_err(|error| (RejReason::NoQp, format!("no queue pair: {error}")))?;
        for _ in 0..RECEIVES {
            if let Err(error) = dev.post_recv(qp, RecvWr { wr_id: 0, sges: &[] }) {
                let _ = dev.destroy_qp(qp);
                return Err((RejReason::NoResources, format!("no receive queue: {error}")));
            }
        }
        Ok(qp)
    }
}

impl Service for Region {
    fn start(&mut self, cx: &mut Context<'_>) {
        let names: Vec<String> = cx.regions().iter().map(|region| region.name.clone()).collect();
        for name in names {
            self.region_added(cx, &name);
        }
    }

    fn region_added(&mut self, cx: &mut Context<'_>, name: &str) {
        self.list(cx, name);
        self.watch(cx, name);
    }

    fn region_removed(&mut self, cx: &mut Context<'_>, name: &str) {
        if let Some(directory) = self.directories.remove(name) {
            // No windows are bound to it.
            let _ = cx.device().dereg_mr(&directory);
        }
        // The timer ends with the last watch.
        self.watches.retain(|watch| watch.name() != name);
    }

    fn manage(&mut self, _cx: &mut Context<'_>, request: &str) -> Result<String, String> {
        match RegionRequest::parse(request)? {
            RegionRequest::Set { region, options } => self.options.insert(region, options),
            RegionRequest::Forget { region } => self.options.remove(&region),
        };
        Ok("null".to_owned())
    }

    fn timer(&mut self, cx: &mut Context<'_>, _token: u64) {
        self.watches.retain_mut(|watch| {
            let (line, stays) = match watch.look() {
                Look::Nothing => return true,
                Look::Show(line) => (line, true),
                Look::Last(line) => (line + ", which ends the watch", false),
            };
            self.metrics.texts_shown.inc();
            output::stdout().enqueue(format!("{line}\n").as_bytes());
            stays
        });
        self.looks = false;
        self.look_again(cx);
    }

    fn connect_request(&mut self, cx: &mut Context<'_>, request: &ConnectRequest) -> Decision {
        let wanted = Wanted::parse(&request.private_data);
        let serves = |name: &str| self.serves(name, request.peer_gid);
        let exported = cx.regions().iter().map(|region| (region.names(), serves(&region.name)));
        let (at, which) = match wanted.find(exported) {
            Ok(found) => found,
            Err(text) => return self.metrics.reject(cx.now(), request, RejReason::ConsumerDefined, text),
        };
        let found = cx.regions().get(at).and_then(|region| {
            let (name, mr) = match which {
                Which::Number(number) => (region.names().numbered(number), region.mrs.get(number as usize)),
                Which::All => (region.names().all(), self.directories.get(&region.name)),
            };
            Some((region.pd.into(), mr.map(|mr| describe(&name, mr))?))
        });
        let Some((pd, private_data)) = found else {
            // Every region is there, only a directory may be missing.
            let why = "no hugepages are left for the list of regions";
            return self.metrics.reject(cx.now(), request, RejReason::NoResources, why);
        };
        match Region::open(cx, pd) {
            Ok(qp) => {
                self.metrics.connections.inc();
                self.clients.insert(qp.qpn(), caller(request));
                Decision::Accept(Accept { responder_resources: RESPONDER_RESOURCES, private_data, ..Accept::new(qp) })
            }
            Err((reason, why)) => self.metrics.reject(cx.now(), request, reason, why),
        }
    }

    fn connected(&mut self, cx: &mut Context<'_>, _conn: ConnId, qp: Qpn) {
        // A client may be silent for as long as it likes, but must exist: else its READs go on and its queue pair stays.
        let mut dev = cx.device();
        let settings = dev.query_device().keep_alive;
        // A queue pair in error ends anyway.
        let _ = dev.find_qp(qp).and_then(|qp| dev.set_keep_alive(qp, settings));
    }

    fn disconnected(&mut self, cx: &mut Context<'_>, _conn: ConnId, qp: Qpn, reason: EndReason) {
        if let Some(client) = self.clients.remove(&qp) {
            self.metrics.gone(cx.now(), client, reason);
        }
    }

    fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) {
        // A WRITE with immediate data took a receive: put it back. A failure shows as an error of the queue pair.
        if wc.status == WcStatus::Success
            && self.clients.contains_key(&wc.qpn)
            && cx.device().post_recv(wc.qp(), RecvWr { wr_id: 0, sges: &[] }).is_err()
        {
            self.metrics.post_failures.inc();
        }
    }
}

/// Makes the service, which listens on `port` and watches those of the `regions` that say so.
pub fn factory(port: u16, regions: &[RegionSpec], registry: &MetricsRegistry) -> Factory {
    let options: HashMap<String, RegionOptions> =
        regions.iter().map(|region| (region.name.clone(), RegionOptions::of(region))).collect();
    let create = move |metrics| -> Box<dyn Service> {
        Box::new(Region {
            clients: QpMap::default(),
            directories: HashMap::new(),
            options: options.clone(),
            watches: Vec::new(),
            looks: false,
            metrics,
        })
    };
    Factory::new(NAME, vec![Listen::cm(port)], create, registry)
}

#[cfg(test)]
mod tests {
    use rxe_proto::mem::KeyDomain;
    use rxe_proto::verbs::{KeyTable, Memory};

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
        let exported = [("scratch", None), ("big", None), ("many", Some(1000))];
        let exported = exported.map(|(name, count)| RegionNames { name, count });
        let find = |wanted: Wanted<'_>| wanted.find(exported.into_iter().map(|names| (names, true)));
        assert_eq!(find(Wanted::First), Ok((0, Which::Number(0))));
        assert_eq!(find(Wanted::Named("big")), Ok((1, Which::Number(0))));
        assert_eq!(find(Wanted::Named("many999")), Ok((2, Which::Number(999))));
        assert_eq!(find(Wanted::Named("many*")), Ok((2, Which::All)));
        let known = "known: scratch, big, many0 to many999";
        for name in ["bug", "big*", "many", "many1000"] {
            assert_eq!(find(Wanted::Named(name)), Err(format!("unknown region '{name}'; {known}")));
        }
        assert_eq!(find(Wanted::Nonsense), Err(format!("the private data is no region name; {known}")));
        assert_eq!(Wanted::First.find([].into_iter()), Err("no region is exported".to_owned()));
        let many = ["ä".repeat(16), "ö".repeat(16), "ü".repeat(16), "é".repeat(16), "è".repeat(16)];
        let many = many.iter().map(|name| (RegionNames { name, count: None }, true));
        let text = Wanted::Named("x").find(many).expect_err("unknown");
        assert!(text.len() <= MAX_REFUSAL && text.starts_with("unknown region 'x'; known: "));
    }

    #[test]
    fn regions_that_do_not_serve_the_client_are_refused_and_not_named() {
        let exported = [("secret", None, false), ("open", None, true), ("tenant", Some(9), false)];
        let exported = exported.map(|(name, count, serves)| (RegionNames { name, count }, serves));
        let find = |wanted: Wanted<'_>| wanted.find(exported.into_iter());
        assert_eq!(find(Wanted::First), Ok((1, Which::Number(0))));
        assert_eq!(find(Wanted::Named("open")), Ok((1, Which::Number(0))));
        for name in ["secret", "tenant3", "tenant*"] {
            assert_eq!(find(Wanted::Named(name)), Err(format!("the region '{name}' does not serve your address")));
        }
        assert_eq!(find(Wanted::Named("x")), Err("unknown region 'x'; known: open".to_owned()));
        let none = exported.into_iter().filter(|(_, serves)| !serves);
        assert_eq!(Wanted::First.find(none), Err("no region is exported".to_owned()));
    }

    #[test]
    fn the_description_is_laid_out_as_documented() {
        let mut keys = KeyTable::new([7; 32], KeyDomain::Local);
        let pd = keys.alloc_pd();
        let mr = keys.register(pd, Memory::heap(0x1000), 0x1122_3344_5566_7788, Access::REMOTE_READ).expect("a region");
        let description = describe("scratch", &mr);
        assert_eq!(description.len(), 56);
        assert_eq!(description[..8], [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
        assert_eq!(description[8..16], [0, 0, 0, 0, 0, 0, 0x10, 0]);
        assert_eq!(description[16..20], mr.rkey().to_be_bytes());
        assert_eq!(description[20..24], [0; 4]);
        assert_eq!(description[..24], place(&mr), "an entry of a directory is the same");
        assert_eq!(&description[24..31], b"scratch");
        assert!(description[31..].iter().all(|b| *b == 0));
    }

    #[test]
    fn mutated_private_data_names_a_region_or_is_refused() {
        rxe_testkit::mutate::check_mutations(
            "region",
            &[b"scratch\0\0", "\u{e9}\u{1f980}\0".as_bytes()],
            8_000,
            |input| match Wanted::parse(input) {
                Wanted::First => assert!(input.iter().all(|byte| *byte == 0)),
                Wanted::Named(name) => {
                    assert!(!name.is_empty() && !name.contains('\0') && input.starts_with(name.as_bytes()))
                }
                Wanted::Nonsense => assert!(input.iter().any(|byte| *byte != 0)),
            },
        );
    }
}
