//! The C interface: three functions, no types but integers, bytes and one callback.
//!
//! | symbol | does |
//! | --- | --- |
//! | `kernel_runtime_abi_version` | the version of this interface and of its messages |
//! | `kernel_runtime_run` | runs one request to its end; every event goes to the callback as JSON |
//! | `kernel_runtime_interrupt` | asks the running request to stop; callable from any thread |
//!
//! No panic crosses it: one is caught and becomes the last event.
#![expect(
    unsafe_code,
    reason = "a C interface: raw bytes and a callback come from the caller"
)]

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use kernel_spec::protocol::{ABI_VERSION, Event, Failure, Request};

use crate::Events;
use crate::failure::RuntimeError;

/// Receives one event: UTF-8 JSON of `length` bytes at `bytes`, valid during the call only. Calls
/// come one at a time, from any thread, and only while `kernel_runtime_run` has not returned.
pub type EventCallback = unsafe extern "C" fn(user: *mut c_void, bytes: *const u8, length: usize);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Set once the caller has asked for a stop.
pub(crate) fn interrupted() -> &'static AtomicBool {
    &INTERRUPTED
}

/// The caller's side of a request.
struct Receiver {
    callback: EventCallback,
    user: *mut c_void,
}

// SAFETY: the caller promises that the callback may be called from any thread with `user`; the
// mutex around the receiver keeps the calls apart.
unsafe impl Send for Receiver {}

impl Receiver {
    fn send(&self, event: &Event) {
        let text = serde_json::to_vec(event).unwrap_or_else(|_| b"null".to_vec());
        // SAFETY: the request has not returned (the receiver is taken away before it does), so
        // callback and `user` are valid; the bytes live until the callback returns.
        unsafe { (self.callback)(self.user, text.as_ptr(), text.len()) };
    }
}

/// The version of this interface; the caller compares it with the one that it was built with.
#[unsafe(no_mangle)]
pub extern "C" fn kernel_runtime_abi_version() -> u32 {
    ABI_VERSION
}

/// Asks the running request to stop; it ends with what it has so far, or with an error.
#[unsafe(no_mangle)]
pub extern "C" fn kernel_runtime_interrupt() {
    INTERRUPTED.store(true, Ordering::Relaxed);
    // A kernel's Python code does not look at the flag; it gets a KeyboardInterrupt.
    if let Some(bridge) = crate::session::running_bridge() {
        bridge.interrupt();
    }
}

/// Runs one request. Returns 0 when the last event is `done`, 1 when it is `failed`.
///
/// # Safety
/// `request` must point to `length` readable bytes for the whole call, and `callback` must be
/// callable from any thread, one call at a time, with `user`, which is handed through untouched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kernel_runtime_run(
    request: *const u8,
    length: usize,
    callback: EventCallback,
    user: *mut c_void,
) -> i32 {
    let receiver = Arc::new(Mutex::new(Some(Receiver { callback, user })));
    let events = {
        let receiver = Arc::clone(&receiver);
        Events::new(move |event| {
            if let Some(receiver) = &*receiver.lock().unwrap_or_else(PoisonError::into_inner) {
                receiver.send(event);
            }
        })
    };
    let status = answer(request, length, &events);
    // Whatever still holds the events now holds nothing.
    receiver
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    status
}

fn answer(request: *const u8, length: usize, events: &Events) -> i32 {
    let send = |event: &Event| events.send(event);
    if request.is_null() {
        send(&Event::Failed(internal("the request is a null pointer")));
        return 1;
    }
    // SAFETY: the caller of `kernel_runtime_run` promises `length` readable bytes at `request`.
    let bytes = unsafe { std::slice::from_raw_parts(request, length) };
    INTERRUPTED.store(false, Ordering::Relaxed);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let request: Request = serde_json::from_slice(bytes).map_err(RuntimeError::Request)?;
        crate::run(request, events)
    }));
    match outcome {
        Ok(Ok(response)) => {
            send(&Event::Done { response });
            0
        }
        Ok(Err(error)) => {
            send(&Event::Failed(error.to_failure()));
            1
        }
        Err(panic) => {
            let text = panic
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "no message".to_owned());
            send(&Event::Failed(internal(&format!("a panic: {text}"))));
            1
        }
    }
}

fn internal(message: &str) -> Failure {
    Failure {
        kind: "internal".into(),
        message: format!("the runtime library failed: {message}"),
        causes: Vec::new(),
        hint: Some("this is a fault of kernel-cli; please report it with the command".into()),
        detail: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn collect(user: *mut c_void, bytes: *const u8, length: usize) {
        // SAFETY: the test passes a live Vec and the interface passes live bytes.
        let (events, bytes) = unsafe {
            (
                &mut *user.cast::<Vec<Event>>(),
                std::slice::from_raw_parts(bytes, length),
            )
        };
        events.push(serde_json::from_slice(bytes).unwrap());
    }

    fn run(request: &[u8]) -> (i32, Vec<Event>) {
        let mut events: Vec<Event> = Vec::new();
        // SAFETY: the request and the vector outlive the call.
        let status = unsafe {
            kernel_runtime_run(
                request.as_ptr(),
                request.len(),
                collect,
                std::ptr::from_mut(&mut events).cast(),
            )
        };
        (status, events)
    }

    #[test]
    fn a_request_that_is_no_request_is_a_failure_and_no_crash() {
        for request in [&b""[..], b"{}", b"{\"request\":\"dance\"}", &[0xff, 0xfe]] {
            let (status, events) = run(request);
            assert_eq!(status, 1);
            assert!(matches!(&events[..], [Event::Failed(failure)] if failure.kind == "request"));
        }
    }
}
