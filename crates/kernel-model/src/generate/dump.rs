//! All logits of a generation, for comparison with another implementation.

use std::path::Path;

use tch::{Kind, Tensor};

use crate::error::{ModelError, Result};

/// Logits and ids of a generation, on the way to a safetensors file.
#[derive(Debug, Default)]
pub struct LogitsDump {
    prefill: Option<Tensor>,
    steps: Vec<Tensor>,
    ids: Option<Tensor>,
}

impl LogitsDump {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Keeps the prompts' logits, [B, T, V].
    pub(super) fn prefill(&mut self, logits: Tensor) {
        self.prefill = Some(logits);
    }

    /// Keeps one step's logits, [B, V].
    pub(super) fn step(&mut self, logits: Tensor) {
        self.steps.push(logits);
    }

    /// Keeps the new tokens of all rows; rows that ended early are filled up with `pad`.
    pub(super) fn close<'r>(
        &mut self,
        rows: impl Iterator<Item = &'r [i64]>,
        pad: i64,
    ) -> Result<()> {
        let rows: Vec<&[i64]> = rows.collect();
        let width = rows.iter().map(|row| row.len()).max().unwrap_or(0);
        let flat: Vec<i64> = rows
            .iter()
            .flat_map(|row| {
                row.iter()
                    .copied()
                    .chain(std::iter::repeat_n(pad, width - row.len()))
            })
            .collect();
        self.ids = Some(Tensor::f_from_slice(&flat)?.f_view([rows.len() as i64, width as i64])?);
        Ok(())
    }

    /// Writes `prefill_logits` [B, T, V], `decode_logits` [B, steps, V] and `generated_ids`
    /// [B, steps + 1], the logits in f32. Rows are right-padded; what stands at padding means
    /// nothing.
    pub fn write(&self, path: &Path) -> Result<()> {
        let (Some(prefill), Some(ids)) = (&self.prefill, &self.ids) else {
            return Err(ModelError::Op {
                op: "dump_logits".to_owned(),
                problem: "the generation did not get through the prompt".to_owned(),
            });
        };
        let (batch, _, width) = prefill.size3()?;
        let decode = if self.steps.is_empty() {
            Tensor::f_zeros([batch, 0, width], (Kind::Float, tch::Device::Cpu))?
        } else {
            Tensor::f_stack(&self.steps, 1)?
        };
        let named = [
            ("prefill_logits", prefill),
            ("decode_logits", &decode),
            ("generated_ids", ids),
        ];
        let mut tensors = Vec::new();
        for (name, tensor) in named {
            tensors.push((name, tensor.f_to_device(tch::Device::Cpu)?.f_contiguous()?));
        }
        Tensor::write_safetensors(&tensors, path)?;
        Ok(())
    }
}
