//! Tensor parallelism: one model over several ranks, a process each.
//!
//! ```text
//! Rules (styles by module) ──► Layout (what runs spread, what replicated) ──► Share, Shard (of a rank)
//! ```
//!
//! All of that is decided from config.json, without a tensor. A rank then reads its shards only, runs
//! the same forward pass as a single process on its local heads and widths, and sums partial results
//! through [`Collectives`], which torch.distributed carries out. In a decode step there are `2L + 1`
//! sums (embedding, attention and MLP of each of the `L` layers) and one exchange of candidate tokens.

mod collectives;
mod embedding;
mod exchange;
mod layout;
mod rules;
mod shard;
mod style;

use std::sync::Arc;

pub use self::collectives::{Collectives, Counts, TorchDistributed};
pub use self::embedding::Embedding;
pub(crate) use self::exchange::{Candidates, Exchange, Message, gather_logits};
pub use self::layout::{Layout, Part, Share, Spread};
pub use self::rules::Rules;
pub use self::shard::Shard;
pub use self::style::Style;
use crate::error::Result;

/// What a rank knows of its group.
#[derive(Debug, Clone)]
pub struct Group {
    /// Who holds what.
    pub layout: Layout,
    /// How the ranks talk to each other; its rank is this process's.
    pub collectives: Arc<dyn Collectives>,
}

impl Group {
    /// This process's rank.
    pub fn rank(&self) -> usize {
        self.collectives.rank()
    }

    /// What sums a block's partial outputs; none where the block is replicated.
    pub(crate) fn sum(&self, spread: Spread) -> Option<PartialSum> {
        (spread == Spread::Sharded).then(|| PartialSum(Arc::clone(&self.collectives)))
    }
}

/// Sums the partial outputs of a block over all ranks.
#[derive(Debug, Clone)]
pub struct PartialSum(Arc<dyn Collectives>);

impl PartialSum {
    /// The sum of what all ranks bring, in place of what this rank has.
    pub fn apply(&self, mut partial: tch::Tensor) -> Result<tch::Tensor> {
        if !partial.is_contiguous() {
            partial = partial.f_contiguous()?;
        }
        self.0.sum(&mut partial)?;
        Ok(partial)
    }
}

#[cfg(test)]
mod tests;
