//! One HTML page that needs nothing else: no network, no script, no font file.
//!
//! The charts are SVG inside the page, so it can be mailed, attached to a CI run whose viewer allows
//! no scripts, and printed. Each chart says in words what it shows, and a table has its figures.

mod charts;
mod palette;
mod view;

use minijinja::{AutoEscape, Environment};

use super::Named;
use super::compare::Change;
use super::gate::Gate;

pub use charts::ChartError;

/// The page could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// A chart.
    #[error(transparent)]
    Chart(#[from] ChartError),
    /// The page's frame.
    #[error("cannot fill the page: {0}")]
    Template(#[from] minijinja::Error),
}

/// The page of some records, what changed between them, and what the gate says.
///
/// # Errors
/// [`PageError`], which no record is known to cause.
pub fn page(
    records: &[Named],
    changes: &[Change],
    gate: Option<&Gate>,
) -> Result<String, PageError> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.add_template("page", include_str!("page.html"))?;
    let page = view::Page::new(records, changes, gate)?;
    Ok(environment
        .get_template("page")?
        .render(minijinja::context! {
            page => minijinja::value::Value::from(minijinja::value::Serde(&page)),
            style => include_str!("style.css").to_owned() + &palette::style(),
        })?)
}
