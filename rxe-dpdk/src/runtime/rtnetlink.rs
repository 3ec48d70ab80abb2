//! rtnetlink's messages about interfaces and their addresses, as far as a port depends on them.

use std::net::IpAddr;

use rxe_proto::wire::Cidr;

/// Maximum size of a netlink datagram: the kernel fills the buffer up to this.
pub(super) const DATAGRAM: usize = 32 << 10;

/// `struct nlmsghdr`.
const HEADER: usize = 16;
/// `struct ifinfomsg`.
const INFO: usize = 16;
/// `struct ifaddrmsg`.
const ADDRESS_INFO: usize = 8;
/// `struct rtattr`.
const ATTRIBUTE: usize = 4;

/// The state of one interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Interface {
    pub(super) index: u32,
    pub(super) name: String,
    /// IFF_*: see netdevice(7).
    pub(super) flags: u32,
    /// 0 where it is not said.
    pub(super) mtu: u32,
}

impl Interface {
    /// Why the interface carries nothing; `None` when it does.
    pub(super) fn problem(&self) -> Option<&'static str> {
        let has = |flag: libc::c_int| self.flags & flag as u32 != 0;
        match (has(libc::IFF_UP), has(libc::IFF_LOWER_UP)) {
            (false, _) => Some("is down"),
            (true, false) => Some("has no carrier"),
            (true, true) => None,
        }
    }
}

/// An address of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Address {
    /// The interface.
    pub(super) index: u32,
    pub(super) cidr: Cidr,
}

/// One message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Message {
    /// The interface is there, new or changed.
    New(Interface),
    /// The interface of this index is gone, or in another network namespace.
    Deleted(u32),
    /// The interface has the address, new or changed.
    NewAddress(Address),
    /// As soon as the kernel knows that no other station has it.
    TentativeAddress(Address),
    /// The interface has the address no longer.
    DeletedAddress(Address),
    /// The requested list is complete.
    Done,
    /// The request failed with this errno.
    Refused(i32),
}

/// The request for a list of all interfaces.
pub(super) fn list_request() -> [u8; HEADER + INFO] {
    request(libc::RTM_GETLINK)
}

/// The request for a list of the addresses of all interfaces.
pub(super) fn address_list_request() -> [u8; HEADER + ADDRESS_INFO] {
    request(libc::RTM_GETADDR)
}

