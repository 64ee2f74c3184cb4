//! Products of a few rows with weight matrices, and the MLP made of them.

use tch::Tensor;

use super::by_kind;
use super::element::{Element, rounded};
use super::threads::for_chunks;
use super::vector::{Vectors, products};
use super::view::{filled, numbers};
use crate::error::Result;
use crate::ops::{Activation, Linear, MlpWeights};

/// Most rows of a product that is done here. With more, the weights are read once for many rows
/// anyway, and libtorch's blocked product is faster.
const MOST_ROWS: usize = 4;

/// Bytes of weights that a thread takes at once: some microseconds of reading, so that threads end
/// at the same time, and far more than the cost of taking.
const CHUNK_BYTES: usize = 64 * 1024;

/// `hidden @ weight^T + bias` for several linear maps of the same input: [.., in] to [.., out] each.
pub(crate) fn linear(hidden: &Tensor, maps: &[&Linear]) -> Result<Option<Vec<Tensor>>> {
    by_kind!(hidden.f_kind()?, linear_of(hidden, maps))
}

fn linear_of<E: Element>(hidden: &Tensor, maps: &[&Linear]) -> Result<Option<Vec<Tensor>>> {
    let Some(input) = Input::<E>::new(hidden) else {
        return Ok(None);
    };
    let Some(matrices) = matrices(&input, maps) else {
        return Ok(None);
    };
    let sums = input.times(&matrices);
    let mut outputs = Vec::with_capacity(maps.len());
    let mut start = 0;
    for matrix in &matrices {
        let end = start + matrix.rows * input.count();
        outputs.push(output(&input, matrix, &sums[start..end])?);
        start = end;
    }
    Ok(Some(outputs))
}

/// `down(activation(gate(x)) * up(x))`: hidden [.., h] to [.., h].
pub(crate) fn gated_mlp(hidden: &Tensor, weights: &MlpWeights) -> Result<Option<Tensor>> {
    // The others need functions that the standard library lacks, and no family here uses them.
    if weights.activation != Activation::Silu {
        return Ok(None);
    }
    by_kind!(hidden.f_kind()?, gated_mlp_of(hidden, weights))
}

fn gated_mlp_of<E: Element>(hidden: &Tensor, weights: &MlpWeights) -> Result<Option<Tensor>> {
    let Some(input) = Input::<E>::new(hidden) else {
        return Ok(None);
    };
    let (Some(gate), Some(up)) = (
        Matrix::new(&weights.gate, input.width()),
        Matrix::new(&weights.up, input.width()),
    ) else {
        return Ok(None);
    };
    let Some(down) = Matrix::<E>::new(&weights.down, gate.rows) else {
        return Ok(None);
    };
    if gate.rows != up.rows || gate.rows == 0 {
        return Ok(None);
    }

    let count = input.count();
    let rows = rows_of_chunk::<E>(input.width());
    let mut inner = vec![0.0_f32; gate.rows * count];
    for_chunks(&mut inner, rows * count, &|part, inner| {
        let first = part * rows;
        let mut gated = vec![0.0_f32; inner.len()];
        gate.products(first, &input, &mut gated);
        up.products(first, &input, inner);
        for (n, (up_sum, gate_sum)) in inner.iter_mut().zip(&gated).enumerate() {
            let row = first + n / count;
            let gate = gate.rounded(row, *gate_sum);
            let activated = rounded::<E>(gate / (1.0 + (-gate).exp()));
            *up_sum = rounded::<E>(activated * up.rounded(row, *up_sum));
        }
    });
    let inner = Input {
        vectors: Vectors::new(by_vector(&inner, count).into(), gate.rows),
        size: input.size,
    };
    let sums = inner.times(std::slice::from_ref(&down));
    output(&inner, &down, &sums).map(Some)
}

/// The vectors that are multiplied.
struct Input<'a, E> {
    vectors: Vectors<'a, E>,
    /// Size of the tensor that they came from.
    size: Vec<i64>,
}

