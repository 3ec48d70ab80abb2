//! ACK extended transport header: syndrome and message sequence number.

use std::time::Duration;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::bytes::U24;

/// Length of the AETH in bytes.
pub const AETH_LEN: usize = 4;

/// ACK extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Aeth {
    syndrome: u8,
    msn: U24,
}

impl Aeth {
    /// A header; `msn` is taken modulo 2^24.
    #[inline]
    pub fn new(syndrome: Syndrome, msn: u32) -> Aeth {
        Aeth { syndrome: syndrome.to_byte(), msn: U24::new(msn) }
    }

    /// ACK, NAK or RNR NAK, with its code.
    #[inline]
    pub const fn syndrome(&self) -> Syndrome {
        Syndrome::from_byte(self.syndrome)
    }

    /// Message sequence number: messages completed at the responder, modulo 2^24.
    #[inline]
    pub const fn msn(&self) -> u32 {
        self.msn.get()
    }
}

/// The syndrome byte of an AETH. Every byte has exactly one representation, so parsing and writing is lossless.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Syndrome {
    /// Acknowledged.
    Ack {
        /// End-to-end credit code, 0 to 31; see [`credit_count`].
        credits: u8,
    },
    /// Receiver not ready: retry after [`rnr_timer`].
    Rnr {
        /// Timer code, 0 to 31.
        timer: u8,
    },
    /// Negative acknowledgement.
    Nak(NakCode),
    /// The whole byte, with the top three bits 010 or the topmost bit set.
    Reserved(u8),
}

impl Syndrome {
    /// Credit code "no credit information": the sender is not limited.
    pub const NO_CREDIT_LIMIT: u8 = 31;

    /// An ACK without credit information, as RoCE responders send.
    pub const ACK: Syndrome = Syndrome::Ack { credits: Syndrome::NO_CREDIT_LIMIT };

    /// The meaning of a syndrome byte.
    #[inline]
    pub const fn from_byte(byte: u8) -> Syndrome {
        // compliance.md [PKT-SYNDROME]: The upper three bits of a syndrome distinguish ACK, RNR NAK and NAK.
        let low = byte & 0x1F;
        match byte >> 5 {
            0 => Syndrome::Ack { credits: low },
            1 => Syndrome::Rnr { timer: low },
            3 => Syndrome::Nak(NakCode::from_bits(low)),
            _ => Syndrome::Reserved(byte),
        }
    }

    /// The byte on the wire. Codes are cut to their five bits.
    #[inline]
    pub const fn to_byte(self) -> u8 {
        match self {
            Syndrome::Ack { credits } => credits & 0x1F,
            Syndrome::Rnr { timer } => 0x20 | timer & 0x1F,
            Syndrome::Nak(code) => 0x60 | code.bits(),
            Syndrome::Reserved(byte) => byte,
        }
    }
}

/// NAK codes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NakCode {
    /// PSN sequence error: packets were lost, retransmit from the PSN of the NAK.
    PsnSequence,
    /// Invalid request.
    InvalidRequest,
    /// Remote access error.
    RemoteAccess,
    /// Remote operational error.
    RemoteOperational,
    /// Invalid RD request.
    InvalidRd,
    /// A code from 5 to 31.
    Unknown(u8),
}

impl NakCode {
    /// The meaning of a code (low five bits).
    #[inline]
    pub const fn from_bits(code: u8) -> NakCode {
        match code & 0x1F {
            0 => NakCode::PsnSequence,
            1 => NakCode::InvalidRequest,
            2 => NakCode::RemoteAccess,
            3 => NakCode::RemoteOperational,
            4 => NakCode::InvalidRd,
            other => NakCode::Unknown(other),
        }
    }

    /// The five bits on the wire.
    #[inline]
    pub const fn bits(self) -> u8 {
        match self {
            NakCode::PsnSequence => 0,
            NakCode::InvalidRequest => 1,
            NakCode::RemoteAccess => 2,
            NakCode::RemoteOperational => 3,
            NakCode::InvalidRd => 4,
            NakCode::Unknown(code) => code & 0x1F,
        }
    }
}

/// The wait for an RNR NAK timer code (low five bits).
#[inline]
pub const fn rnr_timer(code: u8) -> Duration {
    /// Units of 10 microseconds. Code 0 is the longest.
    // compliance.md [PKT-RNR-TIMER]: RNR timer codes are 655.36 ms for 0, 0.01 ms for 1, up to 491.52 ms for 31.
    const UNITS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
        4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    Duration::from_micros(UNITS[(code & 0x1F) as usize] as u64 * 10)
}

/// Message counts by ACK credit code.
const CREDIT_COUNTS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
    8192, 12288, 16384, 24576, 32768,
];

/// Number of messages that an ACK credit code (low five bits) allows; `None` is no limit.
#[inline]
pub const fn credit_count(code: u8) -> Option<u32> {
    let code = (code & 0x1F) as usize;
    // compliance.md [PKT-CREDIT-CODE]: There are two credit codes per power of two, rounded down.
    if code < CREDIT_COUNTS.len() { Some(CREDIT_COUNTS[code]) } else { None }
}

/// The ACK credit code for `count` messages, rounded down to the next code.
#[inline]
pub const fn credit_code(count: u32) -> u8 {
    if count < 4 {
        return count as u8;
    }
    // From 4 on there are two codes for each power of two: the power itself and half as much again.
    let log = count.ilog2();
    // compliance.md [PKT-CREDIT-CODE]: There are two credit codes per power of two, rounded down.
    let code = log * 2 + (count >> (log - 1) & 1);
    if code > 30 { 30 } else { code as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [PKT-CREDIT-CODE]
    #[test]
    fn credit_codes_round_down() {
        for count in 0..40_000 {
            let code = (0..31).rev().find(|&code| credit_count(code).is_some_and(|c| c <= count)).unwrap();
            assert_eq!(credit_code(count), code, "{count}");
        }
        assert_eq!(credit_code(u32::MAX), 30);
        assert_eq!(credit_count(31), None);
    }
}
