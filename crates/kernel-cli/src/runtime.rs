//! Opens the runtime library, which holds everything that needs libtorch or Python.
//!
//! The command itself links neither. The library is looked for in `KERNEL_RUNTIME_LIBRARY`, then
//! beside the program, then in `../lib` of it; when it is missing, or cannot be opened because the
//! environment that it was built for is gone, the error says how to get it.
#![expect(
    unsafe_code,
    reason = "a shared library is opened and called through its C interface"
)]

use std::ffi::{OsStr, c_void};
use std::path::{Path, PathBuf};

use kernel_spec::protocol::{ABI_VERSION, Event, Failure, Request};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW, Symbol};

const VARIABLE: &str = "KERNEL_RUNTIME_LIBRARY";
#[cfg(target_os = "macos")]
pub(crate) const FILE: &str = "libkernel_runtime.dylib";
#[cfg(not(target_os = "macos"))]
pub(crate) const FILE: &str = "libkernel_runtime.so";

type Callback = unsafe extern "C" fn(user: *mut c_void, bytes: *const u8, length: usize);
type Run = unsafe extern "C" fn(*const u8, usize, Callback, *mut c_void) -> i32;

/// Why the runtime library could not do a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RuntimeError {
    /// No file of its name where it is looked for.
    #[error("the runtime library `{FILE}` was not found (looked at {})", list(.looked_at))]
    Missing {
        /// The paths that were tried.
        looked_at: Vec<PathBuf>,
    },
    /// The dynamic loader refused it.
    #[error("cannot open the runtime library `{}`: {reason}", .path.display())]
    Unopenable {
        /// The library.
        path: PathBuf,
        /// The loader's own words.
        reason: String,
    },
    /// It was built for another version of this program.
    #[error(
        "the runtime library `{}` speaks version {found} of the interface, this program {ABI_VERSION}",
        .path.display()
    )]
    Version {
        /// The library.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The request or the last event is not what the protocol says.
    #[error("the runtime library answered out of turn: {0}")]
    Protocol(String),
    /// The request failed.
    #[error("{}", .0.message)]
    Failed(Failure),
}

impl RuntimeError {
    /// Stable name of the kind, for `--json`.
    pub(crate) fn kind(&self) -> &str {
        match self {
            Self::Missing { .. } | Self::Unopenable { .. } | Self::Version { .. } => {
                "runtime-library"
            }
            Self::Protocol(_) => "internal",
            Self::Failed(failure) => &failure.kind,
        }
    }

    /// The error as the runtime library would tell it.
    pub(crate) fn into_told(self) -> Failure {
        match self {
            Self::Failed(failure) => failure,
            other => Failure {
                kind: other.kind().to_owned(),
                message: other.to_string(),
                causes: Vec::new(),
                hint: other.hint(),
                detail: None,
            },
        }
    }

    /// What the user can do.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Missing { .. } => Some(format!(
                "build it with `cargo build --release --package kernel-runtime` after `cargo xtask \
                 env`, or set {VARIABLE}"
            )),
            Self::Unopenable { reason, .. } if reason.contains("libtorch") => Some(
                "libtorch is not where it was at build time; run `cargo xtask env` and build again"
                    .into(),
            ),
            Self::Unopenable { reason, .. } if reason.contains("libpython") => Some(
                "Python's shared library is not where it was at build time; run `cargo xtask env` \
                 and build again"
                    .into(),
            ),
            Self::Unopenable { .. } => {
                Some("run `kernel-cli doctor` to see what is installed".into())
            }
            Self::Version { .. } => {
                Some("build kernel-cli and kernel-runtime from the same checkout".into())
            }
            Self::Protocol(_) => None,
            Self::Failed(failure) => failure.hint.clone(),
        }
    }
}

fn list(paths: &[PathBuf]) -> String {
    paths
        .iter()
        .map(|path| format!("`{}`", path.display()))
        .collect::<Vec<_>>()
        .join(", ")
}

/// The opened runtime library. It stays open until the process ends: Python cannot be unloaded.
pub(crate) struct Runtime {
    run: Symbol<Run>,
    interrupt: Symbol<unsafe extern "C" fn()>,
}

