//! Hub kernels into the slots of a model.
//!
//! For each slot: choose a reference (call, config, index), resolve, fetch and verify it, load
//! it, and put it through the gate: first the constraints of the index, then numbers. Whatever
//! goes wrong on the way is either an error or a line of the report, as the fallback policy says.
//! Nothing is fetched for a slot that is off, and Python is started only when a verified kernel
//! is there to load.

mod adapters;
mod gate;
mod install;
mod options;
mod report;
mod single;
mod slot;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kernel_bridge::{Bridge, BridgeError};
use kernel_registry::{Registry, Resolved, VerifiedKernel};
use kernel_spec::protocol::KernelEntry;
use kernel_spec::{Backend, DeviceType, Fallback, KernelConfig, KernelRef, OpKernel, OpName};

use self::adapters::Kernel;
use self::gate::{Passed, Refusal};
pub use self::options::KernelizeOptions;
pub use self::report::{Incidents, KernelReport};
pub use self::single::SingleKernel;
pub use self::slot::Slot;
use crate::config::{Dtype, ModelConfig};
use crate::error::{ModelError, Result};
use crate::model::Model;
use crate::ops;
use crate::placement::Device;

/// Starts the bridge, or hands out the one that runs; called when the first kernel is loaded.
pub type BridgeSource<'a> = dyn FnMut() -> Result<Bridge, BridgeError> + 'a;

/// Puts kernels into a model.
///
/// # Errors
/// [`ModelError::Kernel`] where a kernel cannot be used and the policy is `error`; anything that
/// is not about a kernel in any case.
pub fn kernelize(
    model: &mut Model,
    config: &KernelConfig,
    registry: &Registry,
    bridge: &mut BridgeSource<'_>,
    options: &KernelizeOptions,
) -> Result<KernelReport> {
    let device = device_type(model.device());
    let mut work = Work {
        registry,
        bridge,
        options,
        device,
        policy: options.fallback.unwrap_or(config.fallback),
        report: KernelReport::default(),
    };
    let mut wanted = false;
    for slot in Slot::ALL {
        let choice = work.choose(config, slot);
        wanted |= matches!(choice, Choice::Kernel { stated: true, .. });
        let entry = work.fill(model, slot, choice)?;
        work.report.entries.push(entry);
    }
    let asked = wanted || (!config.mapping.is_empty() && options.off.is_none());
    if asked && !work.report.any_replaced() {
        work.nothing_replaced(config)?;
    }
    Ok(work.report)
}

/// What a slot is to run on, as far as that is known before anything is fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intention {
    /// The slot.
    pub slot: Slot,
    /// The kernel; `None` for the default op.
    pub reference: Option<KernelRef>,
    /// Why.
    pub reason: String,
    /// Whether a kernel is named for it that cannot be used.
    pub refused: bool,
}

/// What [`kernelize`] would try for a model of this config, which is that of one rank.
pub fn intend(
    model: &ModelConfig,
    dtype: Dtype,
    device: Device,
    config: &KernelConfig,
    registry: &Registry,
    options: &KernelizeOptions,
) -> Vec<Intention> {
    let mut no_bridge = || Err(BridgeError::Interrupted);
    let work = Work {
        registry,
        bridge: &mut no_bridge,
        options,
        device: device_type(device),
        policy: options.fallback.unwrap_or(config.fallback),
        report: KernelReport::default(),
    };
    let intention = |slot: Slot| match work.choose(config, slot) {
        Choice::Default(reason) => Intention {
            slot,
            reference: None,
            reason,
            refused: false,
        },
        Choice::Kernel { op, reference, .. } => {
            match work.check_constraints(model, dtype, slot, op, &reference) {
                Ok(()) => Intention {
                    slot,
                    reason: "fits what the index says of it; the numeric gate runs when the model                              is loaded"
                        .to_owned(),
                    reference: Some(reference),
                    refused: false,
                },
                Err(reason) => Intention {
                    slot,
                    reference: None,
                    reason: format!("`{reference}` does not fit: {reason}"),
                    refused: true,
                },
            }
        }
    };
    Slot::ALL.into_iter().map(intention).collect()
}

fn device_type(device: Device) -> DeviceType {
    match device {
        Device::Cpu => DeviceType::Cpu,
        Device::Tpu => DeviceType::Tpu,
    }
}

