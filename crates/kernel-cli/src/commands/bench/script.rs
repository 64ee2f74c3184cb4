//! `bench script`: the benchmark scripts of a kernel with our timing.
//!
//! A script is code outside the kernel's build, which no digest vouches for. It is therefore run only
//! from a file that the user names, or from the folder of a kernel that the user named as a folder.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use kernel_spec::protocol::{BenchmarkRequest, Workload};

use super::super::Context;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The kernel: a reference, or its folder with `benchmarks/` in it
    kernel: String,
    /// A script; repeatable [default: benchmarks/benchmark*.py of the kernel's folder]
    #[arg(long, value_name = "FILE")]
    script: Vec<PathBuf>,
    /// Seconds of measuring for each workload
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    budget: f64,
    /// Confidence of the intervals, all workloads together
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    confidence: f64,
    /// Added to the seed of the script
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Threads for libtorch and XLA
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Write the record, all samples included, to this file
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments, context: &Context<'_>) -> Result<ExitCode, Failure> {
    let scripts = match arguments.script.as_slice() {
        [] => shipped(&arguments.kernel)?,
        given => given.to_vec(),
    };
    let request = BenchmarkRequest {
        a: "reference".to_owned(),
        b: arguments.kernel.clone(),
        workload: Workload::Script { scripts },
        dtype: None,
        budget_s: arguments.budget,
        confidence: arguments.confidence,
        seed: arguments.seed,
        flush_caches: false,
        threads: arguments.threads,
        interpret: false,
        apart: None,
        registry: context.shared.settings(),
    };
    super::measured::run(request, arguments.output.as_deref(), context)
}

/// The scripts in the folder of a kernel, in the order of their names.
fn shipped(kernel: &str) -> Result<Vec<PathBuf>, Failure> {
    let folder = Path::new(kernel);
    if !folder.is_dir() {
        return Err(Failure::usage(format!(
            "`{kernel}` is no folder, so its scripts have to be named"
        ))
        .with_hint(
            "give `--script FILE`; scripts are not part of a kernel's digest, so look at it first",
        ));
    }
    let folder = folder.join("benchmarks");
    let entries =
        std::fs::read_dir(&folder).map_err(|error| Failure::io("read", &folder, &error))?;
    let mut scripts: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| is_script(path))
        .collect();
    scripts.sort();
    if scripts.is_empty() {
        return Err(Failure::usage(format!(
            "no `benchmark*.py` in `{}`",
            folder.display()
        )));
    }
    Ok(scripts)
}

fn is_script(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("benchmark") && name.ends_with(".py")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_those_that_the_python_library_would_run() {
        let folder = tempfile::tempdir().unwrap();
        let scripts = folder.path().join("benchmarks");
        std::fs::create_dir(&scripts).unwrap();
        let kernel = folder.path().to_str().unwrap();
        assert!(
            shipped(kernel)
                .unwrap_err()
                .message
                .contains("no `benchmark*.py`")
        );
        for name in [
            "benchmark_b.py",
            "benchmark.py",
            "other.py",
            "benchmark.txt",
        ] {
            std::fs::write(scripts.join(name), "").unwrap();
        }
        let names: Vec<_> = shipped(kernel)
            .unwrap()
            .iter()
            .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        assert_eq!(names, ["benchmark.py", "benchmark_b.py"]);
        assert!(
            shipped("org/name@v1")
                .unwrap_err()
                .hint
                .unwrap()
                .contains("--script")
        );
    }
}
