//! Where the programs run: rxe-run and its library in a folder that every user can read, and addresses.

use std::fs::{self, Permissions};
use std::net::Ipv4Addr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rxe_testkit::process::{Finished, Program, Streams, run};

use crate::Check;
use crate::case::Case;
use crate::pair::LIMIT;

/// Changes from root to nobody, without capabilities.
const NOBODY: [&str; 9] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--bounding-set=-all",
    "--inh-caps=-all",
    "--ambient-caps=-all",
    "--no-new-privs",
    "--",
];
/// Addresses of one run: 250 in each of 250 networks.
const ADDRESSES: u32 = 250;

/// An installed rxe-run.
pub struct Place {
    folder: PathBuf,
    root: bool,
    next: AtomicU32,
}

impl Place {
    /// Installs it.
    ///
    /// # Errors
    /// A file cannot be copied.
    pub fn new() -> Result<Place, String> {
        let folder = std::env::temp_dir().join(format!("rxe-verbs-{}", std::process::id()));
        let root = fs::metadata("/proc/self").map_err(|error| format!("/proc: {error}"))?.uid() == 0;
        let place = Place { folder, root, next: AtomicU32::new(0) };
        place.install().map_err(|error| format!("{} cannot be made: {error}", place.folder.display()))?;
        Ok(place)
    }

    fn install(&self) -> std::io::Result<()> {
        let [bin, lib, work] = ["bin", "lib/rxe", "work"].map(|name| self.folder.join(name));
        for (folder, mode) in [(&self.folder, 0o755), (&bin, 0o755), (&lib, 0o755), (&work, 0o777)] {
            fs::create_dir_all(folder)?;
            fs::set_permissions(folder, Permissions::from_mode(mode))?;
        }
        fs::set_permissions(self.folder.join("lib"), Permissions::from_mode(0o755))?;
        // Cargo builds the library as a dependency of this test.
        let library = std::env::current_exe()?.with_file_name("librxe_verbs.so");
        fs::copy(env!("CARGO_BIN_EXE_rxe-run"), bin.join("rxe-run"))?;
        fs::copy(env!("CARGO_BIN_EXE_rxe-ctl"), bin.join("rxe-ctl"))?;
        fs::copy(env!("CARGO_BIN_EXE_rxe-target"), bin.join("rxe-target"))?;
        fs::copy(library, lib.join("librxe_verbs.so"))?;
        Ok(())
    }

    /// Removes what was installed.
    pub fn remove(&self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            eprintln!("{} is left: {error}", self.folder.display());
        }
    }

    /// A folder that the programs can write to.
    pub fn work(&self) -> PathBuf {
        self.folder.join("work")
    }

    /// An address that no other case has, and with high probability no other run. Those near 127.0.0.1 are left to users.
    pub fn address(&self) -> Ipv4Addr {
        let (pid, number) = (std::process::id(), self.next.fetch_add(1, Ordering::Relaxed));
        let network = pid / 100 + number / ADDRESSES;
        Ipv4Addr::new(127, 100 + (pid % 100) as u8, 1 + (network % 250) as u8, 1 + (number % ADDRESSES) as u8)
    }

    /// A command of the user who runs the programs.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = if self.root {
            let mut command = Command::new(NOBODY[0]);
            command.args(&NOBODY[1..]).arg(program);
            command
        } else {
            Command::new(program)
        };
        command.current_dir(self.work());
        for variable in ["XDG_RUNTIME_DIR", "LD_PRELOAD", "RXE_ADDRESS", "RXE_DEVICE", "RXE_LOG", "RXE_CAPTURE"] {
            command.env_remove(variable);
        }
        command
    }

    /// The path of rxe-run.
    pub fn path(&self) -> PathBuf {
        self.folder.join("bin/rxe-run")
    }

    /// `rxe-run WORDS`.
    pub fn rxe_run(&self, words: &str) -> Command {
        let mut command = self.command(&self.path());
        command.args(words.split_whitespace());
        command
    }

    /// `rxe-ctl WORDS`.
    pub fn rxe_ctl(&self, words: &str) -> Command {
        self.installed("rxe-ctl", words)
    }

    /// Another of our programs.
    pub fn installed(&self, program: &str, words: &str) -> Command {
        let mut command = self.command(&self.folder.join("bin").join(program));
        command.args(words.split_whitespace());
        command
    }

    /// `rxe-run --address ADDRESS WORDS`, with log lines about the commands of the connection manager.
    pub fn program(&self, address: Ipv4Addr, words: &str) -> Command {
        self.rxe_run(&format!("--address {address} --log debug {words}"))
    }

    /// The words in a network namespace of their own, where `lo` is up; `None` when this user cannot make one.
    pub fn in_namespace(&self, script: &str) -> Option<Result<Finished, String>> {
        let own = ["unshare", "--net"];
        let mapped = ["unshare", "--map-root-user", "--net"];
        let unshare: &[&str] = if self.root { &own } else { &mapped };
        let unshared = |script: &str| {
            let mut command = Command::new(unshare[0]);
            command.args(&unshare[1..]).args(["sh", "-c", script]).current_dir(self.work());
            run(command.env_remove("XDG_RUNTIME_DIR"), LIMIT)
        };
        if !unshared("ip link set lo up").is_ok_and(|done| done.code == 0) {
            return None;
        }
        let user = if self.root { NOBODY.join(" ") } else { String::new() };
        Some(unshared(&format!("ip link set lo up && run='{user} {}' && {script}", self.path().display())))
    }
}

/// Starts a program whose standard input stays open until it is dropped.
///
/// # Errors
/// It does not start.
pub fn with_input(command: &mut Command) -> Result<Program, String> {
    Program::with_streams(command, Streams { stdin: true, ..Streams::default() })
}

/// The end of a program with exit code `code`.
///
/// # Errors
/// Another exit code, with both outputs.
pub fn expect_code(done: &Finished, code: i32) -> Check {
    if done.code == code {
        return Ok(());
    }
    Err(format!("exit code {}, not {code}:\nstdout: {}\nstderr: {}", done.code, done.stdout, done.stderr))
}

/// A case that runs `rxe-run WORDS` and compares what it prints and its exit code.
pub fn prints(name: &str, words: &'static str, code: i32, texts: &'static [&'static str]) -> Case {
    prints_at(name, Place::rxe_run, words, code, texts)
}

/// A case that runs a program with these words and compares what it prints and its exit code.
pub fn prints_at(
    name: &str,
    program: fn(&Place, &str) -> Command,
    words: &'static str,
    code: i32,
    texts: &'static [&'static str],
) -> Case {
    Case::new(name, move |place| {
        let done = run(&mut program(place, words), LIMIT)?;
        expect_code(&done, code)?;
        let all = format!("{}{}", done.stdout, done.stderr);
        match texts.iter().find(|text| !all.contains(**text)) {
            Some(missing) => Err(format!("no {missing:?}: {all}")),
            None => Ok(()),
        }
    })
}
