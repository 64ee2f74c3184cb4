//! Kernels of the Hub.

use hub_fixture::Hub;

use crate::support::Place;

#[test]
fn a_kernel_is_fetched_then_found() {
    let hub = Hub::with_samples().unwrap();
    let place = Place::beside(&hub);
    place.check("fetch", "fetch kernels-test/relu@v1");
    place.check("fetch_again", "fetch kernels-test/relu@v1 --json");
    hub.clear_requests();
    place.run_well("fetch kernels-test/relu@v1 --offline");
    assert_eq!(hub.request_lines(), Vec::<String>::new());
}

#[test]
fn the_newest_version_is_said_aloud() {
    let hub = Hub::with_samples().unwrap();
    Place::beside(&hub).check("fetch_newest", "fetch kernels-test/relu");
}

#[test]
fn what_a_kernel_needs_comes_with_it() {
    let hub = Hub::with_samples().unwrap();
    Place::beside(&hub).check_both("fetch_tree", "fetch kernels-test/top@v1");
}

#[test]
fn every_build_is_fetched_on_request() {
    let hub = Hub::with_samples().unwrap();
    let place = Place::beside(&hub);
    place.check(
        "fetch_all_variants",
        "fetch kernels-test/relu@v1 --all-variants",
    );
    place.run_well("fetch kernels-test/relu@v1 --offline --backend tpu");
}

#[test]
fn a_kernel_is_looked_at_without_its_code() {
    let hub = Hub::with_samples().unwrap();
    let place = Place::beside(&hub);
    place.check_both("info", "info kernels-test/relu@v2");
    place.check_both("variants", "variants kernels-test/relu@v1");
    place.check_both("versions", "versions kernels-test/relu");
    let code = |line: &String| line.contains(".py") || line.contains(".so");
    assert!(!hub.request_lines().iter().any(code));
}

#[test]
fn kernels_are_vendored() {
    let hub = Hub::with_samples().unwrap();
    let place = Place::beside(&hub);
    place.check("vendor", "vendor kernels kernels-test/top@v1");
    drop(hub);
    std::fs::remove_dir_all(place.cache()).unwrap();
    place.check(
        "vendored",
        "fetch kernels-test/leaf@v3 --vendor kernels --offline",
    );
    place.run_well("verify kernels-test/leaf@v3 --vendor kernels");
}
