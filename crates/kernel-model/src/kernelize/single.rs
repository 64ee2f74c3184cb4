//! One op of one kernel without a model around it: what a benchmark compares, and what a program
//! of one's own can call.
//!
//! There is no gate here and no fallback: what goes wrong is an error of the call.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kernel_bridge::LoadedKernel;
use kernel_spec::{Fallback, KernelRef, OpName};
use tch::Tensor;

use super::adapters::{Kernel, KernelDecode, KernelMlp, KernelNorm, KernelPrefill, KernelRotary};
use super::gate::Refusal;
use super::install::{mlp_call, norm_call, usual_symbol};
use super::report::Incidents;
use super::slot::Slot;
use crate::error::{ModelError, Result};
use crate::family::RotaryLayout;
use crate::ops::{DecodeAttention, DefaultRotary, Mlp, MlpWeights, Norm, PrefillAttention, Rotary};

/// One op of a loaded kernel.
#[derive(Debug)]
pub struct SingleKernel<'a> {
    loaded: &'a LoadedKernel,
    op: OpName,
    symbol: String,
    kernel: Kernel,
}

impl<'a> SingleKernel<'a> {
    /// The op `op` of a kernel, under the symbol that the reference names, else `symbol` (that of
    /// the index entry), else the op's own name.
    pub fn new(
        loaded: &'a LoadedKernel,
        reference: &KernelRef,
        op: OpName,
        symbol: Option<&str>,
    ) -> Self {
        let slot = Slot::ALL.into_iter().find(|slot| slot.ops().contains(&op));
        let symbol = reference.symbol.as_deref().or(symbol);
        Self {
            loaded,
            op,
            symbol: symbol.unwrap_or(usual_symbol(op)).to_owned(),
            kernel: Kernel {
                op: slot.map_or(op.as_str(), Slot::name),
                reference: reference.to_string().into(),
                fallback: Fallback::Error,
                failed: Arc::new(AtomicBool::new(false)),
                incidents: Incidents::default(),
            },
        }
    }

    /// Attention over prompts.
    ///
    /// # Errors
    /// [`ModelError::Kernel`] where the kernel has no such function.
    pub fn prefill_attention(&self) -> Result<Arc<dyn PrefillAttention>> {
        Ok(Arc::new(KernelPrefill {
            op: self.function()?,
            kernel: self.kernel.clone(),
        }))
    }

    /// Attention over the cache.
    ///
    /// # Errors
    /// [`ModelError::Kernel`] where the kernel has no such function.
    pub fn decode_attention(&self) -> Result<Arc<dyn DecodeAttention>> {
        Ok(Arc::new(KernelDecode {
            op: self.function()?,
            kernel: self.kernel.clone(),
        }))
    }

    /// Rotary embedding of halves.
    ///
    /// # Errors
    /// [`ModelError::Kernel`] where the kernel has no such function.
    pub fn rotary(&self) -> Result<Arc<dyn Rotary>> {
        Ok(Arc::new(KernelRotary {
            op: self.function()?,
            kernel: self.kernel.clone(),
            default: Arc::new(DefaultRotary {
                layout: RotaryLayout::Halves,
            }),
        }))
    }

    /// The MLP with the weights given here; a later call has to pass the same.
    ///
    /// # Errors
    /// [`ModelError::Kernel`] where the kernel has no such layer or function, or refuses the weights.
    pub fn mlp(&self, weights: &MlpWeights) -> Result<Arc<dyn Mlp>> {
        let call = mlp_call(self.loaded, self.op, &self.symbol, weights);
        Ok(Arc::new(KernelMlp {
            call: call.map_err(|refusal| self.refused(refusal))?,
            kernel: self.kernel.clone(),
        }))
    }

    /// RMSNorm with the weight and epsilon given here; a later call has to pass the same.
    ///
    /// # Errors
    /// [`ModelError::Kernel`] where the kernel has no such layer or function, or refuses the weight.
    pub fn norm(&self, weight: &Tensor, eps: f64) -> Result<Arc<dyn Norm>> {
        let call = norm_call(self.loaded, &self.symbol, weight, eps);
        Ok(Arc::new(KernelNorm {
            call: call.map_err(|refusal| self.refused(refusal))?,
            kernel: self.kernel.clone(),
        }))
    }

    fn function(&self) -> Result<kernel_bridge::Op> {
        self.loaded
            .function(&self.symbol)
            .map_err(|error| self.refused(Refusal::Kernel(error.to_string())))
    }

    fn refused(&self, refusal: Refusal) -> ModelError {
        match refusal {
            Refusal::Other(error) => error,
            Refusal::Kernel(reason) => ModelError::Kernel {
                op: self.kernel.op.to_owned(),
                reference: self.kernel.reference.to_string(),
                reason,
            },
        }
    }
}
