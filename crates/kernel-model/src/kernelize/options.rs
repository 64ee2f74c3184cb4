//! What decides which kernels a model gets, beside its config.

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

/// Variables that turn kernels off, with the meaning that the Python libraries give them.
const DISABLE: &str = "DISABLE_KERNEL_MAPPING";
const USE: &str = "USE_HUB_KERNELS";

impl KernelizeOptions {
    /// Options with the environment's switches applied.
    pub fn from_environment() -> Result<Self> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(read: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let mut options = Self::default();
        if let Some(value) = read(DISABLE)
            && truth(DISABLE, &value)? == Some(true)
        {
            options.off = Some(format!("{DISABLE} is set"));
        }
        if let Some(value) = read(USE)
            && truth(USE, &value)? == Some(false)
        {
            options.off = Some(format!("{USE} is off"));
        }
        Ok(options)
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
        other => other
            .parse()
            .map_err(|error: kernel_spec::Error| ModelError::Op {
                op: other.to_owned(),
                problem: error.to_string(),
            }),
    }
}

/// Numbers and words for yes and no; an empty text is as good as none.
fn truth(name: &str, value: &str) -> Result<Option<bool>> {
    let value = value.trim();
    if let Ok(number) = value.parse::<i64>() {
        return Ok(Some(number != 0));
    }
    match value.to_ascii_lowercase().as_str() {
        "" => Ok(None),
        "true" | "yes" | "on" => Ok(Some(true)),
        "false" | "no" | "off" => Ok(Some(false)),
        _ => Err(ModelError::Op {
            op: name.to_owned(),
            problem: format!("`{value}` is neither a number nor yes or no"),
        }),
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
        for (name, value) in [(DISABLE, "1"), (DISABLE, "true"), (USE, "0"), (USE, "off")] {
            let reason = with(name, value).unwrap().off.unwrap();
            assert!(reason.contains(name), "{reason}");
        }
        for (name, value) in [(DISABLE, "0"), (DISABLE, ""), (USE, "1"), (USE, "YES")] {
            assert_eq!(with(name, value).unwrap().off, None);
        }
        assert!(
            with(DISABLE, "maybe")
                .unwrap_err()
                .to_string()
                .contains(DISABLE)
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
        assert!(options.add_override("attenton", "org/x").is_err());
        assert!(options.add_override("attention", "org/../x").is_err());
    }
}
