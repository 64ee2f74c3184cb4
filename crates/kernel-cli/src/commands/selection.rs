//! Which kernels a command is about: those named, those of a model's config, or those of the lock.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use kernel_registry::{Error, InstalledKernel, Registry, read_lockfile};
use kernel_spec::config::{OpMapping, switched_off};
use kernel_spec::lockfile::LOCKFILE_NAME;
use kernel_spec::{DeviceType, KernelConfig, KernelRef, OpKernel, OpName, RepositoryId};

use super::Context;
use crate::failure::Failure;
use crate::shared::parse_reference;

/// Name of a model's config.
pub(crate) const CONFIG_FILE: &str = "config.json";

/// Arguments that select kernels.
#[derive(Debug, Args)]
pub(crate) struct Selection {
    /// Kernels; without any, and without --config, those of kernels.lock in this folder
    #[arg(value_name = "REF")]
    references: Vec<String>,
    /// The kernels that a model's config.json asks for on this machine's device
    #[arg(long, value_name = "MODEL", conflicts_with = "references")]
    config: Option<PathBuf>,
    /// Every build, not only the one that fits: for other machines, which then need no network
    #[arg(long)]
    all_variants: bool,
}

/// What was selected.
struct Selected {
    references: Vec<KernelRef>,
    registry: Registry,
    /// Whether kernels without a build for this machine are left out: a lock serves all machines.
    from_lock: bool,
}

impl Selection {
    /// Brings the selected kernels to this machine and checks them: each kernel, and what it needs,
    /// once, what is needed before what needs it.
    pub(crate) fn install(&self, context: &Context<'_>) -> Result<Vec<InstalledKernel>, Failure> {
        let selected = self.select(context)?;
        let registry = &selected.registry;
        let mut all: Vec<InstalledKernel> = Vec::new();
        let mut left_out = None;
        let resolved: Vec<_> = if self.all_variants {
            let references = selected.references.iter();
            references
                .map(|reference| registry.resolve_every_build(reference))
                .collect()
        } else {
            let resolved = registry.resolve_all(&selected.references).into_iter();
            resolved
                .map(|resolved| resolved.map(|resolved| vec![resolved]))
                .collect()
        };
        for (reference, resolved) in selected.references.iter().zip(resolved) {
            let resolved = match resolved {
                Err(error @ Error::NoVariant { .. }) if selected.from_lock => {
                    context.output.note(format!(
                        "`{reference}` is left out: no build fits this machine"
                    ));
                    left_out = Some(error);
                    continue;
                }
                other => other?,
            };
            for resolved in resolved {
                let mut installed = registry.install(&resolved)?;
                installed.verified()?;
                let needed = std::mem::take(&mut installed.needed);
                for kernel in needed.into_iter().chain([installed]) {
                    if !all.iter().any(|known| known.path == kernel.path) {
                        all.push(kernel);
                    }
                }
            }
        }
        match left_out {
            Some(error) if all.is_empty() => Err(error.into()),
            _ => Ok(all),
        }
    }

    fn select(&self, context: &Context<'_>) -> Result<Selected, Failure> {
        let (shared, output) = (context.shared, context.output);
        if !self.references.is_empty() {
            let parsed = self.references.iter().map(|text| parse_reference(text));
            return Ok(Selected {
                references: parsed.collect::<Result<_, _>>()?,
                registry: shared.registry(output)?,
                from_lock: false,
            });
        }
        if let Some(model) = &self.config {
            let asked = ConfigKernels::read(model)?;
            let lockfile = asked.folder.join(LOCKFILE_NAME);
            let registry = shared.registry_with(output, |builder| {
                builder.lockfile(lockfile).trust(asked.vouched())
            })?;
            let device = DeviceType::from(registry.system().backend.kind());
            if let Some(reason) = switched_off(|name| std::env::var(name).ok())? {
                output.note(format!("kernels are off: {reason}"));
                return Ok(Selected {
                    references: Vec::new(),
                    registry,
                    from_lock: false,
                });
            }
            let references = asked.on(device, &registry)?;
            if references.is_empty() {
                output.note(format!(
                    "`{}` asks for no kernels on {device}",
                    model.display()
                ));
            }
            return Ok(Selected {
                references,
                registry,
                from_lock: false,
            });
        }
        let lock = read_lockfile(Path::new(LOCKFILE_NAME))?.ok_or_else(|| {
            let message = format!("there is no `{LOCKFILE_NAME}` here, and no kernel is named");
            let failure = Failure::new("lock-missing", message);
            let failure = failure.with_hint(
                "name kernels, or a model with --config, or write the lock with `kernel-cli lock`",
            );
            if shared.locked || shared.frozen {
                failure
            } else {
                failure.wrong_call()
            }
        })?;
        Ok(Selected {
            references: lock
                .iter()
                .map(|(dependency, _)| dependency.to_kernel_ref())
                .collect(),
            registry: shared.registry_with(output, |builder| builder.locked(true))?,
            from_lock: true,
        })
    }
}

