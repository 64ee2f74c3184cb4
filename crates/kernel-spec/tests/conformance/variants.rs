//! Variants: which names are read, which builds fit, in which order, and why the others do not.

use std::collections::BTreeMap;

use kernel_spec::variant::{self, Resolution};
use kernel_spec::{System, Variant};
use serde::Deserialize;
use serde_json::{Map, Value};

/// Cases in which a tvm-ffi build and a Python build are of equal rank, so that the order of the
/// input decided when the corpus was made.
const TIES: [&str; 3] = [
    "tie: tvm-ffi with CUDA minor 0 first",
    "tie: tvm-ffi cpu and noarch cpu",
    "cpu or no torch: noarch is accepted even without torch",
];

#[derive(Deserialize)]
struct Corpus {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    system: Map<String, Value>,
    backend: String,
    backend_name: String,
    variants: Vec<String>,
    parse_errors: BTreeMap<String, String>,
    #[serde(default)]
    canonical: BTreeMap<String, String>,
    expected_order: Vec<String>,
    rejected: BTreeMap<String, String>,
    trace_text: String,
}

impl Case {
    fn system(&self) -> System {
        let mut system = self.system.clone();
        system.insert("backend".to_owned(), Value::from(self.backend.as_str()));
        System::from_slice(Value::from(system).to_string().as_bytes())
            .unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    fn resolve(&self) -> Resolution {
        variant::resolve(&self.system(), &self.variants)
    }

    /// Whether the peer's order was an accident of its input.
    fn is_tie(&self) -> bool {
        TIES.contains(&self.name.as_str())
    }
}

fn cases() -> Vec<Case> {
    let corpus: Corpus = crate::read("variants.json");
    assert!(!corpus.cases.is_empty());
    corpus.cases
}

#[test]
fn the_same_names_are_variants() {
    for case in cases() {
        for name in &case.variants {
            let parsed = name.parse::<Variant>();
            assert_eq!(
                parsed.is_err(),
                case.parse_errors.contains_key(name),
                "{}: `{name}`: {parsed:?}",
                case.name
            );
            if let Ok(variant) = parsed {
                let canonical = case.canonical.get(name).unwrap_or(name);
                assert_eq!(&variant.to_string(), canonical, "{}", case.name);
            }
        }
        let unparsable = case.resolve().unparsable;
        assert!(
            unparsable
                .iter()
                .map(|(name, _)| name)
                .eq(case.parse_errors.keys())
        );
        assert_eq!(case.system().backend.kind().as_str(), case.backend_name);
    }
}

#[test]
fn the_same_builds_fit_in_the_same_order() {
    for case in cases().iter().filter(|case| !case.is_tie()) {
        let accepted = case.resolve().accepted;
        let names: Vec<_> = accepted
            .iter()
            .map(|decision| decision.variant.to_string())
            .collect();
        assert_eq!(names, case.expected_order, "{}", case.name);
    }
}

#[test]
fn the_same_reasons_are_given() {
    for case in cases() {
        let resolution = case.resolve();
        let reasons: BTreeMap<_, _> = resolution
            .rejected
            .into_iter()
            .map(|decision| (decision.variant.to_string(), decision.rejection.unwrap()))
            .collect();
        assert_eq!(reasons, case.rejected, "{}", case.name);
    }
}

/// The trace has the peer's lines. Rejected builds of equal rank are in the order of their names
/// here and in that of the input there, so lines are compared in sorted order, and the lines of the
/// accepted ones as they are.
#[test]
fn the_trace_reads_the_same() {
    for case in cases().iter().filter(|case| !case.is_tie()) {
        let text = case.resolve().trace_text();
        let sorted = |text: &str| {
            let mut lines: Vec<_> = text.lines().map(ToOwned::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(sorted(&text), sorted(&case.trace_text), "{}", case.name);
        let accepted = case.expected_order.len();
        let head = |text: &str| text.lines().take(accepted).collect::<Vec<_>>().join("\n");
        assert_eq!(head(&text), head(&case.trace_text), "{}", case.name);
    }
}

/// Two builds of equal rank: the peer takes whichever its set yields first.
#[test]
fn peer_fault_38_ties_do_not_depend_on_the_input() {
    let ties: Vec<_> = cases().into_iter().filter(Case::is_tie).collect();
    assert_eq!(ties.len(), TIES.len());
    for mut case in ties {
        let forwards = case.resolve();
        case.variants.reverse();
        assert_eq!(case.resolve(), forwards, "{}", case.name);
        assert!(forwards.accepted[0].variant.is_arch(), "{}", case.name);
        let mut names: Vec<_> = forwards
            .accepted
            .iter()
            .map(|one| one.name.clone())
            .collect();
        let mut expected = case.expected_order.clone();
        names.sort();
        expected.sort();
        assert_eq!(names, expected, "{}", case.name);
    }
}

/// `torch201-…` renders as `torch21-…`, a directory that does not exist.
#[test]
fn peer_fault_40_paths_keep_the_name_of_the_directory() {
    let system = System::new("x86_64", "linux", "cpu".parse().unwrap())
        .with_torch("2.1".parse().unwrap(), Some(true));
    let resolution = variant::resolve(&system, ["torch201-cpu-x86_64-linux"]);
    let best = resolution.best().unwrap();
    assert_eq!(best.name, "torch201-cpu-x86_64-linux");
    assert_eq!(best.variant.to_string(), "torch21-cpu-x86_64-linux");
}
