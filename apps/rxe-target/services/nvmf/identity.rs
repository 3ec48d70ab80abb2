//! The identifiers that hosts know a disk by. They follow the data, not the place in the configuration: a host drops a disk whose
//! identifiers have changed, and takes another disk with the same ones for it.
//!
//! Those of a file are kept beside it, in `FILE.identity`, when it is first opened. A file with data gets those that earlier
//! versions derived from the names of subsystem and namespace, so that hosts keep the disk; others get random ones. Memory gets
//! new ones at each start, as its data are gone too. A configured UUID is used in all cases.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rxe_nvmf::subsystem::{derived_nguid, derived_uuid};
use rxe_nvmf::wire::Nqn;
use uuid::{Builder, Uuid};

use crate::config::nvmf::{Backing, NamespaceConfig};

/// Length of a file of identifiers, at most.
const MAX_LEN: u64 = 4096;

/// The identifiers of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// UUID.
    pub uuid: Uuid,
    /// NGUID.
    pub nguid: [u8; 16],
}

/// The identifiers of a file cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}; restore the file, or delete it, and hosts will see another disk", path.display())]
pub struct IdentityError {
    path: PathBuf,
    reason: String,
}

impl Identity {
    /// The identifiers of a namespace, whose file exists.
    ///
    /// # Errors
    /// [`IdentityError`].
    pub fn of(subsystem: &Nqn, config: &NamespaceConfig) -> Result<Identity, IdentityError> {
        let found = match &config.backing {
            // A configured UUID is to be the same after each start, and so is the NGUID.
            Backing::Ram { .. } if config.uuid.is_some() => Identity::derived(subsystem, config.nsid),
            Backing::Ram { .. } => Identity::random(),
            Backing::File { path, .. } => Identity::of_file(subsystem, config, path)?,
        };
        Ok(Identity { uuid: config.uuid.unwrap_or(found.uuid), ..found })
    }

    fn of_file(subsystem: &Nqn, config: &NamespaceConfig, data: &Path) -> Result<Identity, IdentityError> {
        let mut path = data.as_os_str().to_owned();
        path.push(".identity");
        let path = PathBuf::from(path);
        let fail = |reason: String| IdentityError { path: path.clone(), reason };
        match File::open(&path) {
            Ok(file) => {
                let mut text = String::new();
                file.take(MAX_LEN).read_to_string(&mut text).map_err(|error| fail(error.to_string()))?;
                return Identity::parse(&text).ok_or_else(|| fail("it has no UUID and NGUID".to_owned()));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(fail(error.to_string())),
        }
        let derived = Identity::derived(subsystem, config.nsid);
        let metadata = std::fs::metadata(data).map_err(|error| fail(error.to_string()))?;
        if !metadata.is_file() {
            config.warn_of_derived(subsystem, data, "it is a device");
            return Ok(derived);
        }
        let known = Identity { uuid: config.uuid.unwrap_or(derived.uuid), ..derived };
        // Without data blocks it is new.
        let identity = if metadata.blocks() > 0 { known } else { Identity::random() };
        match identity.store(&path) {
            Ok(()) => Ok(identity),
            Err(error) => {
                config.warn_of_derived(subsystem, data, &error.to_string());
                Ok(derived)
            }
        }
    }

    fn derived(subsystem: &Nqn, nsid: u32) -> Identity {
        Identity { uuid: derived_uuid(subsystem, nsid), nguid: derived_nguid(subsystem, nsid) }
    }

    fn random() -> Identity {
        let random = || {
            let mut bytes = [0; 16];
            // Keys of peers need it too, so there is no adapter without.
            getrandom::fill(&mut bytes).expect("the operating system has random bytes");
            Builder::from_random_bytes(bytes).into_uuid()
        };
        Identity { uuid: random(), nguid: random().into_bytes() }
    }

    fn parse(text: &str) -> Option<Identity> {
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key))?;
            line.trim().strip_prefix('=')?.trim().parse::<Uuid>().ok()
        };
        Some(Identity { uuid: value("uuid")?, nguid: value("nguid")?.into_bytes() })
    }

    /// Writes the file under another name first, so that it is complete when it appears under its own.
    fn store(&self, path: &Path) -> io::Result<()> {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&temporary)?;
        let nguid = Uuid::from_bytes(self.nguid).simple();
        write!(
            file,
            "# What hosts know this disk by. A copy of the disk must not have it.\nuuid = {}\nnguid = {nguid}\n",
            self.uuid
        )?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()
    }
}

