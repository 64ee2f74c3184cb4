//! Which processes hold the TPUs of this machine: one process reaches a chip, and libtpu's own
//! message when it is taken names nobody.
//!
//! Read from /proc alone. No lock is tried and no device is opened, so nothing here can wait.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The file that libtpu locks while it is loaded for use.
const LOCKFILE: &str = "/tmp/libtpu_lockfile";

/// A process that holds a TPU or libtpu's lock.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// Its number.
    pub process: u32,
    /// Its command, where it can be read.
    pub command: Option<String>,
    /// The device or lock file that it holds.
    pub path: PathBuf,
}

/// What holds the TPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holders {
    /// The processes, by number; those of other users are seen by their locks only.
    pub processes: Vec<Holder>,
    /// A lock file that nobody holds. libtpu of some versions refuses to start all the same.
    pub stale_lockfile: Option<PathBuf>,
}

/// Looks for processes that hold a TPU of this machine.
pub fn find_holders() -> Holders {
    find(Path::new("/proc"), Path::new(LOCKFILE))
}

fn find(proc: &Path, lockfile: &Path) -> Holders {
    let mut processes = Vec::new();
    let inode = fs::metadata(lockfile).ok().map(|found| found.ino());
    if let Some(inode) = inode {
        let locks = fs::read_to_string(proc.join("locks")).unwrap_or_default();
        for process in lock_owners(&locks, inode) {
            processes.push(holder(proc, process, lockfile));
        }
    }
    let is_stale = inode.is_some() && processes.is_empty();
    for entry in fs::read_dir(proc).into_iter().flatten().flatten() {
        let Some(process) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let files = fs::read_dir(entry.path().join("fd")).into_iter().flatten();
        let mut devices: Vec<PathBuf> = files
            .flatten()
            .filter_map(|file| fs::read_link(file.path()).ok())
            .filter(|target| is_tpu_device(target))
            .collect();
        devices.sort();
        devices.dedup();
        processes.extend(devices.iter().map(|device| holder(proc, process, device)));
    }
    processes.sort();
    Holders {
        processes,
        stale_lockfile: is_stale.then(|| lockfile.to_owned()),
    }
}

fn holder(proc: &Path, process: u32, path: &Path) -> Holder {
    let command = fs::read_to_string(proc.join(process.to_string()).join("comm")).ok();
    Holder {
        process,
        command: command.map(|name| name.trim().to_owned()),
        path: path.to_owned(),
    }
}

/// `/dev/accel0` of the older drivers, `/dev/vfio/3` of the newer; `/dev/vfio/vfio` is no device.
fn is_tpu_device(path: &Path) -> bool {
    let Some(text) = path.to_str() else {
        return false;
    };
    let is_number = |rest: &str| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit());
    ["/dev/accel", "/dev/accel/accel", "/dev/vfio/"]
        .iter()
        .any(|prefix| text.strip_prefix(prefix).is_some_and(is_number))
}

/// Processes in a text such as /proc/locks that lock the file with this number, such as
/// `1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF`.
fn lock_owners(locks: &str, inode: u64) -> Vec<u32> {
    let mut owners: Vec<u32> = locks
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // `->` marks one that waits for the lock.
            if fields.get(1) == Some(&"->") {
                return None;
            }
            let file: u64 = fields.get(5)?.rsplit(':').next()?.parse().ok()?;
            (file == inode).then(|| fields.get(4)?.parse().ok())?
        })
        .collect();
    owners.sort_unstable();
    owners.dedup();
    owners
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_of_a_lock_are_read_and_those_that_wait_are_not() {
        let locks = "1: FLOCK  ADVISORY  WRITE 1234 fe:00:77 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 99 fe:00:77 0 EOF\n\
                     2: POSIX  ADVISORY  READ 55 fe:00:78 0 EOF\nodd line\n";
        assert_eq!(lock_owners(locks, 77), [1234]);
        assert!(lock_owners(locks, 7).is_empty());
    }

    #[test]
    fn processes_with_an_open_chip_and_a_forgotten_lock_file_are_found() {
        let proc = tempfile::tempdir().unwrap();
        let files = proc.path().join("321/fd");
        fs::create_dir_all(&files).unwrap();
        fs::write(proc.path().join("321/comm"), "python\n").unwrap();
        for (number, target) in [
            ("0", "/dev/null"),
            ("5", "/dev/vfio/2"),
            ("6", "/dev/vfio/vfio"),
        ] {
            std::os::unix::fs::symlink(target, files.join(number)).unwrap();
        }
        let lockfile = proc.path().join("lockfile");
        let found = find(proc.path(), &lockfile);
        assert_eq!(found.stale_lockfile, None);
        assert_eq!(
            found.processes,
            [Holder {
                process: 321,
                command: Some("python".to_owned()),
                path: PathBuf::from("/dev/vfio/2"),
            }]
        );
        fs::write(&lockfile, "").unwrap();
        assert_eq!(find(proc.path(), &lockfile).stale_lockfile, Some(lockfile));
    }

    #[test]
    fn a_lock_of_this_process_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let lockfile = folder.path().join("lockfile");
        let file = fs::File::create(&lockfile).unwrap();
        file.lock().unwrap();
        let found = find(Path::new("/proc"), &lockfile);
        assert!(
            found
                .processes
                .iter()
                .any(|holder| holder.process == std::process::id() && holder.path == lockfile),
            "{found:?}"
        );
    }
}
