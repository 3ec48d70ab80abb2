//! Every reason for which a packet may be dropped, by name, and the counters behind the names.

use std::fmt;

use crate::counters::Counter;

macro_rules! drop_reasons {
    ($($group:literal { $($(#[doc = $doc:literal])* $variant:ident = $name:literal,)* })*) => {
        /// Why a packet was dropped. One enum for all layers: a dropped packet counts under exactly one name.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum DropReason {
            $($($(#[doc = $doc])* $variant,)*)*
        }

        impl DropReason {
            /// Every reason, in declaration order: `ALL[i] as usize == i`.
            pub const ALL: &'static [DropReason] = &[$($(DropReason::$variant,)*)*];

            /// The name that users see, in snake case.
            pub const fn name(self) -> &'static str {
                match self { $($(DropReason::$variant => $name,)*)* }
            }

            /// Description, one sentence.
            pub const fn describe(self) -> &'static str {
                match self { $($(DropReason::$variant => concat!($($doc),*).trim_ascii(),)*)* }
            }

            /// The layer or part that drops: a heading for listings.
            pub const fn group(self) -> &'static str {
                match self { $($(DropReason::$variant => $group,)*)* }
            }
        }
    };
}

drop_reasons! {
    "frame" {
        /// Shorter than the Ethernet header, or than the header its ethertype announces.
        FrameTooShort = "frame_too_short",
        /// VLAN tag cut off, or a second tag behind the first.
        VlanMalformed = "vlan_malformed",
        /// Neither IPv4, IPv6, ARP nor a VLAN tag.
        UnknownEthertype = "unknown_ethertype",
        /// Sent to a MAC address that is not ours.
        ForeignMac = "foreign_mac",
        /// VLAN tag other than the port's own, or none where there should be one.
        VlanMismatch = "vlan_mismatch",
    }
    "ip" {
        /// Wrong IP version, or a header length below the minimum.
        IpHeaderMalformed = "ip_header_malformed",
        /// IPv4 options, which RoCEv2 rules out.
        IpOptions = "ip_options",
        /// A fragment: the ICRC covers the header as sent, so RoCEv2 is never fragmented.
        IpFragment = "ip_fragment",
        /// IP length beyond the frame, or too small for UDP.
        IpLengthMismatch = "ip_length_mismatch",
        /// Sent to an IP address that is not ours.
        ForeignAddress = "foreign_address",
        /// From an address that is not among the port's allowed peers.
        PeerNotAllowed = "peer_not_allowed",
    }
    "udp" {
        /// UDP length differs from what IP carries.
        UdpLengthMismatch = "udp_length_mismatch",
        /// UDP checksum present and wrong.
        UdpChecksum = "udp_checksum",
    }
    "bth" {
        /// No room for BTH and ICRC.
        RoceTooShort = "roce_too_short",
        /// Transport header version other than 0.
        BthVersion = "bth_version",
        /// Reserved opcode, or one of an unsupported transport.
        UnknownOpcode = "unknown_opcode",
        /// No room for the headers of the opcode.
        HeaderTruncated = "header_truncated",
        /// Pad count larger than the bytes after the headers.
        PadExceedsPayload = "pad_exceeds_payload",
        /// ICRC wrong: damaged or modified in transit.
        IcrcMismatch = "icrc_mismatch",
    }
    "qp" {
        /// No such queue pair.
        QpnUnknown = "qpn_unknown",
        /// Opcode of another transport than the queue pair's.
        QpWrongTransport = "qp_wrong_transport",
        /// The queue pair may not receive such a packet in its state.
        QpWrongState = "qp_wrong_state",
        /// The queue pair is in the error state.
        QpInError = "qp_in_error",
        /// Source or destination address other than the connection's.
        QpWrongAddress = "qp_wrong_address",
        /// Another source MAC address than the peer's, on a port that pins it.
        QpWrongMac = "qp_wrong_mac",
        /// Partition key of another partition.
        PkeyMismatch = "pkey_mismatch",
        /// Partition key of a limited member, which the port does not serve.
        PkeyLimited = "pkey_limited",
        /// Queue key other than the queue pair's.
        QkeyMismatch = "qkey_mismatch",
    }
    "responder" {
        /// Duplicate READ or atomic whose resource is gone, so it cannot be answered again.
        PsnDuplicateGone = "psn_duplicate_gone",
        /// Beyond the expected PSN: something before it was lost.
        PsnOutOfSequence = "psn_out_of_sequence",
        /// In flight behind a packet that was refused with an RNR NAK.
        PsnAfterRnr = "psn_after_rnr",
        /// A known operation that this queue pair does not support.
        OpcodeNotSupported = "opcode_not_supported",
        /// First, middle and last packets in an invalid order.
        OpcodeOutOfSequence = "opcode_out_of_sequence",
        /// More READs and atomics at once than agreed.
        TooManyReads = "too_many_reads",
        /// Key, range or right refused.
        RemoteAccess = "remote_access",
        /// Payload or pad of a length that does not fit the operation.
        PayloadLength = "payload_length",
        /// No receive work request.
        NoReceive = "no_receive",
        /// UC: part of a message that cannot be completed, as something before it was lost or refused.
        UcMessageBroken = "uc_message_broken",
        /// UC: before the expected PSN: duplicated or reordered.
        UcPsnStale = "uc_psn_stale",
        /// UC: start of a message far from the expected PSN. The next message is taken if it follows without a gap.
        UcPsnJump = "uc_psn_jump",
        /// Datagram longer than the receive work request.
        UdTooLong = "ud_too_long",
    }
    "requester" {
        /// A response without an outstanding request.
        ResponseUnexpected = "response_unexpected",
        /// A response to something already completed.
        ResponseStale = "response_stale",
        /// A response beyond a lost one.
        ResponseGap = "response_gap",
    }
    "cm" {
        /// Not a MAD of the expected length and version.
        MadMalformed = "mad_malformed",
        /// A MAD of a class, method or attribute that is not served.
        MadUnsupported = "mad_unsupported",
        /// Message for a communication id that does not exist.
        CmUnknownId = "cm_unknown_id",
        /// Message that the connection's state does not allow.
        CmUnexpected = "cm_unexpected",
        /// A repetition of a message already handled.
        CmDuplicate = "cm_duplicate",
        /// No room for another connection.
        CmLimit = "cm_limit",
        /// Message for a connection from another address than its peer's.
        CmForeign = "cm_foreign",
        /// A MAD whose source is not the address of one host, or an IPv4-mapped address in an IPv6 packet.
        GsiSource = "gsi_source",
        /// More MADs than the lcore handles beside its other work.
        GsiBudget = "gsi_budget",
        /// More connection and SIDR requests than the address may make per second.
        GsiRate = "gsi_rate",
    }
    "host" {
        /// A protocol or message that the host stack does not serve.
        HostUnsupported = "host_unsupported",
        /// Malformed ARP packet.
        ArpMalformed = "arp_malformed",
        /// Malformed ICMP, ICMPv6 (neighbour discovery included) or IGMP packet.
        IcmpMalformed = "icmp_malformed",
        /// Checksum of an IPv4 header, ICMP, IGMP or TCP packet wrong.
        HostChecksum = "host_checksum",
    }
    "worker" {
        /// The transmit ring was full when a reply was due that is not kept.
        NoTransmitRoom = "no_transmit_room",
        /// The ring to the lcore that owns the queue pair was full.
        HandoffFull = "handoff_full",
        /// Dropped by fault injection.
        Injected = "injected",
    }
}

impl DropReason {
    /// Number of reasons.
    pub const COUNT: usize = DropReason::ALL.len();
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::error::Error for DropReason {}

/// One counter for each [`DropReason`]. One writer, any number of readers; no cache line is shared with another writer.
#[derive(Debug)]
#[repr(align(128))]
pub struct DropCounters([Counter; DropReason::COUNT]);

impl Default for DropCounters {
    fn default() -> DropCounters {
        DropCounters(std::array::from_fn(|_| Counter::default()))
    }
}

impl DropCounters {
    /// Counts one dropped packet.
    #[inline]
    pub fn count(&self, reason: DropReason) {
        self.0[reason as usize].inc();
    }

    /// Packets dropped for `reason`.
    #[inline]
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize].get()
    }

    /// Every reason with its count, in declaration order.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.iter().map(|&reason| (reason, self.get(reason)))
    }
}
