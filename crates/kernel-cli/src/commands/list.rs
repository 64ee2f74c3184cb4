//! `list`: what the index knows, what is installed, and what is used by default.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Args;
use kernel_registry::Registry;
use kernel_registry::cache::CachedSnapshot;
use kernel_spec::index::{IndexVersion, OpEntry, Origin, RepositoryEntry};
use kernel_spec::{DeviceType, OpName, RepositoryId};
use serde::Serialize;

use super::Context;
use super::selection::{parse_device, parse_op};
use crate::failure::Failure;
use crate::output::table;

/// Lists the kernels of the index, with the ops and devices that they are for, and those in the
/// cache. `default` names the devices on which a model runs with a kernel unless its config says
/// otherwise.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  kernel-cli list --op RMSNorm --device tpu
  kernel-cli list --json")]
pub(crate) struct Arguments {
    /// Only kernels that offer this op: attention, decode_attention, RMSNorm, SwiGLUMLP, ...
    #[arg(long, value_name = "OP")]
    op: Option<String>,
    /// Only kernels for this device: cpu, tpu, cuda, ...
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
}

#[derive(Serialize)]
struct Report {
    kernels: Vec<Kernel>,
}

#[derive(Serialize)]
struct Kernel {
    repo: String,
    summary: Option<String>,
    license: Option<String>,
    origin: &'static str,
    ops: Vec<Op>,
    versions: Vec<Version>,
    installed: Vec<Installed>,
}

#[derive(Serialize)]
struct Op {
    #[serde(flatten)]
    entry: OpEntry,
    /// The devices on which it is used by default.
    default: Vec<DeviceType>,
}

#[derive(Serialize)]
#[expect(clippy::struct_field_names, reason = "the name in JSON")]
struct Version {
    version: u64,
    commit: String,
    variants: Vec<String>,
    yanked: Option<String>,
}

#[derive(Serialize)]
struct Installed {
    commit: String,
    variants: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments, context: &Context<'_>) -> Result<ExitCode, Failure> {
    let output = context.output;
    let op = arguments.op.as_deref().map(parse_op).transpose()?;
    let device = arguments.device.as_deref().map(parse_device).transpose()?;
    let registry = context.shared.registry(output)?;
    let kernels = kernels(&registry, op, device)?;
    if output.json {
        output.json(&Report { kernels })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = Vec::new();
    for kernel in &kernels {
        let newest = kernel.versions.iter().map(|version| version.version).max();
        let name = newest.map_or_else(
            || kernel.repo.clone(),
            |version| format!("{}@v{version}", kernel.repo),
        );
        let installed = if kernel.installed.is_empty() {
            "no"
        } else {
            "yes"
        };
        if kernel.ops.is_empty() {
            rows.push([
                name.clone(),
                String::new(),
                String::new(),
                String::new(),
                installed.into(),
            ]);
        }
        for op in &kernel.ops {
            rows.push([
                format!("{name}:{}", op.entry.symbol),
                op.entry.op.to_string(),
                joined(&op.entry.devices),
                joined(&op.default),
                installed.to_owned(),
            ]);
        }
    }
    output.data(table(
        ["kernel", "op", "devices", "default", "installed"],
        rows,
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn kernels(
    registry: &Registry,
    op: Option<OpName>,
    device: Option<DeviceType>,
) -> Result<Vec<Kernel>, Failure> {
    let usage = registry.cache().usage()?;
    let mut cached: BTreeMap<RepositoryId, Vec<CachedSnapshot>> = usage
        .repositories
        .into_iter()
        .map(|repository| (repository.repository, repository.snapshots))
        .collect();
    let mut found = Vec::new();
    for entry in registry.index()?.repositories() {
        let installed = cached.remove(&entry.repository).unwrap_or_default();
        let is_wanted = |offer: &&OpEntry| {
            op.is_none_or(|op| offer.op == op)
                && device.is_none_or(|device| offer.devices.contains(&device))
        };
        let mut ops = Vec::new();
        for offer in entry.ops.iter().filter(is_wanted) {
            ops.push(Op {
                entry: offer.clone(),
                default: default_devices(registry, entry, offer)?,
            });
        }
        if !ops.is_empty() {
            found.push(Kernel {
                repo: entry.repository.to_string(),
                summary: Some(entry.summary.clone()),
                license: Some(entry.license.clone()),
                origin: match entry.origin {
                    Origin::Embedded => "embedded",
                    Origin::Hub => "hub",
                },
                ops,
                versions: entry.versions.iter().map(version).collect(),
                installed: snapshots(installed),
            });
        }
    }
    // What ops they are for is not known.
    if op.is_none() && device.is_none() {
        let installed = cached.into_iter().map(|(repository, installed)| Kernel {
            repo: repository.to_string(),
            summary: None,
            license: None,
            origin: "cache",
            ops: Vec::new(),
            versions: Vec::new(),
            installed: snapshots(installed),
        });
        found.extend(installed.filter(|kernel| !kernel.installed.is_empty()));
    }
    Ok(found)
}

fn default_devices(
    registry: &Registry,
    entry: &RepositoryEntry,
    offer: &OpEntry,
) -> Result<Vec<DeviceType>, Failure> {
    let index = registry.index()?;
    let is_default = |device: &DeviceType| {
        index.default_mapping(*device).any(|(op, reference)| {
            op == offer.op
                && reference.repository() == Some(&entry.repository)
                && reference
                    .symbol
                    .as_ref()
                    .is_none_or(|symbol| *symbol == offer.symbol)
        })
    };
    Ok(DeviceType::ALL.iter().copied().filter(is_default).collect())
}

fn version(version: &IndexVersion) -> Version {
    Version {
        version: version.version,
        commit: version.commit.to_string(),
        variants: version.digests.keys().cloned().collect(),
        yanked: version.yanked.clone(),
    }
}

fn snapshots(snapshots: Vec<CachedSnapshot>) -> Vec<Installed> {
    snapshots
        .into_iter()
        .filter(|snapshot| !snapshot.variants.is_empty())
        .map(|snapshot| Installed {
            commit: snapshot.commit.to_string(),
            variants: snapshot.variants,
        })
        .collect()
}

fn joined(devices: &[DeviceType]) -> String {
    let words: Vec<_> = devices.iter().map(|device| device.as_str()).collect();
    words.join(", ")
}
