//! The program to run.

use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::{getegid, geteuid};

use crate::elf;

/// Why a program does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is none.
    #[error("{0:?} is not found in PATH: check the name and install its package, or give the path of the program")]
    NotFound(OsString),
    /// There is none at this path.
    #[error("there is no {0}: check the path")]
    NoSuchFile(PathBuf),
    /// The kernel refuses to execute it.
    #[error("{0} cannot be executed: {1}")]
    NotExecutable(PathBuf, io::Error),
}

impl StartError {
    /// The exit code, which is that of shells.
    pub fn exit_code(&self) -> u8 {
        match self {
            StartError::NotFound(_) | StartError::NoSuchFile(_) => 127,
            StartError::NotExecutable(_, error) if error.kind() == io::ErrorKind::NotFound => 127,
            StartError::NotExecutable(..) => 126,
        }
    }
}

/// The path of the program that the user has named, as a shell finds it.
///
/// # Errors
/// There is none.
pub fn find(name: &OsStr) -> Result<PathBuf, StartError> {
    find_in(name, &std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into()))
}

fn find_in(name: &OsStr, path: &OsStr) -> Result<PathBuf, StartError> {
    if name.as_encoded_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return if path.exists() { Ok(path) } else { Err(StartError::NoSuchFile(path)) };
    }
    let candidates = std::env::split_paths(path).map(|folder| folder.join(name));
    let executable = |path: &PathBuf| path.metadata().is_ok_and(|meta| meta.is_file() && meta.mode() & 0o111 != 0);
    let found = if name.is_empty() { None } else { candidates.into_iter().find(executable) };
    found.ok_or_else(|| StartError::NotFound(name.to_owned()))
}

/// Why the program will not load `library`, or not pass all calls through it, as the end of a sentence, if that is so. What cannot be read is left to the loader.
pub fn warning(program: &Path, library: &Path) -> Option<String> {
    const CONSEQUENCE: &str = "does not load librxe_verbs.so, so it sees no device of rxe-run";
    if program.metadata().is_ok_and(|meta| changes_user(&meta, geteuid().as_raw(), getegid().as_raw())) {
        return Some(format!("runs with the rights of another user and {CONSEQUENCE}: run it as that user"));
    }
    let elf = elf::read(program).ok()??;
    if elf::read(library).ok()?.is_some_and(|library| library.architecture != elf.architecture) {
        return Some(format!("is for another architecture and {CONSEQUENCE}"));
    }
    match elf.interpreter {
        None => Some(format!("is linked statically and {CONSEQUENCE}: link it dynamically")),
        Some(loader) if loader.contains("ld-musl") => {
            Some(format!("is linked with musl and {CONSEQUENCE}: link it with glibc"))
        }
        Some(_) if elf.is_go => Some(
            "is a program of Go, whose own system calls pass by librxe_verbs.so: only what it does in C, by libibverbs, sees the device"
                .to_owned(),
        ),
        Some(_) => None,
    }
}

/// Whether a user with these numbers gets other ones from the file.
fn changes_user(meta: &Metadata, uid: u32, gid: u32) -> bool {
    const SETUID: u32 = 0o4000;
    const SETGID: u32 = 0o2010;
    meta.mode() & SETUID != 0 && meta.uid() != uid || meta.mode() & SETGID == SETGID && meta.gid() != gid
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn temporary(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("rxe-run-program-{name}-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        folder
    }

    fn with_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn programs_are_found_in_path() {
        let folder = temporary("path");
        let (first, second) = (folder.join("first"), folder.join("second"));
        for folder in [&first, &second] {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(folder.join("tool"), "").unwrap();
        }
        with_mode(&second.join("tool"), 0o755);
        let path = std::env::join_paths([&first, &second]).unwrap();
        let find = |name: &str| find_in(name.as_ref(), &path);
        // The first one is not executable.
        assert_eq!(find("tool").unwrap(), second.join("tool"));
        assert_eq!(find(first.join("tool").to_str().unwrap()).unwrap(), first.join("tool"));
        let missing = find("toool").unwrap_err();
        assert_eq!(missing.exit_code(), 127);
        assert!(missing.to_string().starts_with(r#""toool" is not found in PATH: "#), "{missing}");
        assert_eq!(find("").unwrap_err().exit_code(), 127);
        assert_eq!(find("/no/such/tool").unwrap_err().to_string(), "there is no /no/such/tool: check the path");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn setuid_matters_to_other_users_only() {
        let folder = temporary("setuid");
        let file = folder.join("tool");
        std::fs::write(&file, "").unwrap();
        let changes = |mode, own: bool| {
            with_mode(&file, mode);
            let meta = file.metadata().unwrap();
            let other = u32::from(!own);
            changes_user(&meta, meta.uid() + other, meta.gid() + other)
        };
        assert!(changes(0o4755, false) && !changes(0o4755, true));
        assert!(changes(0o2755, false) && !changes(0o2755, true));
        assert!(!changes(0o755, false));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_static_program_is_told_apart() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(warning(&own, &own), None);
        let folder = temporary("static");
        let file = folder.join("tool");
        let mut program = std::fs::read(&own).unwrap();
        // No program headers, and so no interpreter.
        program[56..58].fill(0);
        std::fs::write(&file, &program).unwrap();
        assert!(warning(&file, &own).unwrap().starts_with("is linked statically and does not load"));
        program[18] ^= 1;
        std::fs::write(&file, &program).unwrap();
        assert!(warning(&file, &own).unwrap().starts_with("is for another architecture and"));
        std::fs::write(&file, "#!/bin/sh\n").unwrap();
        assert_eq!(warning(&file, &own), None);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
