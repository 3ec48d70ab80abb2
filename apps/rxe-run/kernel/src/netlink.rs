//! The read-only part of RDMA netlink: devices, links, the device's objects, device files, as `rdma_netlink.h` has them.
//!
//! Requests that change something, or ask for anything else, are refused.

use nix::errno::Errno;

use crate::backend::{Device, Objects};
use crate::local::Local;
use crate::sysfs;

/// Length of `nlmsghdr`: length, type, flags, sequence number, port.
const HEADER: usize = 16;
/// Length of `nlattr`: length, type.
const ATTRIBUTE: usize = 4;

const ERROR: u16 = 2;
const DONE: u16 = 3;

const MULTI: u16 = 0x2;
const ACK: u16 = 0x4;
const DUMP: u16 = 0x300;

/// `RDMA_NL_NLDEV`, the client in the upper bits of a type.
const NLDEV: u16 = 5 << 10;

/// Commands.
mod command {
    pub const GET: u16 = 1;
    pub const PORT_GET: u16 = 5;
    pub const SYS_GET: u16 = 6;
    pub const RES_GET: u16 = 9;
    pub const GET_CHARDEV: u16 = 15;
}

/// Attributes.
mod attribute {
    pub const DEV_INDEX: u16 = 1;
    pub const DEV_NAME: u16 = 2;
    pub const PORT_INDEX: u16 = 3;
    pub const NODE_GUID: u16 = 6;
    pub const SYS_IMAGE_GUID: u16 = 7;
    pub const PORT_STATE: u16 = 12;
    pub const PORT_PHYS_STATE: u16 = 13;
    pub const DEV_NODE_TYPE: u16 = 14;
    pub const RES_SUMMARY: u16 = 15;
    pub const RES_SUMMARY_ENTRY: u16 = 16;
    pub const RES_SUMMARY_ENTRY_NAME: u16 = 17;
    pub const RES_SUMMARY_ENTRY_CURR: u16 = 18;
    pub const NDEV_INDEX: u16 = 50;
    pub const NDEV_NAME: u16 = 51;
    pub const SYS_NETNS_MODE: u16 = 66;
    pub const DEV_PROTOCOL: u16 = 67;
    pub const CHARDEV_TYPE: u16 = 69;
    pub const CHARDEV_NAME: u16 = 70;
    pub const CHARDEV_ABI: u16 = 71;
    pub const CHARDEV: u16 = 72;
    pub const UVERBS_DRIVER_ID: u16 = 73;
    pub const DEV_DIM: u16 = 84;
    pub const SYS_COPY_ON_FORK: u16 = 93;
    /// In the type of an attribute that has attributes.
    pub const NESTED: u16 = 0x8000;
    /// The bits of a type.
    pub const TYPE: u16 = 0x3FFF;
}

/// The only device and port.
const DEVICE: u32 = 0;
const PORT: u32 = 1;
const ACTIVE: u8 = 4;
const LINK_UP: u8 = 5;
const NODE_TYPE_CA: u8 = 1;
/// `RDMA_DRIVER_RXE`
const DRIVER_RXE: u32 = 14;

/// What can be asked.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Name of the device.
    pub device: &'a str,
    /// Its port.
    pub local: &'a Local,
    /// Objects that the program has.
    pub objects: Objects,
}

