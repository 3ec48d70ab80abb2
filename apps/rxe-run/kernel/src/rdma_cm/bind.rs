//! Local addresses: BIND and LISTEN.

use std::net::{Ipv4Addr, SocketAddr};

use nix::errno::Errno;
use rxe_proto::wire::cm::PortSpace;

use super::id::State;
use super::{Host, RdmaCm, abi, address};

/// Most requests that a listener may have queued.
const MAX_BACKLOG: u32 = 1024;

impl RdmaCm {
    /// BIND_IP.
    pub(super) fn bind_ip(&mut self, host: &mut Host<'_>, file: u32, command: &abi::BindIp) -> Result<(), Errno> {
        self.bind_sockaddr(host, file, command.id, &command.addr)
    }

    /// BIND.
    pub(super) fn bind(&mut self, host: &mut Host<'_>, file: u32, command: &abi::Bind) -> Result<(), Errno> {
        if command.reserved != 0 || command.addr_size == 0 || command.addr_size != address::size(&command.addr) {
            return Err(Errno::EINVAL);
        }
        self.bind_sockaddr(host, file, command.id, &command.addr)
    }

    fn bind_sockaddr(&mut self, host: &mut Host<'_>, file: u32, handle: u32, sockaddr: &[u8]) -> Result<(), Errno> {
        if address::size(sockaddr) == 0 {
            return Err(Errno::EINVAL);
        }
        self.id(file, handle)?;
        // librdmacm tries a native InfiniBand address once, and then uses IP addresses.
        let source = address::read(sockaddr).ok_or(Errno::EAFNOSUPPORT)?;
        self.bind_id(host, handle, source, address::wildcard(source))?;
        let id = self.ids.get(handle).ok_or(Errno::ENOENT)?;
        if source.port() != 0 && !id.reuse_address {
            self.ports.claim(id, host.claim).inspect_err(|_| self.unbind(handle))?;
        }
        Ok(())
    }

    /// Takes the address from an id that has just got it.
    fn unbind(&mut self, handle: u32) {
        if let Some(id) = self.ids.get_mut(handle) {
            self.ports.release(id, handle);
            (id.source, id.dest, id.has_port, id.attached, id.state) = (None, None, false, false, State::Idle);
        }
    }

    /// Binds an id that has no address yet. `dest` is the peer, or a wildcard.
    pub(super) fn bind_id(
        &mut self,
        host: &Host<'_>,
        handle: u32,
        source: SocketAddr,
        dest: SocketAddr,
    ) -> Result<(), Errno> {
        let source = address::bound(host.local, source);
        let any = address::is_any(host.local, source.ip());
        let id = self.ids.get_mut(handle).ok_or(Errno::ENOENT)?;
        if id.state != State::Idle {
            return Err(Errno::EINVAL);
        }
        if let SocketAddr::V6(v6) = source
            && v6.ip().is_unicast_link_local()
            && v6.scope_id() == 0
        {
            return Err(Errno::EINVAL);
        }
        if !any && source.ip() != host.local.address {
            return Err(Errno::EADDRNOTAVAIL);
        }
        // There is no IP over InfiniBand on Ethernet.
        if !any && id.space == PortSpace::Ipoib {
            return Err(Errno::EINVAL);
        }
        if !id.family_only_set {
            id.family_only = source.is_ipv4();
        }
        (id.source, id.dest) = (Some(source), Some(dest));
        let assigned = self.ports.assign(&self.ids, host.local, handle, &mut self.rng);
        let id = self.ids.get_mut(handle).ok_or(Errno::ENOENT)?;
        match assigned {
            Ok(port) => {
                let mut source = source;
                source.set_port(port);
                (id.source, id.has_port, id.attached, id.state) = (Some(source), true, !any, State::Bound);
                Ok(())
            }
            Err(errno) => {
                (id.source, id.dest) = (None, None);
                Err(errno)
            }
        }
    }

    /// LISTEN.
    pub(super) fn listen(&mut self, host: &mut Host<'_>, file: u32, command: &abi::Listen) -> Result<(), Errno> {
        let handle = command.id;
        if self.id(file, handle)?.state != State::Bound {
            let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
            self.bind_id(host, handle, any, any)?;
        }
        if self.id(file, handle)?.reuse_address {
            // A listener does not share its address.
            self.ports.check(&self.ids, host.local, handle, false)?;
        }
        self.ports.claim(self.ids.get(handle).ok_or(Errno::ENOENT)?, host.claim)?;
        let id = self.id_mut(file, handle)?;
        id.reuse_address = false;
        id.backlog = if (1..=MAX_BACKLOG).contains(&command.backlog) { command.backlog } else { MAX_BACKLOG };
        id.state = State::Listening;
        self.answer_early(host);
        Ok(())
    }
}
