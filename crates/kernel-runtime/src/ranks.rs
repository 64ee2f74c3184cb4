//! This process as one rank of several.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use kernel_bridge::{Environment, ProcessGroup};
use kernel_model::parallel::{Group, Layout, Rules, TorchDistributed};
use kernel_model::{Device, ModelConfig, ModelError};
use kernel_spec::protocol::{Event, KernelEntry};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tch::Tensor;

use crate::Events;
use crate::failure::RuntimeError;

/// How often a rank tells how far it is.
const PULSE: Duration = Duration::from_millis(500);

/// How the model is spread, before any rank waits for another.
pub(crate) fn layout(
    config: &ModelConfig,
    ranks: usize,
    plan: Option<&Map<String, Value>>,
) -> Result<Layout, RuntimeError> {
    Ok(Layout::new(config, ranks, &rules(config, plan)?)?)
}

/// The styles of a model's modules, with those of the call over them.
pub(crate) fn rules(
    config: &ModelConfig,
    plan: Option<&Map<String, Value>>,
) -> Result<Rules, RuntimeError> {
    Ok(match plan {
        Some(plan) => Rules::with_overrides(config, plan)?,
        None => Rules::defaults(config),
    })
}

/// The group of this process, with a thread that tells how far it is.
pub(crate) struct Ranks {
    pub(crate) group: Group,
    stop: Arc<AtomicBool>,
    pulse: Option<JoinHandle<()>>,
}

impl Ranks {
    /// Joins the group of torchrun's environment.
    pub(crate) fn join(
        layout: Layout,
        device: Device,
        limit: Duration,
        events: &Events,
    ) -> Result<Self, RuntimeError> {
        let environment = Environment::discover().map_err(kernel_bridge::BridgeError::from)?;
        let group = ProcessGroup::join(&environment, device == Device::Tpu, limit)?;
        if group.size() != layout.ranks() {
            return Err(RuntimeError::Option {
                option: "--tp",
                problem: format!(
                    "{} ranks were asked for, and torchrun started {}",
                    layout.ranks(),
                    group.size()
                ),
                hint: Some("give both the same number, or leave `--tp` out".to_owned()),
            });
        }
        let collectives = Arc::new(TorchDistributed::new(group));
        let stop = Arc::new(AtomicBool::new(false));
        let pulse = std::thread::Builder::new()
            .name("pulse".to_owned())
            .spawn({
                let (stop, collectives) = (Arc::clone(&stop), Arc::clone(&collectives));
                let events = events.clone();
                move || {
                    while !stop.load(Ordering::Relaxed) {
                        let (begun, ended) = collectives.progress();
                        events.send(&Event::Pulse { begun, ended });
                        std::thread::park_timeout(PULSE);
                    }
                }
            })
            .ok();
        Ok(Self {
            group: Group {
                layout,
                collectives,
            },
            stop,
            pulse,
        })
    }

    /// Whether this is the first rank, which talks to the user.
    pub(crate) fn is_first(&self) -> bool {
        self.group.rank() == 0
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(pulse) = self.pulse.take() {
            pulse.thread().unpark();
            // It cannot panic: it only sends events.
            let _ = pulse.join();
        }
    }
}

/// What the first rank has, on every rank.
pub(crate) fn from_first<T: Serialize + DeserializeOwned>(
    group: &Group,
    make: impl FnOnce() -> Result<T, RuntimeError>,
) -> Result<T, RuntimeError> {
    let first = group.rank() == 0;
    // A failure on the first rank ends it; the others then see that it is gone.
    let own = if first { Some(make()?) } else { None };
    let bytes = match &own {
        Some(value) => serde_json::to_vec(value).map_err(RuntimeError::Response)?,
        None => Vec::new(),
    };
    let mut length = Tensor::f_from_slice(&[bytes.len() as i64])?;
    group.collectives.broadcast(&mut length)?;
    let length = length.f_int64_value(&[0])?;
    let mut buffer = if first {
        Tensor::f_from_slice(&bytes)?
    } else {
        Tensor::f_zeros([length], (tch::Kind::Uint8, tch::Device::Cpu))?
    };
    group.collectives.broadcast(&mut buffer)?;
    match own {
        Some(value) => Ok(value),
        None => read(&buffer, length as usize),
    }
}

/// What all ranks have, by rank, on every rank.
pub(crate) fn from_all<T: Serialize + DeserializeOwned>(
    group: &Group,
    own: &T,
) -> Result<Vec<T>, RuntimeError> {
    let bytes = serde_json::to_vec(own).map_err(RuntimeError::Response)?;
    let lengths = group
        .collectives
        .gather(&Tensor::f_from_slice(&[bytes.len() as i64])?)?;
    let lengths: Vec<i64> = lengths
        .iter()
        .map(|length| length.f_int64_value(&[0]))
        .collect::<Result<_, _>>()?;
    let longest = lengths.iter().copied().max().unwrap_or(0) as usize;
    let mut padded = bytes;
    padded.resize(longest, 0);
    let all = group.collectives.gather(&Tensor::f_from_slice(&padded)?)?;
    all.iter()
        .zip(lengths)
        .map(|(buffer, length)| read(buffer, length as usize))
        .collect()
}

fn read<T: DeserializeOwned>(buffer: &Tensor, length: usize) -> Result<T, RuntimeError> {
    let mut bytes = vec![0_u8; buffer.numel()];
    buffer.f_copy_data(&mut bytes, buffer.numel())?;
    bytes.truncate(length);
    serde_json::from_slice(&bytes).map_err(RuntimeError::Request)
}

/// One report of what runs on what: the first rank's, and where another rank's differs, that.
pub(crate) fn merge_reports(reports: Vec<Vec<KernelEntry>>) -> Vec<KernelEntry> {
    let mut reports = reports.into_iter();
    let mut merged = reports.next().unwrap_or_default();
    for (rank, other) in (1..).zip(reports) {
        for (entry, other) in merged.iter_mut().zip(other) {
            if entry.implementation != other.implementation || entry.replaced != other.replaced {
                entry.replaced = entry.replaced.min(other.replaced);
                let difference = format!(
                    "; rank {rank} runs on {}: {}",
                    other.implementation, other.reason
                );
                entry.reason.push_str(&difference);
            }
        }
    }
    merged
}

/// Fails where the ranks were told to stop while they loaded; all of them, or none.
pub(crate) fn check_cancelled(group: &Group, cancelled: bool) -> Result<(), RuntimeError> {
    let mut count = Tensor::f_from_slice(&[i32::from(cancelled)])?;
    group.collectives.sum(&mut count)?;
    if count.f_int64_value(&[0])? > 0 {
        return Err(ModelError::Cancelled.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(implementation: &str, replaced: usize) -> KernelEntry {
        KernelEntry {
            op: "mlp".into(),
            implementation: implementation.into(),
            repo: None,
            commit: None,
            replaced,
            total: 2,
            reason: "why".into(),
        }
    }

    #[test]
    fn a_rank_that_runs_on_something_else_shows_in_the_report() {
        let same = merge_reports(vec![vec![entry("a/b@v1", 2)], vec![entry("a/b@v1", 2)]]);
        assert_eq!(same, [entry("a/b@v1", 2)]);
        let differs = merge_reports(vec![vec![entry("a/b@v1", 2)], vec![entry("default", 0)]]);
        assert_eq!(differs[0].replaced, 0);
        assert!(differs[0].reason.contains("rank 1 runs on default"));
    }
}
