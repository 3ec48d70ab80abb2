//! Answers as JSON or as text.

use serde::Serialize;

/// `value` as JSON, or as the text that `show` makes of it.
pub fn json_or_text<T: Serialize>(json: bool, value: &T, show: impl FnOnce(&T) -> String) -> String {
    if json { pretty(value) } else { show(value) }
}

/// The answer to a request without a result: nothing, or JSON that a program can parse.
pub fn done(json: bool) -> String {
    if json { "null\n".to_owned() } else { String::new() }
}

/// Indented JSON.
pub fn pretty<T: Serialize>(value: &T) -> String {
    // Serialization fails only for maps with keys that are not strings, and reports have none.
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}
