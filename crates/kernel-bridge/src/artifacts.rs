//! Compiled programs on disk, so that a second process starts warm.
//!
//! An artifact is machine code, so the folder must belong to the user and be writable by nobody else,
//! and what is read is compared with the digest in front of it: a torn or changed file is as good as
//! none. Files appear under their names only when they are whole, so that many processes can share
//! the folder without locks. The name is the digest of all that the code depends on.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use sha2::{Digest, Sha256};

/// Names the folder; an empty value means no cache.
pub const CACHE_VARIABLE: &str = "KERNEL_COMPILE_CACHE";

/// Changes whenever the form of the files does.
const MAGIC: &[u8; 16] = b"hub-kernels-xla1";
const DIGEST: usize = 32;

/// The folder of compiled programs.
#[derive(Debug, Clone)]
pub(crate) struct Artifacts {
    folder: PathBuf,
    /// What all of this process's programs depend on.
    platform: [u8; DIGEST],
}

/// The folder that the compile caches of this user lie in: `KERNEL_COMPILE_CACHE`, else one in the
/// user's cache folder. None where the user wants none or has no home.
pub(crate) fn cache_root() -> Option<PathBuf> {
    match std::env::var_os(CACHE_VARIABLE) {
        Some(value) if value.is_empty() => None,
        Some(value) => Some(PathBuf::from(value)),
        None => Some(dirs::cache_dir()?.join("hub-kernels/compiled")),
    }
}

/// Makes a folder for this user alone, or finds it. None, with the reason in the log, where others
/// could write to it.
pub(crate) fn private_folder(folder: &Path) -> Option<PathBuf> {
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder);
    let found = made.and_then(|()| fs::symlink_metadata(folder));
    match found {
        Ok(found) if !found.is_dir() => {
            tracing::warn!("no compile cache: `{}` is no folder", folder.display());
            None
        }
        // 0o022: the group or all may write. The owner is compared with that of this process's own entry.
        Ok(found) if found.mode() & 0o022 != 0 || !is_own(&found) => {
            tracing::warn!(
                "no compile cache: others may write to `{}`; run `chmod go-w` on it, or set \
                 {CACHE_VARIABLE}",
                folder.display()
            );
            None
        }
        Ok(_) => Some(folder.to_owned()),
        Err(error) => {
            tracing::info!("no compile cache in `{}`: {error}", folder.display());
            None
        }
    }
}

fn is_own(found: &fs::Metadata) -> bool {
    // The folder of a process in /proc belongs to the user that it runs as.
    fs::metadata("/proc/self").map_or(true, |own| own.uid() == found.uid())
}

impl Artifacts {
    /// The artifacts for programs that `plugin` compiles.
    pub(crate) fn open(plugin: &Path) -> Option<Self> {
        let folder = private_folder(&cache_root()?.join("pjrt"))?;
        let mut platform = Sha256::new();
        platform.update(MAGIC);
        platform.update(std::env::consts::ARCH);
        platform.update(processor());
        // A plug-in of another build is another file: by name, size and time.
        let file = fs::metadata(plugin).ok()?;
        platform.update(plugin.as_os_str().as_encoded_bytes());
        platform.update(file.len().to_le_bytes());
        let changed = file.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        platform.update(changed.as_nanos().to_le_bytes());
        Some(Self {
            folder,
            platform: platform.finalize().into(),
        })
    }

    /// The name of a program: its kernel (our module name, a digest of the kernel's files) and its
    /// StableHLO, which has the shapes, types, static values and JAX's version in it.
    pub(crate) fn key(&self, module: &str, code: &[u8]) -> String {
        let mut key = Sha256::new();
        key.update(self.platform);
        key.update((module.len() as u64).to_le_bytes());
        key.update(module);
        key.update(code);
        hex::encode(key.finalize())
    }

    /// What was stored under a key; none where it is not there or not as it was written.
    pub(crate) fn load(&self, key: &str) -> Option<Vec<u8>> {
        let bytes = fs::read(self.folder.join(key)).ok()?;
        let rest = bytes.strip_prefix(MAGIC)?;
        let (digest, program) = rest.split_at_checked(DIGEST)?;
        if Sha256::digest(program).as_slice() == digest {
            return Some(program.to_vec());
        }
        tracing::warn!("`{key}` in the compile cache is damaged and is made again");
        None
    }

    /// Stores a program. What goes wrong is logged: the next process compiles again.
    pub(crate) fn store(&self, key: &str, program: &[u8]) {
        let write = || -> std::io::Result<()> {
            let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
            file.write_all(MAGIC)?;
            file.write_all(&Sha256::digest(program))?;
            file.write_all(program)?;
            file.persist(self.folder.join(key))?;
            Ok(())
        };
        if let Err(error) = write() {
            tracing::info!(
                "nothing stored in the compile cache `{}`: {error}",
                self.folder.display()
            );
        }
    }
}

/// The processor's model and features: machine code for one may not run on another.
fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines()
        .filter(|line| {
            let key = line.split(':').next().unwrap_or_default().trim();
            matches!(key, "model name" | "flags" | "Features" | "CPU part")
        })
        .take(3)
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn artifacts(folder: &Path) -> Artifacts {
        Artifacts {
            folder: private_folder(&folder.join("cache")).unwrap(),
            platform: [7; DIGEST],
        }
    }

    #[test]
    fn what_was_stored_comes_back_and_a_damaged_file_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let artifacts = artifacts(folder.path());
        let key = artifacts.key("kernel_payload_1", b"program");
        assert_eq!(artifacts.load(&key), None);
        artifacts.store(&key, b"machine code");
        assert_eq!(artifacts.load(&key).as_deref(), Some(&b"machine code"[..]));
        let path = artifacts.folder.join(&key);
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert_eq!(artifacts.load(&key), None);
        fs::write(&path, &bytes[..20]).unwrap();
        assert_eq!(artifacts.load(&key), None);
    }

    #[test]
    fn kernel_program_and_platform_each_make_another_key() {
        let folder = tempfile::tempdir().unwrap();
        let one = artifacts(folder.path());
        let mut other = one.clone();
        other.platform[0] = 1;
        let key = one.key("kernel_payload_1", b"program");
        assert_ne!(key, one.key("kernel_payload_2", b"program"));
        assert_ne!(key, one.key("kernel_payload_1", b"programme"));
        assert_ne!(key, other.key("kernel_payload_1", b"program"));
    }

    #[test]
    fn a_folder_that_others_can_write_to_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let open = folder.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(private_folder(&open), None);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path(), &link).unwrap();
        assert_eq!(private_folder(&link), None);
        assert!(private_folder(&folder.path().join("new/deep")).is_some());
    }
}
