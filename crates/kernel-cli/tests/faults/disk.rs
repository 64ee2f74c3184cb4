//! File systems that fail.

use std::fs;
use std::process::{Command, Output};

use hub_fixture::{KernelTree, samples};

use crate::support::{RELU, Scene, shim, stderr};

/// Runs the command on a file system that fails.
fn run(scene: &Scene, fault: &str, room: usize, arguments: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let mut command = broken(scene, arguments, &shim(folder.path()), fault, room);
    command.output().unwrap()
}

fn broken(
    scene: &Scene,
    arguments: &str,
    library: &std::path::Path,
    fault: &str,
    room: usize,
) -> Command {
    let mut command = scene.command(arguments);
    command
        .env("LD_PRELOAD", library)
        .env("CACHE", scene.cache())
        .env("FAULT", fault)
        .env("ROOM", room.to_string());
    command
}

#[test]
fn a_full_disk_is_said_wherever_it_fills_up() {
    let scene = Scene::new();
    let folder = tempfile::tempdir().unwrap();
    let library = shim(folder.path());
    let (mut failed, mut room) = (0, 0);
    loop {
        scene.forget();
        let mut command = broken(&scene, &format!("fetch {RELU}"), &library, "full", room);
        let output = command.output().unwrap();
        scene.assert_whole();
        if output.status.success() {
            break;
        }
        failed += 1;
        let text = stderr(&output);
        assert!(text.contains("error: cannot write `"), "{room}: {text}");
        assert!(
            text.contains("No space left") && text.contains("hint: free some space"),
            "{text}"
        );
        assert_ne!(
            scene.load().map(|_| ()).unwrap_err().kind(),
            "digest-mismatch"
        );
        // What is there is of use once there is room.
        let next = scene.run(&format!("fetch {RELU}"));
        assert!(next.status.success(), "{room}: {}", stderr(&next));
        room += 200;
    }
    assert!(failed > 5, "{failed}");
}

#[test]
fn without_links_files_are_copied() {
    for fault in ["no-links", "no-locks", "no-links no-locks"] {
        let scene = Scene::new();
        let output = run(&scene, fault, 0, &format!("fetch {RELU}"));
        assert!(output.status.success(), "{fault}: {}", stderr(&output));
        scene.assert_whole();
        let verified = scene.load().unwrap();
        let file = verified.path().join("__init__.py");
        let is_link = fs::symlink_metadata(&file).unwrap().is_symlink();
        assert_eq!(is_link, !fault.contains("no-links"), "{fault}");
        // A second fetch has nothing to do, and mends what was damaged.
        fs::write(&file, "damaged").unwrap();
        let output = run(&scene, fault, 0, &format!("fetch {RELU}"));
        assert!(output.status.success(), "{fault}: {}", stderr(&output));
        scene.load().unwrap();
    }
}

#[test]
fn without_locks_many_processes_end_with_one_result() {
    let scene = Scene::new();
    let folder = tempfile::tempdir().unwrap();
    let library = shim(folder.path());
    let children: Vec<_> = (0..8)
        .map(|_| {
            let arguments = format!("fetch {RELU}");
            let mut command = broken(&scene, &arguments, &library, "no-locks no-links", 0);
            command.stderr(std::process::Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    }
    scene.assert_whole();
    scene.load().unwrap();
}

#[test]
fn a_cache_that_can_only_be_read_serves_what_it_holds() {
    let scene = Scene::new();
    assert!(scene.run(&format!("fetch {RELU}")).status.success());
    for arguments in [
        format!("fetch {RELU}"),
        format!("fetch {RELU} --offline"),
        "fetch kernels-test/relu@release-1".to_owned(),
        format!("verify {RELU}"),
        "info kernels-test/relu@v1".to_owned(),
        "list".to_owned(),
        "cache size".to_owned(),
    ] {
        let output = run(&scene, "read-only", 0, &arguments);
        assert!(output.status.success(), "{arguments}: {}", stderr(&output));
    }
    let output = run(&scene, "read-only", 0, "fetch kernels-test/relu@v2");
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("hint: set KERNELS_CACHE"), "{text}");
}

#[test]
fn hf_hub_disable_symlinks_is_honoured() {
    let scene = Scene::new();
    let tree =
        KernelTree::new("kernels-test/relu").build("v1", samples::relu_build("torch-cpu", 1));
    scene.hub.put(&tree).unwrap();
    let mut command = scene.command(&format!("fetch {RELU}"));
    let output = command
        .env("HF_HUB_DISABLE_SYMLINKS", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let file = scene.load().unwrap().path().join("__init__.py");
    assert!(!fs::symlink_metadata(file).unwrap().is_symlink());
}
