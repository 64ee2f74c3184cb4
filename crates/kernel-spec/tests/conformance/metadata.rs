//! Metadata: what is read, with which values, and what is refused.

use kernel_spec::Metadata;
use serde::Deserialize;
use serde_json::{Value, json};

/// Files that the peer reads and this crate refuses.
const REFUSED: [&str; 4] = [
    "digest-7.json",         // a digest for `../../etc/passwd`
    "kernel-depends-8.json", // an empty repository id
    "kernel-depends-9.json", // the repository id `../x`
    "positional-array.json", // an array instead of an object
];

#[derive(Deserialize)]
struct Corpus {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    file: String,
    ok: bool,
    metadata: Option<Value>,
}

fn cases() -> Vec<(Case, Vec<u8>)> {
    let corpus: Corpus = crate::read("metadata/cases.json");
    assert!(!corpus.cases.is_empty());
    corpus
        .cases
        .into_iter()
        .map(|case| {
            let path = crate::corpus("metadata").join(&case.file);
            let bytes = std::fs::read(path).unwrap();
            (case, bytes)
        })
        .collect()
}

/// Metadata in the shape in which the corpus records it.
fn recorded(metadata: &Metadata) -> Value {
    json!({
        "id": metadata.id,
        "name": metadata.name,
        "python_name": metadata.name.module_name(),
        "version": metadata.version,
        "kernels_minver": metadata.kernels_minver,
        "license": metadata.license,
        "upstream": metadata.upstream,
        "source": metadata.source,
        "python_depends": metadata.python_depends,
        "kernel_depends": metadata.kernel_depends,
        "backend": {"type": metadata.backend.kind, "archs": metadata.backend.archs},
        "digest": metadata.digest,
        "provenance": metadata.provenance.as_ref().map(|provenance| json!({
            "kernel-builder": {
                "version": provenance.kernel_builder.version,
                "git": provenance.kernel_builder.git,
            },
            "kernel": provenance.kernel,
            "dirty": provenance.is_dirty(),
        })),
    })
}

#[test]
fn what_the_peer_reads_and_refuses() {
    for (case, bytes) in cases() {
        let read = Metadata::from_slice(&bytes);
        let expected = case.ok && !REFUSED.contains(&case.file.as_str());
        assert_eq!(read.is_ok(), expected, "{}: {read:?}", case.file);
        if let (Ok(metadata), Some(expected)) = (read, case.metadata) {
            assert_eq!(recorded(&metadata), expected, "{}", case.file);
        }
    }
}

#[test]
fn every_exception_is_documented() {
    let differences = crate::differences();
    for file in REFUSED {
        assert!(
            differences.contains(file),
            "{file} is not in docs/differences.md"
        );
    }
}

#[test]
fn errors_say_where() {
    for (file, place) in [
        ("err-backend-TPU.json", "`backend.type`: "),
        ("err-backend-string.json", "`backend`: invalid type: string"),
        (
            "err-backend-missing-type.json",
            "`backend`: missing field `type`",
        ),
        ("err-archs-number.json", "`backend.archs[0]`: "),
        (
            "missing-license.json",
            "missing field `license` at line 9 column 1",
        ),
        ("name-8.json", r"`name`: invalid kernel name `ab\n`"),
        ("version-4.json", "`version`: invalid type: string"),
        (
            "minver-5.json",
            "`kernels-minver`: invalid version `v0.17.0`",
        ),
        ("upstream-9.json", "`upstream`: unsupported scheme `github`"),
        ("kernel-depends-6.json", "unknown field `repo_id`"),
        (
            "kernel-depends-8.json",
            "`kernel-depends[0].repo-id`: invalid repository id ``",
        ),
        (
            "digest-7.json",
            "`digest`: refusing file name `../../etc/passwd`",
        ),
        (
            "provenance-7.json",
            "`provenance.kernel-builder.commit`: invalid commit id `abc`",
        ),
        ("duplicate-key.json", "duplicate field `version`"),
        ("positional-array.json", "expected an object"),
        ("invalid-utf8.json", "not valid UTF-8 at line 1 column"),
        ("empty-file.json", "EOF"),
        (
            "trailing-garbage.json",
            "trailing characters at line 2 column 1",
        ),
    ] {
        let bytes = std::fs::read(crate::corpus("metadata").join(file)).unwrap();
        let error = Metadata::from_slice(&bytes).unwrap_err().to_string();
        assert!(
            error.starts_with("cannot parse metadata.json: "),
            "{file}: {error}"
        );
        assert!(error.contains(place), "{file}: {error}");
    }
}

#[test]
fn what_was_read_survives_writing() {
    for (case, bytes) in cases() {
        if let Ok(metadata) = Metadata::from_slice(&bytes) {
            let text = metadata.to_json_pretty();
            assert_eq!(
                Metadata::from_slice(text.as_bytes()),
                Ok(metadata),
                "{}",
                case.file
            );
        }
    }
}

/// Ids that the peer would put into `sys.modules`: they can be read, but not loaded.
#[test]
fn peer_fault_17_dangerous_ids_are_refused_on_load_only() {
    for file in ["id-dotted.json", "id-stdlib.json"] {
        let bytes = std::fs::read(crate::corpus("metadata").join(file)).unwrap();
        let metadata = Metadata::from_slice(&bytes).unwrap();
        assert!(metadata.check_module_id().is_err(), "{file}");
    }
}
