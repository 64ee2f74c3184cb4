//! The shared cache.

use crate::support::Place;

#[test]
fn the_cache_is_shown_and_emptied() {
    let place = Place::alone();
    place.check_both("cache_dir", "cache dir");
    place.check("cache_size_empty", "cache size");
    place.run_well("fetch hub-kernels/rms-norm@v1");
    place.check_both("cache_size", "cache size");
    place.check_both("cache_prune", "cache prune");
    place.check("cache_clean_other", "cache clean hub-kernels/rotary");
    let output = place.run("cache clean hub-kernels/rms-norm --json");
    assert!(output.status.success());
    assert!(
        !place
            .cache()
            .join("kernels--hub-kernels--rms-norm")
            .exists()
    );
}
