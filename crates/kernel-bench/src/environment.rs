//! The machine block of a record: what a reader must know to judge a number.

use std::collections::BTreeMap;
use std::fs;

use serde::{Deserialize, Serialize};

/// The machine and the software that a record was measured on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MachineRecord {
    /// The processor's name.
    pub cpu: String,
    /// Logical processors.
    pub cpus: usize,
    /// Frequency governor of the first processor, where the system tells.
    pub governor: Option<String>,
    /// Load average of the last minute when the measurement began.
    pub load_average: Option<f64>,
    /// Operating system and kernel release.
    pub os: String,
    /// Device that the arms ran on.
    pub device: String,
    /// Threads that libtorch uses within an op.
    pub torch_threads: i64,
    /// Versions of what took part: torch, jax, python and so on.
    pub versions: BTreeMap<String, String>,
}

impl MachineRecord {
    /// Reads the machine block. What the system does not tell is left empty, never guessed.
    pub fn read(device: &str, versions: BTreeMap<String, String>) -> Self {
        let text = |path: &str| fs::read_to_string(path).ok();
        Self {
            cpu: text("/proc/cpuinfo")
                .and_then(|text| cpu_name(&text))
                .unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            governor: text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
                .map(|text| text.trim().to_owned()),
            load_average: text("/proc/loadavg").and_then(|text| first_load(&text)),
            os: text("/proc/sys/kernel/osrelease").map_or_else(
                || std::env::consts::OS.to_owned(),
                |release| format!("{} {}", std::env::consts::OS, release.trim()),
            ),
            device: device.to_owned(),
            torch_threads: i64::from(tch::get_num_threads()),
            versions,
        }
    }
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
    }
}