impl View<'_> {
    /// The datagrams that answer one with requests.
    #[must_use]
    pub fn answers(&self, mut requests: &[u8]) -> Vec<Vec<u8>> {
        let mut answers = Vec::new();
        while let Some((request, rest)) = Request::parse(requests) {
            requests = rest;
            let mut answer = Vec::new();
            let outcome = self.answer(&request, &mut answer);
            if outcome.is_ok() && request.is_dump() {
                request.message(&mut answer, DONE, MULTI, |body| body.extend(0_i32.to_ne_bytes()));
            }
            let status = match outcome {
                Ok(()) if request.is_dump() || request.flags & ACK == 0 => None,
                Ok(()) => Some(0),
                Err(error) => Some(-(error as i32)),
            };
            answers.extend(Some(answer).filter(|answer| !answer.is_empty() && outcome.is_ok()));
            if let Some(status) = status {
                let mut error = Vec::new();
                request.message(&mut error, ERROR, 0, |body| {
                    body.extend(status.to_ne_bytes());
                    body.extend_from_slice(request.header);
                });
                answers.push(error);
            }
        }
        answers
    }

    fn answer(&self, request: &Request<'_>, answer: &mut Vec<u8>) -> Result<(), Errno> {
        let flags = if request.is_dump() { MULTI } else { 0 };
        let command = request.kind.checked_sub(NLDEV).ok_or(Errno::EINVAL)?;
        let has_device = match request.number(attribute::DEV_INDEX) {
            Some(index) if index != DEVICE => return Err(Errno::EINVAL),
            index => index.is_some() || request.is_dump(),
        };
        match command {
            command::GET if has_device => request.message(answer, request.kind, flags, |body| self.device(body)),
            command::PORT_GET if has_device => {
                if request.number(attribute::PORT_INDEX).is_some_and(|port| port != PORT) {
                    return Err(Errno::EINVAL);
                }
                request.message(answer, request.kind, flags, |body| self.port(body));
            }
            command::RES_GET if has_device => {
                request.message(answer, request.kind, flags, |body| self.resources(body));
            }
            command::SYS_GET if !request.is_dump() => request.message(answer, request.kind, flags, |body| {
                put(body, attribute::SYS_NETNS_MODE, &[1]);
                put(body, attribute::SYS_COPY_ON_FORK, &[1]);
            }),
            command::GET_CHARDEV if !request.is_dump() => {
                let device = match request.text(attribute::CHARDEV_TYPE).ok_or(Errno::EINVAL)? {
                    b"uverbs" if has_device => Device::Uverbs,
                    b"rdma_cm" => Device::RdmaCm,
                    _ => return Err(Errno::ENOENT),
                };
                request.message(answer, request.kind, flags, |body| device_file(body, device));
            }
            command::GET | command::PORT_GET | command::RES_GET => return Err(Errno::EINVAL),
            _ => return Err(Errno::EOPNOTSUPP),
        }
        Ok(())
    }

    fn handle(&self, body: &mut Vec<u8>) {
        put(body, attribute::DEV_INDEX, &DEVICE.to_ne_bytes());
        put_text(body, attribute::DEV_NAME, self.device);
    }

    fn device(&self, body: &mut Vec<u8>) {
        self.handle(body);
        put(body, attribute::PORT_INDEX, &PORT.to_ne_bytes());
        // The number whose bytes, from the highest one on, are those of the GUID.
        put(body, attribute::NODE_GUID, &self.local.node_guid.to_ne_bytes());
        put(body, attribute::SYS_IMAGE_GUID, &self.local.node_guid.to_ne_bytes());
        put(body, attribute::DEV_NODE_TYPE, &[NODE_TYPE_CA]);
        put(body, attribute::DEV_DIM, &[0]);
        put_text(body, attribute::DEV_PROTOCOL, "roce");
    }

    fn port(&self, body: &mut Vec<u8>) {
        self.handle(body);
        put(body, attribute::PORT_INDEX, &PORT.to_ne_bytes());
        put(body, attribute::PORT_STATE, &[ACTIVE]);
        put(body, attribute::PORT_PHYS_STATE, &[LINK_UP]);
        put(body, attribute::NDEV_INDEX, &self.local.ifindex.to_ne_bytes());
        put_text(body, attribute::NDEV_NAME, &self.local.interface);
    }

    fn resources(&self, body: &mut Vec<u8>) {
        self.handle(body);
        let Objects { pds, cqs, qps, cm_ids, mrs, contexts, srqs } = self.objects;
        let all =
            [("pd", pds), ("cq", cqs), ("qp", qps), ("cm_id", cm_ids), ("mr", mrs), ("ctx", contexts), ("srq", srqs)];
        let mut summary = Vec::new();
        for (name, count) in all {
            let mut entry = Vec::new();
            put_text(&mut entry, attribute::RES_SUMMARY_ENTRY_NAME, name);
            put(&mut entry, attribute::RES_SUMMARY_ENTRY_CURR, &(count as u64).to_ne_bytes());
            put(&mut summary, attribute::RES_SUMMARY_ENTRY | attribute::NESTED, &entry);
        }
        put(body, attribute::RES_SUMMARY | attribute::NESTED, &summary);
    }
}

