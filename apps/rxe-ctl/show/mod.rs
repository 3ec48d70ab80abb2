//! Answers as text, in the format of the tools that people know.

pub mod counters;
pub mod device;
pub mod latency;
pub mod memory;
pub mod qp;

fn hex(number: u32) -> String {
    format!("{number:#x}")
}

/// A value, or a dash where it is unknown.
fn dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}
