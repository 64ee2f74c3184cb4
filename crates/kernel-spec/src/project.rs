//! The kernels that a Python project declares: `[tool.kernels.dependencies]` of `pyproject.toml`.

use serde::Deserialize;

use crate::dependency::{Dependency, Requirement};
use crate::error::{Error, Result};
use crate::repository::RepositoryId;
use crate::status::toml_error;

/// Name of the file in a project's directory.
pub const PROJECT_FILE: &str = "pyproject.toml";

/// Reads the declared kernels, in the order of the file's keys. Each is a repository id with a major
/// version: `"org/name" = 1`.
///
/// ```
/// let text = "[tool.kernels.dependencies]\n\"kernels-test/relu\" = 1\n";
/// let dependencies = kernel_spec::project::dependencies(text)?;
/// assert_eq!(dependencies[0].to_string(), "kernels-test/relu@v1");
/// # Ok::<(), kernel_spec::Error>(())
/// ```
pub fn dependencies(text: &str) -> Result<Vec<Dependency>> {
    #[derive(Deserialize)]
    struct Project {
        tool: Option<Tool>,
    }
    #[derive(Deserialize)]
    struct Tool {
        kernels: Option<Kernels>,
    }
    #[derive(Deserialize)]
    struct Kernels {
        dependencies: Option<toml::Table>,
    }

    let invalid = |field: String, reason: String| Error::Document {
        document: PROJECT_FILE.to_owned(),
        field,
        reason,
        line: 0,
        column: 0,
    };
    let project: Project =
        toml::from_str(text).map_err(|error| toml_error(PROJECT_FILE, text, &error))?;
    let table = project
        .tool
        .and_then(|tool| tool.kernels)
        .and_then(|kernels| kernels.dependencies)
        .ok_or_else(|| {
            invalid(
                "tool.kernels.dependencies".to_owned(),
                "there is no such section, so there is nothing to lock".to_owned(),
            )
        })?;
    table
        .into_iter()
        .map(|(key, value)| {
            let field = format!("tool.kernels.dependencies.\"{key}\"");
            let repository: RepositoryId = key
                .parse()
                .map_err(|error: Error| invalid(field.clone(), error.to_string()))?;
            let version = match &value {
                toml::Value::Integer(number) => u64::try_from(*number).ok(),
                _ => None,
            }
            .ok_or_else(|| {
                invalid(
                    field,
                    format!("expected a major version such as `1`, got `{value}`"),
                )
            })?;
            Ok(Dependency {
                repository,
                requirement: Requirement::Version(version),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_fault_33_wrong_declarations_name_the_key() {
        for (value, shown) in [
            ("\"1\"", "\"1\""),
            ("true", "true"),
            ("-1", "-1"),
            ("1.0", "1.0"),
            ("{}", "{}"),
        ] {
            let text = format!("[tool.kernels.dependencies]\n\"a/b\" = {value}\n");
            let error = dependencies(&text).unwrap_err().to_string();
            assert!(
                error.contains("`tool.kernels.dependencies.\"a/b\"`"),
                "{error}"
            );
            assert!(error.contains(shown), "{error}");
        }
    }

    #[test]
    fn a_missing_section_is_told_from_an_empty_one() {
        for text in ["", "[tool]", "[tool.kernels]", "[project]\nname = \"x\""] {
            let error = dependencies(text).unwrap_err().to_string();
            assert!(error.contains("no such section"), "{error}");
        }
        assert_eq!(dependencies("[tool.kernels.dependencies]"), Ok(Vec::new()));
        assert!(dependencies("[tool.kernels.dependencies]\nx = 1").is_err());
        assert!(
            dependencies("[tool")
                .unwrap_err()
                .to_string()
                .contains("line 1")
        );
    }
}
