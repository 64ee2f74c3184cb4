//! Digests of what is on this machine.

use std::fs;

use hub_fixture::Hub;

use crate::support::Place;

#[test]
fn a_changed_file_is_told() {
    let hub = Hub::with_samples().unwrap();
    let place = Place::beside(&hub);
    place.run_well("fetch kernels-test/relu@v1");
    place.check("verify", "verify kernels-test/relu@v1");
    let commit = hub.commit("kernels-test/relu", "v1").unwrap();
    let folder = place
        .cache()
        .join("kernels--kernels-test--relu/snapshots")
        .join(commit)
        .join("build/torch-cpu");
    fs::remove_file(folder.join("__init__.py")).unwrap();
    fs::write(folder.join("__init__.py"), "import os\n").unwrap();
    fs::write(folder.join("extra.py"), "").unwrap();
    place.check_both("verify_tampered", "verify kernels-test/relu@v1");
    place.check_both(
        "fetch_tampered_offline",
        "fetch kernels-test/relu@v1 --offline",
    );
}

#[test]
fn a_kernel_that_was_published_tampered_is_refused() {
    let hub = Hub::with_samples().unwrap();
    Place::beside(&hub).check_both("fetch_published_tampered", "fetch kernels-test/tampered@v1");
}

#[test]
fn a_folder_is_checked() {
    let place = Place::alone();
    hub_fixture::samples::relu()
        .write_branch("v1", &place.work().join("relu"))
        .unwrap();
    place.check("verify_folder", "verify ./relu");
    place.check(
        "verify_unsigned",
        "verify ./relu/build/torch-cpu --require-signed",
    );
    place.check_both("verify_no_folder", "verify ./nothing");
}

#[test]
fn bytecode_is_told() {
    let place = Place::alone();
    hub_fixture::samples::bytecode()
        .write_branch("v1", &place.work().join("kernel"))
        .unwrap();
    place.check("verify_bytecode", "verify ./kernel");
}
