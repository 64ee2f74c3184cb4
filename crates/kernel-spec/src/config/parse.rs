//! Reading kernel configs from JSON values, with the path of whatever is wrong.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{KernelConfig, OpKernel, OpMapping};
use crate::error::{Error, Result};
use crate::op::{DeviceType, OpName};
use crate::reference::{KernelRef, KernelSource, Selector};
use crate::suggest;

/// Implementations of attention that need no kernel here. `eager` and `sdpa` are the default op;
/// the others name implementations that ask for the same result on other hardware.
const BUILT_IN_ATTENTION: [&str; 6] = [
    "eager",
    "sdpa",
    "flash_attention_2",
    "flash_attention_3",
    "flash_attention_4",
    "flex_attention",
];

const CONFIG_KEYS: [&str; 4] = [
    "kernel_mapping",
    "use_local_kernel",
    "inherit_mapping",
    "fallback",
];
/// Written by transformers when a config in use is saved; it says nothing that the model does not.
const IGNORED_KEY: &str = "registered_layer_names";

const METADATA_KEYS: [&str; 3] = ["version", "revision", "trust_remote_code"];

pub(super) fn model_config(config: &Value) -> Result<KernelConfig> {
    let Value::Object(config) = config else {
        return Err(wrong_type("config.json", "an object", config));
    };
    let mut kernels = match config.get("kernel_config") {
        None | Some(Value::Null) => KernelConfig {
            inherit_mapping: false,
            ..KernelConfig::default()
        },
        Some(value) => object("kernel_config", value)
            .and_then(|object| kernel_config_object("kernel_config", object))?,
    };
    match config.get("attn_implementation") {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) => {
            if let Some(kernel) = attention(text, kernels.use_local_kernel)? {
                let mapping = OpMapping::EveryDevice(kernel);
                kernels.mapping.entry(OpName::Attention).or_insert(mapping);
            }
        }
        Some(other) => return Err(wrong_type("attn_implementation", "a string", other)),
    }
    Ok(kernels)
}

pub(super) fn kernel_config(config: &Value) -> Result<KernelConfig> {
    // A file may hold the whole `{"kernel_config": {…}}` or only what is inside.
    match config {
        Value::Object(outer) if outer.contains_key("kernel_config") => model_config(config),
        Value::Object(object) => kernel_config_object("", object),
        other => Err(wrong_type("kernel_config", "an object", other)),
    }
}

fn kernel_config_object(path: &str, config: &Map<String, Value>) -> Result<KernelConfig> {
    for key in config.keys().filter(|key| *key != IGNORED_KEY) {
        if !CONFIG_KEYS.contains(&key.as_str()) {
            return Err(unknown_key(&join(path, key), key, &CONFIG_KEYS));
        }
    }
    let default = KernelConfig::default();
    let use_local_kernel = boolean(path, config, "use_local_kernel", default.use_local_kernel)?;
    let inherit_mapping = boolean(path, config, "inherit_mapping", default.inherit_mapping)?;
    let fallback = match config.get("fallback") {
        None => default.fallback,
        Some(Value::String(text)) => text.parse().map_err(|error: Error| Error::Config {
            path: join(path, "fallback"),
            reason: match &error {
                Error::Config { reason, .. } => reason.clone(),
                other => other.to_string(),
            },
            hint: error.hint(),
        })?,
        Some(other) => return Err(wrong_type(&join(path, "fallback"), "a string", other)),
    };

    let mapping_path = join(path, "kernel_mapping");
    let mut mapping = BTreeMap::new();
    match config.get("kernel_mapping") {
        None | Some(Value::Null) => {}
        Some(value) => {
            for (key, value) in object(&mapping_path, value)? {
                let path = join(&mapping_path, key);
                let op: OpName = word(&path, key, "op", OpName::WORDS)?;
                mapping.insert(op, op_mapping(&path, value, use_local_kernel)?);
            }
        }
    }
    Ok(KernelConfig {
        mapping,
        use_local_kernel,
        inherit_mapping,
        fallback,
    })
}

fn op_mapping(path: &str, value: &Value, local: bool) -> Result<OpMapping> {
    let Value::Object(devices) = value else {
        return kernel(path, value, local).map(OpMapping::EveryDevice);
    };
    devices
        .iter()
        .map(|(key, value)| {
            let path = join(path, key);
            let device = word(&path, key, "device", DeviceType::WORDS)?;
            Ok((device, kernel(&path, value, local)?))
        })
        .collect::<Result<_>>()
        .map(OpMapping::PerDevice)
}

/// A string, or a pair of a string and an object.
fn kernel(path: &str, value: &Value, local: bool) -> Result<OpKernel> {
    const EXPECTED: &str = "a string such as `org/name@v1:Layer`, or a pair of one and an object";
    match value {
        Value::String(text) if text.is_empty() => Ok(OpKernel::Default),
        Value::String(text) => Ok(OpKernel::hub(reference(path, text, local)?)),
        Value::Array(items) => match items.as_slice() {
            [Value::String(text), Value::Object(metadata)] if !text.is_empty() => {
                let reference = reference(&format!("{path}[0]"), text, local)?;
                with_metadata(&format!("{path}[1]"), reference, metadata)
            }
            _ => Err(wrong_type(path, EXPECTED, value)),
        },
        other => Err(wrong_type(path, EXPECTED, other)),
    }
}

