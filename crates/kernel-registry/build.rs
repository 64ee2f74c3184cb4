//! Puts the index and the built kernels of `kernels-index/` into the program, so that they can be
//! fetched where there is neither a checkout nor a network.
//!
//! The result is one Rust file with the names and `include_bytes!` of every file. Only what belongs
//! to a build is taken: `index/*.json` and `<name>/build/<variant>/**`, without bytecode.

use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let manifest = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let root = manifest.join("../../kernels-index");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", root.display());
    let mut text = String::new();
    write_index(&root.join("index"), &mut text)?;
    write_builds(&root, &mut text)?;
    fs::write(
        PathBuf::from(env::var("OUT_DIR")?).join("embedded.rs"),
        text,
    )?;
    Ok(())
}

fn write_index(folder: &Path, text: &mut String) -> Result<(), Box<dyn Error>> {
    writeln!(text, "pub(super) static INDEX: &[(&str, &[u8])] = &[")?;
    for path in sorted(folder)? {
        let name = file_name(&path)?;
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            println!("cargo::rerun-if-changed={}", path.display());
            writeln!(text, "    ({name:?}, include_bytes!({})),", literal(&path)?)?;
        }
    }
    writeln!(text, "];")?;
    Ok(())
}

fn write_builds(root: &Path, text: &mut String) -> Result<(), Box<dyn Error>> {
    writeln!(text, "pub(super) static BUILDS: &[EmbeddedBuild] = &[")?;
    for kernel in sorted(root)? {
        let build = kernel.join("build");
        if !build.is_dir() {
            continue;
        }
        for variant in sorted(&build)? {
            if !variant.join("metadata.json").is_file() {
                continue;
            }
            println!("cargo::rerun-if-changed={}", variant.display());
            let (name, variant_name) = (file_name(&kernel)?, file_name(&variant)?);
            writeln!(
                text,
                "    EmbeddedBuild {{ kernel: {name:?}, variant: {variant_name:?}, files: &["
            )?;
            for entry in walkdir::WalkDir::new(&variant).sort_by_file_name() {
                let entry = entry?;
                let path = entry.path();
                let relative = path
                    .strip_prefix(&variant)?
                    .to_str()
                    .ok_or("name is not UTF-8")?;
                let bytecode = relative.contains("__pycache__")
                    || path.extension().is_some_and(|extension| extension == "pyc");
                if entry.file_type().is_file() && !bytecode {
                    println!("cargo::rerun-if-changed={}", path.display());
                    let file = literal(path)?;
                    writeln!(text, "        ({relative:?}, include_bytes!({file})),")?;
                }
            }
            writeln!(text, "    ] }},")?;
        }
    }
    writeln!(text, "];")?;
    Ok(())
}

/// Entries of a folder in the order of their names; none where it does not exist.
fn sorted(folder: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut paths = fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()?;
    paths.sort();
    Ok(paths)
}

fn file_name(path: &Path) -> Result<String, Box<dyn Error>> {
    Ok(path
        .file_name()
        .and_then(|name| name.to_str())
        .ok_or("name is not UTF-8")?
        .to_owned())
}

/// A path as a string literal.
fn literal(path: &Path) -> Result<String, Box<dyn Error>> {
    let path = path.canonicalize()?;
    let text = path.to_str().ok_or("path is not UTF-8")?;
    Ok(format!("{text:?}"))
}
