//! Ctrl-C while a kernel's Python code runs. A test file of its own: an interrupt is for every call
//! that runs in the process.

mod support;

use std::time::{Duration, Instant};

use kernel_bridge::{Arg, BridgeError};
use support::{Sample, bridge};
use tch::Tensor;

#[test]
fn running_kernels_can_be_interrupted_on_all_threads() {
    let source = "import time\ndef value(x):\n    while True:\n        time.sleep(0.01)\n";
    let sample = Sample::new("_endless", &[("__init__.py", source)]);
    let kernel = bridge().load(&sample.verified()).unwrap();
    let bridge = bridge();
    let run = || {
        let zero = Tensor::from(0.0);
        let function = kernel.function("value").unwrap();
        function.call(&[Arg::Tensor(&zero)], &[])
    };
    std::thread::scope(|scope| {
        let calls = [scope.spawn(run), scope.spawn(run)];
        // Until both are in their loops, an interrupt has nobody or one to meet.
        let deadline = Instant::now() + Duration::from_secs(60);
        while !calls.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            assert!(Instant::now() < deadline, "the calls go on");
            std::thread::sleep(Duration::from_millis(50));
            bridge.interrupt();
        }
        for call in calls {
            let outcome = call.join().unwrap();
            assert!(
                matches!(outcome, Err(BridgeError::Interrupted)),
                "{outcome:?}"
            );
        }
    });
}
