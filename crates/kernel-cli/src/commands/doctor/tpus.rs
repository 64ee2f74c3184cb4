//! TPUs: which chips there are, and who holds them.

use kernel_registry::system::holders::{Holders, find_holders};
use kernel_registry::tpu::TpuScan;

use super::Check;

/// The chips that the PCI bus shows.
pub(super) fn chips(scan: &TpuScan) -> Check {
    let count = scan.functions.len();
    let found = scan.generation().map_or_else(
        || "none".to_owned(),
        |generation| {
            let places: Vec<_> = scan
                .functions
                .iter()
                .filter_map(|function| function.path.file_name())
                .map(|name| name.to_string_lossy().into_owned())
                .collect();
            format!(
                "{count} of generation {generation}, {} usable (PCI {})",
                scan.usable(),
                places.join(", ")
            )
        },
    );
    Check {
        name: "tpu",
        ok: scan.usable() == count,
        found: Some(found),
        wanted: None,
        hint: Some("give the devices under /dev/vfio to this container or user".to_owned()),
    }
}

/// Who holds a chip or libtpu's lock; nothing where nobody does.
pub(super) fn holders() -> Option<Check> {
    judge(&find_holders())
}

fn judge(holders: &Holders) -> Option<Check> {
    if let Some(first) = holders.processes.first() {
        let found: Vec<_> = holders
            .processes
            .iter()
            .map(|holder| {
                let command = holder.command.as_deref().unwrap_or("unknown command");
                format!(
                    "process {} ({command}): {}",
                    holder.process,
                    holder.path.display()
                )
            })
            .collect();
        return Some(Check {
            name: "tpu holders",
            ok: false,
            found: Some(found.join("; ")),
            wanted: Some("none".to_owned()),
            hint: Some(format!(
                "one process reaches a chip: wait for it to end, or end it (`kill {}`)",
                first.process
            )),
        });
    }
    let lockfile = holders.stale_lockfile.as_ref()?;
    Some(Check {
        name: "tpu holders",
        ok: true,
        found: Some(format!(
            "none; `{}` is left over, remove it if libtpu says that it is in use",
            lockfile.display()
        )),
        wanted: None,
        hint: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel_registry::system::holders::Holder;

    #[test]
    fn a_process_that_holds_a_chip_is_named() {
        let mut holders = Holders::default();
        assert!(judge(&holders).is_none());
        holders.stale_lockfile = Some("/tmp/libtpu_lockfile".into());
        let check = judge(&holders).unwrap();
        assert!(check.ok && check.found.unwrap().contains("left over"));
        holders.processes.push(Holder {
            process: 321,
            command: Some("python".to_owned()),
            path: "/dev/vfio/2".into(),
        });
        let check = judge(&holders).unwrap();
        assert!(!check.ok);
        assert_eq!(check.found.unwrap(), "process 321 (python): /dev/vfio/2");
        assert!(check.hint.unwrap().contains("kill 321"));
    }
}
