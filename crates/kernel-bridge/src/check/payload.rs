//! A verified kernel as the child process gets it: bytes, not paths.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kernel_registry::VerifiedKernel;
use serde::Serialize;

use crate::kernel::module_name;

/// One kernel of a tree, by the names of `loader.load` in the Python half.
#[derive(Serialize)]
pub(super) struct Payload {
    name: String,
    id: String,
    title: String,
    files: BTreeMap<String, String>,
    path: String,
    /// Module names of the direct dependencies by repository.
    dependencies: BTreeMap<String, String>,
}

/// The kernel and what it depends on, dependencies first.
pub(super) fn payloads(kernel: &VerifiedKernel) -> Vec<Payload> {
    let mut all = Vec::new();
    add(kernel, &mut all);
    all
}

fn add(kernel: &VerifiedKernel, all: &mut Vec<Payload>) {
    let name = module_name(kernel);
    if all.iter().any(|payload| payload.name == name) {
        return;
    }
    let mut dependencies = BTreeMap::new();
    for dependency in kernel.dependencies() {
        add(dependency, all);
        let repository = dependency.repository().map(ToString::to_string);
        dependencies.insert(repository.unwrap_or_default(), module_name(dependency));
    }
    let encoded =
        |(name, bytes): (&String, &std::sync::Arc<[u8]>)| (name.clone(), STANDARD.encode(bytes));
    all.push(Payload {
        name,
        id: kernel.metadata().id.clone(),
        title: kernel.metadata().name.to_string(),
        files: kernel.files().iter().map(encoded).collect(),
        path: kernel.path().display().to_string(),
        dependencies,
    });
}
