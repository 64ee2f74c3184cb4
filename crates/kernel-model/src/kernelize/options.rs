//! What decides which kernels a model gets, beside its config.

use kernel_spec::config::switched_off;
use kernel_spec::{Fallback, KernelRef, OpKernel, OpName};

use crate::error::{ModelError, Result};

/// Options of a call, and the switches of the environment.
#[derive(Debug, Clone, Default)]
pub struct KernelizeOptions {
    /// Why there are to be no kernels at all; `None` lets the config speak.
    pub off: Option<String>,
    /// Kernels by op that go before the config, as `--kernel OP=REF` names them.
    pub overrides: Vec<(OpName, OpKernel)>,
    /// What happens when a kernel cannot be used; `None` leaves it to the config.
    pub fallback: Option<Fallback>,
    /// On a CPU, let a kernel that has no CPU build run from its TPU build, in interpret mode:
    /// functional, and slow.
    pub interpret: bool,
}

impl KernelizeOptions {
    /// Options with the environment's switches applied.
    pub fn from_environment() -> Result<Self> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(read: impl Fn(&str) -> Option<String>) -> Result<Self> {
        Ok(Self {
            off: switched_off(read)?,
            ..Self::default()
        })
    }

    /// Reads `OP=REF`; an empty reference keeps the default op. Names of the report (`mlp`,
    /// `rms_norm`, `rotary`) are understood too.
    pub fn add_override(&mut self, op: &str, reference: &str) -> Result<()> {
        let op = parse_op(op)?;
        let kernel = if reference.is_empty() {
            OpKernel::Default
        } else {
            let reference: KernelRef =
                reference
                    .parse()
                    .map_err(|error: kernel_spec::Error| ModelError::Kernel {
                        op: op.to_string(),
                        reference: reference.to_owned(),
                        reason: error.to_string(),
                    })?;
            OpKernel::hub(reference)
        };
        self.overrides.push((op, kernel));
        Ok(())
    }
}

fn parse_op(name: &str) -> Result<OpName> {
    match name {
        "mlp" => Ok(OpName::SwiGluMlp),
        "rms_norm" => Ok(OpName::RmsNorm),
        "rotary" => Ok(OpName::RotaryPosEmb),
        other => other.parse().map_err(ModelError::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &'static str) -> Result<KernelizeOptions> {
        KernelizeOptions::from_variables(|asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn switches_of_the_environment_turn_kernels_off() {
        let reason = with("USE_HUB_KERNELS", "0").unwrap().off.unwrap();
        assert!(reason.contains("USE_HUB_KERNELS"), "{reason}");
        assert_eq!(with("DISABLE_KERNEL_MAPPING", "0").unwrap().off, None);
        let error = with("DISABLE_KERNEL_MAPPING", "maybe").unwrap_err();
        assert!(
            error.to_string().contains("DISABLE_KERNEL_MAPPING"),
            "{error}"
        );
    }

    #[test]
    fn overrides_are_checked_when_they_are_read() {
        let mut options = KernelizeOptions::default();
        options.add_override("rms_norm", "").unwrap();
        options
            .add_override("attention", "org/flash@v1:attention")
            .unwrap();
        assert_eq!(options.overrides[0], (OpName::RmsNorm, OpKernel::Default));
        let error = options
            .add_override("attenton", "org/x")
            .unwrap_err()
            .to_string();
        assert_eq!(error.matches("attenton").count(), 1, "{error}");
        assert!(options.add_override("attention", "org/../x").is_err());
    }
}
