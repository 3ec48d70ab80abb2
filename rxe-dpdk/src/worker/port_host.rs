//! The IP host of a DPDK port, as the control side uses it.

use std::net::IpAddr;

use rxe_adapter::worker::host::WorkerHost;
use rxe_adapter::worker::orders::{AddressingChanged, AddressingRefused};
use rxe_proto::Instant;
use rxe_proto::cm::{GSI_UDP_SRC_PORT, MadPath, write_mad};
use rxe_proto::wire::mad::MAD_LEN;
use rxe_proto::wire::{DropReason, MacAddr, PathMtu, PrefixList, Psn};
use rxe_service::control::ip_host::{HostEvent, IpHost, Resolution, StreamEvent};
use rxe_service::{LocalPort, Restrictions};

use super::ports::PortsTx;
use crate::eal::{EalError, MulticastFilter};
use crate::host::{self, Addressing, Host, HostConfigError, TcpStreamId};

/// One port's IP stack, and the filter in front of it.
pub(crate) struct PortHost {
    pub(crate) host: Host,
    filter: MulticastFilter,
    path_mtu: PathMtu,
    restrictions: Restrictions,
    /// PSN of the next packet from our QP1.
    gsi_psn: Psn,
}

impl PortHost {
    /// # Errors
    /// The port refuses the groups that the host listens to.
    pub(crate) fn new(
        host: Host,
        filter: MulticastFilter,
        path_mtu: PathMtu,
        restrictions: Restrictions,
    ) -> Result<PortHost, EalError> {
        let host = PortHost { host, filter, path_mtu, restrictions, gsi_psn: Psn::default() };
        host.set_filter()?;
        Ok(host)
    }

    /// Makes the port pass the groups that the host listens to.
    fn set_filter(&self) -> Result<(), EalError> {
        self.filter.set(self.host.multicast_macs())
    }
}

impl WorkerHost for PortHost {
    #[inline]
    fn handle_frame(&mut self, now: Instant, frame: &[u8], output: &mut PortsTx) -> Result<(), DropReason> {
        self.host.handle_frame(now, frame, output)
    }

    fn set_peers(&mut self, peers: Option<PrefixList>) {
        self.host.set_peers(peers);
    }

    fn set_addressing(
        &mut self,
        now: Instant,
        addressing: Addressing,
        force: bool,
    ) -> Result<AddressingChanged, AddressingRefused> {
        let streams = self.host.streams_lost_by(&addressing);
        if streams > 0 && !force {
            return Err(AddressingRefused::InUse { streams });
        }
        let before = self.host.addressing();
        self.host.set_addressing(now, addressing).map_err(refused)?;
        if let Err(error) = self.set_filter() {
            self.host.set_addressing(now, before).map_err(refused)?;
            let problem = format!("the port does not pass the multicast groups of the address: {error}");
            return Err(AddressingRefused::Refused(problem));
        }
        Ok(AddressingChanged { local: self.local_port(), conflicts: self.host.conflicts().clone() })
    }
}

/// The addresses and routes contradict each other, or there is no such port.
fn refused(error: HostConfigError) -> AddressingRefused {
    AddressingRefused::Refused(error.to_string())
}

impl IpHost for PortHost {
    type Output = PortsTx;
    type Stream = TcpStreamId;
    type Error = EalError;

    fn local_port(&self) -> LocalPort {
        LocalPort {
            id: self.host.port(),
            mac: self.host.mac(),
            vlan: self.host.vlan(),
            addresses: self.host.addresses().collect(),
            restrictions: self.restrictions.clone(),
            mtu: self.host.mtu(),
            path_mtu: self.path_mtu,
        }
    }

    fn is_broadcast(&self, ip: IpAddr) -> bool {
        self.host.is_broadcast(ip)
    }

    fn is_on_link(&self, ip: IpAddr) -> bool {
        self.host.is_on_link(ip)
    }

    fn has_route(&self, ip: IpAddr) -> bool {
        self.host.has_route(ip)
    }

    fn next_hop(&self, dst: IpAddr) -> IpAddr {
        self.host.next_hop(dst)
    }

    fn resolve(&mut self, now: Instant, dst: IpAddr) -> Resolution {
        match self.host.resolve(now, dst) {
            host::Resolution::Ready { mac, source } => Resolution::Ready { mac, source },
            host::Resolution::Pending => Resolution::Pending,
            host::Resolution::Unreachable => Resolution::Unreachable,
        }
    }

    fn same_station(&mut self, now: Instant, a: IpAddr, b: IpAddr) -> bool {
        self.host.same_station(now, a, b)
    }

    fn note_peer(&mut self, now: Instant, peer: IpAddr) {
        self.host.note_peer(now, peer);
    }

    fn learn(&mut self, now: Instant, ip: IpAddr, mac: MacAddr) {
        self.host.learn(now, ip, mac);
    }

    fn listen(&mut self, port: u16) -> Result<(), EalError> {
        self.host.listen(port);
        Ok(())
    }

    fn watch_listeners(&mut self) -> Result<(), EalError> {
        self.host.watch_listeners();
        self.set_filter()
    }

    fn join_group(&mut self, now: Instant, group: IpAddr) -> Result<(), EalError> {
        if self.host.join_group(now, group) { self.set_filter() } else { Ok(()) }
    }

    fn leave_group(&mut self, now: Instant, group: IpAddr) -> Result<(), EalError> {
        if self.host.leave_group(now, group) { self.set_filter() } else { Ok(()) }
    }

    fn recv(&mut self, stream: TcpStreamId, buffer: &mut [u8]) -> usize {
        self.host.recv(stream, buffer)
    }

    fn send(&mut self, stream: TcpStreamId, data: &[u8]) -> usize {
        self.host.send(stream, data)
    }

    fn close(&mut self, stream: TcpStreamId) {
        self.host.close(stream);
    }

    fn abort(&mut self, stream: TcpStreamId) {
        self.host.abort(stream);
    }

    fn stream_count(&self) -> usize {
        self.host.stream_count()
    }

    fn neighbour_count(&self) -> usize {
        self.host.neighbour_count()
    }

    fn poll(&mut self, now: Instant, output: &mut PortsTx) {
        self.host.poll(now, output);
    }

    fn poll_event(&mut self) -> Option<HostEvent<TcpStreamId>> {
        Some(match self.host.poll_event()? {
            host::HostEvent::NeighbourChanged { ip, mac } => HostEvent::NeighbourChanged { ip, mac },
            host::HostEvent::Listener { group, host, joined } => {
                HostEvent::GroupListener { group: group.into(), host: host.into(), joined }
            }
            host::HostEvent::Stream(event) => HostEvent::Stream(match event {
                host::StreamEvent::Opened { stream, local, peer } => StreamEvent::Opened { stream, local, peer },
                host::StreamEvent::Readable { stream } => StreamEvent::Readable { stream },
                host::StreamEvent::Closed { stream, reset } => StreamEvent::Closed { stream, reset },
            }),
        })
    }

    fn send_mad(&mut self, output: &mut PortsTx, path: &MadPath, mad: &[u8; MAD_LEN]) -> bool {
        let sent = write_mad(output, path, GSI_UDP_SRC_PORT, self.gsi_psn, mad);
        if sent {
            self.gsi_psn = self.gsi_psn.next();
        }
        sent
    }
}
