//! DPDK's telemetry socket, with commands of our own on it.
//!
//! DPDK answers `dpdk-telemetry.py` on a thread of its own. Its limits: an answer ends at 16 KiB, an object holds 256
//! entries, a string 127 bytes. Long lists are answered in pages.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use super::init::{Eal, lock};

/// A value in an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reading {
    /// A number.
    Number(u64),
    /// A text.
    Text(String),
    /// More readings by name.
    Object(Vec<(String, Reading)>),
}

/// An answer: readings by name; `None` if there is no answer.
pub type Readings = Option<Vec<(String, Reading)>>;

/// Answers a command; it gets the text after the command's comma.
type Handler = Arc<dyn Fn(&str) -> Readings + Send + Sync>;

/// The commands of this process. DPDK keeps commands for ever, so a handler can be replaced but not removed.
static HANDLERS: Mutex<BTreeMap<CString, Handler>> = Mutex::new(BTreeMap::new());

impl Eal {
    /// Answers the telemetry command `command` (as `/rxe/link`) by `handler`, on a thread of DPDK's; a handler that was
    /// there before is replaced. False when DPDK does not take the command: its name is not `/letters/letters`, or there
    /// are too many.
    pub fn answer_telemetry(
        &self,
        command: &CStr,
        help: &CStr,
        handler: impl Fn(&str) -> Readings + Send + Sync + 'static,
    ) -> bool {
        let known = lock(&HANDLERS).insert(command.to_owned(), Arc::new(handler)).is_some();
        // SAFETY: EAL is initialised; DPDK copies both texts; the function lives as long as the process.
        known || unsafe { dpdk_sys::rte_telemetry_register_cmd(command.as_ptr(), Some(answer), help.as_ptr()) } == 0
    }
}

/// The callback for DPDK's telemetry thread. No panic leaves it: C knows no unwinding.
///
/// # Safety
///
/// `command` is a C string, `parameters` one or null, and `data` an answer to be filled.
unsafe extern "C" fn answer(
    command: *const c_char,
    parameters: *const c_char,
    data: *mut dpdk_sys::rte_tel_data,
) -> c_int {
    // SAFETY: the caller's contract.
    let command = unsafe { CStr::from_ptr(command) };
    let parameters = match parameters.is_null() {
        true => String::new(),
        // SAFETY: the caller's contract; not null.
        false => unsafe { CStr::from_ptr(parameters) }.to_string_lossy().into_owned(),
    };
    let handler = lock(&HANDLERS).get(command).cloned();
    let readings = handler.and_then(|handler| catch_unwind(AssertUnwindSafe(|| handler(&parameters))).ok()?);
    let Some(readings) = readings else { return -libc::EINVAL };
    // SAFETY: the caller's contract.
    unsafe { fill(data, &readings) };
    0
}

/// `name` as DPDK takes names: of letters, digits, `_` and `/`. It refuses an entry whose name has anything else in it, and
/// the entry would be missing.
fn key(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '/' { c } else { '_' }).collect()
}

/// Makes an object of `data`. What DPDK has no room for is left out.
///
/// # Safety
///
/// `data` is an answer, or a part of one, to be filled.
unsafe fn fill(data: *mut dpdk_sys::rte_tel_data, readings: &[(String, Reading)]) {
    // SAFETY: the caller's contract.
    unsafe { dpdk_sys::rte_tel_data_start_dict(data) };
    for (name, reading) in readings {
        let Ok(name) = CString::new(key(name)) else { continue };
        match reading {
            Reading::Number(number) => {
                // SAFETY: the caller's contract; the name is copied.
                unsafe { dpdk_sys::rxe_tel_data_add_dict_u64(data, name.as_ptr(), *number) };
            }
            Reading::Text(text) => {
                let Ok(text) = CString::new(text.as_str()) else { continue };
                // SAFETY: the caller's contract; both are copied.
                unsafe { dpdk_sys::rte_tel_data_add_dict_string(data, name.as_ptr(), text.as_ptr()) };
            }
            Reading::Object(readings) => {
                // SAFETY: makes a part, or returns null.
                let part = unsafe { dpdk_sys::rte_tel_data_alloc() };
                if part.is_null() {
                    continue;
                }
                // SAFETY: `part` is new and filled here; DPDK frees what it has taken (0: do not keep), and what it has
                // not taken is freed here.
                unsafe {
                    fill(part, readings);
                    if dpdk_sys::rte_tel_data_add_dict_container(data, name.as_ptr(), part, 0) != 0 {
                        dpdk_sys::rte_tel_data_free(part);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::key;

    #[test]
    fn command_names_are_valid_for_dpdk() {
        assert_eq!((key("0x11"), key("rx_frames"), key("a/b")), ("0x11".into(), "rx_frames".into(), "a/b".into()));
        assert_eq!((key("rc-example"), key("a b.c\u{e9}")), ("rc_example".into(), "a_b_c_".into()));
    }
}
