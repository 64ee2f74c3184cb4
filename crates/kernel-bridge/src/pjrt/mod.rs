//! Compiled programs on the CPU without Python: XLA behind the PJRT C API.
//!
//! JAX is needed once, to turn a kernel's function into StableHLO for given shapes. From then on a
//! call is a few function pointers into a plug-in: views over the tensors' memory go in, buffers
//! come out and become tensors without a copy.
#![expect(
    unsafe_code,
    reason = "a plug-in is a shared library with a C interface"
)]

mod executable;
mod ffi;

use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

pub(crate) use executable::Executable;
use ffi::{Arguments, Opaque};

/// Alignment in bytes that XLA:CPU wants of memory that it is to use in place.
pub(crate) const ALIGNMENT: usize = 64;

/// The oldest minor version of the API that has every function used here in its place.
const OLDEST_MINOR: c_int = 81;

/// `CompileOptionsProto` for one replica on one device: field 3, `executable_build_options`, with
/// `num_replicas` (4) and `num_partitions` (5) of one.
const ONE_DEVICE: [u8; 6] = [0x1a, 0x04, 0x20, 0x01, 0x28, 0x01];

/// Why a plug-in could not be used, or what it refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PjrtError {
    /// The dynamic loader refused the library.
    #[error("the PJRT plug-in `{}` cannot be opened: {reason}", .path.display())]
    Unopenable {
        /// The library.
        path: PathBuf,
        /// The loader's own words.
        reason: String,
    },
    /// The plug-in speaks another version of the API.
    #[error("the PJRT plug-in `{}` speaks version {major}.{minor} of the API, and 0.{OLDEST_MINOR} or later of major version 0 is needed", .path.display())]
    Version {
        /// The library.
        path: PathBuf,
        /// Its major version.
        major: i32,
        /// Its minor version.
        minor: i32,
    },
    /// The plug-in has no device.
    #[error("the PJRT plug-in `{}` offers no device", .path.display())]
    NoDevice {
        /// The library.
        path: PathBuf,
    },
    /// A function of the API failed.
    #[error("{0}")]
    Refused(String),
}

/// An opened plug-in with a client for the CPU. It is never closed: XLA's threads live in it.
pub(crate) struct Client {
    api: &'static ffi::Api,
    handle: Opaque,
    device: Opaque,
}

// SAFETY: the API's functions may be called from any thread, and the pointers are only handed to them.
unsafe impl Send for Client {}
// SAFETY: as above.
unsafe impl Sync for Client {}

impl Client {
    /// Opens a plug-in and makes a client that computes on the calling thread.
    pub(crate) fn open(path: &Path) -> Result<Arc<Self>, PjrtError> {
        let unopenable = |error: &libloading::Error| PjrtError::Unopenable {
            path: path.to_owned(),
            reason: std::error::Error::source(error)
                .map_or_else(|| error.to_string(), ToString::to_string),
        };
        // SAFETY: its initialisers are XLA's, which run on any thread. RTLD_LOCAL keeps its symbols
        // apart from those of the XLA within jaxlib.
        let api = unsafe {
            let library = Library::open(Some(path), RTLD_NOW | RTLD_LOCAL)
                .map_err(|error| unopenable(&error))?;
            let get = library
                .get::<unsafe extern "C" fn() -> *const ffi::Api>(b"GetPjrtApi")
                .map_err(|error| unopenable(&error))?;
            let api = get();
            std::mem::forget(library);
            // The table is static data of a library that stays open; null is no table.
            api.as_ref()
                .ok_or_else(|| PjrtError::Refused("GetPjrtApi returned nothing".to_owned()))?
        };
        if api.version.major != 0 || api.version.minor < OLDEST_MINOR {
            return Err(PjrtError::Version {
                path: path.to_owned(),
                major: api.version.major,
                minor: api.version.minor,
            });
        }
        let name = "asynchronous";
        // Results are read as soon as a call returns, so computing elsewhere would only cost a switch.
        let asynchronous = ffi::NamedValue {
            struct_size: std::mem::size_of::<ffi::NamedValue>(),
            extension_start: std::ptr::null_mut(),
            name: name.as_ptr().cast(),
            name_size: name.len(),
            kind: ffi::NAMED_BOOL,
            value: 0,
            value_size: 1,
        };
        // SAFETY: arguments point to what outlives each call, and `client` was just made.
        unsafe {
            invoke(api, &mut ffi::PluginInitialize::default())?;
            let mut create = ffi::ClientCreate {
                options: &raw const asynchronous,
                option_count: 1,
                ..Default::default()
            };
            invoke(api, &mut create)?;
            let client = create.client;
            let mut devices = ffi::ClientAddressableDevices {
                client,
                ..Default::default()
            };
            invoke(api, &mut devices)?;
            if devices.device_count == 0 {
                return Err(PjrtError::NoDevice {
                    path: path.to_owned(),
                });
            }
            let device = *devices.devices;
            Ok(Arc::new(Self {
                api,
                handle: client,
                device,
            }))
        }
    }

