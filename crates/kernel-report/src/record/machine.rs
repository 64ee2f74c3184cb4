//! The machine block of a record: what a reader must know to judge a number.

use std::collections::BTreeMap;
use std::fs;

use serde::{Deserialize, Serialize};

/// What a machine can do at most: the roof of a roofline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Floating-point operations a second.
    pub flops_per_s: f64,
    /// Bytes a second between memory and processor.
    pub bytes_per_s: f64,
    /// How the two came about: measured in the same run, or the maker's figures.
    pub method: String,
}

/// The machine and the software that a record was measured on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MachineRecord {
    /// The processor's name.
    pub cpu: String,
    /// Logical processors.
    pub cpus: usize,
    /// Frequency governor of the first processor, where the system tells.
    pub governor: Option<String>,
    /// Last-level cache of the first processor in bytes, where the system tells.
    #[serde(default)]
    pub cache_bytes: Option<u64>,
    /// Load average of the last minute when the measurement began.
    pub load_average: Option<f64>,
    /// Load average of the last minute when it ended.
    #[serde(default)]
    pub load_average_end: Option<f64>,
    /// Operating system and kernel release.
    pub os: String,
    /// Device that the arms ran on.
    pub device: String,
    /// Threads that libtorch uses within an op.
    pub torch_threads: i64,
    /// Versions of what took part: torch, jax, python and so on.
    pub versions: BTreeMap<String, String>,
    /// What the machine can do at most, where that is known.
    #[serde(default)]
    pub limits: Option<Limits>,
}

impl MachineRecord {
    /// Reads the machine block. What the system does not tell is left empty, never guessed.
    pub fn read(device: &str, torch_threads: i64, versions: BTreeMap<String, String>) -> Self {
        let text = |path: &str| fs::read_to_string(path).ok();
        Self {
            cpu: text("/proc/cpuinfo")
                .and_then(|text| cpu_name(&text))
                .unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            governor: text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
                .map(|text| text.trim().to_owned()),
            cache_bytes: last_level_cache(),
            load_average: load_average(),
            load_average_end: None,
            os: text("/proc/sys/kernel/osrelease").map_or_else(
                || std::env::consts::OS.to_owned(),
                |release| format!("{} {}", std::env::consts::OS, release.trim()),
            ),
            device: device.to_owned(),
            torch_threads,
            versions,
            limits: None,
        }
    }

    /// The same block with the load at this moment as that of the end.
    #[must_use]
    pub fn ended(self) -> Self {
        Self {
            load_average_end: load_average(),
            ..self
        }
    }

    /// Whether times of another record may be compared with those of this one: same processor, same
    /// device, same threads.
    pub fn comparable(&self, other: &Self) -> bool {
        (&self.cpu, self.cpus, &self.device, self.torch_threads)
            == (&other.cpu, other.cpus, &other.device, other.torch_threads)
    }
}

/// The last-level cache of the first processor in bytes.
pub(crate) fn last_level_cache() -> Option<u64> {
    (0..8)
        .filter_map(|index| {
            let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
            cache_size(&fs::read_to_string(path).ok()?)
        })
        .max()
}

fn load_average() -> Option<f64> {
    first_load(&fs::read_to_string("/proc/loadavg").ok()?)
}

fn cache_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, unit) = match text.strip_suffix('K') {
        Some(digits) => (digits, 1 << 10),
        None => match text.strip_suffix('M') {
            Some(digits) => (digits, 1 << 20),
            None => (text, 1),
        },
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

fn cpu_name(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo
        .lines()
        .find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn first_load(loadavg: &str) -> Option<f64> {
    loadavg.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_block_is_read_from_what_the_system_tells() {
        assert_eq!(
            cpu_name("processor\t: 0\nmodel name\t: Fast CPU @ 2 GHz\n").as_deref(),
            Some("Fast CPU @ 2 GHz")
        );
        assert_eq!(cpu_name("processor\t: 0\n"), None);
        assert_eq!(first_load("0.52 0.58 0.59 1/467 1234\n"), Some(0.52));
        assert_eq!(cache_size("32768K\n"), Some(32 << 20));
        assert_eq!(cache_size("8M"), Some(8 << 20));
        assert_eq!(cache_size("many"), None);
    }
}
