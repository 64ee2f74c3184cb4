//! Locks: what is read, and that the same bytes are written.

use kernel_spec::Lockfile;
use serde::Deserialize;

#[derive(Deserialize)]
struct Corpus {
    cases: Vec<Case>,
    errors: Vec<String>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    input: String,
    rendered: String,
}

#[test]
fn the_same_bytes_are_written() {
    let corpus: Corpus = crate::read("lockfile.json");
    assert!(!corpus.cases.is_empty());
    for case in corpus.cases {
        let lock = Lockfile::from_slice(case.input.as_bytes());
        let lock = lock.unwrap_or_else(|error| panic!("{}: {error}", case.name));
        assert_eq!(lock.render(), case.rendered, "{}", case.name);
    }
}

#[test]
fn the_same_texts_are_refused() {
    let corpus: Corpus = crate::read("lockfile.json");
    assert!(!corpus.errors.is_empty());
    for text in corpus.errors {
        assert!(Lockfile::from_slice(text.as_bytes()).is_err(), "{text}");
    }
}
