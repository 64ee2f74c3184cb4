//! One layer of a model: attention, MLP and norms together, on the layer's real weights and on what the
//! layers before it make of a prompt.

use std::path::{Path, PathBuf};

use kernel_bench::measure::{Arm as _, Calls};
use kernel_model::cache::KvCache;
use kernel_model::layer::{Angles, Step};
use kernel_model::ops::RowLengths;
use kernel_model::rope::RotaryTable;
use kernel_model::{Model, ModelConfig};
use tch::Tensor;

use super::Run;
use super::model::{check_room, model_arm, prompt};
use super::side::{About, Compiles, Outputs, Side};
use super::task::RowPlan;
use crate::failure::RuntimeError;

/// A layer, and the prompt that reaches it.
pub(super) struct LayerTask {
    directory: PathBuf,
    layer: usize,
    ids: Vec<i64>,
    new_tokens: usize,
}

impl LayerTask {
    pub(super) fn new(
        directory: &Path,
        layer: usize,
        prompt_tokens: usize,
        new_tokens: usize,
    ) -> Result<Self, RuntimeError> {
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
        Ok(Self {
            directory: directory.to_owned(),
            layer,
            ids: prompt(&config, prompt_tokens),
            new_tokens,
        })
    }

    /// Prefill, then decode.
    pub(super) fn rows(&self) -> Vec<RowPlan> {
        let (layer, tokens) = (self.layer, self.ids.len());
        [
            format!("layer {layer}, prefill, {tokens} tokens"),
            format!("layer {layer}, decode, 1 token after {tokens}"),
        ]
        .map(|name| RowPlan {
            name,
            seeds: &[0],
            tokens: None,
            work: None,
        })
        .into()
    }

    pub(super) fn side<'a>(
        &'a self,
        run: &'a Run<'_>,
        name: &str,
    ) -> Result<LayerSide<'a>, RuntimeError> {
        let (loaded, record) = model_arm(run, name, &self.directory)?;
        Ok(LayerSide {
            task: self,
            run,
            about: About::here(record, loaded.model.dtype()),
            model: loaded.model,
            ready: None,
            prefill: true,
        })
    }
}

/// One layer of a set-up of the model, in this process.
pub(super) struct LayerSide<'a> {
    task: &'a LayerTask,
    run: &'a Run<'a>,
    about: About,
    model: Model,
    ready: Option<Ready>,
    /// Whether prefill is what was called last.
    prefill: bool,
}

impl Side for LayerSide<'_> {
    fn about(&self) -> &About {
        &self.about
    }

    fn shared_inputs(&mut self) -> Result<Vec<Tensor>, RuntimeError> {
        let _guard = tch::no_grad_guard();
        Ok(vec![hidden_states(
            &mut self.model,
            self.task.layer,
            &self.task.ids,
        )?])
    }

    fn take_inputs(&mut self, inputs: &[Tensor]) -> Result<(), RuntimeError> {
        let _guard = tch::no_grad_guard();
        let [prompt] = inputs else {
            return Err(RuntimeError::OutOfTurn("no hidden states came"));
        };
        self.ready = Some(Ready::new(&self.model, prompt, self.task.new_tokens)?);
        Ok(())
    }

    fn outputs(&mut self, workload: usize, _seed: u64) -> Result<Outputs, RuntimeError> {
        self.prefill = workload == 0;
        let _guard = tch::no_grad_guard();
        Outputs::of(|| Ok(vec![self.forward()?]))
    }

    fn sample(&mut self, calls: usize) -> Result<f64, RuntimeError> {
        let _guard = tch::no_grad_guard();
        let flusher = self.run.flusher.as_ref();
        Calls::new(|| self.forward().map(drop), flusher).sample(calls)
    }

    fn compiles(&mut self) -> Result<Compiles, RuntimeError> {
        Compiles::here()
    }
}

impl LayerSide<'_> {
    /// The layer's output, [1, T, h] or [1, 1, h]. A step writes the same column each time.
    fn forward(&mut self) -> Result<Tensor, RuntimeError> {
        let Some(ready) = &mut self.ready else {
            return Err(RuntimeError::OutOfTurn(
                "a layer was called before it had inputs",
            ));
        };
        let layer = &self.model.layers()[self.task.layer];
        let cache = &mut ready.cache.layers_mut()[self.task.layer];
        Ok(if self.prefill {
            layer.forward(&ready.prompt, &ready.prompt_angles, &Step::Prefill, cache)?
        } else {
            let step = Step::Decode {
                rows: &ready.rows,
                lengths: &ready.lengths,
            };
            layer.forward(&ready.token, &ready.token_angles, &step, cache)?
        })
    }
}

/// Hidden states of the prompt before a layer, [1, T, h].
fn hidden_states(model: &mut Model, layer: usize, ids: &[i64]) -> Result<Tensor, RuntimeError> {
    let before = match layer {
        0 => "embed".to_owned(),
        n => format!("layers.{}", n - 1),
    };
    let mut prompt = None;
    let mut cache = model.new_cache(1, ids.len() as i64)?;
    let ids = Tensor::f_from_slice(ids)?.f_unsqueeze(0)?;
    let mut keep = |name: &str, hidden: &Tensor| {
        if name == before {
            prompt = Some(hidden.f_detach()?);
        }
        Ok(())
    };
    // Only the states on the way are wanted.
    drop(model.prefill(&ids, &mut cache, Some(&mut keep))?);
    prompt.ok_or_else(|| RuntimeError::Option {
        option: "--layer",
        problem: format!("the model does not tell the hidden states of `{before}`"),
        hint: None,
    })
}

/// What a call of the layer takes.
struct Ready {
    /// Hidden states of the prompt before the layer, [1, T, h].
    prompt: Tensor,
    /// Those of one token more, [1, 1, h].
    token: Tensor,
    prompt_angles: Angles,
    token_angles: Angles,
    cache: KvCache,
    rows: Tensor,
    lengths: RowLengths,
}

impl Ready {
    fn new(model: &Model, prompt: &Tensor, new_tokens: usize) -> Result<Self, RuntimeError> {
        let tokens = prompt.size().get(1).copied().unwrap_or_default();
        let capacity = tokens + new_tokens.max(1) as i64;
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
        let cache = model.new_cache(1, capacity)?;
        Ok(Self {
            prompt: prompt.shallow_clone(),
            token,
            prompt_angles: angles(0, tokens)?,
            token_angles: angles(tokens, 1)?,
            rows: Tensor::f_from_slice(&cache.step_rows(&[tokens]))?,
            lengths: RowLengths::on_cpu(vec![tokens + 1])?,
            cache,
        })
    }
}
