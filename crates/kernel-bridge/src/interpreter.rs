//! Starts the embedded interpreter, once per process, from a given environment.
//!
//! PyConfig rather than `Py_Initialize`: only with `executable` set does Python take the
//! environment's prefix and packages, and hand the right interpreter to its child processes.
#![expect(unsafe_code, reason = "CPython's initialisation is a C interface")]

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Mutex;

use pyo3::ffi;

use crate::environment::Environment;
use crate::error::BridgeError;

/// The environment that runs in this process.
static RUNNING: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Starts Python from the environment, or finds it running from there.
pub(crate) fn start(environment: &Environment) -> Result<(), BridgeError> {
    let mut running = RUNNING
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(root) = running.as_ref() {
        return if root == environment.root() {
            Ok(())
        } else {
            Err(BridgeError::OtherEnvironment { root: root.clone() })
        };
    }
    // SAFETY: no argument; Python may or may not run.
    if unsafe { ffi::Py_IsInitialized() } == 0 {
        initialise(environment)?;
    }
    *running = Some(environment.root().to_owned());
    Ok(())
}

fn initialise(environment: &Environment) -> Result<(), BridgeError> {
    let refuse = |reason: String| BridgeError::Start {
        root: environment.root().to_owned(),
        reason,
    };
    let python = CString::new(environment.python().as_os_str().as_bytes())
        .map_err(|_| refuse("its path contains a zero byte".to_owned()))?;
    let mut config = std::mem::MaybeUninit::<ffi::PyConfig>::uninit();
    // SAFETY: PyConfig_InitPythonConfig fills the whole structure, which is used only after it.
    // Each call below gets that structure and a C string that outlives it, and the structure is
    // cleared on every path. Python does not run yet, and the caller holds the lock that keeps a
    // second start out.
    unsafe {
        ffi::PyConfig_InitPythonConfig(config.as_mut_ptr());
        let config = config.assume_init_mut();
        config.install_signal_handlers = 0;
        config.parse_argv = 0;
        // Kernels are read from verified bytes; nothing of theirs may be cached as bytecode.
        config.write_bytecode = 0;
        let mut status =
            ffi::PyConfig_SetBytesString(config, &raw mut config.executable, python.as_ptr());
        if ffi::PyStatus_Exception(status) == 0 {
            status =
                ffi::PyConfig_SetBytesString(config, &raw mut config.program_name, python.as_ptr());
        }
        if ffi::PyStatus_Exception(status) == 0 {
            status = ffi::Py_InitializeFromConfig(config);
        }
        let reason = (ffi::PyStatus_Exception(status) != 0).then(|| message_of(&status));
        ffi::PyConfig_Clear(config);
        if let Some(reason) = reason {
            return Err(refuse(reason));
        }
        // Initialisation leaves this thread holding the interpreter's lock; give it up so that any
        // thread can attach.
        ffi::PyEval_SaveThread();
    }
    Ok(())
}

fn message_of(status: &ffi::PyStatus) -> String {
    if status.err_msg.is_null() {
        return format!("exit code {}", status.exitcode);
    }
    // SAFETY: a message that is not null is a static C string of the interpreter.
    unsafe { CStr::from_ptr(status.err_msg) }
        .to_string_lossy()
        .into_owned()
}

/// Raises KeyboardInterrupt in the Python code of another thread, at its next instruction.
pub(crate) fn raise_keyboard_interrupt(_py: pyo3::Python<'_>, thread: u64) {
    // SAFETY: the interpreter's lock is held, and the exception's class lives as long as Python.
    unsafe {
        ffi::PyThreadState_SetAsyncExc(thread as std::ffi::c_long, ffi::PyExc_KeyboardInterrupt);
    }
}

/// Python's identifier of the calling thread.
pub(crate) fn current_thread(_py: pyo3::Python<'_>) -> u64 {
    // SAFETY: the interpreter's lock is held.
    unsafe { PyThread_get_thread_ident() as u64 }
}

unsafe extern "C" {
    fn PyThread_get_thread_ident() -> std::ffi::c_ulong;
}
