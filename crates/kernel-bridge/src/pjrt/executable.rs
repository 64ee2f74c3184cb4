//! A compiled program: what it returns, its bytes, and its calls.

use std::ffi::c_void;
use std::sync::Arc;

use super::ffi::{self, Opaque};
use super::{Client, PjrtError, destroy_buffer, invoke, list, nothing_to_delete};
use crate::element::Element;
use crate::tensor::View;

/// Shape and type of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Output {
    pub(crate) element: Element,
    pub(crate) shape: Vec<i64>,
}

/// A program that is ready to run.
pub(crate) struct Executable {
    client: Arc<Client>,
    handle: Opaque,
    outputs: Vec<Output>,
}

// SAFETY: as for `Client`.
unsafe impl Send for Executable {}
// SAFETY: as for `Client`.
unsafe impl Sync for Executable {}

impl Executable {
    pub(super) fn new(client: &Arc<Client>, handle: Opaque) -> Result<Self, PjrtError> {
        let mut made = Self {
            client: Arc::clone(client),
            handle,
            outputs: Vec::new(),
        };
        made.outputs = made.read_outputs()?;
        Ok(made)
    }

    /// What a call returns.
    pub(crate) fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    fn read_outputs(&self) -> Result<Vec<Output>, PjrtError> {
        let inner = Inner::of(self)?;
        let mut types = ffi::ExecutableOutputElementTypes {
            executable: inner.handle,
            ..Default::default()
        };
        let mut shapes = ffi::ExecutableOutputDimensions {
            executable: inner.handle,
            ..Default::default()
        };
        // SAFETY: what comes back points into `inner`, which lives to the end of this function; lists
        // are as long as their counts, and `sizes` as all ranks together.
        unsafe {
            invoke(self.client.api, &mut types)?;
            invoke(self.client.api, &mut shapes)?;
            let types = list(types.types, types.count);
            let ranks = list(shapes.ranks, shapes.count);
            let mut sizes = list(shapes.sizes, ranks.iter().sum());
            let mut outputs = Vec::with_capacity(types.len());
            for (kind, rank) in types.iter().zip(ranks) {
                let (shape, rest) = sizes.split_at(*rank);
                sizes = rest;
                let element = Element::of_pjrt(*kind).ok_or_else(|| {
                    PjrtError::Refused(format!("a result is of type {kind}, which torch lacks"))
                })?;
                let shape = shape.to_vec();
                outputs.push(Output { element, shape });
            }
            Ok(outputs)
        }
    }

    /// The executable as bytes, machine code included.
    pub(crate) fn serialize(&self) -> Result<Vec<u8>, PjrtError> {
        let inner = Inner::of(self)?;
        let mut serialize = ffi::ExecutableSerialize {
            executable: inner.handle,
            ..Default::default()
        };
        // SAFETY: the bytes belong to `owner`, which is freed once they are copied.
        unsafe {
            invoke(self.client.api, &mut serialize)?;
            let bytes = list(serialize.bytes.cast::<u8>(), serialize.bytes_size).to_vec();
            if let Some(free) = serialize.free {
                free(serialize.owner);
            }
            Ok(bytes)
        }
    }