/// Applies the second half of a pair: which state of the repository, and whether it is trusted.
fn with_metadata(
    path: &str,
    mut reference: KernelRef,
    metadata: &Map<String, Value>,
) -> Result<OpKernel> {
    for key in metadata.keys() {
        if !METADATA_KEYS.contains(&key.as_str()) {
            return Err(unknown_key(&join(path, key), key, &METADATA_KEYS));
        }
    }
    let trust_remote_code = boolean(path, metadata, "trust_remote_code", false)?;
    let given = |key: &str| metadata.get(key).filter(|value| !value.is_null());
    let selector = match (given("version"), given("revision")) {
        (None, None) => None,
        (Some(_), Some(_)) => {
            return Err(invalid(path, "`version` and `revision` exclude each other"));
        }
        (Some(version), None) => {
            Some(Selector::Version(version.as_u64().ok_or_else(|| {
                wrong_type(&join(path, "version"), "a whole number", version)
            })?))
        }
        (None, Some(Value::String(text))) => Some(
            Selector::from_revision(text)
                .map_err(|error| invalid(&join(path, "revision"), &error.to_string()))?,
        ),
        (None, Some(other)) => {
            return Err(wrong_type(&join(path, "revision"), "a string", other));
        }
    };
    match (&mut reference.source, selector) {
        (_, None) => {}
        (KernelSource::Path(_), Some(_)) => {
            return Err(invalid(
                path,
                "a kernel on this machine has no version or revision",
            ));
        }
        (KernelSource::Hub { selector, .. }, Some(given)) => {
            if *selector != Selector::Newest && *selector != given {
                let reason = format!("the version differs from the one in `{reference}`");
                return Err(invalid(path, &reason));
            }
            *selector = given;
        }
    }
    Ok(OpKernel::Hub {
        reference,
        trust_remote_code,
    })
}

fn reference(path: &str, text: &str, local: bool) -> Result<KernelRef> {
    let parsed = if local && !KernelRef::is_path(text) {
        format!("./{text}").parse()
    } else {
        text.parse::<KernelRef>()
    };
    parsed.map_err(|error| Error::Config {
        path: path.to_owned(),
        reason: error.to_string(),
        hint: error.hint(),
    })
}

/// The kernel that `attn_implementation` names; none for the implementations built into models.
fn attention(text: &str, local: bool) -> Result<Option<OpKernel>> {
    const PATH: &str = "attn_implementation";
    if text.contains('/') {
        return reference(PATH, text, local).map(OpKernel::hub).map(Some);
    }
    if BUILT_IN_ATTENTION.contains(&text) {
        return Ok(None);
    }
    Err(Error::Config {
        path: PATH.to_owned(),
        reason: format!("unknown implementation `{text}`"),
        hint: Some(match suggest::nearest(text, BUILT_IN_ATTENTION) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "name a kernel as `org/name@v1:attention`, or one of eager, sdpa".to_owned(),
        }),
    })
}

fn word<T: std::str::FromStr<Err = Error>>(
    path: &str,
    text: &str,
    what: &str,
    known: &[&str],
) -> Result<T> {
    text.parse().map_err(|_| Error::Config {
        path: path.to_owned(),
        reason: format!("unknown {what} `{text}`"),
        hint: Some(suggest::hint(text, known)),
    })
}

fn boolean(path: &str, object: &Map<String, Value>, key: &str, default: bool) -> Result<bool> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(default),
        Some(Value::Bool(value)) => Ok(*value),
        Some(other) => Err(wrong_type(&join(path, key), "true or false", other)),
    }
}

fn object<'a>(path: &str, value: &'a Value) -> Result<&'a Map<String, Value>> {
    value
        .as_object()
        .ok_or_else(|| wrong_type(path, "an object", value))
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

fn invalid(path: &str, reason: &str) -> Error {
    Error::Config {
        path: path.to_owned(),
        reason: reason.to_owned(),
        hint: None,
    }
}

fn unknown_key(path: &str, key: &str, known: &[&str]) -> Error {
    Error::Config {
        path: path.to_owned(),
        reason: format!("unknown key `{key}`"),
        hint: Some(suggest::hint(key, known)),
    }
}

fn wrong_type(path: &str, expected: &str, value: &Value) -> Error {
    let got = match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => format!("`{value}`"),
        Value::Number(number) => format!("`{number}`"),
        Value::String(text) => format!("the string `{}`", text.escape_debug()),
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(_) => "an object".to_owned(),
    };
    invalid(path, &format!("expected {expected}, got {got}"))
}
