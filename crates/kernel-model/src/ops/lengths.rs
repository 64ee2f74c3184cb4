//! Filled cache entries of each row, on the host and on the device.

use std::cell::RefCell;

use tch::{Kind, Tensor};

use crate::error::Result;

/// How many entries of its cache each row of a decode step has filled, the current token
/// included.
///
/// The host's copy lets an implementation read only what is filled; the tensor keeps shapes
/// constant where a change of shape would cost a compile. Masks are made once a step, not once a
/// layer.
#[derive(Debug)]
pub struct RowLengths {
    host: Vec<i64>,
    tensor: Tensor,
    masks: RefCell<Vec<(MaskKey, Tensor)>>,
}

/// Start and end column, and the window.
type MaskKey = (i64, i64, Option<i64>);

impl RowLengths {
    /// `tensor` is [B] i32 on the model's device and holds the same numbers as `host`.
    pub fn new(host: Vec<i64>, tensor: Tensor) -> Self {
        Self {
            host,
            tensor,
            masks: RefCell::new(Vec::new()),
        }
    }

    /// Lengths of tensors on the CPU.
    pub fn on_cpu(host: Vec<i64>) -> Result<Self> {
        let narrow: Vec<i32> = host.iter().map(|length| *length as i32).collect();
        let tensor = Tensor::f_from_slice(&narrow)?;
        Ok(Self::new(host, tensor))
    }

    /// The lengths, one a row.
    pub fn host(&self) -> &[i64] {
        &self.host
    }

    /// [B] i32 on the model's device.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// The longest row.
    pub fn longest(&self) -> i64 {
        self.host.iter().copied().max().unwrap_or(0)
    }

    /// Whether all rows are equally long.
    pub fn equal(&self) -> bool {
        self.host.windows(2).all(|pair| pair[0] == pair[1])
    }

    /// Boolean mask [B, 1, 1, end - start] of the columns from `start` to `end` that each row may
    /// attend to.
    pub fn mask(&self, start: i64, end: i64, window: Option<i64>) -> Result<Tensor> {
        let key = (start, end, window);
        if let Some((_, mask)) = self.masks.borrow().iter().find(|(other, _)| *other == key) {
            return Ok(mask.shallow_clone());
        }
        // Counted up from a like-tensor, which lands on the right device whatever that is.
        let ones = self
            .tensor
            .f_narrow(0, 0, 1)?
            .f_ones_like()?
            .f_expand([end - start], false)?;
        let columns = ones
            .f_cumsum(0, Kind::Int)?
            .f_add_scalar(start - 1)?
            .f_view([1, 1, 1, end - start])?;
        let lengths = self.tensor.f_view([-1, 1, 1, 1])?;
        let mut mask = columns.f_lt_tensor(&lengths)?;
        if let Some(window) = window {
            let first = lengths.f_sub_scalar(window)?;
            mask = mask.f_logical_and(&columns.f_ge_tensor(&first)?)?;
        }
        self.masks.borrow_mut().push((key, mask.shallow_clone()));
        Ok(mask)
    }
}
