//! Where this target answers otherwise than the kernel's nvmet, and why.

use std::ops::Range;

/// A part of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    Result,
    Status,
    /// nvmet sends data, this target does not.
    NoData,
    /// Bytes of the data.
    Data(Range<usize>),
}

/// A difference: the command as named by the replay, the part, the reason.
pub type Difference = (&'static str, Part, &'static str);

const ANA: &str = "no asymmetric namespace access";
const LIMIT: &str = "a limit of this target";
const TEXT: &str = "names of this implementation";
const IDENTIFIERS: &str = "NGUID first, and no command set entry, as CAP bit 43 is 0";

#[rustfmt::skip]
pub const DIFFERENCES: &[Difference] = &[
    ("Property Get 00", Part::Result, "CAP: contiguous queues as required by the specification, no command set bit"),
    ("discovery Property Get 00", Part::Result, "as of an I/O controller"),
    ("Identify 01", Part::Data(72..73), "no arbitration burst: there is no arbitration"),
    ("Identify 01", Part::Data(76..77), ANA),
    ("Identify 01", Part::Data(92..96), ANA),
    ("Identify 01", Part::Data(96..97), "I/O commands do not restart the keep alive timer"),
    ("Identify 01", Part::Data(261..262), "no SMART log per namespace"),
    ("Identify 01", Part::Data(342..352), ANA),
    ("Identify 01", Part::Data(514..516), LIMIT),
    ("Identify 01", Part::Data(531..532), "no namespace write protection by the host"),
    ("Identify 01", Part::Data(2052..2060), "no latencies of power states"),
    ("Get Log 0c", Part::Status, ANA),
    ("Get Log 0c", Part::NoData, ANA),
    ("Get Log 02", Part::Data(1..5), "temperature and spare as of a healthy disk; nvmet leaves them 0 for a RAM disk"),
    ("Get Log 02", Part::Data(176..177), "the refused ANA log counts as an error"),
    ("Identify 03", Part::Data(0..44), IDENTIFIERS),
    ("Identify 00", Part::Data(24..25), "no atomic writes of more than a block"),
    ("Identify 00", Part::Data(33..34), "deallocated blocks read as zeroes"),
    ("Identify 00", Part::Data(34..40), "no atomic writes of more than a block"),
    ("Identify 00", Part::Data(68..74), "preferred sizes of deallocations, and the optimal write size"),
    ("Identify 00", Part::Data(92..96), ANA),
    ("Identify 00", Part::Data(104..120), "NGUID"),
    ("I/O 02", Part::Status, "LBA Out of Range instead of Internal Error; no entry in the error log by the worker"),
    ("I/O 05", Part::Status, "no entry in the error log by the worker"),
    ("discovery Identify 01", Part::Data(4..64), TEXT),
    ("discovery Identify 01", Part::Data(77..78), LIMIT),
    ("discovery Identify 01", Part::Data(96..97), "host identifiers of 128 bits"),
    ("discovery Identify 01", Part::Data(259..260), LIMIT),
    ("discovery Identify 01", Part::Data(320..321), "the granularity holds for every controller"),
    ("discovery Identify 01", Part::Data(514..516), LIMIT),
    ("discovery Identify 01", Part::Data(538..539), "no I/O queues, so no data in capsules"),
    ("discovery Identify 01", Part::Data(1792..1804), "capsule lengths and descriptors, which apply to the admin queue too"),
];