impl NamespaceConfig {
    fn warn_of_derived(&self, subsystem: &Nqn, data: &Path, why: &str) {
        if self.uuid.is_none() {
            tracing::warn!(
                "nvmf: namespace {} of {subsystem}: the identifiers of {} cannot be kept beside it ({why}), so they follow from these \
                 names: give it a 'uuid'",
                self.nsid,
                data.display()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use rxe_storage::BlockSize;
    use rxe_testkit::temp::TempDir;

    use super::*;

    const UUID: Uuid = Uuid::from_u128(0x6E1C_0B52_93A7_4D28_B1F0_47E2_5A8D_3C97);

    fn disk() -> Nqn {
        "nqn.2026-01.test:disk".parse().expect("an NQN")
    }

    fn config(nsid: u32, backing: Backing) -> NamespaceConfig {
        let (read_only, checksums, uuid) = (false, false, None);
        NamespaceConfig { nsid, backing, block_size: BlockSize::B512, read_only, checksums, uuid }
    }

    fn file(folder: &TempDir, data: &[u8]) -> (PathBuf, Backing) {
        let path = folder.path().join("disk");
        std::fs::write(&path, data).expect("a file");
        let file = OpenOptions::new().write(true).open(&path).expect("it is there");
        file.set_len(1 << 20).expect("a size");
        (path.clone(), Backing::File { path, direct: false })
    }

    fn of(config: &NamespaceConfig) -> Identity {
        Identity::of(&disk(), config).expect("it has some")
    }

    #[test]
    fn a_file_with_data_keeps_its_identifiers_wherever_it_is_configured() {
        let folder = TempDir::new(Path::new("/tmp"));
        let (path, backing) = file(&folder, &[7; 4096]);
        // Those of the versions before, which hosts know.
        let known = Identity { uuid: derived_uuid(&disk(), 2), nguid: derived_nguid(&disk(), 2) };
        assert_eq!(of(&config(2, backing.clone())), known);
        assert_eq!(of(&config(1, backing.clone())), known);
        let other = "nqn.2026-01.test:other".parse().expect("an NQN");
        assert_eq!(Identity::of(&other, &config(7, backing.clone())).expect("it has some"), known);
        let configured = NamespaceConfig { uuid: Some(UUID), ..config(1, backing.clone()) };
        assert_eq!(of(&configured), Identity { uuid: UUID, ..known });
        // A file that was copied alone is another disk.
        std::fs::remove_file(path.with_extension("identity")).expect("it is beside the file");
        assert_ne!(of(&config(1, backing)), known);
    }

    #[test]
    fn new_files_and_memory_have_identifiers_of_their_own() {
        let folder = TempDir::new(Path::new("/tmp"));
        let (path, backing) = file(&folder, &[]);
        let first = of(&config(1, backing.clone()));
        assert_ne!(first.uuid, derived_uuid(&disk(), 1));
        assert_eq!(of(&config(1, backing.clone())), first);
        let ram = config(1, Backing::Ram { size: 1 << 20 });
        assert_ne!(of(&ram).uuid, of(&ram).uuid);
        let configured = NamespaceConfig { uuid: Some(UUID), ..ram };
        assert_eq!((of(&configured), of(&configured).uuid), (of(&configured), UUID));
        std::fs::write(path.with_extension("identity"), "uuid = 7").expect("a file");
        let error = Identity::of(&disk(), &config(1, backing)).expect_err("it is damaged").to_string();
        assert!(error.ends_with("disk.identity: it has no UUID and NGUID; restore the file, or delete it, and hosts will see another disk"), "{error}");
    }

    #[test]
    fn what_cannot_be_stored_is_derived() {
        let folder = TempDir::new(Path::new("/tmp"));
        let (path, backing) = file(&folder, &[]);
        // No file can have the name of the temporary one.
        std::fs::create_dir(format!("{}.identity.new", path.display())).expect("a folder");
        let derived = Identity { uuid: derived_uuid(&disk(), 3), nguid: derived_nguid(&disk(), 3) };
        assert_eq!(of(&config(3, backing)), derived);
    }
}