impl<'a, E: Element> Input<'a, E> {
    fn new(hidden: &'a Tensor) -> Option<Self> {
        let size = hidden.size();
        let width = usize::try_from(*size.last()?)
            .ok()
            .filter(|width| *width > 0)?;
        let count = hidden.numel() / width;
        if count == 0 || count > MOST_ROWS {
            return None;
        }
        Some(Self {
            vectors: Vectors::new(E::widen(numbers(hidden)?), width),
            size,
        })
    }

    fn count(&self) -> usize {
        self.vectors.count()
    }

    fn width(&self) -> usize {
        self.vectors.width()
    }

    /// Products with all rows of all matrices, which lie one after the other; for each row as many
    /// numbers as there are vectors.
    fn times(&self, matrices: &[Matrix<'_, E>]) -> Vec<f32> {
        let all: usize = matrices.iter().map(|matrix| matrix.rows).sum();
        let rows = rows_of_chunk::<E>(self.width());
        let mut sums = vec![0.0_f32; all * self.count()];
        for_chunks(&mut sums, rows * self.count(), &|part, mut sums| {
            // Where one matrix ends inside the chunk, the next begins.
            let mut first = part * rows;
            for matrix in matrices {
                if first >= matrix.rows {
                    first -= matrix.rows;
                    continue;
                }
                let here = sums.len().min((matrix.rows - first) * self.count());
                let (now, later) = sums.split_at_mut(here);
                matrix.products(first, self, now);
                sums = later;
                first = 0;
                if sums.is_empty() {
                    break;
                }
            }
        });
        sums
    }
}

/// A weight matrix and its bias, in place.
struct Matrix<'a, E> {
    weight: &'a [E],
    rows: usize,
    bias: Option<&'a [E]>,
}

impl<'a, E: Element> Matrix<'a, E> {
    /// `None` where libtorch has to do it, or to say what is wrong.
    fn new(map: &'a Linear, width: usize) -> Option<Self> {
        let (rows, columns) = map.weight.size2().ok()?;
        let rows = usize::try_from(rows).ok()?;
        let bias = match &map.bias {
            Some(bias) => Some(numbers(bias)?),
            None => None,
        };
        let fits = usize::try_from(columns).ok()? == width
            && bias.is_none_or(|bias: &[E]| bias.len() == rows);
        let weight = numbers(&map.weight)?;
        fits.then_some(Self { weight, rows, bias })
    }

    /// Products of the rows from `first` on, as many as `sums` has room for.
    fn products(&self, first: usize, input: &Input<'_, E>, sums: &mut [f32]) {
        let from = first * input.width();
        let to = from + sums.len() / input.count() * input.width();
        products(&self.weight[from..to], &input.vectors, sums);
    }

    /// The output of a row: its sum with the bias, rounded once.
    fn rounded(&self, row: usize, sum: f32) -> f32 {
        rounded::<E>(sum + self.bias.map_or(0.0, |bias| bias[row].to_f32()))
    }
}

fn matrices<'a, E: Element>(
    input: &Input<'_, E>,
    maps: &[&'a Linear],
) -> Option<Vec<Matrix<'a, E>>> {
    maps.iter()
        .map(|map| Matrix::new(map, input.width()))
        .collect()
}

fn rows_of_chunk<E>(width: usize) -> usize {
    (CHUNK_BYTES / (width * size_of::<E>())).max(1)
}

/// Numbers of each vector one after the other, from numbers of each row.
fn by_vector(sums: &[f32], count: usize) -> Vec<f32> {
    (0..count)
        .flat_map(|vector| sums.iter().skip(vector).step_by(count).copied())
        .collect()
}

fn output<E: Element>(
    input: &Input<'_, E>,
    matrix: &Matrix<'_, E>,
    sums: &[f32],
) -> Result<Tensor> {
    let mut size = input.size.clone();
    if let Some(last) = size.last_mut() {
        *last = matrix.rows as i64;
    }
    filled::<E>(&size, |numbers| {
        for (vector, numbers) in numbers.chunks_exact_mut(matrix.rows).enumerate() {
            for (row, number) in numbers.iter_mut().enumerate() {
                let sum = sums[row * input.count() + vector];
                *number = E::from_f32(matrix.rounded(row, sum));
            }
        }
    })
}
