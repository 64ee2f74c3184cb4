//! What can go wrong, as a user reads it.

use hub_fixture::Hub;

use crate::support::Place;

#[test]
fn errors_say_what_to_do() {
    let hub = Hub::with_samples().unwrap();
    let place = Place::beside(&hub);
    place.check_both("untrusted", "fetch someone/relu@v1");
    place.run_well("fetch someone/relu@v1 --trust someone/relu");
    place.check_both("unknown_repository", "fetch kernels-test/nothing@v1");
    place.check_both("unknown_version", "fetch kernels-test/relu@v7");
    place.check_both("unknown_revision", "info kernels-test/relu@nowhere");
    place.check_both("no_variant", "fetch kernels-test/relu-tpu@v1");
    place.check_both("not_cached", "fetch kernels-test/relu@v2 --offline");
    place.check_both("unsigned", "fetch kernels-test/relu@v1 --require-signed");
    place.check_both("cycle", "fetch kernels-test/cycle-a@v1");
    place.check_both("too_new", "fetch kernels-test/too-new@v1");
    place.check_both("verify_not_cached", "verify kernels-test/relu@v2");
}

#[test]
fn a_setting_that_cannot_be_used_is_a_wrong_call() {
    let place = Place::alone();
    let output = place
        .command(&["cache", "dir"])
        .env("HF_ENDPOINT", "nowhere")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.starts_with("error: `HF_ENDPOINT` cannot be used"),
        "{text}"
    );
}
