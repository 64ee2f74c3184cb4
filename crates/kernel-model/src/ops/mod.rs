//! The op slots of a model: what a kernel, or a user's own Rust code, may put in place of the
//! default implementations.
//!
//! A slot is a trait with one method on tensors of stated layout. The model calls whatever fills
//! the slot and knows nothing of where it comes from; this module knows nothing of kernels.
//!
//! Rows of a batch are right-padded: a token's position is its column, so causality alone hides
//! the padding in prefill, and decode gets the number of filled cache entries of each row.

mod activation;
mod attention;
mod lengths;
mod mlp;
mod norm;
mod rotary;

use std::fmt;
use std::sync::Arc;

use tch::Tensor;

pub use self::activation::Activation;
pub use self::attention::{SdpaDecode, SdpaPrefill};
pub use self::lengths::RowLengths;
pub use self::mlp::{DefaultMlp, Linear, MlpWeights};
pub use self::norm::DefaultNorm;
pub use self::rotary::DefaultRotary;
use crate::error::Result;

/// Constants of one layer's attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionParameters {
    /// Factor on the scores, usually `head_dim^-0.5`.
    pub scale: f64,
    /// A query sees only keys at its own position and before. Always true in decoders.
    pub causal: bool,
    /// A query sees only the last so many keys, itself included.
    pub window: Option<i64>,
}

/// Attention over a prompt: as many keys as queries, nothing cached before them.
pub trait PrefillAttention: Send + Sync {
    /// Query [B, H, T, D], key and value [B, K, T, D], where K divides H and query head `h` reads
    /// key/value head `h / (H / K)`. Returns [B, H, T, D].
    fn forward(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        parameters: &AttentionParameters,
    ) -> Result<Tensor>;

    /// Name for reports.
    fn name(&self) -> &str;

    /// Whether a new shape costs a compile; the model then rounds shapes up to buckets.
    fn compiles_per_shape(&self) -> bool {
        false
    }
}

/// Attention of one new token a row over the static cache.
pub trait DecodeAttention: Send + Sync {
    /// Query [B, H, 1, D], caches [B, K, C, D]; `lengths` [B] counts the filled entries of each
    /// row, the current token included. Entries past them hold anything. Returns [B, H, 1, D].
    fn forward(
        &self,
        query: &Tensor,
        key_cache: &Tensor,
        value_cache: &Tensor,
        lengths: &RowLengths,
        parameters: &AttentionParameters,
    ) -> Result<Tensor>;

    /// Name for reports.
    fn name(&self) -> &str;

    /// Whether a new shape costs a compile; the model then rounds shapes up to buckets.
    fn compiles_per_shape(&self) -> bool {
        false
    }
}

/// The gated MLP: `down(activation(gate(x)) * up(x))`.
pub trait Mlp: Send + Sync {
    /// Hidden [B, T, h] to [B, T, h].
    fn forward(&self, hidden: &Tensor, weights: &MlpWeights) -> Result<Tensor>;

    /// Name for reports.
    fn name(&self) -> &str;

    /// Whether a new shape costs a compile; the model then rounds shapes up to buckets.
    fn compiles_per_shape(&self) -> bool {
        false
    }
}

/// RMSNorm over the last dimension.
pub trait Norm: Send + Sync {
    /// Hidden [.., h] and weight [h] to [.., h]; `eps` is added to the mean square.
    fn forward(&self, hidden: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor>;

    /// Name for reports.
    fn name(&self) -> &str;

    /// Whether a new shape costs a compile; the model then rounds shapes up to buckets.
    fn compiles_per_shape(&self) -> bool {
        false
    }
}

/// Rotary position embedding of queries and keys.
pub trait Rotary: Send + Sync {
    /// Query [B, H, T, D] and key [B, K, T, D]; `cos` and `sin` [B, T, R] with R at most D, the
    /// second half of R repeating the first. Dimensions past R are passed through.
    fn forward(
        &self,
        query: &Tensor,
        key: &Tensor,
        cos: &Tensor,
        sin: &Tensor,
    ) -> Result<(Tensor, Tensor)>;

    /// Name for reports.
    fn name(&self) -> &str;

    /// Whether a new shape costs a compile; the model then rounds shapes up to buckets.
    fn compiles_per_shape(&self) -> bool {
        false
    }
}

/// Name of the implementations in this module.
pub const DEFAULT: &str = "default";

macro_rules! debug_by_name {
    ($($slot:ident),+) => {
        $(impl fmt::Debug for dyn $slot {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "{}({})", stringify!($slot), self.name())
            }
        })+
    };
}

debug_by_name!(PrefillAttention, DecodeAttention, Mlp, Norm, Rotary);

/// Whether a slot still holds the default.
pub fn is_default(name: &str) -> bool {
    name == DEFAULT
}

/// A shared slot; cloning it clones the pointer.
pub type Slot<T> = Arc<T>;
