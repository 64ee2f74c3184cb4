//! The C++ beside tch, run paths of this crate's tests, and the environment that it was built for.

#[path = "build/link.rs"]
mod link;

use std::path::Path;

fn main() {
    compile_shim();
    link::emit_run_paths();
    // The environment of the build is the one that fits the libraries linked here.
    if let Some(prefix) = link::python_says("import sys; print(sys.prefix)") {
        println!("cargo:rustc-env=KERNEL_BRIDGE_ENVIRONMENT={prefix}");
    }
    if let Some(version) = link::python_says("import sys; print('%d.%d' % sys.version_info[:2])") {
        println!("cargo:rustc-env=KERNEL_BRIDGE_PYTHON_VERSION={version}");
    }
}

/// Compiles `shim/tensor.cpp` against the libtorch that torch-sys links.
fn compile_shim() {
    println!("cargo:rerun-if-changed=shim/tensor.cpp");
    let Ok(libraries) = std::env::var("DEP_TCH_LIBTORCH_LIB") else {
        // torch-sys says so where it finds no libtorch, and its words are the better ones.
        return;
    };
    let Some(root) = Path::new(&libraries).parent() else {
        return;
    };
    cc::Build::new()
        .cpp(true)
        .pic(true)
        .warnings(false)
        .std("c++20")
        .include(root.join("include"))
        .file("shim/tensor.cpp")
        .compile("kernel_bridge_shim");
}
