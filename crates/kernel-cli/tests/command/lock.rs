//! `lock`, and what follows it.

use hub_fixture::{Build, Hub, KernelTree};

use crate::support::Place;

const PROJECT: &str = "[tool.kernels.dependencies]\n\"kernels-test/top\" = 1\n";

#[test]
fn a_lock_is_written_compared_and_followed() {
    let hub = Hub::with_samples().unwrap();
    let place = Place::beside(&hub);
    place.check("locked_without_lock", "fetch kernels-test/top@v1 --locked");
    place.check("locked_without_lock_json", "fetch --locked --json");
    place.write("pyproject.toml", PROJECT);
    place.check("lock_check_missing", "lock --check");
    place.check("lock", "lock");
    place.check("lock_again", "lock --json");
    let text = std::fs::read_to_string(place.work().join("kernels.lock")).unwrap();
    assert!(text.starts_with("[\n  {\n    \"dependency\""), "{text}");
    assert!(!text.ends_with('\n'));

    let before = hub.commit("kernels-test/leaf", "v3").unwrap();
    let leaf = Build::new("torch-cpu").file("__init__.py", "def three():\n    return 3.0\n");
    hub.put(&KernelTree::new("kernels-test/leaf").build("v3", leaf))
        .unwrap();
    place.check_both("lock_check_stale", "lock --check");
    let output = place.run("fetch --locked --json");
    assert!(String::from_utf8_lossy(&output.stdout).contains(&before));
    place.check_both("locked_stale", "fetch kernels-test/relu@v1 --locked");
}

#[test]
fn a_lock_cannot_be_written_without_the_hub() {
    let place = Place::alone();
    place.write("pyproject.toml", PROJECT);
    place.check_both("lock_offline", "lock --offline");
}

#[test]
fn a_folder_without_needs_is_told() {
    Place::alone().check_both("lock_nothing", "lock");
}
