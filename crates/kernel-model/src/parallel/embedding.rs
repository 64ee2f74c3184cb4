//! The embedding, whole or a rank's rows of it.

use tch::Tensor;

use super::{Part, PartialSum};
use crate::error::Result;

/// A table of token embeddings.
#[derive(Debug)]
pub struct Embedding {
    /// [V, h], or a rank's rows of it with zeros behind them.
    pub table: Tensor,
    /// Which rows, and what sums over the ranks; none where the table is whole.
    shared: Option<(Part, PartialSum)>,
}

impl Embedding {
    /// A whole table.
    pub fn whole(table: Tensor) -> Self {
        Self {
            table,
            shared: None,
        }
    }

    /// A rank's rows.
    pub(crate) fn of_rank(table: Tensor, part: Part, sum: Option<PartialSum>) -> Self {
        Self {
            table,
            shared: sum.map(|sum| (part, sum)),
        }
    }

    /// Ids [B, T] to embeddings [B, T, h]. Each id is in the rows of one rank; the others add zeros,
    /// so that the sum is exact.
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let Some((part, sum)) = &self.shared else {
            return Ok(Tensor::f_embedding(&self.table, ids, -1, false, false)?);
        };
        let local = ids.f_sub_scalar(part.range.start)?;
        let here = local
            .f_ge(0)?
            .f_logical_and(&local.f_lt(part.held)?)?
            .f_unsqueeze(-1)?;
        let rows = local.f_clamp(0, part.held - 1)?;
        let found = Tensor::f_embedding(&self.table, &rows, -1, false, false)?;
        sum.apply(found.f_mul(&here.f_to_kind(found.f_kind()?)?)?)
    }
}
