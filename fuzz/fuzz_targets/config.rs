//! The kernels of a model's `config.json`.

#![no_main]

use kernel_spec::{DeviceType, KernelConfig};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(value) = serde_json::from_slice(bytes) else {
        return;
    };
    if let Ok(config) = KernelConfig::from_model_config(&value) {
        for device in DeviceType::ALL {
            assert!(config.kernels_on(*device).count() <= 64);
        }
    }
});
