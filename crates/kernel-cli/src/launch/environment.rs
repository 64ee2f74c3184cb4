//! What ranks need before they start: variables that their libraries read once, and the command.

use std::ffi::OsString;
use std::net::TcpListener;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use kernel_registry::tpu::TpuScan;

use crate::failure::Failure;

/// Variables by name. One that the user has set is left as it is.
pub(crate) type Variables = Vec<(&'static str, String)>;

/// Where ranks are to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Host {
    /// On the processors of this machine.
    Cpu,
    /// On its TPUs, a rank each.
    Tpu,
}

impl Host {
    /// Where a `--device` leads on a machine with these TPUs. The runtime library decides in the same
    /// way, and prints it.
    pub(crate) fn choose(device: &str, scan: &TpuScan) -> Self {
        let tpu = match device {
            "auto" => scan.usable() > 0,
            other => other.starts_with("tpu"),
        };
        if tpu { Self::Tpu } else { Self::Cpu }
    }
}

/// Fails where the TPUs of this machine cannot run so many ranks.
pub(crate) fn check_tpus(ranks: usize, scan: &TpuScan) -> Result<&'static str, Failure> {
    let (usable, generation) = (scan.usable(), scan.generation());
    let Some(generation) = generation.filter(|_| usable > 0) else {
        return Err(Failure::new(
            "device",
            "`--device tpu` needs TPUs, and this machine has none",
        )
        .with_hint("use `--device cpu`, or run on a machine with TPUs"));
    };
    if ranks > usable {
        return Err(Failure::usage(format!(
            "`--tp {ranks}` needs as many TPU devices, and this machine has {usable}"
        )));
    }
    let counts: Vec<String> = generation
        .topologies()
        .iter()
        .filter(|(count, _)| *count <= usable)
        .map(|(count, _)| count.to_string())
        .collect();
    generation.topology(ranks).ok_or_else(|| {
        Failure::usage(format!(
            "{ranks} devices of a {generation} host form no group"
        ))
        .with_hint(format!(
            "use `--tp` with one of these numbers: {}",
            counts.join(", ")
        ))
    })
}

/// The variables for ranks on one host.
pub(crate) fn variables(
    host: Host,
    ranks: usize,
    threads: Option<usize>,
    scan: &TpuScan,
) -> Result<Variables, Failure> {
    let mut variables = Variables::new();
    match host {
        Host::Tpu => {
            let topology = check_tpus(ranks, scan)?;
            let session = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_nanos());
            variables.push(("TORCH_TPU_TOPOLOGY", topology.to_owned()));
            variables.push(("TORCH_TPU_SLICEBUILDER_ADDRESSES", addresses(ranks)?));
            variables.push(("TORCH_TPU_XPROF_SESSION_ID", session.to_string()));
        }
        Host::Cpu => {
            let processors = std::thread::available_parallelism().map_or(1, usize::from);
            let threads = threads.unwrap_or((processors / ranks).max(1));
            // Else each rank would take all processors, and torchrun would leave it one.
            variables.push(("OMP_NUM_THREADS", threads.to_string()));
            variables.push(("TORCH_DEVICE_BACKEND_AUTOLOAD", "0".to_owned()));
        }
    }
    if cfg!(target_os = "linux") {
        // The ranks are on one machine, whose name need not resolve.
        variables.push(("GLOO_SOCKET_IFNAME", "lo".to_owned()));
    }
    variables.retain(|(name, _)| std::env::var_os(name).is_none_or(|value| value.is_empty()));
    Ok(variables)
}

/// One free port of this machine for each rank.
fn addresses(ranks: usize) -> Result<String, Failure> {
    // Held until all are chosen, so that they differ.
    let listeners = (0..ranks)
        .map(|_| TcpListener::bind(("localhost", 0)))
        .collect::<Result<Vec<_>, _>>();
    let ports = listeners.and_then(|listeners| {
        listeners
            .iter()
            .map(|listener| Ok(format!("localhost:{}", listener.local_addr()?.port())))
            .collect::<Result<Vec<_>, _>>()
    });
    match ports {
        Ok(ports) => Ok(ports.join(",")),
        Err(error) => Err(Failure::new(
            "launch",
            format!("cannot find a free port for each rank: {error}"),
        )),
    }
}

/// Arguments of Python that start the ranks: torchrun, on this machine only, and what each rank runs.
pub(crate) fn torchrun(
    ranks: usize,
    program: &Path,
    arguments: impl IntoIterator<Item = OsString>,
) -> Vec<OsString> {
    let mut command: Vec<OsString> = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--local-addr=127.0.0.1",
        "--max-restarts=0",
        "--no-python",
    ]
    .map(OsString::from)
    .into();
    command.push(format!("--nproc-per-node={ranks}").into());
    command.push(program.into());
    command.extend(arguments);
    command
}

/// Shell commands that set the variables.
pub(crate) fn exports(variables: &Variables) -> String {
    let lines = variables
        .iter()
        .map(|(name, value)| format!("export {name}='{value}'"));
    lines.chain([String::new()]).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use kernel_registry::tpu::{TpuFunction, TpuGeneration};

    use super::*;

    fn machine(count: usize, generation: TpuGeneration) -> TpuScan {
        TpuScan {
            functions: (0..count)
                .map(|index| TpuFunction {
                    path: format!("/sys/bus/pci/devices/{index}").into(),
                    generation,
                    usable: true,
                })
                .collect(),
        }
    }

    #[test]
    fn numbers_without_a_topology_are_refused_before_anything_starts() {
        let v5e = machine(4, TpuGeneration::V5e);
        assert_eq!(check_tpus(4, &v5e).unwrap(), "2,2,1");
        let failure = check_tpus(2, &v5e).unwrap_err();
        assert!(failure.message.contains("form no group"));
        assert!(failure.hint.unwrap().ends_with("1, 4"));
        let failure = check_tpus(8, &v5e).unwrap_err();
        assert!(failure.message.contains("has 4"), "{}", failure.message);
        let failure = check_tpus(2, &TpuScan::default()).unwrap_err();
        assert!(failure.message.contains("none"));
    }

    #[test]
    fn ranks_on_tpus_get_addresses_and_a_topology() {
        let variables = variables(Host::Tpu, 8, None, &machine(8, TpuGeneration::V6e)).unwrap();
        let value = |name| {
            let found = variables.iter().find(|(other, _)| *other == name);
            &found.unwrap().1
        };
        assert_eq!(value("TORCH_TPU_TOPOLOGY"), "2,4,1");
        let addresses: std::collections::BTreeSet<_> = value("TORCH_TPU_SLICEBUILDER_ADDRESSES")
            .split(',')
            .collect();
        assert_eq!(addresses.len(), 8);
        assert!(addresses.iter().all(|one| one.starts_with("localhost:")));
    }

    #[test]
    fn the_device_decides_where_ranks_run() {
        let tpus = machine(4, TpuGeneration::V5p);
        assert_eq!(Host::choose("auto", &tpus), Host::Tpu);
        assert_eq!(Host::choose("cpu", &tpus), Host::Cpu);
        assert_eq!(Host::choose("auto", &TpuScan::default()), Host::Cpu);
        assert_eq!(Host::choose("tpu", &TpuScan::default()), Host::Tpu);
    }

    #[test]
    fn every_rank_runs_the_same_arguments() {
        let command = torchrun(2, Path::new("/bin/kernel-cli"), ["generate".into()]);
        let text: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        assert!(text.contains(&"--nproc-per-node=2".into()));
        assert_eq!(text[text.len() - 2..], ["/bin/kernel-cli", "generate"]);
    }
}
