//! Names of builds: the first line is a backend, the others are names. Choosing among them depends
//! neither on their order nor on how they are spelled.

#![no_main]

use kernel_spec::version::MajorMinor;
use kernel_spec::{Backend, System, Variant, variant};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let mut lines = text.lines();
    let backend = lines.next().and_then(|word| word.parse().ok());
    let names: Vec<_> = lines.collect();
    for name in &names {
        if let Ok(variant) = name.parse::<Variant>() {
            let printed = variant.to_string();
            let read: Variant = printed.parse().expect("what was printed can be parsed");
            assert_eq!(read, variant);
        }
    }
    let system = System::new("x86_64", "linux", backend.unwrap_or(Backend::Cpu));
    let system = system.with_torch(MajorMinor::new(2, 10), Some(true));
    let forwards = variant::resolve(&system, &names);
    assert_eq!(forwards, variant::resolve(&system, names.iter().rev()));
    let _ = forwards.trace_text();
});
