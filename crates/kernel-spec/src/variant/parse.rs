//! Reading names of build directories.
//!
//! The order of the tests matters, because prefixes overlap: `torch-stable-abi29-…` would
//! otherwise be the noarch build for a backend called `stable-abi29-…`.

use std::str::FromStr;

use super::{Backend, CxxAbi, Framework, Variant, VariantError};
use crate::error::Error;
use crate::version::MajorMinor;

impl FromStr for Variant {
    type Err = VariantError;

    fn from_str(name: &str) -> Result<Self, VariantError> {
        parse(name).map_err(|reason| VariantError {
            name: name.to_owned(),
            reason,
        })
    }
}

fn parse(name: &str) -> Result<Variant, String> {
    let pieces: Vec<&str> = name.split('-').collect();

    if name.starts_with("torch-stable-abi") {
        let text = pieces[..pieces.len().min(3)].join("-");
        let version = framework_version(&text, "torch-stable-abi")?;
        return arch(Framework::TorchStableAbi { version }, &pieces[3..]);
    }
    match pieces.as_slice() {
        ["torch", ..] => Ok(Variant::Noarch {
            backend: pieces[1..].join("-"),
        }),
        [first, rest @ ..] if first.starts_with("torch") => {
            let version = framework_version(first, "torch")?;
            let (abi, rest) = match rest {
                ["cxx11", rest @ ..] => (Some(CxxAbi::Cxx11), rest),
                ["cxx98", rest @ ..] => (Some(CxxAbi::Cxx98), rest),
                rest => (None, rest),
            };
            arch(Framework::Torch { version, abi }, rest)
        }
        ["tvm", second, rest @ ..] if second.starts_with("ffi") => {
            let version = framework_version(&format!("tvm-{second}"), "tvm-ffi")?;
            arch(Framework::TvmFfi { version }, rest)
        }
        _ => Err("unknown framework, expected `torch…` or `tvm-ffi…`".to_owned()),
    }
}

/// Version behind a framework's word: the first digit is the major version, the others the minor.
fn framework_version(text: &str, word: &str) -> Result<MajorMinor, String> {
    let digits = text.strip_prefix(word).unwrap_or_default();
    let split = if digits.len() >= 2 && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        let (major, minor) = digits.split_at(1);
        major.parse().ok().zip(minor.parse().ok())
    } else {
        None
    };
    split
        .map(|(major, minor)| MajorMinor::new(major, minor))
        .ok_or_else(|| {
            format!("expected `{word}` and a version in two or more digits, got `{text}`")
        })
}

fn arch(framework: Framework, pieces: &[&str]) -> Result<Variant, String> {
    let [backend, cpu, os] = pieces else {
        return Err(format!(
            "expected `<backend>-<cpu>-<os>` behind `{framework}`, got `{}`",
            pieces.join("-")
        ));
    };
    let backend: Backend = backend.parse().map_err(|error: Error| error.to_string())?;
    Ok(Variant::Arch {
        framework,
        backend,
        cpu: (*cpu).to_owned(),
        os: (*os).to_owned(),
    })
}
