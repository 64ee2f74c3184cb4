//! `cache`: where the shared cache is, what it holds, and removing some of it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use kernel_registry::cache::{CacheUsage, Removal};
use kernel_spec::RepositoryId;
use serde::Serialize;

use super::Context;
use crate::failure::Failure;
use crate::output::{Output, bytes, table};

/// The cache is shared with the Python libraries. Only kernels are looked at; models and data sets
/// in the same folder stay as they are.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Print the cache's folder
    Dir,
    /// Print how much space kernels take
    Size,
    /// Remove what no kernel uses: replaced contents, interrupted downloads
    Prune,
    /// Remove kernels: those named, or all
    Clean {
        /// Repositories
        #[arg(value_name = "ORG/NAME")]
        repositories: Vec<String>,
    },
}

#[derive(Serialize)]
struct Folder {
    path: PathBuf,
}

#[derive(Serialize)]
struct Size {
    path: PathBuf,
    bytes: u64,
    repositories: Vec<Repository>,
}

#[derive(Serialize)]
struct Repository {
    repo: String,
    bytes: u64,
    references: BTreeMap<String, String>,
    snapshots: Vec<Snapshot>,
}

#[derive(Serialize)]
struct Snapshot {
    commit: String,
    variants: Vec<String>,
}

#[derive(Serialize)]
struct Removed {
    files: u64,
    bytes: u64,
}

pub(crate) fn run(arguments: &Arguments, context: &Context<'_>) -> Result<ExitCode, Failure> {
    let output = context.output;
    let registry = context.shared.registry(output)?;
    let cache = registry.cache();
    let path = cache.root().to_owned();
    match &arguments.action {
        Action::Dir if output.json => output.json(&Folder { path })?,
        Action::Dir => output.line(path.display().to_string())?,
        Action::Size => size(path, cache.usage()?, output)?,
        Action::Prune => removed(cache.prune()?, output)?,
        Action::Clean { repositories } => {
            let parsed: Result<Vec<RepositoryId>, _> =
                repositories.iter().map(|text| text.parse()).collect();
            let only = parsed.map_err(|error| Failure::from(error).wrong_call())?;
            removed(cache.clean(&only)?, output)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn size(path: PathBuf, usage: CacheUsage, output: &Output) -> Result<(), Failure> {
    let total = usage.bytes();
    if !output.json {
        let rows = usage
            .repositories
            .iter()
            .map(|repository| [bytes(repository.bytes), repository.repository.to_string()]);
        let total = [bytes(total), "in all".to_owned()];
        return output.data(table(["size", "kernel"], rows.chain([total])));
    }
    let repositories = usage.repositories.into_iter().map(|repository| Repository {
        repo: repository.repository.to_string(),
        bytes: repository.bytes,
        references: repository
            .references
            .into_iter()
            .map(|(name, commit)| (name, commit.to_string()))
            .collect(),
        snapshots: repository
            .snapshots
            .into_iter()
            .map(|snapshot| Snapshot {
                commit: snapshot.commit.to_string(),
                variants: snapshot.variants,
            })
            .collect(),
    });
    output.json(&Size {
        path,
        bytes: total,
        repositories: repositories.collect(),
    })
}

fn removed(removal: Removal, output: &Output) -> Result<(), Failure> {
    let Removal { files, bytes: size } = removal;
    if output.json {
        return output.json(&Removed { files, bytes: size });
    }
    output.line(format!("removed {files} files, {}", bytes(size)))
}
