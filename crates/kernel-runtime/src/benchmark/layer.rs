//! One layer of a model: attention, MLP and norms together, on the layer's real weights and on what the
//! layers before it make of a prompt.

use std::path::Path;
use std::time::Instant;

use kernel_bench::measure::Calls;
use kernel_model::cache::KvCache;
use kernel_model::layer::{Angles, Step};
use kernel_model::ops::RowLengths;
use kernel_model::rope::RotaryTable;
use kernel_model::{Model, ModelConfig};
use kernel_report::record::{Comparison, Level, Row};
use tch::Tensor;

use super::Run;
use super::model::{agree, check_room, model_arm, prompt};
use super::watched::{interpreted_compiles, watched};
use crate::failure::RuntimeError;

/// Compares one layer of two set-ups of a model.
pub(super) fn compare(
    run: &Run<'_>,
    directory: &Path,
    layer: usize,
    (prompt_tokens, new_tokens): (usize, usize),
) -> Result<Comparison, RuntimeError> {
    let config = ModelConfig::from_directory(directory)?;
    check_room(&config, prompt_tokens, new_tokens)?;
    let layers = usize::try_from(config.layers).unwrap_or_default();
    if layer >= layers {
        return Err(RuntimeError::Option {
            option: "--layer",
            problem: format!(
                "the model has no layer {layer}; its layers are 0 to {}",
                layers.saturating_sub(1)
            ),
            hint: None,
        });
    }
    let ids = prompt(&config, prompt_tokens);
    let (mut a, a_record) = model_arm(run, &run.request.a, directory)?;
    let (b, b_record) = model_arm(run, &run.request.b, directory)?;
    let dtype = a.model.dtype();
    // Both arms get the same hidden states: those of A.
    let inputs = Inputs::new(&mut a.model, layer, &ids, new_tokens)?;
    let mut first = Layer::new(a.model, layer, &inputs)?;
    let mut second = Layer::new(b.model, layer, &inputs)?;
    let workloads = [
        (
            format!("layer {layer}, prefill, {prompt_tokens} tokens"),
            true,
        ),
        (
            format!("layer {layer}, decode, 1 token after {prompt_tokens}"),
            false,
        ),
    ];
    let _guard = tch::no_grad_guard();
    let rows = Run::rows(workloads.len(), |index| {
        let (workload, prefill) = &workloads[index];
        row(run, workload, *prefill, &inputs, (&mut first, &mut second))
    })?;
    Ok(run.finish(
        (Level::Layer, Some(dtype)),
        (a_record, b_record),
        (rows, workloads.len()),
    ))
}

fn row(
    run: &Run<'_>,
    workload: &str,
    prefill: bool,
    inputs: &Inputs,
    (first, second): (&mut Layer, &mut Layer),
) -> Result<Row, RuntimeError> {
    run.events.progress(&format!("checking {workload}"), 0, 0);
    let started = Instant::now();
    let expected = first.forward(inputs, prefill)?;
    let time_a = started.elapsed().as_secs_f64();
    let started = Instant::now();
    let got = second.forward(inputs, prefill)?;
    let time_b = started.elapsed().as_secs_f64();
    let correctness = agree(&expected, &got, first.model.dtype())?;
    let mut row = Row::new(workload.to_owned(), correctness);
    if !row.correctness.ok {
        return Ok(row.untimed("the arms do not agree, so no time is shown"));
    }
    row.functional = interpreted_compiles()? > 0;
    let flusher = run.flusher.as_ref();
    watched(
        run,
        row,
        (time_a, time_b),
        &mut Calls::new(|| first.forward(inputs, prefill).map(drop), flusher),
        &mut Calls::new(|| second.forward(inputs, prefill).map(drop), flusher),
    )
}

/// What both arms get.
struct Inputs {
    /// Hidden states of the prompt before the layer, [1, T, h].
    prompt: Tensor,
    /// Those of one token more, [1, 1, h].
    token: Tensor,
    prompt_angles: Angles,
    token_angles: Angles,
    tokens: i64,
    capacity: i64,
}

impl Inputs {
    fn new(
        model: &mut Model,
        layer: usize,
        ids: &[i64],
        new_tokens: usize,
    ) -> Result<Self, RuntimeError> {
        let tokens = ids.len() as i64;
        let capacity = tokens + new_tokens.max(1) as i64;
        let before = match layer {
            0 => "embed".to_owned(),
            n => format!("layers.{}", n - 1),
        };
        let mut prompt = None;
        let mut cache = model.new_cache(1, capacity)?;
        let ids = Tensor::f_from_slice(ids)?.f_unsqueeze(0)?;
        let mut keep = |name: &str, hidden: &Tensor| {
            if name == before {
                prompt = Some(hidden.f_detach()?);
            }
            Ok(())
        };
        // Only the states on the way are wanted.
        drop(model.prefill(&ids, &mut cache, Some(&mut keep))?);
        let prompt = prompt.ok_or_else(|| RuntimeError::Option {
            option: "--layer",
            problem: format!("the model does not tell the hidden states of `{before}`"),
            hint: None,
        })?;
        // The last token once more is as good as a new one.
        let token = prompt.f_narrow(1, tokens - 1, 1)?.f_contiguous()?;
        let config = model.config();
        let table = RotaryTable::new(
            &config.rope,
            config.head_dim,
            capacity,
            model.dtype().kind(),
        )?;
        let angles = |from: i64, count: i64| -> Result<Angles, RuntimeError> {
            let of = |table: &Tensor| table.f_narrow(0, from, count)?.f_unsqueeze(0);
            Ok(Angles {
                cos: of(&table.cos)?,
                sin: of(&table.sin)?,
            })
        };
        Ok(Self {
            prompt_angles: angles(0, tokens)?,
            token_angles: angles(tokens, 1)?,
            prompt,
            token,
            tokens,
            capacity,
        })
    }
}

/// One layer under measurement, with a cache of its own.
struct Layer {
    model: Model,
    index: usize,
    cache: KvCache,
    rows: Tensor,
    lengths: RowLengths,
}

impl Layer {
    fn new(model: Model, layer: usize, inputs: &Inputs) -> Result<Self, RuntimeError> {
        let cache = model.new_cache(1, inputs.capacity)?;
        let rows = Tensor::f_from_slice(&cache.step_rows(&[inputs.tokens]))?;
        Ok(Self {
            model,
            index: layer,
            cache,
            rows,
            lengths: RowLengths::on_cpu(vec![inputs.tokens + 1])?,
        })
    }

    /// The layer's output, [1, T, h] or [1, 1, h]. A step writes the same column each time.
    fn forward(&mut self, inputs: &Inputs, prefill: bool) -> Result<Tensor, RuntimeError> {
        let layer = &self.model.layers()[self.index];
        let cache = &mut self.cache.layers_mut()[self.index];
        Ok(if prefill {
            layer.forward(&inputs.prompt, &inputs.prompt_angles, &Step::Prefill, cache)?
        } else {
            let step = Step::Decode {
                rows: &self.rows,
                lengths: &self.lengths,
            };
            layer.forward(&inputs.token, &inputs.token_angles, &step, cache)?
        })
    }
}
