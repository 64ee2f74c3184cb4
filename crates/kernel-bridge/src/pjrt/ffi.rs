//! The part of the PJRT C API that a call on a CPU needs.
//!
//! Layouts and order are those of `xla/pjrt/c/pjrt_c_api.h`. The API only ever grows at the end of
//! each structure, and each structure carries the size that its user knows, so that what is written
//! here holds for every plug-in of major version 0 and minor version 81 or later. By hand, because
//! the crate with generated bindings wants libclang and protoc where this project is built.

use std::ffi::{c_char, c_int, c_void};

/// What stands for every object that only the plug-in can look into.
pub(crate) type Opaque = *mut c_void;

/// `PJRT_Api`: the plug-in's functions, in the order of the header.
#[repr(C)]
pub(crate) struct Api {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: Opaque,
    pub(crate) version: ApiVersion,
    pub(crate) functions: [Option<Function>; FUNCTIONS],
}

/// `PJRT_Api_Version`.
#[repr(C)]
pub(crate) struct ApiVersion {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: Opaque,
    pub(crate) major: c_int,
    pub(crate) minor: c_int,
}

/// Every function takes one structure with its arguments and returns an error or null. The two
/// that deal with errors return nothing; what is in the return register after them is not read.
pub(crate) type Function = unsafe extern "C" fn(arguments: *mut c_void) -> Opaque;

/// Functions that are read of the table; it goes on behind them.
pub(crate) const FUNCTIONS: usize = 94;

/// Zeros behind the fields that are known here. A newer plug-in refuses structures that are smaller
/// than its own, and takes zero for "not given" in fields that were added later.
pub(crate) type Reserve = [usize; 8];

/// A structure of arguments, with its function's place in the table.
///
/// # Safety
/// The type must be the `repr(C)` structure that the function at `PLACE` takes.
pub(crate) unsafe trait Arguments {
    /// Index within [`Api::functions`].
    const PLACE: usize;
}

macro_rules! arguments {
    ($(#[doc = $doc:literal] $name:ident at $place:literal { $($field:ident: $kind:ty),* $(,)? })*) => {$(
        #[doc = $doc]
        #[repr(C)]
        pub(crate) struct $name {
            pub(crate) struct_size: usize,
            pub(crate) extension_start: Opaque,
            $(pub(crate) $field: $kind,)*
            pub(crate) reserve: Reserve,
        }
        // SAFETY: fields and place were read from the header.
        unsafe impl Arguments for $name {
            const PLACE: usize = $place;
        }
        impl Default for $name {
            /// All zero, but for the size.
            fn default() -> Self {
                Self {
                    struct_size: std::mem::size_of::<Self>(),
                    // SAFETY: integers and pointers (options of them in the case of functions) may be zero.
                    ..unsafe { std::mem::zeroed() }
                }
            }
        }
    )*};
}

