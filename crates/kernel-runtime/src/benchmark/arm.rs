//! The arms of comparisons of ops: the default, or a kernel that was fetched, verified and loaded.

use kernel_bench::workload::{OpCase, OpKind, Subject};
use kernel_bridge::LoadedKernel;
use kernel_model::Device;
use kernel_model::kernelize::{SingleKernel, obtain};
use kernel_registry::{Registry, VerifiedKernel};
use kernel_report::record::ArmRecord;
use kernel_spec::{DeviceType, KernelRef, OpName};
use sha2::{Digest, Sha256};

use super::{DEFAULT, Run};
use crate::failure::RuntimeError;
use crate::session;

/// One side of a comparison of ops.
pub(super) enum Arm {
    Default,
    Kernel {
        reference: KernelRef,
        op: OpName,
        symbol: Option<String>,
        loaded: LoadedKernel,
    },
}

impl Arm {
    /// What fills the op's slot on the case's weights.
    pub(super) fn subject(&self, kind: OpKind, case: &OpCase) -> Result<Subject, RuntimeError> {
        Ok(match self {
            Self::Default => Subject::default_of(kind),
            Self::Kernel {
                reference,
                op,
                symbol,
                loaded,
            } => {
                let kernel = SingleKernel::new(loaded, reference, *op, symbol.as_deref());
                Subject::of_kernel(kind, &kernel, case)?
            }
        })
    }
}

/// Fetches, verifies and loads an arm, and says what it is.
pub(super) fn arm(
    run: &Run<'_>,
    name: &str,
    kind: OpKind,
) -> Result<(Arm, ArmRecord), RuntimeError> {
    if name == DEFAULT {
        let record = ArmRecord {
            name: name.to_owned(),
            execution: "libtorch".to_owned(),
            ..ArmRecord::default()
        };
        return Ok((Arm::Default, record));
    }
    let reference = reference(name)?;
    let (loaded, record, registry) = kernel(run, name, &reference)?;
    let index = registry.index()?;
    let entry = kind
        .ops()
        .iter()
        .find_map(|op| Some((*op, index.op_entry(&reference, *op)?)));
    let (op, symbol) = if let Some((op, entry)) = entry {
        (op, Some(entry.symbol.clone()))
    } else {
        // Not in the index: the symbol tells which of the slot's ops it is.
        let named = |op: &&OpName| {
            let symbol = reference.symbol.as_deref().unwrap_or_default();
            symbol == op.as_str() || symbol.ends_with(&format!(".{}", op.as_str()))
        };
        let op = kind.ops().iter().find(named).or_else(|| kind.ops().first());
        (op.copied().unwrap_or(OpName::Attention), None)
    };
    Ok((
        Arm::Kernel {
            reference,
            op,
            symbol,
            loaded,
        },
        record,
    ))
}

/// The reference that an arm's name is.
pub(super) fn reference(name: &str) -> Result<KernelRef, RuntimeError> {
    name.parse()
        .map_err(|error: kernel_spec::Error| RuntimeError::Option {
            option: "A or B",
            problem: error.to_string(),
            hint: Some("give a kernel reference, or `default`".to_owned()),
        })
}

/// Fetches, verifies and loads a kernel.
pub(super) fn kernel(
    run: &Run<'_>,
    name: &str,
    reference: &KernelRef,
) -> Result<(LoadedKernel, ArmRecord, Registry), RuntimeError> {
    run.events.progress(&format!("loading {name}"), 0, 0);
    let registry = session::registry(&run.request.registry, run.events)?;
    let (resolved, verified) =
        obtain(&registry, reference, DeviceType::Cpu, run.request.interpret)?;
    let record = ArmRecord {
        name: name.to_owned(),
        repo: resolved.repository.as_ref().map(ToString::to_string),
        commit: resolved.commit.as_ref().map(ToString::to_string),
        digest: digest(&verified),
        variant: Some(resolved.variant.clone()),
        execution: "kernel".to_owned(),
        ops: Vec::new(),
    };
    let loaded = session::bridge(Device::Cpu)?.load(&verified)?;
    Ok((loaded, record, registry))
}

/// One value for the files of a kernel: SHA-256 over names and digests of the files, in the order of
/// the names.
fn digest(kernel: &VerifiedKernel) -> Option<String> {
    let digest = kernel.metadata().digest.as_ref()?;
    let mut hash = Sha256::new();
    for (name, value) in &digest.files {
        hash.update(format!("{name}\0{value}\n"));
    }
    Some(hex::encode(hash.finalize()))
}