    /// Runs the program; returns when the results are there.
    ///
    /// # Safety
    /// The inputs must be compact, aligned to [`ALIGNMENT`], and of the number, types and shapes that
    /// the program was made for, and nobody may write to them during the call.
    pub(crate) unsafe fn run(&self, inputs: &[View<'_>]) -> Result<Vec<Buffer>, PjrtError> {
        let api = self.client.api;
        let mut views = Views {
            api,
            buffers: Vec::with_capacity(inputs.len()),
        };
        for input in inputs {
            let mut view = ffi::ClientCreateViewOfDeviceBuffer {
                client: self.client.handle,
                pointer: input.data,
                sizes: input.shape.as_ptr(),
                rank: input.shape.len(),
                element_type: input.element.pjrt(),
                device: self.client.device,
                on_delete: Some(nothing_to_delete),
                ..Default::default()
            };
            // SAFETY: the memory is alive during the call (caller), and the view goes before it ends.
            unsafe { invoke(api, &mut view)? };
            views.buffers.push(view.buffer);
        }
        let mut results = vec![std::ptr::null_mut(); self.outputs.len()];
        let mut done: Opaque = std::ptr::null_mut();
        let mut options = ffi::ExecuteOptions::default();
        let arguments = views.buffers.as_ptr();
        let outputs = results.as_mut_ptr();
        let mut execute = ffi::LoadedExecutableExecute {
            executable: self.handle,
            options: &raw mut options,
            argument_lists: &raw const arguments,
            device_count: 1,
            argument_count: inputs.len(),
            output_lists: &raw const outputs,
            device_complete_events: &raw mut done,
            ..Default::default()
        };
        // SAFETY: one device, so one list of arguments, one of results and one event, each as long
        // as the program wants it; the buffers belong to this client.
        unsafe { invoke(api, &mut execute)? };
        let buffers = results
            .into_iter()
            .map(|handle| Buffer {
                client: Arc::clone(&self.client),
                handle,
            })
            .collect();
        let event = Event { api, event: done };
        event.wait()?;
        Ok(buffers)
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        let mut destroy = ffi::LoadedExecutableDestroy {
            executable: self.handle,
            ..Default::default()
        };
        // SAFETY: made by this client, and nobody has it after this.
        let _ = unsafe { invoke(self.client.api, &mut destroy) };
    }
}

/// The executable behind a loaded one, for questions.
struct Inner {
    api: &'static ffi::Api,
    handle: Opaque,
}

impl Inner {
    fn of(executable: &Executable) -> Result<Self, PjrtError> {
        let mut get = ffi::LoadedExecutableGetExecutable {
            loaded: executable.handle,
            ..Default::default()
        };
        let api = executable.client.api;
        // SAFETY: the loaded executable is alive.
        unsafe { invoke(api, &mut get)? };
        Ok(Self {
            api,
            handle: get.executable,
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut destroy = ffi::ExecutableDestroy {
            executable: self.handle,
            ..Default::default()
        };
        // SAFETY: the caller of GetExecutable owns what it got.
        let _ = unsafe { invoke(self.api, &mut destroy) };
    }
}

/// Views over the inputs of one call.
struct Views {
    api: &'static ffi::Api,
    buffers: Vec<Opaque>,
}

impl Drop for Views {
    fn drop(&mut self) {
        for buffer in &self.buffers {
            // SAFETY: made in `run`, and the call that read them is over.
            unsafe { destroy_buffer(self.api, *buffer) };
        }
    }
}

struct Event {
    api: &'static ffi::Api,
    event: Opaque,
}

impl Event {
    fn wait(&self) -> Result<(), PjrtError> {
        if self.event.is_null() {
            return Ok(());
        }
        let mut wait = ffi::EventAwait {
            event: self.event,
            ..Default::default()
        };
        // SAFETY: the event is alive.
        unsafe { invoke(self.api, &mut wait) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if !self.event.is_null() {
            let mut destroy = ffi::EventDestroy {
                event: self.event,
                ..Default::default()
            };
            // SAFETY: the caller of Execute owns its events.
            let _ = unsafe { invoke(self.api, &mut destroy) };
        }
    }
}

/// A result. Its memory lives as long as it does.
pub(crate) struct Buffer {
    client: Arc<Client>,
    handle: Opaque,
}

// SAFETY: as for `Client`.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Where its memory lies.
    pub(crate) fn pointer(&self) -> Result<*mut c_void, PjrtError> {
        let mut get = ffi::BufferOpaqueDeviceMemoryDataPointer {
            buffer: self.handle,
            ..Default::default()
        };
        // SAFETY: the buffer is alive.
        unsafe { invoke(self.client.api, &mut get)? };
        Ok(get.pointer)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the caller of Execute owns its results.
        unsafe { destroy_buffer(self.client.api, self.handle) };
    }
}
