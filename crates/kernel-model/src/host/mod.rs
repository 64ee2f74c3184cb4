//! The default ops on the host's own memory, for steps of a few tokens.
//!
//! A decode step reads every weight once and computes little, so its speed is that of the memory.
//! libtorch's product of one row with a matrix reaches about a third of it, and each of the thirty
//! small ops of a layer costs a microsecond or two of dispatch besides. What is here reads weights
//! once, in place, on all threads, and does a layer in a handful of calls. The roundings are those
//! of libtorch's ops: f32 inside, one rounding to the dtype where an op would return a tensor.
//!
//! Every function returns `None` for what it does not do (another device, another dtype, strided
//! tensors, many rows), and the default ops then go through libtorch. So nothing outside
//! [`crate::ops`] has to know that this module exists.
//!
//! | module | |
//! | --- | --- |
//! | [`threads`] | a loop over chunks on several threads, cheap enough for ten microseconds of work |
//! | [`vector`] | dot products and weighted sums, with AVX2 where the processor has it |
//! | [`view`] | tensors as slices and back |
//! | [`attention`], [`linear`], [`norm`], [`rotary`] | the ops |

mod attention;
mod element;
mod linear;
mod norm;
mod rotary;
mod threads;
mod vector;
mod view;

pub(crate) use self::attention::{decode_attention, write_step};
pub(crate) use self::linear::{gated_mlp, linear};
pub(crate) use self::norm::rms_norm;
pub(crate) use self::rotary::rotary;

/// Calls a function that is generic over the number type with that of a dtype; `None` for others.
macro_rules! by_kind {
    ($kind:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $kind {
            tch::Kind::Float => $function::<f32>($($argument),*),
            tch::Kind::BFloat16 => $function::<half::bf16>($($argument),*),
            _ => Ok(None),
        }
    };
}
use by_kind;

#[cfg(test)]
mod tests;