/// What a model's config says of kernels.
pub(crate) struct ConfigKernels {
    /// The model's folder.
    pub(crate) folder: PathBuf,
    config: KernelConfig,
}

impl ConfigKernels {
    /// Reads the config of a model's folder, or a config file.
    pub(crate) fn read(model: &Path) -> Result<Self, Failure> {
        let (folder, file) = if model.is_dir() {
            (model.to_owned(), model.join(CONFIG_FILE))
        } else {
            let folder = model.parent().unwrap_or(Path::new("")).to_owned();
            (folder, model.to_owned())
        };
        let text = fs::read(&file).map_err(|error| Failure::io("read", &file, &error))?;
        let value = serde_json::from_slice(&text).map_err(|error| {
            Failure::new(
                "config",
                format!("cannot parse `{}`: {error}", file.display()),
            )
        })?;
        let config = KernelConfig::from_model_config(&value).map_err(|error| {
            let mut failure = Failure::from(error);
            failure.message = format!("{}: {}", file.display(), failure.message);
            failure
        })?;
        Ok(Self { folder, config })
    }

    /// The repositories that the config vouches for.
    pub(crate) fn vouched(&self) -> Vec<RepositoryId> {
        let kernels = self.config.mapping.values().flat_map(kernels_of);
        kernels
            .filter_map(|kernel| match kernel {
                OpKernel::Hub {
                    reference,
                    trust_remote_code: true,
                } => reference.repository().cloned(),
                _ => None,
            })
            .collect()
    }

    /// The kernels for a device, each once, those of the index's default mapping included.
    fn on(&self, device: DeviceType, registry: &Registry) -> Result<Vec<KernelRef>, Failure> {
        let mut found = BTreeSet::new();
        let asked = self.config.kernels_on(device);
        found.extend(asked.filter_map(|(_, kernel)| kernel.reference().cloned()));
        if self.config.inherit_mapping {
            for (op, reference) in registry.index()?.default_mapping(device) {
                if self.config.kernel(op, device).is_none() {
                    found.insert(reference.clone());
                }
            }
        }
        Ok(whole_kernels(found))
    }

    /// The kernels for all devices, each once.
    pub(crate) fn on_all(&self, registry: &Registry) -> Result<Vec<KernelRef>, Failure> {
        let mut found = BTreeSet::new();
        for device in DeviceType::ALL {
            found.extend(self.on(*device, registry)?);
        }
        Ok(found.into_iter().collect())
    }
}

fn kernels_of(mapping: &OpMapping) -> Vec<&OpKernel> {
    match mapping {
        OpMapping::EveryDevice(kernel) => vec![kernel],
        OpMapping::PerDevice(devices) => devices.values().collect(),
    }
}

/// References without their symbols: two functions of one kernel are one kernel to fetch.
fn whole_kernels(references: impl IntoIterator<Item = KernelRef>) -> Vec<KernelRef> {
    let whole: BTreeSet<_> = references
        .into_iter()
        .map(|reference| KernelRef {
            symbol: None,
            ..reference
        })
        .collect();
    whole.into_iter().collect()
}

/// Reads the name of an op. An unknown one is a wrong call.
pub(crate) fn parse_op(text: &str) -> Result<OpName, Failure> {
    word(text, "--op")
}

/// Reads the name of a device. An unknown one is a wrong call.
pub(crate) fn parse_device(text: &str) -> Result<DeviceType, Failure> {
    word(text, "--device")
}

fn word<T>(text: &str, flag: &str) -> Result<T, Failure>
where
    T: std::str::FromStr<Err = kernel_spec::Error>,
{
    text.parse().map_err(|error: kernel_spec::Error| {
        let mut failure = Failure::from(error).wrong_call();
        failure.message = format!("{flag}: {}", failure.message);
        failure
    })
}
