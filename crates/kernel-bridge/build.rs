//! Run paths of this crate's tests, and the environment that it was built for.

#[path = "build/link.rs"]
mod link;

fn main() {
    link::emit_run_paths();
    // The environment of the build is the one that fits the libraries linked here.
    if let Some(prefix) = link::python_says("import sys; print(sys.prefix)") {
        println!("cargo:rustc-env=KERNEL_BRIDGE_ENVIRONMENT={prefix}");
    }
    if let Some(version) = link::python_says("import sys; print('%d.%d' % sys.version_info[:2])") {
        println!("cargo:rustc-env=KERNEL_BRIDGE_PYTHON_VERSION={version}");
    }
}
