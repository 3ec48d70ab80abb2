//! Management datagrams: what parses is written again byte for byte.

use rxe_proto::wire::cm::{CmMessage, IpAddressing, RejReason};
use rxe_proto::wire::mad::{
    BASE_VERSION, CLASS_CM, CM_CLASS_VERSION, MAD_HEADER_LEN, MAD_LEN, METHOD_SEND, MadHeader, attribute,
};

/// Examines the bytes as they are, and as a connection manager message: filled up to its length, with a valid header.
pub fn run(data: &[u8]) {
    examine(data);
    let mut mad = [0; MAD_LEN];
    let len = data.len().min(MAD_LEN);
    mad[..len].copy_from_slice(&data[..len]);
    mad[..4].copy_from_slice(&[BASE_VERSION, CLASS_CM, CM_CLASS_VERSION, METHOD_SEND]);
    let kinds = attribute::APR - attribute::REQ + 1;
    let kind = u16::from_be_bytes([mad[16], mad[17]]).wrapping_sub(attribute::REQ) % kinds;
    mad[16..18].copy_from_slice(&(attribute::REQ + kind).to_be_bytes());
    assert!(CmMessage::parse(&mad).is_ok(), "the header is valid");
    examine(&mad);
}

fn examine(data: &[u8]) {
    let Ok((header, body)) = MadHeader::parse(data) else {
        assert_ne!(data.len(), MAD_LEN, "any header parses");
        return;
    };
    let mut again = [0xA5; MAD_LEN];
    header.emit(&mut again).copy_from_slice(body);
    assert_eq!(again, data);
    let Ok((_, message)) = CmMessage::parse(data) else { return };
    assert_eq!(message.attribute_id(), header.attribute_id);
    let mut again = [0xA5; MAD_LEN];
    message.emit_with(&header, &mut again);
    assert_eq!(again, data);
    message.emit(header.transaction_id, &mut again);
    assert_eq!(again[MAD_HEADER_LEN..], data[MAD_HEADER_LEN..]);
    let text = message.to_string();
    assert!(text.starts_with(message.name()) && !text.contains('\n'), "{text}");
    parts(&message);
}

/// The parts of a message that its users read and write.
fn parts(message: &CmMessage) {
    match message {
        CmMessage::Req(req) => {
            let mut again = req.clone();
            assert!(again.set_private_data(&req.ip_addressing(), &req.ulp_data()));
            assert_eq!(again, *req);
            addressing(&req.ip_addressing());
        }
        CmMessage::SidrReq(req) => {
            let parts = [&req.ip_addressing().to_bytes()[..], &req.ulp_data()].concat();
            assert_eq!(parts, req.private_data);
            addressing(&req.ip_addressing());
        }
        CmMessage::Rej(rej) => {
            assert_eq!(RejReason::from_code(rej.reason.code()), rej.reason);
            let mut again = rej.clone();
            assert!(again.set_ari(rej.ari()));
            assert_eq!(again.ari(), rej.ari());
        }
        _ => {}
    }
}

fn addressing(addressing: &IpAddressing) {
    let (source, destination) = (addressing.source(), addressing.destination());
    assert_eq!(source.is_some(), destination.is_some());
    if let (Some((source, port)), Some(destination)) = (source, destination) {
        let again = IpAddressing::new((source, port), destination).expect("addresses of one family");
        assert_eq!((again.source(), again.destination()), (Some((source, port)), Some(destination)));
    }
}
