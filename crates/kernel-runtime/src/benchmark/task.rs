//! What a request compares: the rows of its table, and the arms that can run them.

use std::collections::BTreeMap;

use kernel_bench::correctness;
use kernel_bench::workload::{OpKind, OpShape};
use kernel_model::{Dtype, ModelConfig};
use kernel_report::Correctness;
use kernel_report::record::{Level, Work};
use kernel_spec::protocol::Workload;
use tch::{Kind, Tensor};

use super::layer::LayerTask;
use super::model::ModelTask;
use super::op::OpTask;
use super::side::{Side, Sides};
use super::{MODEL_TOKENS, Run};
use crate::failure::RuntimeError;

/// One row before it is measured.
pub(super) struct RowPlan {
    pub(super) name: String,
    /// Seeds of the inputs that results are compared on; the last ones are timed.
    pub(super) seeds: &'static [u64],
    /// Tokens that a call makes or reads.
    pub(super) tokens: Option<f64>,
    /// What a call has to compute and move at least.
    pub(super) work: Option<Work>,
}

/// What is compared.
pub(super) enum Task {
    Op(OpTask),
    Layer(LayerTask),
    Model(ModelTask),
}

impl Task {
    /// The task of a workload, whose model's config is read where it names one. Scripts are no
    /// task: their arms are one Python object.
    ///
    /// # Errors
    /// Ops, shapes, layers and lengths that there are not.
    pub(super) fn of(workload: &Workload, dtype: Option<&str>) -> Result<Self, RuntimeError> {
        let dtype = || dtype.map_or(Ok(Dtype::Float32), Dtype::by_name);
        Ok(match workload {
            Workload::Op { op, shapes } => {
                let kind = OpKind::by_name(op)?;
                let shapes = match shapes.as_slice() {
                    [] => vec![OpShape::new(kind, &BTreeMap::new())?],
                    given => given
                        .iter()
                        .map(|sizes| OpShape::new(kind, sizes))
                        .collect::<Result<_, _>>()?,
                };
                Self::Op(OpTask::new(kind, shapes, dtype()?))
            }
            Workload::OpOfModel { op, model } => {
                let kind = OpKind::by_name(op)?;
                let config = ModelConfig::from_directory(model)?;
                let shapes = OpShape::of_model(kind, &config, MODEL_TOKENS)?;
                Self::Op(OpTask::new(kind, shapes, dtype()?))
            }
            Workload::Layer {
                model,
                layer,
                prompt_tokens,
                new_tokens,
            } => Self::Layer(LayerTask::new(model, *layer, *prompt_tokens, *new_tokens)?),
            Workload::Model {
                model,
                prompt_tokens,
                new_tokens,
            } => Self::Model(ModelTask::new(model, *prompt_tokens, *new_tokens)?),
            Workload::Script { .. } => {
                return Err(RuntimeError::OutOfTurn(
                    "the arms of a script are one object",
                ));
            }
        })
    }

    pub(super) fn level(&self) -> Level {
        match self {
            Self::Op(_) => Level::Op,
            Self::Layer(_) => Level::Layer,
            Self::Model(_) => Level::Model,
        }
    }

    pub(super) fn rows(&self) -> Vec<RowPlan> {
        match self {
            Self::Op(task) => task.rows(),
            Self::Layer(task) => task.rows(),
            Self::Model(task) => task.rows(),
        }
    }

    /// Loads an arm in this process.
    pub(super) fn side<'a>(
        &'a self,
        run: &'a Run<'_>,
        name: &str,
    ) -> Result<Box<dyn Side + 'a>, RuntimeError> {
        Ok(match self {
            Self::Op(task) => Box::new(task.side(run, name)?),
            Self::Layer(task) => Box::new(task.side(run, name)?),
            Self::Model(task) => Box::new(task.side(run, name)?),
        })
    }

    /// Loads both arms in this process.
    pub(super) fn sides<'a>(&'a self, run: &'a Run<'_>) -> Result<Sides<'a>, RuntimeError> {
        Ok(Sides {
            a: self.side(run, &run.request.a)?.into(),
            b: self.side(run, &run.request.b)?.into(),
            control: None,
        })
    }

    /// Compares what the arms made of the same inputs.
    pub(super) fn compare(
        &self,
        expected: &[Tensor],
        got: &[Tensor],
        dtype: Dtype,
    ) -> Result<Vec<Correctness>, RuntimeError> {
        let pairs = expected.iter().zip(got);
        match self {
            Self::Op(_) => pairs
                .map(|(expected, got)| Ok(correctness::compare(expected, got)?))
                .collect(),
            Self::Layer(_) | Self::Model(_) => pairs
                .map(|(expected, got)| agree(expected, got, dtype))
                .collect(),
        }
    }
}

/// Compares results of many ops in a row: the tolerance of one op, times four for what adds up over
/// them, of the largest value.
fn agree(expected: &Tensor, got: &Tensor, dtype: Dtype) -> Result<Correctness, RuntimeError> {
    const OPS: f64 = 4.0;
    let largest = expected
        .f_abs()?
        .f_max()?
        .f_to_kind(Kind::Double)?
        .f_double_value(&[])?;
    let (absolute, relative) = correctness::tolerance(dtype.kind());
    Ok(correctness::compare_within(
        expected,
        got,
        (absolute * OPS * largest.max(1.0), relative * OPS),
    )?)
}
