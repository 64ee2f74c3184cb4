//! What every request needs: a registry that tells what it does, and Python when a kernel asks for it.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use kernel_bridge::{Bridge, BridgeError, BridgeOptions, Environment, PayloadHost};
use kernel_model::{Device, ModelError};
use kernel_registry::Registry;
use kernel_spec::protocol::{Event, RegistrySettings};
use tch::Tensor;

use crate::Events;
use crate::failure::RuntimeError;

/// The bridge of this process, once a kernel has needed it.
static BRIDGE: OnceLock<Bridge> = OnceLock::new();

/// The bridge, if Python was started.
pub(crate) fn running_bridge() -> Option<&'static Bridge> {
    BRIDGE.get()
}

/// Versions in this process, by package: those of Python's packages once Python runs.
pub(crate) fn versions() -> BTreeMap<String, String> {
    match running_bridge() {
        Some(bridge) => bridge.versions(),
        None => {
            std::iter::once(("torch".to_owned(), kernel_bridge::TORCH_VERSION.to_owned())).collect()
        }
    }
}

/// Starts Python for a device, or hands out what runs.
pub(crate) fn bridge(device: Device) -> Result<Bridge, BridgeError> {
    let tpu = device == Device::Tpu;
    let options = BridgeOptions {
        payload_host: PayloadHost::Auto,
        tpu,
    };
    let bridge = Bridge::start(&Environment::discover()?, options)?;
    Ok(BRIDGE.get_or_init(|| bridge).clone())
}

/// A registry with the command's shared flags, whose notes and downloads become events.
pub(crate) fn registry(
    settings: &RegistrySettings,
    events: &Events,
) -> Result<Registry, RuntimeError> {
    let mut builder = Registry::builder()
        .locked(settings.locked)
        .frozen(settings.frozen)
        .require_signed(settings.require_signed);
    if settings.offline {
        builder = builder.offline(true);
    }
    if let Some(path) = &settings.lockfile {
        builder = builder.lockfile(path);
    }
    if let Some(path) = &settings.signature_policy {
        builder = builder.signature_policy(kernel_registry::SignaturePolicy::read(path)?);
    }
    if let Some(folder) = &settings.vendor {
        builder = builder.local_kernels(kernel_registry::vendor::vendored(folder)?);
    }
    let mut trusted = Vec::new();
    for name in &settings.trust {
        trusted.push(
            name.parse()
                .map_err(|error: kernel_spec::Error| RuntimeError::Option {
                    option: "--trust",
                    problem: error.to_string(),
                    hint: error.hint(),
                })?,
        );
    }
    Ok(builder
        .trust(trusted)
        .progress(registry_events(events.clone()))
        .build()?)
}

/// Turns what the registry tells into events of the interface.
fn registry_events(events: Events) -> kernel_registry::EventSink {
    use std::sync::atomic::{AtomicU64, Ordering};
    let done = AtomicU64::new(0);
    let total = AtomicU64::new(0);
    std::sync::Arc::new(move |event| {
        use kernel_registry::Event as Told;
        let progress = || Event::Progress {
            stage: "downloading kernels".to_owned(),
            done: done.load(Ordering::Relaxed),
            total: total.load(Ordering::Relaxed),
        };
        match event {
            Told::Note(text) => events.info(text),
            Told::Warning(text) => events.warning(text),
            Told::DownloadStarted { bytes, .. } => {
                total.fetch_add(bytes, Ordering::Relaxed);
                events.send(&progress());
            }
            Told::DownloadAdvanced { bytes } => {
                done.fetch_add(bytes, Ordering::Relaxed);
                events.send(&progress());
            }
            Told::DownloadSetBack { bytes } => {
                done.fetch_sub(bytes.min(done.load(Ordering::Relaxed)), Ordering::Relaxed);
                events.send(&progress());
            }
            Told::Retrying { reason, delay } => {
                events.info(format!(
                    "{reason}; trying again in {:.1} s",
                    delay.as_secs_f64()
                ));
            }
            Told::WaitingForLock { path, waited } if waited.as_secs() >= 5 => {
                events.info(format!(
                    "another process holds `{}`; waiting",
                    path.display()
                ));
            }
            _ => {}
        }
    })
}

/// Moves tensors to the TPU of this process through Python's torch.
#[derive(Debug)]
pub(crate) struct TpuTransfer {
    /// The bridge, started for a TPU.
    pub(crate) bridge: Bridge,
}

impl kernel_model::placement::Transfer for TpuTransfer {
    fn to_device(&self, host: Tensor) -> kernel_model::Result<Tensor> {
        self.bridge
            .to_device(&host, "tpu")
            .map_err(|error| ModelError::Device {
                device: "tpu".to_owned(),
                problem: error.to_string(),
                hint: "run `kernel-cli doctor`, or use `--device cpu`".to_owned(),
            })
    }
}
