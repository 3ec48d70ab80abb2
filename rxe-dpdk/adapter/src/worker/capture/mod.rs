//! Recorders: the data-path part of a capture. Each copies frames, with their outcome, into a ring of its own.
//!
//! A received frame is recorded after its worker has handled it, so that the record holds the outcome: the counters that
//! changed meanwhile. A sent frame is recorded when it is offered to the port, with its ICRC and after fault injection. A
//! full ring costs the capture a frame, and the worker nothing. The threads that start captures and write their files are
//! in `manage::capture`.

mod filter;
mod record;
mod recorder;

pub use filter::{Filter, WantedQp};
pub use record::{HEADER_LEN, Header, Outcome};
pub use recorder::CaptureStats;
pub use recorder::{Recorded, Recorders, RxRecorder, TxRecorder, TxRecorders};