/// A request of this type for everything.
fn request<const LEN: usize>(kind: u16) -> [u8; LEN] {
    let mut request = [0; LEN];
    let len = request.len() as u32;
    request[..4].copy_from_slice(&len.to_ne_bytes());
    request[4..6].copy_from_slice(&kind.to_ne_bytes());
    request[6..8].copy_from_slice(&((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
    request
}

/// The messages of one datagram. What is cut short or not understood is passed over.
pub(super) fn parse(mut bytes: &[u8]) -> Vec<Message> {
    let mut messages = Vec::new();
    while let Some(len) = u32_at(bytes, 0).map(|len| len as usize).filter(|len| (HEADER..=bytes.len()).contains(len)) {
        let body = &bytes[HEADER..len];
        match u16_at(bytes, 4) {
            Some(libc::RTM_NEWLINK) => messages.extend(interface(body).map(Message::New)),
            Some(libc::RTM_DELLINK) => messages.extend(interface(body).map(|gone| Message::Deleted(gone.index))),
            Some(libc::RTM_NEWADDR) => messages.extend(new_address(body)),
            Some(libc::RTM_DELADDR) => messages.extend(address(body).map(Message::DeletedAddress)),
            Some(kind) if kind == libc::NLMSG_DONE as u16 => messages.push(Message::Done),
            Some(kind) if kind == libc::NLMSG_ERROR as u16 => {
                // 0 is an acknowledgement.
                let refused = u32_at(body, 0).map(|errno| (errno as i32).wrapping_neg()).filter(|errno| *errno != 0);
                messages.extend(refused.map(Message::Refused));
            }
            _ => {}
        }
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    messages
}

fn interface(body: &[u8]) -> Option<Interface> {
    // Messages of bridges about their ports have the same type and another family; such an interface is not gone when
    // it leaves its bridge.
    if *body.first()? != libc::AF_UNSPEC as u8 {
        return None;
    }
    let mut interface = Interface { index: u32_at(body, 4)?, flags: u32_at(body, 8)?, name: String::new(), mtu: 0 };
    for (kind, value) in attributes(body.get(INFO..)?) {
        match kind {
            libc::IFLA_IFNAME => {
                let name = value.split(|byte| *byte == 0).next().unwrap_or_default();
                interface.name = String::from_utf8_lossy(name).into_owned();
            }
            libc::IFLA_MTU => interface.mtu = u32_at(value, 0)?,
            _ => {}
        }
    }
    Some(interface)
}

fn new_address(body: &[u8]) -> Option<Message> {
    let (address, flags) = (address(body)?, u32::from(*body.get(2)?));
    if flags & libc::IFA_F_DADFAILED != 0 {
        // Another station has it.
        return None;
    }
    let tentative = flags & libc::IFA_F_TENTATIVE != 0;
    Some(if tentative { Message::TentativeAddress(address) } else { Message::NewAddress(address) })
}

fn address(body: &[u8]) -> Option<Address> {
    let (family, prefix, index) = (*body.first()?, *body.get(1)?, u32_at(body, 4)?);
    let find = |wanted| attributes(body.get(ADDRESS_INFO..)?).find(|(kind, _)| *kind == wanted);
    // On a point-to-point link, IFA_ADDRESS is the other end's.
    let (_, value) = find(libc::IFA_LOCAL).or_else(|| find(libc::IFA_ADDRESS))?;
    let ip: IpAddr = match i32::from(family) {
        libc::AF_INET => <[u8; 4]>::try_from(value).ok()?.into(),
        libc::AF_INET6 => <[u8; 16]>::try_from(value).ok()?.into(),
        _ => return None,
    };
    Some(Address { index, cidr: Cidr::new(ip, prefix) }).filter(|address| address.cidr.has_valid_prefix())
}

/// Type and value of each attribute.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = u16_at(bytes, 0).map(usize::from).filter(|len| (ATTRIBUTE..=bytes.len()).contains(len))?;
        let attribute = (u16_at(bytes, 2)?, &bytes[ATTRIBUTE..len]);
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(attribute)
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(all(test, target_endian = "little"))]
mod tests {
    use super::*;

    // Recorded from Linux 6.18 while a veth pair came, went up and went; of the attributes those that matter and a few.
    const INDEX: u32 = 3;
    #[rustfmt::skip]
    const DOWN: &[u8] = &[
        0x54, 0x00, 0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x01, 0x00, 0x03, 0x00, 0x00, 0x00, 0x02, 0x10, 0x00, 0x00, 0xff, 0xff, 0xff, 0xff, 0x08, 0x00, 0x03, 0x00,
        0x72, 0x78, 0x61, 0x00, 0x08, 0x00, 0x0d, 0x00, 0xe8, 0x03, 0x00, 0x00, 0x05, 0x00, 0x10, 0x00, 0x02, 0x00,
        0x00, 0x00, 0x08, 0x00, 0x04, 0x00, 0x68, 0x10, 0x00, 0x00, 0x05, 0x00, 0x21, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x0a, 0x00, 0x01, 0x00, 0x42, 0x7f, 0xf7, 0xae, 0xfe, 0xf1, 0x00, 0x00,
    ];
    #[rustfmt::skip]
    const NO_CARRIER: &[u8] = &[
        0x54, 0x00, 0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x01, 0x00, 0x03, 0x00, 0x00, 0x00, 0x03, 0x10, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x08, 0x00, 0x03, 0x00,
        0x72, 0x78, 0x61, 0x00, 0x08, 0x00, 0x0d, 0x00, 0xe8, 0x03, 0x00, 0x00, 0x05, 0x00, 0x10, 0x00, 0x03, 0x00,
        0x00, 0x00, 0x08, 0x00, 0x04, 0x00, 0x68, 0x10, 0x00, 0x00, 0x05, 0x00, 0x21, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x0a, 0x00, 0x01, 0x00, 0x42, 0x7f, 0xf7, 0xae, 0xfe, 0xf1, 0x00, 0x00,
    ];
    #[rustfmt::skip]
    const UP: &[u8] = &[
        0x54, 0x00, 0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x01, 0x00, 0x03, 0x00, 0x00, 0x00, 0x43, 0x10, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x08, 0x00, 0x03, 0x00,
        0x72, 0x78, 0x61, 0x00, 0x08, 0x00, 0x0d, 0x00, 0xe8, 0x03, 0x00, 0x00, 0x05, 0x00, 0x10, 0x00, 0x06, 0x00,
        0x00, 0x00, 0x08, 0x00, 0x04, 0x00, 0x68, 0x10, 0x00, 0x00, 0x05, 0x00, 0x21, 0x00, 0x01, 0x00, 0x00, 0x00,
        0x0a, 0x00, 0x01, 0x00, 0x42, 0x7f, 0xf7, 0xae, 0xfe, 0xf1, 0x00, 0x00,
    ];
    #[rustfmt::skip]
    const DELETED: &[u8] = &[
        0x54, 0x00, 0x00, 0x00, 0x11, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x01, 0x00, 0x03, 0x00, 0x00, 0x00, 0x02, 0x10, 0x00, 0x00, 0xff, 0xff, 0xff, 0xff, 0x08, 0x00, 0x03, 0x00,
        0x72, 0x78, 0x61, 0x00, 0x08, 0x00, 0x0d, 0x00, 0xe8, 0x03, 0x00, 0x00, 0x05, 0x00, 0x10, 0x00, 0x02, 0x00,
        0x00, 0x00, 0x08, 0x00, 0x04, 0x00, 0x68, 0x10, 0x00, 0x00, 0x05, 0x00, 0x21, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x0a, 0x00, 0x01, 0x00, 0x42, 0x7f, 0xf7, 0xae, 0xfe, 0xf1, 0x00, 0x00,
    ];
    #[rustfmt::skip]
    const DONE: &[u8] = &[
        0x14, 0x00, 0x00, 0x00, 0x03, 0x00, 0x02, 0x00, 0x01, 0x00, 0x00, 0x00, 0xe4, 0x7a, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00,
    ];

    #[test]
    fn recorded_messages_are_parsed() {
        let interface = |flags| Interface { index: INDEX, name: "rxa".to_owned(), flags, mtu: 4200 };
        let problem = |bytes: &[u8]| match &parse(bytes)[..] {
            [Message::New(interface)] => {
                assert_eq!((interface.index, &*interface.name, interface.mtu), (INDEX, "rxa", 4200));
                interface.problem()
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(problem(DOWN), Some("is down"));
        assert_eq!(problem(NO_CARRIER), Some("has no carrier"));
        assert_eq!(problem(UP), None);
        assert_eq!(parse(DELETED), [Message::Deleted(INDEX)]);
        assert_eq!(parse(DONE), [Message::Done]);
        assert_eq!(parse(&[UP, DONE].concat()).len(), 2);
        assert_eq!(interface(0).problem(), Some("is down"));
    }

    /// A message about an address, of these attributes.
    fn about_address(kind: u16, family: i32, prefix: u8, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![family as u8, prefix, 0x80, 0, 7, 0, 0, 0];
        for (kind, value) in attributes {
            body.extend((ATTRIBUTE as u16 + value.len() as u16).to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(*value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        let mut message = vec![0; HEADER];
        message[..4].copy_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
        message[4..6].copy_from_slice(&kind.to_ne_bytes());
        message.extend(body);
        message
    }

    #[test]
    fn addresses_are_the_local_ends() {
        let cidr = |text: &str| Address { index: 7, cidr: text.parse().unwrap() };
        let label: (u16, &[u8]) = (libc::IFA_LABEL, b"rxa:1\0");
        let (own, other): (&[u8], &[u8]) = (&[10, 77, 0, 1], &[10, 77, 0, 2]);
        let v4 = |attributes: &[(u16, &[u8])]| about_address(libc::RTM_NEWADDR, libc::AF_INET, 24, attributes);
        let ends = v4(&[(libc::IFA_ADDRESS, other), label, (libc::IFA_LOCAL, own)]);
        assert_eq!(parse(&ends), [Message::NewAddress(cidr("10.77.0.1/24"))]);
        let gone = about_address(libc::RTM_DELADDR, libc::AF_INET, 24, &[(libc::IFA_ADDRESS, own)]);
        assert_eq!(parse(&gone), [Message::DeletedAddress(cidr("10.77.0.1/24"))]);
        let v6 = [0xFD, 0, 0, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        let v6 = about_address(libc::RTM_NEWADDR, libc::AF_INET6, 64, &[(libc::IFA_ADDRESS, &v6)]);
        assert_eq!(parse(&v6), [Message::NewAddress(cidr("fd00:77::1/64"))]);
        let with_flags = |flags: u32| {
            let mut message = v6.clone();
            message[HEADER + 2] |= flags as u8;
            parse(&message)
        };
        assert_eq!(with_flags(libc::IFA_F_TENTATIVE), [Message::TentativeAddress(cidr("fd00:77::1/64"))]);
        assert_eq!(with_flags(libc::IFA_F_TENTATIVE | libc::IFA_F_DADFAILED), []);
        // Of another family, without an address, or with one of another length.
        for odd in [
            about_address(libc::RTM_NEWADDR, libc::AF_UNSPEC, 24, &[(libc::IFA_ADDRESS, own)]),
            v4(&[label]),
            v4(&[(libc::IFA_ADDRESS, &own[1..])]),
            about_address(libc::RTM_NEWADDR, libc::AF_INET, 33, &[(libc::IFA_ADDRESS, own)]),
        ] {
            assert_eq!(parse(&odd), []);
        }
    }

    #[test]
    fn a_refusal_has_its_errno() {
        let mut error = [0; 36];
        error[0] = 36;
        error[4] = libc::NLMSG_ERROR as u8;
        assert_eq!(parse(&error), []);
        error[16..20].copy_from_slice(&(-libc::EPERM).to_ne_bytes());
        assert_eq!(parse(&error), [Message::Refused(libc::EPERM)]);
    }

    #[test]
    fn truncated_messages_and_wrong_lengths_are_harmless() {
        let address = about_address(libc::RTM_NEWADDR, libc::AF_INET, 24, &[(libc::IFA_LOCAL, &[10, 77, 0, 1])]);
        for message in [DOWN, NO_CARRIER, UP, DELETED, DONE, &address] {
            for len in 0..message.len() {
                assert_eq!(parse(&message[..len]), []);
            }
            for at in 0..message.len() {
                for byte in [0, 1, 0x7F, 0xFF] {
                    let mut bytes = message.to_vec();
                    bytes[at] = byte;
                    let _ = parse(&bytes);
                }
            }
        }
    }
}
