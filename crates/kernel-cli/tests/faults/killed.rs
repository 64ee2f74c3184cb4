//! `kill -9`.

use std::process::Stdio;
use std::time::{Duration, Instant};

use hub_fixture::Fault;

use crate::support::{RELU, Scene, stderr};

/// Kills a fetch at moments spread over its whole length, and checks after each that the cache holds
/// nothing that is half there, and that the next fetch succeeds.
fn kill_at_random_moments(count: u32) {
    let scene = Scene::new();
    // Every answer takes a while and arrives in two pieces, so that there is something to interrupt.
    let pause = Duration::from_millis(4);
    scene.hub.inject(Fault::on("/resolve/").stall(20, pause));
    scene.hub.inject(Fault::on("/cdn/").stall(20, pause));
    scene.hub.inject(Fault::on("").sleep(pause));
    // The shorter of two: a length that some other load drew out would put the moments behind the end.
    let timed = || {
        scene.forget();
        let start = Instant::now();
        assert!(scene.run(&format!("fetch {RELU}")).status.success());
        start.elapsed()
    };
    let whole = timed().min(timed());

    let (mut killed, mut partial) = (0, 0);
    for step in 0..count {
        scene.forget();
        let mut child = scene
            .command(&format!("fetch {RELU}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The golden ratio spreads any number of moments evenly.
        let moment = (f64::from(step) * 0.618_033_988_749).fract();
        std::thread::sleep(whole.mul_f64(moment));
        child.kill().unwrap();
        killed += u32::from(!child.wait().unwrap().success());
        scene.assert_whole();
        match scene.load() {
            Ok(verified) => assert!(verified.files().contains_key("__init__.py")),
            Err(error) => {
                let kind = error.kind();
                assert!(
                    matches!(kind, "untrusted" | "not-cached"),
                    "{moment}: {error}"
                );
                partial += u32::from(kind == "not-cached");
            }
        }
        let next = scene.run(&format!("fetch {RELU}"));
        assert!(next.status.success(), "{moment}: {}", stderr(&next));
        scene.assert_whole();
        scene.load().unwrap();
    }
    assert!(
        killed * 3 > count && partial > 0,
        "the moments interrupted {killed} fetches of {count}, {partial} of them half-way"
    );
}

#[test]
fn a_fetch_that_is_killed_leaves_nothing_half_there() {
    kill_at_random_moments(12);
}

#[test]
#[ignore = "takes a minute; the short form of it always runs"]
fn a_fetch_that_is_killed_at_200_moments_leaves_nothing_half_there() {
    kill_at_random_moments(200);
}
