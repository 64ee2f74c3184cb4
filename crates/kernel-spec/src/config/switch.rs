//! The variables that turn kernels off, with the meaning that the Python libraries give them.

use crate::error::{Error, Result};

/// Of `kernels`: keep every default op.
const DISABLE: &str = "DISABLE_KERNEL_MAPPING";
/// Of transformers: whether to use kernels of the Hub at all.
const USE: &str = "USE_HUB_KERNELS";

/// Why there are to be no kernels at all; none where the config is to speak. `variable` reads the
/// environment.
///
/// ```
/// use kernel_spec::config::switched_off;
///
/// let reason = switched_off(|name| (name == "USE_HUB_KERNELS").then(|| "0".to_owned()))?;
/// assert_eq!(reason.as_deref(), Some("USE_HUB_KERNELS is off"));
/// assert_eq!(switched_off(|_| None)?, None);
/// # Ok::<(), kernel_spec::Error>(())
/// ```
pub fn switched_off(variable: impl Fn(&str) -> Option<String>) -> Result<Option<String>> {
    let read = |name: &str| match variable(name) {
        Some(value) => truth(name, &value),
        None => Ok(None),
    };
    let (disable, use_kernels) = (read(DISABLE)?, read(USE)?);
    Ok(if disable == Some(true) {
        Some(format!("{DISABLE} is set"))
    } else if use_kernels == Some(false) {
        Some(format!("{USE} is off"))
    } else {
        None
    })
}

/// Numbers and words for yes and no; an empty text is as good as none.
fn truth(name: &str, value: &str) -> Result<Option<bool>> {
    let value = value.trim();
    if let Ok(number) = value.parse::<i64>() {
        return Ok(Some(number != 0));
    }
    match value.to_ascii_lowercase().as_str() {
        "" => Ok(None),
        "true" | "yes" | "on" => Ok(Some(true)),
        "false" | "no" | "off" => Ok(Some(false)),
        _ => Err(Error::Config {
            path: name.to_owned(),
            reason: format!("`{value}` is neither a number nor yes or no"),
            hint: Some(format!("set {name} to 0 or 1, or leave it out")),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &'static str) -> Result<Option<String>> {
        switched_off(|asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn peer_fault_11_words_and_numbers_turn_kernels_off() {
        for (name, value) in [(DISABLE, "1"), (DISABLE, "true"), (USE, "0"), (USE, "off")] {
            let reason = with(name, value).unwrap().unwrap();
            assert!(reason.contains(name), "{reason}");
        }
        for (name, value) in [(DISABLE, "0"), (DISABLE, ""), (USE, "1"), (USE, "YES")] {
            assert_eq!(with(name, value), Ok(None));
        }
        for name in [DISABLE, USE] {
            let error = with(name, "maybe").unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("maybe"), "{error}");
        }
    }
}
