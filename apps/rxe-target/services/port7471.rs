//! One port, six clients: rdma_client, rdma_xclient, ucmatose, cmtime, rstream and riostream all come to port 7471 and
//! each expects another server. Their connection requests tell them apart.

use rxe_proto::cm::ConnectRequest;

/// The port.
pub const PORT: u16 = 7471;

/// A client program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caller {
    /// rstream or riostream: an rsocket, which says so in its private data.
    Rsocket,
    /// cmtime.
    Cmtime,
    /// ucmatose.
    Ucmatose,
    /// rdma_client, rdma_xclient, or an unknown program.
    RdmaClient,
}

/// Length of the data with which rsockets connect.
const RSOCKET_DATA: usize = 40;

impl Caller {
    /// The program that sent `request`.
    pub fn of(request: &ConnectRequest) -> Caller {
        Caller::recognise(
            request.responder_resources,
            request.initiator_depth,
            request.retry_count,
            &request.private_data,
        )
    }

    fn recognise(responder_resources: u8, initiator_depth: u8, retry_count: u8, private_data: &[u8]) -> Caller {
        if is_rsocket(private_data) {
            return Caller::Rsocket;
        }
        match (responder_resources, initiator_depth, retry_count) {
            (1, 1, 2) => Caller::Cmtime,
            (1, 1, 5) => Caller::Ucmatose,
            _ => Caller::RdmaClient,
        }
    }
}

/// Whether this is rsocket's connection data: version 1, two known flags, credits, three bytes reserved, and nothing
/// but the padding of the REQ behind its 40 bytes.
fn is_rsocket(private_data: &[u8]) -> bool {
    let Some((data, padding)) = private_data.split_at_checked(RSOCKET_DATA) else { return false };
    matches!(data, [1, 0..=3, high, low, 0, 0, 0, ..] if (*high, *low) != (0, 0)) && padding.iter().all(|b| *b == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: [u8; 56] = [0; 56];

    /// As rstream was seen to connect: version 1, iomap flag, 384 credits, 2 SGL entries, a half buffer of 512 KiB.
    fn rstream() -> [u8; 56] {
        let mut data = NOTHING;
        data[..4].copy_from_slice(&[1, 2, 0x01, 0x80]);
        data[23] = 2;
        data[37] = 8;
        data
    }

    #[test]
    fn clients_are_told_apart() {
        for (resources, retry, data, client) in [
            ((128, 128), 7, NOTHING, Caller::RdmaClient),
            ((1, 1), 7, NOTHING, Caller::RdmaClient),
            ((1, 1), 2, NOTHING, Caller::Cmtime),
            ((1, 1), 5, NOTHING, Caller::Ucmatose),
            ((0, 0), 7, rstream(), Caller::Rsocket),
        ] {
            assert_eq!(Caller::recognise(resources.0, resources.1, retry, &data), client);
        }
    }

    #[test]
    fn other_private_data_is_no_rsocket() {
        let mut text = NOTHING;
        text[..4].copy_from_slice(b"name");
        let mut longer = rstream();
        longer[50] = 1;
        let mut no_credits = rstream();
        no_credits[2..4].fill(0);
        for data in [text, longer, no_credits] {
            assert!(!is_rsocket(&data));
        }
        assert!(!is_rsocket(&[1, 2, 1]));
    }
}
