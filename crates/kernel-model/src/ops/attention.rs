//! Default attention: libtorch's scaled dot product attention.

use tch::{Kind, Tensor};

use super::{AttentionParameters, DEFAULT, DecodeAttention, PrefillAttention, RowLengths};
use crate::error::{ModelError, Result};
use crate::host;

/// Prefill through SDPA; key/value heads are shared by the op, not repeated in memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct SdpaPrefill;

impl PrefillAttention for SdpaPrefill {
    fn forward(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        parameters: &AttentionParameters,
    ) -> Result<Tensor> {
        let (_, heads, tokens, _) = query.size4()?;
        let (_, key_value_heads, _, _) = key.size4()?;
        let grouped = heads != key_value_heads;
        // A window that no query outgrows is no window.
        let window = parameters.window.filter(|window| *window < tokens);
        let mask = match window {
            Some(window) => Some(band(query, tokens, window, parameters.causal)?),
            None => None,
        };
        let causal = parameters.causal && mask.is_none() && tokens > 1;
        Ok(Tensor::f_scaled_dot_product_attention(
            query,
            key,
            value,
            mask.as_ref(),
            0.0,
            causal,
            parameters.scale,
            grouped,
        )?)
    }

    fn name(&self) -> &str {
        DEFAULT
    }
}

/// Boolean [T, T], true where a query (row) may see a key (column). Made from the query by shape
/// alone, so that it lands on the query's device whatever that is.
fn band(query: &Tensor, tokens: i64, window: i64, causal: bool) -> Result<Tensor> {
    let like = query.f_select(0, 0)?.f_select(0, 0)?.f_narrow(1, 0, 1)?;
    let all = like.f_ones_like()?.f_expand([tokens, tokens], false)?;
    let banded = all.f_triu(1 - window)?;
    let banded = if causal { banded.f_tril(0)? } else { banded };
    Ok(banded.f_to_kind(Kind::Bool)?)
}

/// Decode through SDPA over the filled part of the cache.
///
/// The query heads of one group become rows of one small matrix, so that the shared key/value
/// head is read once and never repeated in memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct SdpaDecode;

impl DecodeAttention for SdpaDecode {
    fn forward(
        &self,
        query: &Tensor,
        key_cache: &Tensor,
        value_cache: &Tensor,
        lengths: &RowLengths,
        parameters: &AttentionParameters,
    ) -> Result<Tensor> {
        let (batch, heads, _, head_dim) = query.size4()?;
        let (_, key_value_heads, capacity, _) = key_cache.size4()?;
        let end = lengths.longest();
        if end > capacity || end < 1 {
            return Err(ModelError::Op {
                op: "decode_attention".to_owned(),
                problem: format!("a row has {end} entries, the cache {capacity}"),
            });
        }
        if let Some(output) =
            host::decode_attention(query, key_cache, value_cache, lengths, parameters)?
        {
            return Ok(output);
        }
        let (start, mask) = if lengths.equal() {
            (
                parameters.window.map_or(0, |window| (end - window).max(0)),
                None,
            )
        } else {
            (0, Some(lengths.mask(0, end, parameters.window)?))
        };
        let keys = key_cache.f_narrow(2, start, end - start)?;
        let values = value_cache.f_narrow(2, start, end - start)?;
        let rows = query.f_reshape([batch, key_value_heads, heads / key_value_heads, head_dim])?;
        let output = Tensor::f_scaled_dot_product_attention(
            &rows,
            &keys,
            &values,
            mask.as_ref(),
            0.0,
            false,
            parameters.scale,
            false,
        )?;
        Ok(output.f_reshape([batch, heads, 1, head_dim])?)
    }

    fn name(&self) -> &str {
        DEFAULT
    }
}
