//! The head of an ELF file: how the kernel starts it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const MAGIC: &[u8] = b"\x7fELF";
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
/// Name and type of the note that Go's linker writes.
const GO_NOTE: (&[u8], u32) = (b"Go\0\0", 4);
/// More program headers than any linker writes.
const MOST_HEADERS: u16 = 512;

/// An ELF file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Elf {
    /// Class, byte order and machine: equal for files that can be loaded into one process.
    pub architecture: (u8, u8, u16),
    /// The dynamic loader; `None` for a static program and for a library.
    pub interpreter: Option<String>,
    /// Go's linker has made it.
    pub is_go: bool,
}

/// Reads the head of `path`; `None` when it is no ELF file, such as a script.
///
/// # Errors
/// It cannot be read.
pub fn read(path: &Path) -> io::Result<Option<Elf>> {
    let file = File::open(path)?;
    let mut header = [0; HEADER];
    match file.read_exact_at(&mut header, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        result => result?,
    }
    if !header.starts_with(MAGIC) {
        return Ok(None);
    }
    let architecture = (header[4], header[5], u16_at(&header, 18));
    let (mut interpreter, mut is_go) = (None, false);
    // Of another class the layout is another one, and its architecture already differs.
    if (header[4], header[5]) == (CLASS_64, LITTLE_ENDIAN) && usize::from(u16_at(&header, 54)) >= PROGRAM_HEADER {
        let (offset, size, count) = (u64_at(&header, 32), u16_at(&header, 54), u16_at(&header, 56).min(MOST_HEADERS));
        for index in 0..count {
            let mut segment = [0; PROGRAM_HEADER];
            file.read_exact_at(&mut segment, offset.saturating_add(u64::from(index) * u64::from(size)))?;
            let content = || {
                let mut content = vec![0; u64_at(&segment, 32).min(4096) as usize];
                file.read_exact_at(&mut content, u64_at(&segment, 8)).map(|()| content)
            };
            match u32_at(&segment, 0) {
                PT_INTERP => {
                    interpreter = Some(String::from_utf8_lossy(&content()?).trim_end_matches('\0').to_owned());
                }
                PT_NOTE => is_go |= has_go_note(&content()?),
                _ => {}
            }
        }
    }
    Ok(Some(Elf { architecture, interpreter, is_go }))
}

/// Whether one of these notes is Go's.
fn has_go_note(mut notes: &[u8]) -> bool {
    while let Some((head, rest)) = notes.split_first_chunk::<12>() {
        let (name_len, len) = (u32_at(head, 0) as usize, u32_at(head, 4) as usize);
        let Some(name) = rest.get(..name_len) else { return false };
        if (name, u32_at(head, 8)) == GO_NOTE {
            return true;
        }
        let next = name_len.next_multiple_of(4).saturating_add(len.next_multiple_of(4));
        notes = rest.get(next..).unwrap_or_default();
    }
    false
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, bytes: &[u8]) -> io::Result<Option<Elf>> {
        let path = std::env::temp_dir().join(format!("rxe-run-elf-{name}-{}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let elf = read(&path);
        std::fs::remove_file(path).unwrap();
        elf
    }

    #[test]
    fn a_dynamic_program_has_an_interpreter() {
        let own = read(&std::env::current_exe().unwrap()).unwrap().unwrap();
        assert!(own.interpreter.is_some_and(|loader| loader.starts_with("/lib")), "the loader of this test");
    }

    #[test]
    fn a_program_of_go_is_known_by_its_note() {
        let note = |name: &[u8; 4], kind: u32| {
            [&4_u32.to_le_bytes()[..], &5_u32.to_le_bytes(), &kind.to_le_bytes(), name, b"12345\0\0\0"].concat()
        };
        assert!(has_go_note(&note(b"Go\0\0", 4)) && has_go_note(&[note(b"GNU\0", 3), note(b"Go\0\0", 4)].concat()));
        assert!(!has_go_note(&note(b"Go\0\0", 3)) && !has_go_note(&note(b"GNU\0", 4)) && !has_go_note(&[0xFF; 40]));
        let mut program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(!of("rust", &program).unwrap().unwrap().is_go);
        // The first note becomes Go's.
        let headers = u64_at(&program, 32) as usize;
        let segments = (0..).map(|index| headers + index * PROGRAM_HEADER);
        let notes = segments.clone().find(|&at| u32_at(&program, at) == PT_NOTE).unwrap();
        let at = u64_at(&program, notes + 8) as usize;
        program[at + 8..at + 16].copy_from_slice(b"\x04\0\0\0Go\0\0");
        assert!(of("go", &program).unwrap().unwrap().is_go);
    }

    #[test]
    fn scripts_and_short_files_are_no_elf_files() {
        assert_eq!(of("script", b"#!/bin/sh\n").unwrap(), None);
        assert_eq!(of("long", &[b'#'; 200]).unwrap(), None);
        assert_eq!(of("empty", b"").unwrap(), None);
    }

    #[test]
    fn broken_files_are_errors_or_static() {
        let mut program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        program.truncate(4096);
        program[32..40].fill(0xFF);
        assert!(of("offset", &program).is_err());
        program[56..58].fill(0);
        assert_eq!(of("segments", &program).unwrap().unwrap().interpreter, None);
        program[4] = 1;
        assert_ne!(of("class", &program).unwrap().unwrap().architecture.0, CLASS_64);
    }
}