impl Runtime {
    /// Finds and opens the library and compares the versions of the interface.
    pub(crate) fn open() -> Result<Self, RuntimeError> {
        let path = locate()?;
        let unopenable = |error: libloading::Error| RuntimeError::Unopenable {
            path: path.clone(),
            reason: error_text(&error),
        };
        // SAFETY: the library's initialisers are those of libtorch and libpython, which may run on
        // any thread. RTLD_GLOBAL because Python's extension modules take their symbols from
        // libpython in the global scope.
        let library =
            unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) }.map_err(unopenable)?;
        // SAFETY: the symbol takes no argument and returns a u32 in every version of the interface.
        let version = unsafe {
            let symbol: Symbol<unsafe extern "C" fn() -> u32> = library
                .get(b"kernel_runtime_abi_version")
                .map_err(unopenable)?;
            symbol()
        };
        if version != ABI_VERSION {
            return Err(RuntimeError::Version {
                path,
                found: version,
            });
        }
        // SAFETY: the versions agree, so the symbols have the types that this file was built with.
        let (run, interrupt) = unsafe {
            (
                library
                    .get::<Run>(b"kernel_runtime_run")
                    .map_err(unopenable)?,
                library
                    .get::<unsafe extern "C" fn()>(b"kernel_runtime_interrupt")
                    .map_err(unopenable)?,
            )
        };
        std::mem::forget(library);
        Ok(Self { run, interrupt })
    }

    /// A function that asks the running request to stop; callable from a signal thread.
    pub(crate) fn interrupter(&self) -> impl Fn() + Send + 'static {
        let interrupt = self.interrupt.clone();
        move || {
            // SAFETY: the library is never closed, and the function only sets a flag.
            unsafe { interrupt() }
        }
    }

    /// Runs one request; `on_event` gets every event but the last. Returns the response.
    pub(crate) fn request(
        &self,
        request: &Request,
        on_event: &mut (dyn FnMut(Event) + Send),
    ) -> Result<serde_json::Value, RuntimeError> {
        let text = serde_json::to_vec(request)
            .map_err(|error| RuntimeError::Protocol(error.to_string()))?;
        let mut conversation = Conversation {
            on_event,
            outcome: None,
        };
        // SAFETY: `text` and `conversation` outlive the call; `receive` is called with the pointer
        // given here, one call at a time and never after the call has returned, and what it uses
        // may be used from any thread (`Send`).
        unsafe {
            (self.run)(
                text.as_ptr(),
                text.len(),
                receive,
                std::ptr::from_mut(&mut conversation).cast(),
            );
        }
        conversation.outcome.unwrap_or_else(|| {
            Err(RuntimeError::Protocol(
                "it ended without a last event".into(),
            ))
        })
    }
}

struct Conversation<'a> {
    on_event: &'a mut (dyn FnMut(Event) + Send),
    outcome: Option<Result<serde_json::Value, RuntimeError>>,
}

unsafe extern "C" fn receive(user: *mut c_void, bytes: *const u8, length: usize) {
    // SAFETY: `user` is the conversation that `request` passed, alive and not otherwise borrowed
    // during the call; the bytes are valid during the call.
    let (conversation, bytes) = unsafe {
        (
            &mut *user.cast::<Conversation<'_>>(),
            std::slice::from_raw_parts(bytes, length),
        )
    };
    match serde_json::from_slice(bytes) {
        Ok(Event::Done { response }) => conversation.outcome = Some(Ok(response)),
        Ok(Event::Failed(failure)) => {
            conversation.outcome = Some(Err(RuntimeError::Failed(failure)));
        }
        Ok(event) => (conversation.on_event)(event),
        Err(error) => {
            conversation.outcome = Some(Err(RuntimeError::Protocol(error.to_string())));
        }
    }
}

/// Where the runtime library is.
pub(crate) fn locate() -> Result<PathBuf, RuntimeError> {
    find(
        std::env::var_os(VARIABLE).as_deref(),
        std::env::current_exe().ok().as_deref(),
    )
}

fn find(variable: Option<&OsStr>, program: Option<&Path>) -> Result<PathBuf, RuntimeError> {
    let mut looked_at = Vec::new();
    if let Some(path) = variable.filter(|value| !value.is_empty()) {
        looked_at.push(PathBuf::from(path));
    } else if let Some(folder) = program.and_then(Path::parent) {
        looked_at.push(folder.join(FILE));
        looked_at.push(folder.join("../lib").join(FILE));
    }
    match looked_at.iter().find(|path| path.is_file()) {
        Some(path) => Ok(path.clone()),
        None => Err(RuntimeError::Missing { looked_at }),
    }
}

fn error_text(error: &libloading::Error) -> String {
    // The loader's words are in the source, behind libloading's own.
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_names_the_places_and_the_command() {
        let error = find(None, Some(Path::new("/opt/none/bin/kernel-cli"))).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("/opt/none/bin/libkernel_runtime"),
            "{error}"
        );
        assert!(error.hint().unwrap().contains("cargo build"));
    }

    #[test]
    fn the_variable_goes_before_the_place_of_the_program() {
        let error = find(Some(OsStr::new("/x/y.so")), Some(Path::new("/bin/sh"))).unwrap_err();
        assert!(
            matches!(error, RuntimeError::Missing { looked_at } if looked_at == [PathBuf::from("/x/y.so")])
        );
    }
}