/// What a slot is to run on.
enum Choice {
    /// The default, and why.
    Default(String),
    /// A kernel. `stated` tells whether the call or the config names it, or only the index.
    Kernel {
        op: OpName,
        reference: KernelRef,
        stated: bool,
    },
}

struct Work<'a> {
    registry: &'a Registry,
    bridge: &'a mut BridgeSource<'a>,
    options: &'a KernelizeOptions,
    device: DeviceType,
    policy: Fallback,
    report: KernelReport,
}

impl Work<'_> {
    fn choose(&self, config: &KernelConfig, slot: Slot) -> Choice {
        if let Some(reason) = &self.options.off {
            return Choice::Default(format!("kernels are off: {reason}"));
        }
        let overridden = |op: OpName| {
            let mut of_op = self
                .options
                .overrides
                .iter()
                .rev()
                .filter(|(other, _)| *other == op);
            of_op.next().map(|(_, kernel)| kernel)
        };
        // The call goes before the config for the whole slot, whichever of its ops they name.
        let sources: [&dyn Fn(OpName) -> Option<OpKernel>; 2] =
            [&|op| overridden(op).cloned(), &|op| {
                config.kernel(op, self.device).cloned()
            }];
        for source in sources {
            let stated: Vec<(OpName, OpKernel)> = slot
                .ops()
                .iter()
                .filter_map(|op| Some((*op, source(*op)?)))
                .collect();
            for (op, kernel) in &stated {
                if let OpKernel::Hub { reference, .. } = kernel {
                    return Choice::Kernel {
                        op: *op,
                        reference: reference.clone(),
                        stated: true,
                    };
                }
            }
            if !stated.is_empty() {
                return Choice::Default("turned off by an empty reference".to_owned());
            }
        }
        if !config.inherit_mapping {
            return Choice::Default("no kernel is named for it".to_owned());
        }
        let index = match self.registry.index() {
            Ok(index) => index,
            Err(error) => return Choice::Default(format!("the index cannot be read: {error}")),
        };
        let named = |op: &OpName| {
            index
                .default_mapping(self.device)
                .find(|(other, _)| other == op)
                .map(|(op, reference)| (op, reference.clone()))
        };
        match slot.ops().iter().find_map(named) {
            Some((op, reference)) => Choice::Kernel {
                op,
                reference,
                stated: false,
            },
            None => Choice::Default(format!(
                "no kernel is named for it, and the index has no default on {}",
                self.device
            )),
        }
    }

    /// Fills a slot as chosen, or keeps its default as the policy allows.
    fn fill(&mut self, model: &mut Model, slot: Slot, choice: Choice) -> Result<KernelEntry> {
        let total = slot.total(model);
        let kept = |reason: String| KernelEntry {
            op: slot.name().to_owned(),
            implementation: ops::DEFAULT.to_owned(),
            repo: None,
            commit: None,
            replaced: 0,
            total,
            reason,
        };
        let (op, reference, stated) = match choice {
            Choice::Default(reason) => return Ok(kept(reason)),
            Choice::Kernel {
                op,
                reference,
                stated,
            } => (op, reference, stated),
        };
        match self.try_fill(model, slot, op, &reference) {
            Ok((resolved, passed)) => Ok(KernelEntry {
                op: slot.name().to_owned(),
                implementation: reference.to_string(),
                repo: resolved.repository.as_ref().map(ToString::to_string),
                commit: resolved.commit.as_ref().map(ToString::to_string),
                replaced: total,
                total,
                reason: passed.describe(),
            }),
            Err(Refusal::Other(error)) => Err(error),
            Err(Refusal::Kernel(reason)) => {
                // A default of the index is an offer; nobody asked for it by name.
                if self.policy == Fallback::Error && stated {
                    return Err(ModelError::Kernel {
                        op: slot.name().to_owned(),
                        reference: reference.to_string(),
                        reason,
                    });
                }
                let text = format!("`{reference}` was not used: {reason}");
                if self.policy != Fallback::Silent {
                    tracing::warn!("{}: {text}", slot.name());
                    self.report
                        .warnings
                        .push(format!("{}: {text}", slot.name()));
                }
                Ok(kept(text))
            }
        }
    }

    fn try_fill(
        &mut self,
        model: &mut Model,
        slot: Slot,
        op: OpName,
        reference: &KernelRef,
    ) -> Result<(Resolved, Passed), Refusal> {
        self.check_constraints(model.local_config(), model.dtype(), slot, op, reference)
            .map_err(Refusal::Kernel)?;
        let interpret = self.options.interpret;
        let (resolved, verified) = obtain(self.registry, reference, self.device, interpret)
            .map_err(|error| Refusal::Kernel(with_causes(&error)))?;
        let bridge = (self.bridge)().map_err(refused)?;
        let loaded = bridge.load(&verified).map_err(refused)?;
        let symbol = match (&reference.symbol, self.registry.index()) {
            (Some(symbol), _) => Some(symbol.clone()),
            (None, Ok(index)) => index
                .op_entry(reference, op)
                .map(|entry| entry.symbol.clone()),
            (None, Err(_)) => None,
        };
        let kernel = Kernel {
            op: slot.name(),
            reference: reference.to_string().into(),
            fallback: self.policy,
            failed: Arc::new(AtomicBool::new(false)),
            incidents: self.report.incidents.clone(),
        };
        let passed = install::install(model, slot, op, &loaded, symbol.as_deref(), &kernel)?;
        Ok((resolved, passed))
    }

    /// What the op means and what the index says of the kernel, before anything is fetched.
    fn check_constraints(
        &self,
        config: &ModelConfig,
        dtype: Dtype,
        slot: Slot,
        op: OpName,
        reference: &KernelRef,
    ) -> Result<(), String> {
        if let Some(reason) = slot::misfit(op, config) {
            return Err(reason);
        }
        let index = self.registry.index().map_err(|error| error.to_string())?;
        let Some(entry) = index.op_entry(reference, op) else {
            return Ok(());
        };
        let interpreted = self.options.interpret && self.device == DeviceType::Cpu;
        if !entry.devices.contains(&self.device) && !interpreted {
            let devices: Vec<&str> = entry.devices.iter().map(|device| device.as_str()).collect();
            return Err(format!(
                "the model runs on {}, the kernel on {}",
                self.device,
                devices.join(", ")
            ));
        }
        let unmet = entry.constraints.unmet(&slot.shape(config, dtype));
        if unmet.is_empty() {
            Ok(())
        } else {
            Err(unmet.join("; "))
        }
    }

    /// The config asks for kernels and none is in place: nobody should have to find that out.
    fn nothing_replaced(&mut self, config: &KernelConfig) -> Result<()> {
        let here = config.kernels_on(self.device).count();
        let message = if here == 0 && self.options.overrides.is_empty() {
            format!("the config names kernels, but none for {}", self.device)
        } else {
            "kernels were asked for, but no op was replaced".to_owned()
        };
        match self.policy {
            Fallback::Error => Err(ModelError::Kernel {
                op: "model".to_owned(),
                reference: "kernel_config".to_owned(),
                reason: message,
            }),
            Fallback::Warn => {
                tracing::warn!("{message}");
                self.report.warnings.push(message);
                Ok(())
            }
            Fallback::Silent => Ok(()),
        }
    }
}

/// Resolves a kernel for a device, whatever hardware is installed, then fetches and verifies it.
/// With `interpret`, a kernel that has no build for the CPU is taken in its TPU build there.
///
/// # Errors
/// What the registry reports; that of the first attempt where `interpret` brings nothing either.
pub fn obtain(
    registry: &Registry,
    reference: &KernelRef,
    device: DeviceType,
    interpret: bool,
) -> Result<(Resolved, VerifiedKernel), kernel_registry::Error> {
    let resolve = |backend| {
        let machine = registry.system().clone().with_backend(backend);
        registry.resolve_for(reference, &machine)
    };
    let resolved = match device {
        DeviceType::Tpu => resolve(Backend::Tpu),
        _ => match resolve(Backend::Cpu) {
            Err(error) if interpret => resolve(Backend::Tpu).map_err(|_| error),
            other => other,
        },
    }?;
    let verified = registry.install(&resolved)?.verified()?;
    Ok((resolved, verified))
}

fn refused(error: BridgeError) -> Refusal {
    match error {
        BridgeError::Interrupted => Refusal::Other(ModelError::Cancelled),
        other => Refusal::Kernel(other.to_string()),
    }
}

/// A message with those of its causes.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