fn device_file(body: &mut Vec<u8>, device: Device) {
    let (major, minor) = device.numbers();
    // As the kernel's `new_encode_dev`.
    let number = u64::from(minor & 0xFF | major << 8 | (minor & !0xFF) << 12);
    put(body, attribute::CHARDEV, &number.to_ne_bytes());
    put(body, attribute::CHARDEV_ABI, &u64::from(sysfs::abi(device)).to_ne_bytes());
    put_text(body, attribute::CHARDEV_NAME, device.path().rsplit('/').next().unwrap_or_default());
    if device == Device::Uverbs {
        put(body, attribute::UVERBS_DRIVER_ID, &DRIVER_RXE.to_ne_bytes());
    }
}

/// A request.
struct Request<'a> {
    header: &'a [u8],
    kind: u16,
    flags: u16,
    attributes: &'a [u8],
}

impl<'a> Request<'a> {
    /// The first request of a datagram, and what follows it.
    fn parse(bytes: &'a [u8]) -> Option<(Request<'a>, &'a [u8])> {
        let (header, _) = bytes.split_first_chunk::<HEADER>()?;
        let [a, b, c, d, kind @ .., _, _, _, _, _, _, _, _, _, _] = *header;
        let len = u32::from_ne_bytes([a, b, c, d]) as usize;
        let attributes = bytes.get(HEADER..len)?;
        let rest = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        let request = Request {
            header,
            kind: u16::from_ne_bytes(kind),
            flags: u16::from_ne_bytes([header[6], header[7]]),
            attributes,
        };
        Some((request, rest))
    }

    fn is_dump(&self) -> bool {
        self.flags & DUMP == DUMP
    }

    /// The value of an attribute.
    fn value(&self, kind: u16) -> Option<&'a [u8]> {
        let mut rest = self.attributes;
        loop {
            let ([a, b, c, d], _) = rest.split_first_chunk::<ATTRIBUTE>()?;
            let len = usize::from(u16::from_ne_bytes([*a, *b]));
            let value = rest.get(ATTRIBUTE..len)?;
            if u16::from_ne_bytes([*c, *d]) & attribute::TYPE == kind {
                return Some(value);
            }
            rest = rest.get(len.next_multiple_of(4)..)?;
        }
    }

    fn number(&self, kind: u16) -> Option<u32> {
        Some(u32::from_ne_bytes(*self.value(kind)?.first_chunk()?))
    }

    /// A string, which may end with a zero.
    fn text(&self, kind: u16) -> Option<&'a [u8]> {
        self.value(kind)?.split(|&byte| byte == 0).next()
    }

    /// Adds a message, with the sequence number and port of the request.
    fn message(&self, to: &mut Vec<u8>, kind: u16, flags: u16, write: impl FnOnce(&mut Vec<u8>)) {
        let mut body = Vec::new();
        write(&mut body);
        to.extend(((HEADER + body.len()) as u32).to_ne_bytes());
        to.extend(kind.to_ne_bytes());
        to.extend(flags.to_ne_bytes());
        to.extend_from_slice(&self.header[8..]);
        to.append(&mut body);
        to.resize(to.len().next_multiple_of(4), 0);
    }
}

