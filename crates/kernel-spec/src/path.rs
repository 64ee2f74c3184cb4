//! Which file names a kernel may contain.
//!
//! Names come from strangers: from a tree listing of the Hub or from a digest. They are joined to
//! folder names and compared with each other, so anything that could leave the folder, or that two
//! programs could read differently, is refused rather than repaired.

use crate::error::{Error, Result};

/// Name of the metadata file of a build.
pub const METADATA_FILE: &str = "metadata.json";
/// Name of the signature bundle over the metadata file.
pub const SIGNATURE_FILE: &str = "metadata.json.sigstore";

/// Checks the name of a file relative to a kernel's build directory.
///
/// ```
/// use kernel_spec::check_relative_path;
///
/// assert!(check_relative_path("layers/__init__.py").is_ok());
/// assert!(check_relative_path("../../etc/passwd").is_err());
/// assert!(check_relative_path("sub\\m.py").is_err());
/// ```
pub fn check_relative_path(path: &str) -> Result<()> {
    let refuse = |reason| {
        Err(Error::Path {
            path: path.to_owned(),
            reason,
        })
    };
    if path.is_empty() {
        return refuse("it is empty");
    }
    if path.contains('\\') {
        return refuse("it contains a backslash, which is a separator on some systems");
    }
    if path.chars().any(char::is_control) {
        return refuse("it contains a control character");
    }
    if path.starts_with('/') {
        return refuse("it is absolute");
    }
    if path.contains(':') {
        return refuse("it contains a colon, behind which some systems see a drive or a stream");
    }
    for component in path.split('/') {
        match component {
            "" => return refuse("it has an empty component"),
            "." | ".." => return refuse("it contains `.` or `..`"),
            name if name.ends_with(['.', ' ']) => {
                return refuse("a part of it ends with a dot or blank, which some systems drop");
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether a file is Python bytecode: `*.pyc`, or anything below a `__pycache__`.
///
/// Bytecode is outside the digest, so it must never be run: an untouched source with a prepared
/// `.pyc` beside it would pass every check.
pub fn is_bytecode(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    // A name that starts with its only dot has no extension: `.pyc` is an ordinary file.
    let extension = name
        .rfind('.')
        .filter(|dot| *dot > 0)
        .map(|dot| &name[dot + 1..]);
    extension == Some("pyc") || path.split('/').any(|component| component == "__pycache__")
}

/// Whether a file of a build is left out of its digest: bytecode, and at the top level the metadata
/// (which holds the digest) and its signature.
pub fn is_outside_digest(path: &str) -> bool {
    path == METADATA_FILE || path == SIGNATURE_FILE || is_bytecode(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_the_folder_are_refused() {
        for path in [
            "",
            "/etc/passwd",
            "..",
            "a/../b",
            "./a",
            "a//b",
            "a/",
            "C:x",
            "c:/x",
            "a/C:x.py",
            "m.py:stream",
            "m.py.",
            "m.py ",
            "a /b",
        ] {
            assert!(check_relative_path(path).is_err(), "{path}");
        }
        for path in ["a", ".hidden", "..a", "a.b/c d", "é/😀.txt"] {
            assert_eq!(check_relative_path(path), Ok(()), "{path}");
        }
    }

    /// On Linux a file can be named `sub\m.py`, and would share its digest key with `sub/m.py`.
    #[test]
    fn peer_fault_14_backslash_names_are_refused() {
        let error = check_relative_path("sub\\m.py").unwrap_err();
        assert!(error.to_string().contains("backslash"), "{error}");
    }

    #[test]
    fn control_characters_are_refused_and_shown_escaped() {
        let error = check_relative_path("a\nb\u{1b}[0m").unwrap_err();
        assert!(error.to_string().contains(r"`a\nb\u{1b}[0m`"), "{error}");
    }

    #[test]
    fn bytecode_is_told_from_names_that_look_like_it() {
        for path in [
            "x.pyc",
            "a/x.pyc",
            "__pycache__/m.py",
            "a/__pycache__/b/m.txt",
        ] {
            assert!(is_bytecode(path), "{path}");
        }
        for path in [
            ".pyc",
            "y.PYC",
            "z.pyo",
            "my__pycache__/n.txt",
            "x.pyc/y",
            "pyc",
        ] {
            assert!(!is_bytecode(path), "{path}");
        }
        assert!(is_outside_digest("metadata.json"));
        assert!(!is_outside_digest("sub/metadata.json"));
    }
}
