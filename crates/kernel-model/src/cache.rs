//! The static cache of keys and values.
//!
//! One buffer for keys and one for values a layer, allocated once and written in place, so that
//! the shapes of decode never change. A row's column is its token's position.

use tch::{Device as TorchDevice, Kind, Tensor};

use crate::config::ModelConfig;
use crate::error::Result;
use crate::host;
use crate::placement::Transfer;

/// Keys and values of one layer.
#[derive(Debug)]
pub struct LayerCache {
    key: Tensor,
    value: Tensor,
    key_rows: Tensor,
    value_rows: Tensor,
}

impl LayerCache {
    /// [B, K, C, D].
    pub fn key(&self) -> &Tensor {
        &self.key
    }

    /// [B, K, C, D].
    pub fn value(&self) -> &Tensor {
        &self.value
    }

    /// Stores a prompt's keys and values, [B, K, T, D], in the first T columns.
    pub fn write_prompt(&mut self, key: &Tensor, value: &Tensor) -> Result<()> {
        let tokens = key.size4()?.2;
        self.key.f_narrow(2, 0, tokens)?.f_copy_(key)?;
        self.value.f_narrow(2, 0, tokens)?.f_copy_(value)?;
        Ok(())
    }

    /// Stores one token a row, [B, K, 1, D], at the places that [`KvCache::step_rows`] gives.
    pub fn write_step(&mut self, rows: &Tensor, key: &Tensor, value: &Tensor) -> Result<()> {
        if host::write_step(rows, key, value, &mut self.key_rows, &mut self.value_rows)? {
            return Ok(());
        }
        let (batch, heads, _, width) = key.size4()?;
        let flat = [batch * heads, width];
        let _ = self
            .key_rows
            .f_index_copy_(0, rows, &key.f_reshape(flat)?)?;
        let _ = self
            .value_rows
            .f_index_copy_(0, rows, &value.f_reshape(flat)?)?;
        Ok(())
    }
}

/// The cache of a whole model.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<LayerCache>,
    batch: i64,
    capacity: i64,
    heads: i64,
}

impl KvCache {
    /// Allocates a cache of `batch` rows with room for `capacity` tokens each.
    pub fn new(
        config: &ModelConfig,
        batch: i64,
        capacity: i64,
        kind: Kind,
        transfer: &dyn Transfer,
    ) -> Result<Self> {
        let (heads, width) = (config.key_value_heads, config.head_dim);
        let buffer = || -> Result<(Tensor, Tensor)> {
            let zeros = Tensor::f_zeros([batch, heads, capacity, width], (kind, TorchDevice::Cpu))?;
            let buffer = transfer.to_device(zeros)?;
            let rows = buffer.f_view([batch * heads * capacity, width])?;
            Ok((buffer, rows))
        };
        let layers = (0..config.layers)
            .map(|_| {
                let (key, key_rows) = buffer()?;
                let (value, value_rows) = buffer()?;
                Ok(LayerCache {
                    key,
                    value,
                    key_rows,
                    value_rows,
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            layers,
            batch,
            capacity,
            heads,
        })
    }

    /// Rows.
    pub fn batch(&self) -> i64 {
        self.batch
    }

    /// Tokens a row has room for.
    pub fn capacity(&self) -> i64 {
        self.capacity
    }

    /// The layers, in order.
    pub fn layers_mut(&mut self) -> &mut [LayerCache] {
        &mut self.layers
    }

    /// Where the heads of each row's next token go when a buffer is seen as [B * K * C, D]:
    /// [B * K] numbers, the same for all layers of a step. `positions` is one column a row.
    pub fn step_rows(&self, positions: &[i64]) -> Vec<i64> {
        let mut rows = Vec::with_capacity(positions.len() * self.heads as usize);
        for (row, position) in (0_i64..).zip(positions) {
            rows.extend(
                (0..self.heads).map(|head| (row * self.heads + head) * self.capacity + position),
            );
        }
        rows
    }

    /// Bytes of a cache with these sizes.
    pub fn bytes(config: &ModelConfig, batch: i64, capacity: i64, bytes_of_value: u64) -> u64 {
        let values =
            2 * config.layers * batch * config.key_value_heads * capacity * config.head_dim;
        values as u64 * bytes_of_value
    }
}
