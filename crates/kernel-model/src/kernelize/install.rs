//! Building the adapters of a slot, putting them through the gate, and into the model.

use std::sync::Arc;

use kernel_bridge::{Attributes, BridgeError, LoadedKernel};
use kernel_spec::{Fallback, OpName};

use tch::Tensor;

use super::adapters::{
    Kernel, KernelDecode, KernelMlp, KernelNorm, KernelPrefill, KernelRotary, MlpCall, NormCall,
};
use super::gate::{Gate, Passed, Refusal};
use super::slot::Slot;
use crate::layer::NormSite;
use crate::model::Model;
use crate::ops::{
    AttentionParameters, DecodeAttention, Linear, Mlp, MlpWeights, Norm, PrefillAttention, Rotary,
};
use crate::placement::Device;

/// Name of the layer or function of an op where neither reference nor index names one.
pub(super) fn usual_symbol(op: OpName) -> &'static str {
    op.as_str()
}

/// Puts a loaded kernel into every place of a slot, if it passes the gate for all of them.
/// `kernel.fallback` is the policy once it is in place.
pub(super) fn install(
    model: &mut Model,
    slot: Slot,
    op: OpName,
    loaded: &LoadedKernel,
    symbol: Option<&str>,
    kernel: &Kernel,
) -> Result<Passed, Refusal> {
    let symbol = symbol.unwrap_or(usual_symbol(op));
    // In the gate a failure is a failure.
    let strict = Kernel {
        fallback: Fallback::Error,
        ..kernel.clone()
    };
    match slot {
        Slot::Attention => {
            let mut adapter = KernelPrefill {
                op: loaded.function(symbol).map_err(unusable)?,
                kernel: strict,
            };
            let passed = Gate::new(model).prefill(&adapter, &attention_parameters(model))?;
            adapter.kernel.fallback = kernel.fallback;
            let adapter: Arc<dyn PrefillAttention> = Arc::new(adapter);
            model.set_attention(&adapter);
            Ok(passed)
        }
        Slot::DecodeAttention => {
            let mut adapter = KernelDecode {
                op: loaded.function(symbol).map_err(unusable)?,
                kernel: strict,
            };
            let passed = Gate::new(model).decode(&adapter, &attention_parameters(model))?;
            adapter.kernel.fallback = kernel.fallback;
            let adapter: Arc<dyn DecodeAttention> = Arc::new(adapter);
            model.set_decode_attention(&adapter);
            Ok(passed)
        }
        Slot::Rotary => {
            let Some(default) = model
                .layers()
                .first()
                .map(|l| Arc::clone(&l.attention.rotary))
            else {
                return Err(Refusal::Kernel("the model has no layers".to_owned()));
            };
            let mut adapter = KernelRotary {
                op: loaded.function(symbol).map_err(unusable)?,
                kernel: strict,
                default,
            };
            let passed = Gate::new(model).rotary(&adapter)?;
            adapter.kernel.fallback = kernel.fallback;
            let adapter: Arc<dyn Rotary> = Arc::new(adapter);
            model.set_rotary(&adapter);
            Ok(passed)
        }
        Slot::Mlp => install_mlp(model, op, loaded, symbol, &strict, kernel.fallback),
        Slot::RmsNorm => install_norm(model, loaded, symbol, &strict, kernel.fallback),
    }
}

fn unusable(error: BridgeError) -> Refusal {
    match error {
        BridgeError::Interrupted => Refusal::Other(crate::ModelError::Cancelled),
        other => Refusal::Kernel(other.to_string()),
    }
}

/// The different parameters that occur among the layers.
fn attention_parameters(model: &Model) -> Vec<AttentionParameters> {
    let mut all: Vec<AttentionParameters> = Vec::new();
    for layer in model.layers() {
        if !all.contains(&layer.attention.parameters) {
            all.push(layer.attention.parameters);
        }
    }
    all
}

/// The name of a class in the kernel's `layers`, however the reference spells it.
fn layer_name(symbol: &str) -> &str {
    symbol.strip_prefix("layers.").unwrap_or(symbol)
}

/// Bytes to whose multiples an address has to be aligned for XLA to read a tensor in place; a
/// tensor elsewhere is copied at every call.
const XLA_ALIGNMENT: usize = 64;

/// Copies a weight of the host, once, if XLA would copy it at every call. Where a tensor lies in
/// a weight file is an accident of the file's header. The default ops then read the same copy,
/// so the pages of the file are not needed any more.
fn align(weight: &mut Tensor) -> Result<(), Refusal> {
    if !(weight.data_ptr() as usize).is_multiple_of(XLA_ALIGNMENT) || !weight.is_contiguous() {
        let mut copy = weight.f_contiguous()?.f_empty_like()?;
        copy.f_copy_(weight)?;
        *weight = copy;
    }
    Ok(())
}

fn linear_attributes(linear: &Linear) -> Attributes<'_> {
    let attributes = Attributes::new().tensor("weight", &linear.weight);
    match &linear.bias {
        Some(bias) => attributes.tensor("bias", bias),
        None => attributes,
    }
}

