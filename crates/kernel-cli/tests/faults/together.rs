//! Many processes that fetch one kernel into one cache.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use hub_fixture::Fault;

use crate::support::{RELU, Scene, stderr};

/// Downloads of each file: requests for its content that were answered with it.
fn downloads(scene: &Scene) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for request in scene.hub.requests() {
        if matches!(request.status, Some(200 | 206)) && request.path.contains("/build/")
            || request.path.starts_with("/cdn/")
        {
            *counts.entry(request.path).or_default() += 1;
        }
    }
    counts.retain(|path: &String, _| !path.contains("/tree/"));
    counts
}

#[test]
fn many_processes_fetch_one_kernel_once() {
    let scene = Scene::new();
    // Long enough for all of them to want the same files at the same time.
    scene
        .hub
        .inject(Fault::on("/resolve/").sleep(Duration::from_millis(100)));
    let children: Vec<_> = (0..32)
        .map(|_| {
            let mut command = scene.command(&format!("fetch {RELU} --json"));
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    let mut places = Vec::new();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let kernel = &report["kernels"][0];
        places.push((kernel["commit"].clone(), kernel["path"].clone()));
    }
    places.dedup();
    assert_eq!(places.len(), 1, "{places:?}");
    let downloads = downloads(&scene);
    assert_eq!(downloads.len(), 5, "{downloads:#?}");
    assert!(
        downloads.values().all(|count| *count == 1),
        "{downloads:#?}"
    );
    scene.assert_whole();
    scene.load().unwrap();
}
