//! Reading rope parameters in both spellings.
//!
//! Older files have `rope_theta`, `rope_scaling` and `partial_rotary_factor` at the top; newer
//! ones have all of them inside `rope_parameters`, possibly once per layer type. A value inside
//! the object goes before one at the top, and that before the default.

use super::fields::Fields;
use crate::error::{ModelError, Result};
use crate::family::Family;
use crate::rope::{RopeConfig, RopeKind, Yarn};

const DEFAULT_THETA: f64 = 10_000.0;

/// Reads the rope parameters. `layer_types` are the kinds of layers that occur.
pub(super) fn read(
    fields: &Fields<'_>,
    family: &Family,
    max_positions: i64,
    layer_types: &[&str],
) -> Result<RopeConfig> {
    let Some(object) = parameters(fields)? else {
        return from_object(fields, None, family, max_positions);
    };
    let mut nested = Vec::new();
    for layer_type in ["full_attention", "sliding_attention"] {
        if let Some(inner) = object.object(layer_type)?
            && layer_types.contains(&layer_type)
        {
            nested.push(from_object(fields, Some(&inner), family, max_positions)?);
        }
    }
    match nested.as_slice() {
        [] => from_object(fields, Some(&object), family, max_positions),
        [first, rest @ ..] if rest.iter().all(|other| other == first) => Ok(first.clone()),
        _ => Err(ModelError::Unsupported {
            path: fields.path(),
            what: "rope parameters",
            name: "different per layer type".to_owned(),
            hint: "the supported families rotate all layers alike".to_owned(),
        }),
    }
}

/// The object that holds the parameters, under its new or its old name.
fn parameters<'a>(fields: &Fields<'a>) -> Result<Option<Fields<'a>>> {
    match fields.object("rope_parameters")? {
        Some(object) => Ok(Some(object)),
        None => fields.object("rope_scaling"),
    }
}

fn from_object(
    top: &Fields<'_>,
    object: Option<&Fields<'_>>,
    family: &Family,
    max_positions: i64,
) -> Result<RopeConfig> {
    let number = |name: &str| -> Result<Option<f64>> {
        if let Some(object) = object
            && let Some(value) = object.positive(name)?
        {
            return Ok(Some(value));
        }
        top.positive(name)
    };
    let theta = number("rope_theta")?.unwrap_or(DEFAULT_THETA);
    if theta <= 1.0 {
        return Err(top.error("rope_theta", format!("must be above 1, but is {theta}")));
    }
    let partial_rotary_factor =
        number("partial_rotary_factor")?.unwrap_or(family.partial_rotary_factor);
    if partial_rotary_factor > 1.0 {
        return Err(top.error(
            "partial_rotary_factor",
            format!("must be at most 1, but is {partial_rotary_factor}"),
        ));
    }
    let kind = match object {
        Some(object) => read_kind(top, object, max_positions)?,
        None => RopeKind::Default,
    };
    Ok(RopeConfig {
        kind,
        theta,
        partial_rotary_factor,
    })
}

fn read_kind(top: &Fields<'_>, object: &Fields<'_>, max_positions: i64) -> Result<RopeKind> {
    let name = match object.string("rope_type")? {
        Some(name) => name,
        None => object.string("type")?.unwrap_or("default"),
    };
    let required = |field: &str| -> Result<f64> {
        object.positive(field)?.ok_or_else(|| {
            object.error(
                field,
                format!("is missing, and rope type `{name}` needs it"),
            )
        })
    };
    let original_max_positions = || -> Result<i64> {
        let field = "original_max_position_embeddings";
        // A key at the top goes first here: some files state the pretraining length there.
        Ok(match (top.size(field)?, object.size(field)?) {
            (Some(size), _) | (None, Some(size)) => size,
            (None, None) => max_positions,
        })
    };
    match name {
        "default" => Ok(RopeKind::Default),
        "linear" => Ok(RopeKind::Linear {
            factor: required("factor")?,
        }),
        "llama3" => {
            let low_freq_factor = required("low_freq_factor")?;
            let high_freq_factor = required("high_freq_factor")?;
            if high_freq_factor <= low_freq_factor {
                return Err(object.error(
                    "high_freq_factor",
                    format!("must be above low_freq_factor, which is {low_freq_factor}"),
                ));
            }
            Ok(RopeKind::Llama3 {
                factor: required("factor")?,
                low_freq_factor,
                high_freq_factor,
                original_max_positions: original_max_positions()?,
            })
        }
        "yarn" => {
            let original = original_max_positions()?;
            let factor = match object.positive("factor")? {
                Some(factor) => factor,
                None => max_positions as f64 / original as f64,
            };
            let mscale = object.number("mscale")?.filter(|value| *value != 0.0);
            let mscale_all_dim = object
                .number("mscale_all_dim")?
                .filter(|value| *value != 0.0);
            Ok(RopeKind::Yarn(Yarn {
                factor,
                original_max_positions: original,
                beta_fast: object
                    .number("beta_fast")?
                    .filter(|b| *b != 0.0)
                    .unwrap_or(32.0),
                beta_slow: object
                    .number("beta_slow")?
                    .filter(|b| *b != 0.0)
                    .unwrap_or(1.0),
                attention_factor: object.positive("attention_factor")?,
                mscale: mscale.zip(mscale_all_dim),
                truncate: object.boolean("truncate")?.unwrap_or(true),
            }))
        }
        other => Err(ModelError::Unsupported {
            path: top.path(),
            what: "rope type",
            name: other.to_owned(),
            hint: match other {
                "dynamic" | "longrope" => format!(
                    "`{other}` picks its frequencies by sequence length, which a static cache \
                     cannot follow; use a checkpoint with `llama3` or `yarn` scaling"
                ),
                _ => "`default`, `linear`, `llama3` and `yarn` run".to_owned(),
            },
        }),
    }
}
