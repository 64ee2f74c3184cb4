//! One op at several shapes.

use std::cell::RefCell;
use std::rc::Rc;

use kernel_bench::measure::{Arm as _, Calls};
use kernel_bench::workload::{OpCase, OpKind, OpShape, Subject};
use kernel_model::Dtype;

use super::Run;
use super::arm::{Arm, arm};
use super::side::{About, Compiles, Outputs, Side};
use super::task::RowPlan;
use crate::failure::RuntimeError;

/// Seeds of the inputs that arms are compared on before they are timed.
const SEEDS: [u64; 4] = [1, 2, 3, 0];

/// An op and its shapes.
pub(super) struct OpTask {
    kind: OpKind,
    shapes: Vec<OpShape>,
    dtype: Dtype,
    /// Arms of one process call with the same inputs, not with equal ones: a second copy would take the
    /// place of the first in the caches.
    case: RefCell<Option<SharedCase>>,
}

struct SharedCase {
    workload: usize,
    seed: u64,
    case: Rc<OpCase>,
}

impl OpTask {
    pub(super) fn new(kind: OpKind, shapes: Vec<OpShape>, dtype: Dtype) -> Self {
        Self {
            kind,
            shapes,
            dtype,
            case: RefCell::new(None),
        }
    }

    pub(super) fn rows(&self) -> Vec<RowPlan> {
        self.shapes
            .iter()
            .map(|shape| RowPlan {
                name: shape.to_string(),
                seeds: &SEEDS,
                tokens: None,
                work: Some(shape.work(self.dtype.kind())),
            })
            .collect()
    }

    pub(super) fn side<'a>(
        &'a self,
        run: &'a Run<'_>,
        name: &str,
    ) -> Result<OpSide<'a>, RuntimeError> {
        let (arm, record) = arm(run, name, self.kind)?;
        Ok(OpSide {
            task: self,
            run,
            arm,
            about: About::here(record, self.dtype),
            ready: None,
        })
    }

    fn case(&self, workload: usize, seed: u64) -> Result<Rc<OpCase>, RuntimeError> {
        let mut kept = self.case.borrow_mut();
        match &*kept {
            Some(shared) if (shared.workload, shared.seed) == (workload, seed) => {
                Ok(Rc::clone(&shared.case))
            }
            _ => {
                let shape = &self.shapes[workload];
                let case = Rc::new(OpCase::random(shape, self.dtype.kind(), seed)?);
                *kept = Some(SharedCase {
                    workload,
                    seed,
                    case: Rc::clone(&case),
                });
                Ok(case)
            }
        }
    }
}

/// A kernel or the default op, in this process.
pub(super) struct OpSide<'a> {
    task: &'a OpTask,
    run: &'a Run<'a>,
    arm: Arm,
    about: About,
    /// What was called last.
    ready: Option<(Rc<OpCase>, Subject)>,
}

impl Side for OpSide<'_> {
    fn about(&self) -> &About {
        &self.about
    }

    fn outputs(&mut self, workload: usize, seed: u64) -> Result<Outputs, RuntimeError> {
        let _guard = tch::no_grad_guard();
        let case = self.task.case(workload, seed)?;
        let subject = self.arm.subject(self.task.kind, &case)?;
        let outputs = Outputs::of(|| Ok(case.run(&subject)?.unwrap_or_default()))?;
        self.ready = Some((case, subject));
        Ok(outputs)
    }

    fn sample(&mut self, calls: usize) -> Result<f64, RuntimeError> {
        let Some((case, subject)) = &self.ready else {
            return Ok(0.0);
        };
        let _guard = tch::no_grad_guard();
        let flusher = self.run.flusher.as_ref();
        Ok(Calls::new(|| case.run(subject).map(drop), flusher).sample(calls)?)
    }

    fn compiles(&mut self) -> Result<Compiles, RuntimeError> {
        Compiles::here()
    }
}
