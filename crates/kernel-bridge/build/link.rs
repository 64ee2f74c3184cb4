// Shared by the build scripts of all crates that link libtorch: makes their programs, tests and
// libraries find libtorch and libpython where they were at build time, so that nobody has to set
// LD_LIBRARY_PATH. torch-sys does this for itself only; its folder comes through `links = "tch"`.

/// Emits run paths for libtorch and, where Python is known, for libpython.
pub(crate) fn emit_run_paths() {
    println!("cargo:rerun-if-env-changed=DEP_TCH_LIBTORCH_LIB");
    println!("cargo:rerun-if-env-changed=PYO3_PYTHON");
    if let Ok(torch) = std::env::var("DEP_TCH_LIBTORCH_LIB") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{torch}");
    }
    if let Some(folder) = python_says("import sysconfig; print(sysconfig.get_config_var('LIBDIR'))")
    {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}");
    }
}

/// What the environment's Python prints, as one line; `None` where there is no such Python.
#[allow(dead_code)] // one of the including build scripts asks more than the others
pub(crate) fn python_says(script: &str) -> Option<String> {
    let python = std::env::var_os("PYO3_PYTHON")?;
    let output = std::process::Command::new(python)
        .args(["-c", script])
        .output()
        .ok()?;
    let line = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !line.is_empty()).then_some(line)
}
