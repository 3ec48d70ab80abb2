//! Watched regions: what a client writes into one is shown, as the server of a WRITE/READ tutorial does.
//!
//! The first byte says that there is something new. As a client's WRITE may be under way just then, the text is taken a
//! moment later. A 'q' in front ends the watch; the region stays.

use rxe_proto::Duration;
use rxe_proto::verbs::Memory;

/// Interval of checks of the first byte.
pub const LOOK: Duration = Duration::from_millis(10);
/// Maximum number of bytes of a text that are shown.
const MAX_TEXT: usize = 256;
/// The first byte of the last text.
const LAST: u8 = b'q';

/// A region that is watched.
pub struct Watch {
    name: String,
    memory: Memory,
    /// The first byte when it was looked at last.
    first: u8,
    /// It has changed then.
    changed: bool,
}

/// Result of a look.
#[derive(PartialEq, Eq, Debug)]
pub enum Look {
    /// Nothing new, or not settled yet.
    Nothing,
    /// A line to show.
    Show(String),
    /// A line to show, after which none follows.
    Last(String),
}

impl Watch {
    /// Shows what comes from now on.
    pub fn new(name: &str, memory: Memory) -> Watch {
        let first = first(&memory);
        Watch { name: name.to_owned(), memory, first, changed: false }
    }

    /// The region's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Has a look. Where a file was cut short there is nothing more to see.
    pub fn look(&mut self) -> Look {
        if self.memory.is_lost() {
            return Look::Nothing;
        }
        let now = first(&self.memory);
        let settled = std::mem::replace(&mut self.changed, false);
        let before = std::mem::replace(&mut self.first, now);
        if !settled {
            self.changed = now != before;
            return Look::Nothing;
        }
        let line = format!("region {}: \"{}\"", self.name, text(&self.memory));
        if now == LAST { Look::Last(line) } else { Look::Show(line) }
    }
}

/// Regions have a byte at least.
fn first(memory: &Memory) -> u8 {
    let mut byte = [0];
    let _ = memory.read(0, &mut byte);
    byte[0]
}

/// The text up to its first zero byte, fit for a line.
fn text(memory: &Memory) -> String {
    let mut bytes = [0; MAX_TEXT];
    let len = memory.len().min(MAX_TEXT);
    let _ = memory.read(0, &mut bytes[..len]);
    let text = bytes[..len].split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(line: &str) -> Look {
        Look::Show(line.to_owned())
    }

    #[test]
    fn a_text_is_shown_when_its_first_byte_changes() {
        let memory = Memory::heap(4096);
        let put = |text: &[u8]| memory.write(0, text).expect("room");
        put(b"old\0");
        let mut watch = Watch::new("demo", memory.clone());
        assert_eq!(watch.look(), Look::Nothing);
        put(b"hello\0");
        assert_eq!(watch.look(), Look::Nothing, "it may still be under way");
        put(b"hello, you\0");
        assert_eq!(watch.look(), show("region demo: \"hello, you\""));
        put(b"hello again\0");
        assert_eq!((watch.look(), watch.look()), (Look::Nothing, Look::Nothing), "the same first byte");
        put(b"two\nlines\xFF\0");
        assert_eq!((watch.look(), watch.look()), (Look::Nothing, show("region demo: \"two\\nlines\u{FFFD}\"")));
        put(b"\0");
        assert_eq!((watch.look(), watch.look()), (Look::Nothing, show("region demo: \"\"")));
        put(b"quit\0");
        assert_eq!((watch.look(), watch.look()), (Look::Nothing, Look::Last("region demo: \"quit\"".to_owned())));
    }

    #[test]
    fn long_texts_and_short_regions() {
        let memory = Memory::heap(4096);
        let mut watch = Watch::new("long", memory.clone());
        memory.fill(0, 4096, b'x').expect("room");
        assert_eq!(
            (watch.look(), watch.look()),
            (Look::Nothing, show(&format!("region long: \"{}\"", "x".repeat(256))))
        );
        let memory = Memory::heap(1);
        let mut watch = Watch::new("short", memory.clone());
        memory.write(0, b"y").expect("room");
        assert_eq!((watch.look(), watch.look()), (Look::Nothing, show("region short: \"y\"")));
    }
}
