//! Records for people: a table for a terminal, one HTML page, comparisons of several records, and a
//! gate for CI.

pub mod compare;
pub mod gate;
pub mod html;
pub mod text;

mod units;

use std::path::Path;

use crate::record::{ReadError, Record};

pub use units::{format_count, format_ratio, format_seconds};

/// A record with the name that tables and charts show.
#[derive(Debug, Clone, PartialEq)]
pub struct Named {
    /// The file's name without its folder, or with it where two files have the same.
    pub name: String,
    /// What it holds.
    pub record: Record,
}

impl Named {
    /// Reads files and names them.
    ///
    /// # Errors
    /// [`ReadError`] of the first file that is no record.
    pub fn read_all(paths: &[impl AsRef<Path>]) -> Result<Vec<Self>, ReadError> {
        let short = |path: &Path| {
            path.file_name().map_or_else(
                || path.display().to_string(),
                |name| name.to_string_lossy().into_owned(),
            )
        };
        paths
            .iter()
            .map(|path| {
                let path = path.as_ref();
                let name = short(path);
                let alone = paths
                    .iter()
                    .filter(|other| short(other.as_ref()) == name)
                    .count()
                    == 1;
                Ok(Self {
                    name: if alone {
                        name
                    } else {
                        path.display().to_string()
                    },
                    record: Record::read(path)?,
                })
            })
            .collect()
    }
}
