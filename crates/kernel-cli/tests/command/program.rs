//! The program as the operating system sees it.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hub_fixture::{Fault, Hub};

use crate::support::Place;

#[cfg(target_os = "linux")]
#[test]
fn the_program_links_neither_libtorch_nor_python() {
    let program = env!("CARGO_BIN_EXE_kernel-cli");
    let needed = Command::new("readelf").args(["-d", program]).output();
    let output = match needed {
        Ok(output) => output,
        Err(_) => Command::new("ldd").arg(program).output().unwrap(),
    };
    let text = String::from_utf8_lossy(&output.stdout).to_lowercase();
    assert!(text.contains("libc.so"), "{text}");
    for library in ["torch", "python", "libc10", "kernel_runtime"] {
        assert!(!text.contains(library), "{library}: {text}");
    }
}

#[test]
fn a_reader_that_has_read_enough_is_no_failure() {
    let place = Place::alone();
    let mut child = place
        .command(&["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut message = String::new();
    let mut stderr = child.stderr.take().unwrap();
    stderr.read_to_string(&mut message).unwrap();
    assert_eq!(message, "");
    assert!(child.wait().unwrap().success());
}

#[cfg(unix)]
#[test]
fn an_interrupted_download_ends_with_130_and_leaves_nothing_half_written() {
    let hub = Hub::with_samples().unwrap();
    let place = Place::beside(&hub);
    hub.inject(Fault::on("layers/__init__.py").stall(4, Duration::from_secs(60)));
    let mut child = place
        .command(&["fetch", "kernels-test/relu@v1"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let is_asked = || {
        hub.request_lines()
            .iter()
            .any(|line| line.contains("layers/__init__.py"))
    };
    let start = Instant::now();
    while !is_asked() && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(200));
    let interrupted = Instant::now();
    let sent = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(sent.unwrap().success());
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    assert!(interrupted.elapsed() < Duration::from_secs(2));

    hub.clear_faults();
    place.run_well("fetch kernels-test/relu@v1");
    place.run_well("verify kernels-test/relu@v1");
}
