//! Digests: which files count, how they are hashed, how deviations are told.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use kernel_spec::{Digest, DigestAlgorithm};
use serde::Deserialize;

#[derive(Deserialize)]
struct Corpus {
    files_base64: BTreeMap<String, String>,
    expected: Expected,
    after_change: Change,
}

#[derive(Deserialize)]
struct Expected {
    sha256: BTreeMap<String, String>,
    sha512: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Change {
    removed: Vec<String>,
    changed: BTreeMap<String, String>,
    added: BTreeMap<String, String>,
    violations: Vec<String>,
    message: String,
}

fn decode(files: &BTreeMap<String, String>) -> BTreeMap<String, Vec<u8>> {
    files
        .iter()
        .map(|(path, text)| (path.clone(), BASE64.decode(text).unwrap()))
        .collect()
}

#[test]
fn hashes_are_those_of_the_peer() {
    let corpus: Corpus = crate::read("digest.json");
    let files = decode(&corpus.files_base64);
    for (algorithm, expected) in [
        (DigestAlgorithm::Sha256, &corpus.expected.sha256),
        (DigestAlgorithm::Sha512, &corpus.expected.sha512),
    ] {
        let digest = Digest::of_files(algorithm, files_by_name(&files)).unwrap();
        assert_eq!(&digest.files, expected, "{algorithm}");
    }
}

#[test]
fn deviations_are_told_in_the_words_of_the_peer() {
    let corpus: Corpus = crate::read("digest.json");
    let mut files = decode(&corpus.files_base64);
    let expected = Digest::of_files(DigestAlgorithm::Sha256, files_by_name(&files)).unwrap();
    for path in &corpus.after_change.removed {
        files
            .remove(path)
            .expect("the corpus removes files that are there");
    }
    files.extend(decode(&corpus.after_change.changed));
    files.extend(decode(&corpus.after_change.added));
    let actual = Digest::of_files(DigestAlgorithm::Sha256, files_by_name(&files)).unwrap();
    let violations: Vec<_> = expected
        .validate(&actual)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(violations, corpus.after_change.violations);
    assert_eq!(
        expected.verify(&actual).unwrap_err().to_string(),
        corpus.after_change.message
    );
    assert_eq!(expected.verify(&expected), Ok(()));
}

fn files_by_name(files: &BTreeMap<String, Vec<u8>>) -> Vec<(String, &[u8])> {
    files
        .iter()
        .map(|(path, bytes)| (path.clone(), bytes.as_slice()))
        .collect()
}
