//! The first touch of a TPU, in a child with a time limit.
//!
//! A TPU runtime that cannot start does not always fail: it can wait for ever, for a chip that another
//! process holds or for a machine that does not answer. Once this process waits in it, nothing can be
//! said any more. So a child touches the chip first, and is ended when its time is over.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::environment::Environment;

/// How long the first touch may take. Importing torch with torch_tpu takes up to 11 seconds, and a
/// chip that was just let go of needs a while.
pub const FIRST_TOUCH_LIMIT: Duration = Duration::from_secs(120);

/// What the child runs: one value to the chip and back.
const SCRIPT: &str = "\
import torch
count = torch.accelerator.device_count()
value = (torch.ones(8, device='tpu') * 3).cpu().sum().item()
print(f'touched {count} {value}')
";

/// What the child said about the chips of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touched {
    /// `torch.accelerator.device_count()`.
    pub devices: usize,
}

/// Why a TPU cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TpuError {
    /// The child could not be started.
    #[error("`{}` cannot be started: {reason}", .program.display())]
    NotStarted {
        /// The interpreter.
        program: PathBuf,
        /// The system's words.
        reason: String,
    },
    /// The runtime did not answer in time.
    #[error("the TPU did not answer within {} seconds", .limit.as_secs())]
    Silent {
        /// The time that it had.
        limit: Duration,
    },
    /// The runtime failed.
    #[error("the TPU cannot be used: {reason}")]
    Failed {
        /// The last line that it wrote.
        reason: String,
        /// All that it wrote.
        output: String,
    },
}

impl TpuError {
    /// What the user can do.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NotStarted { .. } => "run `cargo xtask env`, which installs the pinned versions",
            Self::Silent { .. } | Self::Failed { .. } => {
                "run `kernel-cli doctor`: it names the process that holds a chip, and versions that do \
                 not fit together"
            }
        }
    }
}

/// Touches the TPU from a child process. Call it only where the PCI bus shows a chip.
///
/// # Errors
/// [`TpuError`]; the child is gone in any case.
pub fn first_touch(environment: &Environment, limit: Duration) -> Result<Touched, TpuError> {
    let program = environment.python();
    let mut child = Command::new(&program)
        .args(["-c", SCRIPT])
        .env_remove("TORCH_DEVICE_BACKEND_AUTOLOAD")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A group of its own: what it starts ends with it.
        .process_group(0)
        .spawn()
        .map_err(|error| TpuError::NotStarted {
            program: program.clone(),
            reason: error.to_string(),
        })?;
    // Both are read while it runs, or it would stop at a full pipe.
    let read = |stream: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut stream) = stream {
                let _ = stream.read_to_end(&mut bytes);
            }
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let stdout = read(child.stdout.take().map(|pipe| Box::new(pipe) as _));
    let stderr = read(child.stderr.take().map(|pipe| Box::new(pipe) as _));
    let is_over = wait(&mut child, limit);
    end_group(&child);
    let status = child.wait();
    let (stdout, stderr) = (
        stdout.join().unwrap_or_default(),
        stderr.join().unwrap_or_default(),
    );
    if !is_over {
        return Err(TpuError::Silent { limit });
    }
    match parse(&stdout) {
        Some(touched) if status.is_ok_and(|status| status.success()) => Ok(touched),
        _ => {
            let last = |text: &str| {
                let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
                lines.next_back().map(str::to_owned)
            };
            let reason = last(&stderr)
                .or_else(|| last(&stdout))
                .unwrap_or_else(|| "it ended without a word".to_owned());
            Err(TpuError::Failed {
                reason,
                output: stdout + &stderr,
            })
        }
    }
}

/// Whether the child ends within the limit.
fn wait(child: &mut Child, limit: Duration) -> bool {
    const PAUSE: Duration = Duration::from_millis(20);
    let start = Instant::now();
    while start.elapsed() < limit {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(PAUSE),
            Ok(Some(_)) | Err(_) => return true,
        }
    }
    false
}

/// Ends the child and all that it started.
fn end_group(child: &Child) {
    // The child leads its group, so that the group has its number until it is waited for.
    let _ = Command::new("kill")
        .args(["-KILL", "--", &format!("-{}", child.id())])
        .stderr(Stdio::null())
        .status();
}

/// The line that the script prints when all went well.
fn parse(output: &str) -> Option<Touched> {
    let line = output
        .lines()
        .find_map(|line| line.strip_prefix("touched "))?;
    let (devices, value) = line.split_once(' ')?;
    (value == "24.0").then(|| devices.parse().ok().map(|devices| Touched { devices }))?
}

/// Advice for a process that uses a TPU; none where all is well.
pub fn allocator_hint() -> Option<&'static str> {
    let preload = std::env::var("LD_PRELOAD").unwrap_or_default();
    (!preload.contains("tcmalloc")).then_some(
        "memory for transfers to a TPU is slow with this allocator; install libtcmalloc-minimal4 \
         and set LD_PRELOAD=libtcmalloc_minimal.so.4",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    /// An environment whose interpreter is a shell script.
    fn environment(script: &str) -> (tempfile::TempDir, Environment) {
        let folder = crate::environment::tests::complete();
        let python = folder.path().join("bin/python");
        fs::write(&python, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
        let environment = Environment::at(folder.path()).unwrap();
        (folder, environment)
    }

    #[test]
    fn a_chip_that_answers_is_counted() {
        let (_folder, environment) = environment("echo GetPjrtApi was found; echo touched 4 24.0");
        let touched = first_touch(&environment, Duration::from_secs(20)).unwrap();
        assert_eq!(touched.devices, 4);
    }

    #[test]
    fn a_runtime_that_hangs_is_ended_with_what_it_started() {
        let (folder, environment) = environment("sleep 600 & echo $! > \"$0.pid\"; wait");
        let limit = Duration::from_millis(1500);
        let start = Instant::now();
        let error = first_touch(&environment, limit).unwrap_err();
        assert_eq!(error, TpuError::Silent { limit });
        assert!(start.elapsed() < Duration::from_secs(30));
        let process = fs::read_to_string(folder.path().join("bin/python.pid")).unwrap();
        let state = fs::read_to_string(format!("/proc/{}/stat", process.trim()));
        assert!(
            state.is_err() || state.as_ref().unwrap().contains(") Z "),
            "{state:?} still runs"
        );
    }

    #[test]
    fn a_runtime_that_fails_is_quoted() {
        let script = "echo Traceback >&2; echo 'RuntimeError: device or resource busy' >&2; exit 1";
        let (_folder, environment) = environment(script);
        let error = first_touch(&environment, Duration::from_secs(20)).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("RuntimeError: device or resource busy"),
            "{error}"
        );
        assert!(error.hint().contains("doctor"));
    }

    #[test]
    fn a_wrong_value_is_no_success() {
        assert_eq!(parse("touched 1 24.0\n"), Some(Touched { devices: 1 }));
        assert_eq!(parse("touched 1 0.0\n"), None);
        assert_eq!(parse(""), None);
    }
}