fn put(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    to.extend(((ATTRIBUTE + value.len()) as u16).to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend_from_slice(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

fn put_text(to: &mut Vec<u8>, kind: u16, text: &str) {
    put(to, kind, &[text.as_bytes(), &[0]].concat());
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use rxe_proto::wire::PathMtu;

    use super::*;

    const SEQUENCE: u32 = 0x1234_5678;

    fn request(kind: u16, flags: u16, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut header = [0; HEADER];
        header[8..12].copy_from_slice(&SEQUENCE.to_ne_bytes());
        let (mut bytes, request) = (Vec::new(), Request { header: &header, kind, flags, attributes: &[] });
        request.message(&mut bytes, kind, flags, |body| {
            attributes.iter().for_each(|(kind, value)| put(body, *kind, value));
        });
        bytes
    }

    /// Types and flags of the answers, and the last attributes of each type.
    fn answers(requests: &[u8]) -> Vec<(u16, u16, Vec<u8>)> {
        let local = Local::new(IpAddr::from([127, 0, 7, 9]), "lo".to_owned(), 5, PathMtu::Mtu4096);
        let objects = Objects { pds: 1, cqs: 2, qps: 3, cm_ids: 4, mrs: 5, contexts: 6, srqs: 7 };
        let view = View { device: "rxe7", local: &local, objects };
        let mut all = Vec::new();
        for answer in view.answers(requests) {
            let mut rest = &answer[..];
            while let Some((message, next)) = Request::parse(rest) {
                assert_eq!(message.header[8..12], SEQUENCE.to_ne_bytes());
                all.push((
                    message.kind,
                    message.flags,
                    answer[answer.len() - rest.len()..][..rest.len() - next.len()].to_vec(),
                ));
                rest = next;
            }
            assert!(rest.is_empty());
        }
        all
    }

    fn parsed(bytes: &[u8]) -> Request<'_> {
        Request::parse(bytes).unwrap().0
    }

    fn status(bytes: &[u8]) -> i32 {
        i32::from_ne_bytes(*bytes[HEADER..].first_chunk().unwrap())
    }

    #[test]
    fn numbers_are_those_of_the_header() {
        use attribute::*;
        let mut program = String::from("#include <rdma/rdma_netlink.h>\n");
        for (name, value) in [
            ("CMD_GET", command::GET),
            ("CMD_PORT_GET", command::PORT_GET),
            ("CMD_SYS_GET", command::SYS_GET),
            ("CMD_RES_GET", command::RES_GET),
            ("CMD_GET_CHARDEV", command::GET_CHARDEV),
            ("ATTR_DEV_INDEX", DEV_INDEX),
            ("ATTR_DEV_NAME", DEV_NAME),
            ("ATTR_PORT_INDEX", PORT_INDEX),
            ("ATTR_NODE_GUID", NODE_GUID),
            ("ATTR_SYS_IMAGE_GUID", SYS_IMAGE_GUID),
            ("ATTR_PORT_STATE", PORT_STATE),
            ("ATTR_PORT_PHYS_STATE", PORT_PHYS_STATE),
            ("ATTR_DEV_NODE_TYPE", DEV_NODE_TYPE),
            ("ATTR_RES_SUMMARY", RES_SUMMARY),
            ("ATTR_RES_SUMMARY_ENTRY", RES_SUMMARY_ENTRY),
            ("ATTR_RES_SUMMARY_ENTRY_NAME", RES_SUMMARY_ENTRY_NAME),
            ("ATTR_RES_SUMMARY_ENTRY_CURR", RES_SUMMARY_ENTRY_CURR),
            ("ATTR_NDEV_INDEX", NDEV_INDEX),
            ("ATTR_NDEV_NAME", NDEV_NAME),
            ("SYS_ATTR_NETNS_MODE", SYS_NETNS_MODE),
            ("ATTR_DEV_PROTOCOL", DEV_PROTOCOL),
            ("ATTR_CHARDEV_TYPE", CHARDEV_TYPE),
            ("ATTR_CHARDEV_NAME", CHARDEV_NAME),
            ("ATTR_CHARDEV_ABI", CHARDEV_ABI),
            ("ATTR_CHARDEV", CHARDEV),
            ("ATTR_UVERBS_DRIVER_ID", UVERBS_DRIVER_ID),
            ("ATTR_DEV_DIM", DEV_DIM),
            ("SYS_ATTR_COPY_ON_FORK", SYS_COPY_ON_FORK),
        ] {
            program += &format!("_Static_assert(RDMA_NLDEV_{name} == {value}, \"{name}\");\n");
        }
        let source = std::env::temp_dir().join(format!("rxe-uverbs-netlink-{}.c", std::process::id()));
        std::fs::write(&source, program).unwrap();
        let output = std::process::Command::new("cc").arg("-fsyntax-only").arg(&source).output().unwrap();
        std::fs::remove_file(&source).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn devices_and_ports_are_dumped() {
        for kind in [NLDEV + command::GET, NLDEV + command::PORT_GET] {
            let [(of_device, MULTI, device), (DONE, MULTI, _)] = &answers(&request(kind, DUMP, &[]))[..] else {
                panic!("{kind}");
            };
            assert_eq!(*of_device, kind);
            assert_eq!(parsed(device).text(attribute::DEV_NAME), Some(&b"rxe7"[..]));
            assert_eq!(parsed(device).number(attribute::PORT_INDEX), Some(1));
        }
        let index: (u16, &[u8]) = (attribute::DEV_INDEX, &[0; 4]);
        let port: (u16, &[u8]) = (attribute::PORT_INDEX, &1_u32.to_ne_bytes());
        let answers = answers(&request(NLDEV + command::PORT_GET, ACK, &[index, port]));
        let [(_, 0, link), (ERROR, 0, done)] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!(parsed(link).number(attribute::NDEV_INDEX), Some(5));
        assert_eq!((parsed(link).value(attribute::PORT_STATE), status(done)), (Some(&[4][..]), 0));
    }

    #[test]
    fn objects_are_counted() {
        let answers = answers(&request(NLDEV + command::RES_GET, DUMP, &[]));
        let summary = parsed(&answers[0].2).value(attribute::RES_SUMMARY).unwrap();
        let mut counts = Vec::new();
        let mut rest = summary;
        while !rest.is_empty() {
            let len = usize::from(u16::from_ne_bytes([rest[0], rest[1]]));
            let entry = Request { header: &[], kind: 0, flags: 0, attributes: &rest[ATTRIBUTE..len] };
            counts
                .push((entry.text(attribute::RES_SUMMARY_ENTRY_NAME), entry.number(attribute::RES_SUMMARY_ENTRY_CURR)));
            rest = &rest[len.next_multiple_of(4)..];
        }
        assert_eq!(
            (counts.len(), counts[2], counts[6]),
            (7, (Some(&b"qp"[..]), Some(3)), (Some(&b"srq"[..]), Some(7)))
        );
    }

    #[test]
    fn device_files_are_those_of_sysfs() {
        let index: (u16, &[u8]) = (attribute::DEV_INDEX, &[0; 4]);
        let ask =
            |kind: &'static [u8]| request(NLDEV + command::GET_CHARDEV, 0, &[index, (attribute::CHARDEV_TYPE, kind)]);
        let uverbs = answers(&ask(b"uverbs\0"));
        let uverbs = parsed(&uverbs[0].2);
        assert_eq!(uverbs.number(attribute::CHARDEV), Some(231 << 8 | 192));
        assert_eq!(
            (uverbs.text(attribute::CHARDEV_NAME), uverbs.number(attribute::CHARDEV_ABI)),
            (Some(&b"uverbs0"[..]), Some(2))
        );
        let rdma_cm = answers(&ask(b"rdma_cm"));
        assert_eq!(parsed(&rdma_cm[0].2).number(attribute::CHARDEV_ABI), Some(4));
        assert_eq!(status(&answers(&ask(b"umad"))[0].2), -libc::ENOENT);
    }

    #[test]
    fn what_changes_something_or_is_not_there_is_refused() {
        for (kind, flags, attributes, error) in [
            (NLDEV + 2, 0, (attribute::DEV_INDEX, 0_u32), Errno::EOPNOTSUPP),
            (NLDEV + 3, ACK, (attribute::DEV_INDEX, 0), Errno::EOPNOTSUPP),
            (NLDEV + command::GET, 0, (attribute::DEV_INDEX, 1), Errno::EINVAL),
            (NLDEV + command::GET, 0, (attribute::PORT_INDEX, 1), Errno::EINVAL),
            (NLDEV + command::PORT_GET, DUMP, (attribute::PORT_INDEX, 2), Errno::EINVAL),
            (2 << 10, 0, (attribute::DEV_INDEX, 0), Errno::EINVAL),
        ] {
            let value = attributes.1.to_ne_bytes();
            let answers = answers(&request(kind, flags, &[(attributes.0, &value)]));
            let [(ERROR, 0, error_message)] = &answers[..] else { panic!("{kind}: {answers:?}") };
            assert_eq!(status(error_message), -(error as i32), "{kind}");
        }
        // Too short, of a length beyond the end, and an attribute of such a length.
        assert_eq!(answers(&[7; 15]), []);
        assert_eq!(answers(&[0xFF; 16]), []);
        let mut bad = request(NLDEV + command::GET, 0, &[(attribute::DEV_INDEX, &[0; 4])]);
        bad[HEADER] = 200;
        assert_eq!(status(&answers(&bad)[0].2), -(Errno::EINVAL as i32));
    }
}
