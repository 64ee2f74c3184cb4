//! Kernels in folders on this machine.

use std::path::{Path, PathBuf};

use kernel_spec::path::METADATA_FILE;
use kernel_spec::variant::{self, Resolution, Variant};
use kernel_spec::{KernelRef, RepositoryId, System};

use crate::cache::names;
use crate::error::{Error, Result};
use crate::registry::Registry;
use crate::resolve::Purpose;
use crate::resolved::{Documents, Location, Origin, Resolved, Trust};
use crate::signature::Subject;
use crate::system::in_words;

/// A build in a local kernel's folder.
#[derive(Debug)]
pub(crate) struct LocalBuild {
    /// The build's folder.
    pub(crate) folder: PathBuf,
    /// Its name.
    pub(crate) variant: String,
    /// What became of all builds; empty where the folder is itself one build.
    pub(crate) trace: Resolution,
}

/// The builds in a local kernel's folder: what is in it, then what is in its `build`. Directly in
/// the folder, only what holds metadata counts, because `torch-ext` is a folder of sources whose
/// name reads like a build.
pub(crate) fn builds(path: &Path, system: &System) -> Result<Vec<(PathBuf, Resolution)>> {
    let mut found = Vec::new();
    let direct = names(path)?
        .into_iter()
        .filter(|name| name.parse::<Variant>().is_ok())
        .filter(|name| path.join(name).join(METADATA_FILE).is_file())
        .collect::<Vec<_>>();
    if !direct.is_empty() {
        found.push((path.to_owned(), variant::resolve(system, direct)));
    }
    let folder = path.join("build");
    let built: Vec<_> = names(&folder)?
        .into_iter()
        .filter(|name| folder.join(name).is_dir())
        .collect();
    if !built.is_empty() {
        found.push((folder, variant::resolve(system, built)));
    }
    if found.is_empty() && !path.join(METADATA_FILE).is_file() {
        // Builds without metadata can be judged by their names, though none can be loaded.
        let bare: Vec<_> = names(path)?
            .into_iter()
            .filter(|name| name.parse::<Variant>().is_ok() && path.join(name).is_dir())
            .collect();
        if !bare.is_empty() {
            found.push((path.to_owned(), variant::resolve(system, bare)));
        }
    }
    Ok(found)
}

/// Chooses the build of a local kernel.
pub(crate) fn choose(path: &Path, system: &System) -> Result<LocalBuild> {
    let refuse = |reason: &str| {
        Err(Error::LocalKernel {
            path: path.to_owned(),
            reason: reason.to_owned(),
        })
    };
    if !path.exists() {
        return refuse("there is no such folder");
    }
    if !path.is_dir() {
        return refuse("it is not a folder");
    }
    let found = builds(path, system)?;
    for (folder, trace) in &found {
        if let Some(best) = trace.best() {
            return Ok(LocalBuild {
                folder: folder.join(&best.name),
                variant: best.name.clone(),
                trace: trace.clone(),
            });
        }
    }
    if path.join(METADATA_FILE).is_file() {
        let full = std::path::absolute(path).map_err(Error::io("find", path))?;
        let variant = full
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        return Ok(LocalBuild {
            folder: path.to_owned(),
            variant,
            trace: Resolution::default(),
        });
    }
    if found.is_empty() {
        return refuse("it holds no builds");
    }
    let trace: Vec<_> = found.iter().map(|(_, trace)| trace.trace_text()).collect();
    Err(Error::NoVariant {
        kernel: path.display().to_string(),
        machine: in_words(system),
        trace: trace.join("\n"),
        suggestion: None,
    })
}

impl Registry {
    /// Resolves a folder, which stands for a repository where it overrides one.
    pub(crate) fn local(
        &self,
        reference: &KernelRef,
        path: &Path,
        repository: Option<&RepositoryId>,
        system: &System,
        purpose: Purpose,
    ) -> Result<Resolved> {
        let build = choose(path, system)?;
        let name = reference.to_string();
        let file = build.folder.join(METADATA_FILE);
        let bytes = match std::fs::read(&file) {
            Err(error) if crate::cache::is_absent(&error) => {
                return Err(Error::MetadataMissing {
                    kernel: name,
                    variant: build.variant,
                });
            }
            other => other.map_err(Error::io("read", &file))?,
        };
        let documents = Documents::in_folder(bytes, &build.folder)?;
        let subject = Subject {
            repository,
            version: None,
            variant: &build.variant,
        };
        let (metadata, signature) =
            self.check_documents(&name, &documents, subject, Trust::Local, purpose)?;
        Ok(Resolved {
            reference: reference.clone(),
            repository: repository.cloned(),
            version: None,
            commit: None,
            variant: build.variant,
            metadata: metadata.into(),
            trust: Trust::Local,
            signature,
            trace: build.trace,
            origin: Origin::Local,
            dependencies: Vec::new(),
            documents,
            location: Location::Folder(build.folder),
            revision: None,
        })
    }
}
