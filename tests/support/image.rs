//! Images of guests, which tests/guest/build makes and keeps from run to run.

use rxe_testkit::process;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Kernel and initramfs of a guest.
#[derive(Clone)]
pub struct Image {
    folder: PathBuf,
}

/// The builder.
fn builder() -> Command {
    Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guest/build"))
}

/// Where images are; those of a Debian suite other than the machine's have a folder of their own.
fn folder(suite: Option<&str>) -> PathBuf {
    let name = suite.map_or_else(|| "guest".to_owned(), |suite| format!("guest-{suite}"));
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name(name)
}

impl Image {
    /// Builds it where it is not up to date. When that fails, the builder has said why.
    pub fn build(suite: Option<&str>) -> Result<Image, String> {
        let folder = folder(suite);
        let mut build = builder();
        if let Some(suite) = suite {
            build.args(["--suite", suite]);
        }
        match build.arg(&folder).status() {
            Ok(status) if status.success() => Ok(Image { folder }),
            _ => Err("the guest's image could not be built (its builder said why)".to_owned()),
        }
    }

    /// The one that was built, if any was.
    pub fn built(suite: Option<&str>) -> Option<Image> {
        let folder = folder(suite);
        folder.join("stamp").exists().then_some(Image { folder })
    }

    /// The kernel.
    pub fn vmlinuz(&self) -> PathBuf {
        self.folder.join("vmlinuz")
    }

    /// The initramfs.
    pub fn initrd(&self) -> PathBuf {
        self.folder.join("initrd")
    }

    /// The kernel's release, as `uname -r` prints it.
    pub fn release(&self) -> Result<String, String> {
        let file = self.folder.join("release");
        let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        Ok(text.trim().to_owned())
    }
}

/// Makes `file` an initramfs with rxe-target, rxe-ctl, rxe-bench, their libraries, DPDK's drivers and conf/, to put on top of a
/// guest's.
pub fn pack_target(binary: &str, file: &Path) -> Result<(), String> {
    let built = process::run(builder().arg("--target").arg(binary).arg(file), Duration::from_secs(60))?;
    if built.code == 0 { Ok(()) } else { Err(built.stderr) }
}
