//! Socket options for which nix has no names.

use nix::{getsockopt_impl, libc, setsockopt_impl, sockopt_impl};

sockopt_impl!(
    /// IPv4: whether datagrams may be fragmented, one of the constants `IP_PMTUDISC_*`.
    Ipv4MtuDiscover,
    SetOnly,
    libc::IPPROTO_IP,
    libc::IP_MTU_DISCOVER,
    libc::c_int
);
sockopt_impl!(
    /// IPv6: whether datagrams may be fragmented, one of the constants `IPV6_PMTUDISC_*`.
    Ipv6MtuDiscover,
    SetOnly,
    libc::IPPROTO_IPV6,
    libc::IPV6_MTU_DISCOVER,
    libc::c_int
);
sockopt_impl!(
    /// IPv6: the MTU of the path to the peer of a connected socket.
    Ipv6Mtu,
    GetOnly,
    libc::IPPROTO_IPV6,
    libc::IPV6_MTU,
    libc::c_int
);
sockopt_impl!(
    /// IPv4: sends datagrams without a UDP checksum.
    Ipv4NoChecksum,
    SetOnly,
    libc::SOL_SOCKET,
    libc::SO_NO_CHECK,
    bool
);
sockopt_impl!(
    /// IPv6: sends datagrams without a UDP checksum.
    Ipv6NoChecksumTx,
    SetOnly,
    libc::IPPROTO_UDP,
    libc::UDP_NO_CHECK6_TX,
    bool
);
sockopt_impl!(
    /// IPv6: receives datagrams without a UDP checksum.
    Ipv6NoChecksumRx,
    SetOnly,
    libc::IPPROTO_UDP,
    libc::UDP_NO_CHECK6_RX,
    bool
);
sockopt_impl!(
    /// IPv4: the interface for datagrams to multicast groups.
    Ipv4MulticastInterface,
    SetOnly,
    libc::IPPROTO_IP,
    libc::IP_MULTICAST_IF,
    libc::ip_mreqn
);
sockopt_impl!(
    /// IPv6: the index of the interface for datagrams to multicast groups.
    Ipv6MulticastInterface,
    SetOnly,
    libc::IPPROTO_IPV6,
    libc::IPV6_MULTICAST_IF,
    libc::c_int
);
sockopt_impl!(
    /// IPv4: joins a multicast group on one interface.
    Ipv4JoinGroup,
    SetOnly,
    libc::IPPROTO_IP,
    libc::IP_ADD_MEMBERSHIP,
    libc::ip_mreqn
);
sockopt_impl!(
    /// IPv6: joins a multicast group on one interface.
    Ipv6JoinGroup,
    SetOnly,
    libc::IPPROTO_IPV6,
    libc::IPV6_ADD_MEMBERSHIP,
    libc::ipv6_mreq
);
sockopt_impl!(
    /// IPv4: receives datagrams to groups that only other sockets of the host have joined.
    Ipv4MulticastAll,
    SetOnly,
    libc::IPPROTO_IP,
    libc::IP_MULTICAST_ALL,
    bool
);
sockopt_impl!(
    /// IPv6: receives datagrams to groups that only other sockets of the host have joined.
    Ipv6MulticastAll,
    SetOnly,
    libc::IPPROTO_IPV6,
    libc::IPV6_MULTICAST_ALL,
    bool
);
