//! Kernels that are in the program, without any network.

use crate::support::Place;

#[test]
fn the_index_is_listed() {
    let place = Place::alone();
    place.check("list", "list");
    place.check_both("list_norms_for_tpu", "list --op RMSNorm --device tpu");
}

#[test]
fn a_kernel_of_the_index_needs_no_network() {
    let place = Place::alone();
    place.check_both("index_fetch", "fetch hub-kernels/rms-norm@v1 --offline");
    place.check_both("index_verify", "verify hub-kernels/rms-norm@v1");
    place.check_both("index_versions", "versions hub-kernels/rms-norm");
    place.check_both(
        "index_variants",
        "variants hub-kernels/rms-norm --backend tpu",
    );
    place.check("index_info", "info hub-kernels/rms-norm@v1");
}

#[test]
fn the_kernels_of_a_model_are_fetched() {
    let place = Place::alone();
    place.write(
        "model/config.json",
        r#"{"kernel_config": {"kernel_mapping": {"SwiGLUMLP": "hub-kernels/swiglu-mlp@v1:SwiGLUMLP"}}}"#,
    );
    place.check("fetch_config", "fetch --config model --offline");
    place.check("lock_config", "lock model --offline");
    place.check("fetch_config_frozen", "fetch --config model --frozen");
    place.write(
        "wrong/config.json",
        r#"{"kernel_config": {"kernel_mapping": {"SwigluMLP": "hub-kernels/swiglu-mlp@v1"}}}"#,
    );
    place.check_both("fetch_config_wrong", "fetch --config wrong");
}

#[test]
fn a_kernel_that_was_looked_at_is_not_installed() {
    let hub = hub_fixture::Hub::with_samples().unwrap();
    let place = Place::beside(&hub);
    place.run_well("info kernels-test/relu@v1");
    let listed = |place: &Place| {
        let output = place.run("list");
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .find(|line| line.starts_with("kernels-test/relu"))
            .map(str::to_owned)
    };
    assert_eq!(listed(&place), None);
    place.run_well("fetch kernels-test/relu@v1");
    assert!(listed(&place).unwrap().ends_with("yes"));
}