    /// Compiles StableHLO bytecode.
    pub(crate) fn compile(self: &Arc<Self>, code: &[u8]) -> Result<Executable, PjrtError> {
        let format = "mlir";
        let program = ffi::Program {
            code: code.as_ptr().cast(),
            code_size: code.len(),
            format: format.as_ptr().cast(),
            format_size: format.len(),
            ..ffi::Program::default()
        };
        let mut compile = ffi::ClientCompile {
            client: self.handle,
            program: &raw const program,
            options: ONE_DEVICE.as_ptr().cast(),
            options_size: ONE_DEVICE.len(),
            ..Default::default()
        };
        // SAFETY: program and options outlive the call.
        unsafe { invoke(self.api, &mut compile)? };
        Executable::new(self, compile.executable)
    }

    /// An executable from the bytes of [`Executable::serialize`]. They hold machine code: the caller
    /// vouches for where they come from.
    pub(crate) fn deserialize(self: &Arc<Self>, bytes: &[u8]) -> Result<Executable, PjrtError> {
        let mut load = ffi::ExecutableDeserializeAndLoad {
            client: self.handle,
            bytes: bytes.as_ptr().cast(),
            bytes_size: bytes.len(),
            ..Default::default()
        };
        // SAFETY: the bytes outlive the call.
        unsafe { invoke(self.api, &mut load)? };
        Executable::new(self, load.executable)
    }
}

/// # Safety
/// The buffer must be alive, and nobody may use it afterwards.
unsafe fn destroy_buffer(api: &ffi::Api, buffer: Opaque) {
    let mut destroy = ffi::BufferDestroy {
        buffer,
        ..Default::default()
    };
    // SAFETY: as the caller says.
    let _ = unsafe { invoke(api, &mut destroy) };
}

/// A view leaves its memory to whom it belongs.
unsafe extern "C" fn nothing_to_delete(_: *mut c_void, _: *mut c_void) {}

/// Calls the function that a structure of arguments belongs to.
///
/// # Safety
/// What the arguments point to must be as the header says for this function.
unsafe fn invoke<A: Arguments>(api: &ffi::Api, arguments: &mut A) -> Result<(), PjrtError> {
    let missing = || PjrtError::Refused("the plug-in lacks a function of its version".to_owned());
    let function = api.functions[A::PLACE].ok_or_else(missing)?;
    // SAFETY: `A` is the structure of the function at this place.
    let error = unsafe { function((&raw mut *arguments).cast()) };
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: a pointer that is not null is an error that is ours to free.
    Err(PjrtError::Refused(unsafe { take_message(api, error) }))
}

/// # Safety
/// `error` must be an error of this plug-in; it is freed.
unsafe fn take_message(api: &ffi::Api, error: Opaque) -> String {
    let mut message = ffi::ErrorMessage {
        error,
        ..Default::default()
    };
    let mut destroy = ffi::ErrorDestroy {
        error,
        ..Default::default()
    };
    let mut text = String::new();
    // SAFETY: these two return nothing; the message belongs to the error and is copied before it goes.
    unsafe {
        if let Some(function) = api.functions[ffi::ErrorMessage::PLACE] {
            function((&raw mut message).cast());
            let bytes = list(message.message.cast::<u8>(), message.message_size);
            text = String::from_utf8_lossy(bytes).into_owned();
        }
        if let Some(function) = api.functions[ffi::ErrorDestroy::PLACE] {
            function((&raw mut destroy).cast());
        }
    }
    text
}

/// A list of the plug-in's; empty where there is none.
///
/// # Safety
/// A pointer that is not null must lead to `count` values that live as long as the slice.
unsafe fn list<'a, T>(pointer: *const T, count: usize) -> &'a [T] {
    if pointer.is_null() {
        return &[];
    }
    // SAFETY: as the caller says.
    unsafe { std::slice::from_raw_parts(pointer, count) }
}
