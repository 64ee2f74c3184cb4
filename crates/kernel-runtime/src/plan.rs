//! `plan`: say what would run, before anything does.

use kernel_model::plan::{PlanOptions, plan};
use kernel_model::weights::Weights;
use kernel_model::{Device, DeviceRequest, Dtype, ModelConfig, Placement, Tokenizer};
use kernel_registry::tpu::{self, TpuGeneration};
use kernel_spec::KernelConfig;
use kernel_spec::plan::{Plan, PlanRequest, Problem};

use crate::Events;
use crate::failure::RuntimeError;
use crate::generate::{kernel_config, kernelize_options};
use crate::{ranks, session};

/// Runs the request. What stands against the plan is part of the answer; only what keeps it from being
/// made is an error.
///
/// # Errors
/// A config.json that cannot be read, or options that mean nothing.
pub fn run(request: &PlanRequest, events: &Events) -> Result<Plan, RuntimeError> {
    if request.tp_size == 0 {
        return Err(RuntimeError::Option {
            option: "--tp",
            problem: "0 ranks cannot run a model".to_owned(),
            hint: None,
        });
    }
    let generation = generation(request)?;
    let device = device(request, generation)?;
    let config = ModelConfig::from_directory(&request.model)?;
    let rules = ranks::rules(&config, request.tp_plan.as_ref())?;
    let weights = Weights::open(&request.model);
    let mut problems = Vec::new();
    let kernels = match kernel_config(&request.model, &request.kernels, &config.raw) {
        Ok(kernels) => kernels,
        Err(error) => {
            problems.push(problem(&error));
            KernelConfig::default()
        }
    };
    match Tokenizer::from_directory(&request.model) {
        Ok(Some(tokenizer)) => problems.extend(vocabulary(&config, &tokenizer)),
        Ok(None) => {}
        Err(error) => problems.push(problem(&error.into())),
    }
    let options = PlanOptions {
        device,
        generation,
        dtype: request.dtype.as_deref().map(Dtype::by_name).transpose()?,
        ranks: request.tp_size,
        rules: &rules,
        batch: (request.batch as i64).max(1),
        tokens: request.tokens.map(|tokens| (tokens as i64).max(1)),
        kernels: &kernels,
        kernelize: &kernelize_options(&request.kernels)?,
    };
    let registry = session::registry(&request.registry, events)?;
    let mut plan = plan(&config, weights.as_ref(), &registry, &options);
    plan.problems.extend(problems);
    Ok(plan)
}

fn generation(request: &PlanRequest) -> Result<Option<TpuGeneration>, RuntimeError> {
    let Some(name) = &request.target else {
        let wants_tpu = request.device.starts_with("tpu");
        return Ok(tpu::scan().generation().filter(|_| wants_tpu));
    };
    let known: Vec<&str> = TpuGeneration::ALL.iter().map(|g| g.as_str()).collect();
    TpuGeneration::by_name(name)
        .map(Some)
        .ok_or_else(|| RuntimeError::Option {
            option: "--target",
            problem: format!("`{name}` is no known generation of TPUs"),
            hint: Some(format!("use one of these: {}", known.join(", "))),
        })
}

/// The device of the plan. One that is named need not be there.
fn device(
    request: &PlanRequest,
    generation: Option<TpuGeneration>,
) -> Result<Device, RuntimeError> {
    match request.device.parse::<DeviceRequest>()? {
        DeviceRequest::Exactly(device) => Ok(device),
        DeviceRequest::Auto if generation.is_some() => Ok(Device::Tpu),
        DeviceRequest::Auto => Ok(Placement::detect(DeviceRequest::Auto)?.device),
    }
}

fn problem(error: &RuntimeError) -> Problem {
    let failure = error.to_failure();
    let mut message = failure.message;
    for cause in failure.causes {
        message.push_str(": ");
        message.push_str(&cause);
    }
    Problem {
        kind: failure.kind,
        message,
        hint: failure.hint,
    }
}

/// A tokenizer that makes tokens which the model does not have.
fn vocabulary(config: &ModelConfig, tokenizer: &Tokenizer) -> Option<Problem> {
    let size = tokenizer.vocabulary_size();
    (size > config.vocab_size).then(|| Problem {
        kind: "vocabulary".to_owned(),
        message: format!(
            "tokenizer.json makes token ids below {size}, and `vocab_size` of config.json is {}",
            config.vocab_size
        ),
        hint: Some("the tokenizer may belong to another model".to_owned()),
    })
}