fn mlp_attributes(weights: &MlpWeights) -> Attributes<'_> {
    Attributes::new()
        .child("gate_proj", linear_attributes(&weights.gate))
        .child("up_proj", linear_attributes(&weights.up))
        .child("down_proj", linear_attributes(&weights.down))
        .activation("act_fn", weights.activation.name())
}

/// The part of the MLP that a kernel computes, bound to the weights of one place.
pub(super) fn mlp_call(
    loaded: &LoadedKernel,
    op: OpName,
    symbol: &str,
    weights: &MlpWeights,
) -> Result<MlpCall, Refusal> {
    let no_layer = match loaded.layer(layer_name(symbol)) {
        Ok(class) => {
            let bound = |attributes: &Attributes<'_>| class.bind(attributes).map_err(unusable);
            return Ok(match op {
                OpName::SiluAndMul => MlpCall::ActivationAndProduct(bound(&Attributes::new())?),
                OpName::Silu => MlpCall::Activation(bound(&Attributes::new())?),
                _ => MlpCall::Whole(bound(&mlp_attributes(weights))?),
            });
        }
        Err(no_layer) => no_layer,
    };
    if !matches!(op, OpName::SwiGluMlp | OpName::GeGluMlp) {
        return Err(unusable(no_layer));
    }
    if weights.has_bias() {
        return Err(Refusal::Kernel("the model's MLP has biases".to_owned()));
    }
    // No such layer; a function of that name takes the weights as arguments.
    let function = loaded.function(symbol).map_err(|_| unusable(no_layer))?;
    Ok(MlpCall::WholeFunction(function))
}

/// RMSNorm of a kernel, bound to the weight and epsilon of one place.
pub(super) fn norm_call(
    loaded: &LoadedKernel,
    symbol: &str,
    weight: &Tensor,
    eps: f64,
) -> Result<NormCall, Refusal> {
    match loaded.layer(layer_name(symbol)) {
        Ok(class) => {
            let attributes = Attributes::new()
                .tensor("weight", weight)
                .float("variance_epsilon", eps);
            Ok(NormCall::Layer(class.bind(&attributes).map_err(unusable)?))
        }
        Err(no_layer) => match loaded.function(symbol) {
            Ok(function) => Ok(NormCall::Function(function)),
            Err(_) => Err(unusable(no_layer)),
        },
    }
}

fn install_mlp(
    model: &mut Model,
    op: OpName,
    loaded: &LoadedKernel,
    symbol: &str,
    strict: &Kernel,
    policy: Fallback,
) -> Result<Passed, Refusal> {
    if model.device() == Device::Cpu {
        for layer in model.layers_mut() {
            let weights = &mut layer.mlp.weights;
            for linear in [&mut weights.gate, &mut weights.up, &mut weights.down] {
                align(&mut linear.weight)?;
            }
        }
    }
    let mut adapters = Vec::new();
    for layer in model.layers() {
        adapters.push(KernelMlp {
            kernel: strict.clone(),
            call: mlp_call(loaded, op, symbol, &layer.mlp.weights)?,
        });
    }
    let passed = Gate::new(model).mlp(model, &adapters)?;
    for (layer, mut adapter) in model.layers_mut().iter_mut().zip(adapters) {
        adapter.kernel.fallback = policy;
        let adapter: Arc<dyn Mlp> = Arc::new(adapter);
        layer.mlp.op = adapter;
    }
    Ok(passed)
}

fn install_norm(
    model: &mut Model,
    loaded: &LoadedKernel,
    symbol: &str,
    strict: &Kernel,
    policy: Fallback,
) -> Result<Passed, Refusal> {
    if model.device() == Device::Cpu {
        for site in model.norms_mut() {
            align(&mut site.weight)?;
        }
    }
    let adapter = |site: &NormSite| -> Result<KernelNorm, Refusal> {
        Ok(KernelNorm {
            kernel: strict.clone(),
            call: norm_call(loaded, symbol, &site.weight, site.eps)?,
        })
    };

    let mut gate = Gate::new(model);
    let mut adapters = Vec::new();
    let config = model.local_config();
    let mut seen: Vec<Option<i64>> = Vec::new();
    let mut check = |site: &NormSite, heads: Option<i64>| -> Result<(), Refusal> {
        let adapter = adapter(site)?;
        // The first norm of each shape is tried on all lengths, the others on one.
        let first = !seen.contains(&heads);
        seen.push(heads);
        gate.norm(&adapter, &site.weight, site.eps, heads, first)?;
        adapters.push(adapter);
        Ok(())
    };
    // In the order of `Model::norms_mut`.
    for layer in model.layers() {
        check(&layer.input_norm, None)?;
        check(&layer.mlp_norm, None)?;
        if let Some(norms) = &layer.attention.norms {
            check(&norms.query, Some(config.heads))?;
            check(&norms.key, Some(config.key_value_heads))?;
        }
        for site in layer
            .attention_output_norm
            .iter()
            .chain(&layer.mlp_output_norm)
        {
            check(site, None)?;
        }
    }
    check(model.final_norm(), None)?;
    let passed = gate.passed();
    for (site, mut adapter) in model.norms_mut().zip(adapters) {
        adapter.kernel.fallback = policy;
        let adapter: Arc<dyn Norm> = Arc::new(adapter);
        site.op = adapter;
    }
    Ok(passed)
}
