//! Run paths of this crate's tests and libraries; see the included file.

#[path = "../kernel-bridge/build/link.rs"]
mod link;

fn main() {
    link::emit_run_paths();
}