arguments! {
    /// Frees an error.
    ErrorDestroy at 0 { error: Opaque }
    /// The text of an error.
    ErrorMessage at 1 { error: Opaque, message: *const c_char, message_size: usize }
    /// Must be called before all else.
    PluginInitialize at 3 {}
    /// Frees an event.
    EventDestroy at 5 { event: Opaque }
    /// Waits for an event; fails where what it stands for failed.
    EventAwait at 8 { event: Opaque }
    /// Makes a client.
    ClientCreate at 10 {
        options: *const NamedValue,
        option_count: usize,
        get: Opaque,
        get_user: Opaque,
        put: Opaque,
        put_user: Opaque,
        client: Opaque,
        try_get: Opaque,
        try_get_user: Opaque,
    }
    /// The devices that a client can reach.
    ClientAddressableDevices at 16 { client: Opaque, devices: *const Opaque, device_count: usize }
    /// Compiles a program.
    ClientCompile at 20 {
        client: Opaque,
        program: *const Program,
        options: *const c_char,
        options_size: usize,
        executable: Opaque,
    }
    /// Frees an executable.
    ExecutableDestroy at 40 { executable: Opaque }
    /// An executable as bytes.
    ExecutableSerialize at 49 {
        executable: Opaque,
        bytes: *const c_char,
        bytes_size: usize,
        owner: Opaque,
        free: Option<unsafe extern "C" fn(Opaque)>,
    }
    /// Frees a loaded executable.
    LoadedExecutableDestroy at 50 { executable: Opaque }
    /// The executable behind a loaded one; the caller frees it.
    LoadedExecutableGetExecutable at 51 { loaded: Opaque, executable: Opaque }
    /// Runs an executable.
    LoadedExecutableExecute at 55 {
        executable: Opaque,
        options: *mut ExecuteOptions,
        argument_lists: *const *const Opaque,
        device_count: usize,
        argument_count: usize,
        output_lists: *const *mut Opaque,
        device_complete_events: *mut Opaque,
        execute_device: Opaque,
    }
    /// An executable from bytes that the same plug-in made.
    ExecutableDeserializeAndLoad at 56 {
        client: Opaque,
        bytes: *const c_char,
        bytes_size: usize,
        executable: Opaque,
        options: *const c_char,
        options_size: usize,
    }
    /// Frees a buffer.
    BufferDestroy at 58 { buffer: Opaque }
    /// Where a buffer's memory lies.
    BufferOpaqueDeviceMemoryDataPointer at 76 { buffer: Opaque, pointer: *mut c_void }
    /// Types of an executable's results.
    ExecutableOutputElementTypes at 90 { executable: Opaque, types: *const c_int, count: usize }
    /// Shapes of an executable's results, one after the other.
    ExecutableOutputDimensions at 91 {
        executable: Opaque,
        count: usize,
        sizes: *const i64,
        ranks: *const usize,
    }
    /// A buffer over memory of the caller's.
    ClientCreateViewOfDeviceBuffer at 93 {
        client: Opaque,
        pointer: *mut c_void,
        sizes: *const i64,
        rank: usize,
        element_type: c_int,
        layout: Opaque,
        device: Opaque,
        on_delete: Option<unsafe extern "C" fn(*mut c_void, *mut c_void)>,
        on_delete_argument: *mut c_void,
        stream: isize,
        buffer: Opaque,
        memory: Opaque,
    }
}

macro_rules! all_zero {
    ($($name:ident),*) => {$(
        impl Default for $name {
            /// All zero, but for the size.
            fn default() -> Self {
                Self {
                    struct_size: std::mem::size_of::<Self>(),
                    // SAFETY: integers and pointers may be zero.
                    ..unsafe { std::mem::zeroed() }
                }
            }
        }
    )*};
}

all_zero!(Program, ExecuteOptions);

/// `PJRT_Program`.
#[repr(C)]
pub(crate) struct Program {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: Opaque,
    pub(crate) code: *const c_char,
    pub(crate) code_size: usize,
    pub(crate) format: *const c_char,
    pub(crate) format_size: usize,
    pub(crate) reserve: Reserve,
}

/// `PJRT_NamedValue` that holds a truth value.
#[repr(C)]
pub(crate) struct NamedValue {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: Opaque,
    pub(crate) name: *const c_char,
    pub(crate) name_size: usize,
    pub(crate) kind: c_int,
    pub(crate) value: u64,
    pub(crate) value_size: usize,
}

/// `PJRT_NamedValue_kBool`.
pub(crate) const NAMED_BOOL: c_int = 4;

/// `PJRT_ExecuteOptions`.
#[repr(C)]
pub(crate) struct ExecuteOptions {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: Opaque,
    pub(crate) send_callbacks: Opaque,
    pub(crate) receive_callbacks: Opaque,
    pub(crate) send_count: usize,
    pub(crate) receive_count: usize,
    pub(crate) launch_id: c_int,
    pub(crate) kept_inputs: *const i64,
    pub(crate) kept_input_count: usize,
    pub(crate) context: Opaque,
    pub(crate) reserve: Reserve,
}
