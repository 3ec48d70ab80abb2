//! Datagrams to a server that does not know the client in advance and answers each sender. Run it with
//! `cargo run -p rxe-proto --example ud_echo`.

pub mod common;

use common::{Failure, Link};
use rxe_proto::verbs::{
    Access, CompletionQueue, Device, Grh, Memory, MemoryRegion, Payload, ProtectionDomain, QpCaps, QpInitAttr,
    QueuePair, RecvWr, Ud, UdAttr, WcOpcode, WorkCompletion, WorkRequest,
};
use rxe_proto::wire::{Gid, Path, PathMtu, PortId, Psn};

const CLIENT: usize = 0;
const SERVER: usize = 1;
/// Known to both ends in advance, like a port number. The client learns the server's queue pair number.
const QKEY: u32 = 0x1234_5678;
/// Buffer of one receive: the header of the datagram and one packet.
const SLOT: usize = Grh::LEN + 1024;

/// One end: a datagram queue pair with one receive posted.
struct Socket {
    end: usize,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair<Ud>,
    mr: MemoryRegion,
}

impl Socket {
    fn open(link: &mut Link, end: usize) -> Result<Socket, Failure> {
        let mut dev = link.device(end);
        let pd = dev.alloc_pd();
        let cq = dev.create_cq(16)?;
        let caps = QpCaps { max_inline_data: 64, ..QpInitAttr::new(cq).caps };
        let qp: QueuePair<Ud> = dev.create_qp(pd, QpInitAttr { caps, ..QpInitAttr::new(cq) })?;
        let attr = UdAttr { port: PortId(0), qkey: QKEY, path_mtu: PathMtu::Mtu1024, sq_psn: Psn::new(0) };
        qp.open(&mut dev, attr)?;
        let mr = dev.reg_mr(pd, Memory::heap(SLOT), Access::LOCAL_WRITE)?;
        let socket = Socket { end, pd, cq, qp, mr };
        socket.post_recv(&mut dev)?;
        Ok(socket)
    }

    fn post_recv(&self, dev: &mut Device<'_>) -> Result<(), Failure> {
        Ok(dev.post_recv(self.qp, RecvWr { wr_id: 0, sges: &[self.mr.sge(..)?] })?)
    }

    /// The next datagram: its completion and where it came from.
    fn receive(&self, link: &mut Link) -> Result<(WorkCompletion, Grh), Failure> {
        loop {
            let wc = link.completion(self.end, self.cq)?;
            if wc.opcode == WcOpcode::Recv {
                return Ok((wc, Grh::read(self.mr.memory(), 0)?));
            }
        }
    }
}

/// The path from the server to a client's address: the part that a neighbour table plays.
fn resolve(address: Gid) -> Result<Path, Failure> {
    let path = Link::path(SERVER);
    if address == path.dst { Ok(path) } else { Err(format!("no neighbour has the address {address}").into()) }
}

/// Answers one datagram with its own bytes.
fn echo(link: &mut Link, server: &Socket) -> Result<(), Failure> {
    let (wc, grh) = server.receive(link)?;
    let sender = wc.src_qpn.ok_or("a datagram without a sender")?;
    let mut dev = link.device(SERVER);
    let ah = dev.create_ah(server.pd, &resolve(grh.src)?)?;
    let message = [server.mr.sge(Grh::LEN..wc.byte_len as usize)?];
    dev.post_send(server.qp, WorkRequest::datagram(&message, ah, sender, QKEY).signaled())?;
    // The buffer may be received into again once the datagram has been written.
    link.completion(SERVER, server.cq)?;
    let mut dev = link.device(SERVER);
    dev.destroy_ah(ah)?;
    server.post_recv(&mut dev)
}

/// Sends `count` datagrams, each after the answer to the one before.
pub fn run(link: &mut Link, count: u32) -> Result<(), Failure> {
    let (client, server) = (Socket::open(link, CLIENT)?, Socket::open(link, SERVER)?);
    let ah = link.device(CLIENT).create_ah(client.pd, &Link::path(CLIENT))?;
    for number in 0..count {
        let text = format!("datagram {number}");
        let wr = WorkRequest::datagram(Payload::Inline(text.as_bytes()), ah, server.qp.qpn(), QKEY);
        link.device(CLIENT).post_send(client.qp, wr.signaled())?;
        echo(link, &server)?;
        let (wc, grh) = client.receive(link)?;
        let mut bytes = vec![0; wc.byte_len as usize - Grh::LEN];
        client.mr.memory().read(Grh::LEN, &mut bytes)?;
        if (grh.src, wc.src_qpn) != (Link::gid(SERVER), Some(server.qp.qpn())) || bytes != text.as_bytes() {
            return Err(format!("not the answer to {text:?}").into());
        }
        client.post_recv(&mut link.device(CLIENT))?;
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let (mut link, count) = (Link::new(None), 100);
    run(&mut link, count)?;
    println!("{count} datagrams answered to {} by {}", Link::gid(CLIENT), Link::gid(SERVER));
    Ok(())
}
