//! Looking at a kernel without fetching it: its builds, and its versions.

use kernel_spec::index::Origin as IndexOrigin;
use kernel_spec::variant::{self, Resolution};
use kernel_spec::{CommitId, KernelRef, KernelSource, RepositoryId, Selector, System};

use crate::error::{Error, Result};
use crate::local;
use crate::registry::Registry;
use crate::resolved::Origin;

/// The builds of a kernel, and which of them fit.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Builds {
    /// Its commit; none for a folder.
    pub commit: Option<CommitId>,
    /// Its version, where one is known.
    pub version: Option<u64>,
    /// What became of each build.
    pub resolution: Resolution,
    /// Where this was learnt.
    pub origin: Origin,
}

/// A version of a kernel, and its builds.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct VersionBuilds {
    /// The version.
    pub version: u64,
    /// The commit of its branch.
    pub commit: CommitId,
    /// What became of each build; none where its branch has no `build` folder.
    pub resolution: Option<Resolution>,
}

impl Registry {
    /// Every build of a kernel with the reason for which it fits or not. Lists only: no code is
    /// fetched, so that no trust is needed.
    pub fn builds(&self, reference: &KernelRef, system: &System) -> Result<Builds> {
        match &reference.source {
            KernelSource::Path(path) => {
                if !path.is_dir() {
                    let reason = "there is no such folder".to_owned();
                    return Err(Error::LocalKernel {
                        path: path.clone(),
                        reason,
                    });
                }
                let mut merged = Resolution::default();
                for (_, found) in local::builds(path, system)? {
                    merged.accepted.extend(found.accepted);
                    merged.rejected.extend(found.rejected);
                    merged.unparsable.extend(found.unparsable);
                }
                let origin = Origin::Local;
                Ok(Builds {
                    commit: None,
                    version: None,
                    resolution: merged,
                    origin,
                })
            }
            KernelSource::Hub {
                repository,
                selector,
            } => {
                let versions = self.block_on(self.survey(repository, selector, system))?;
                let found = versions
                    .iter()
                    .find(|(_, found)| found.as_ref().is_some_and(|found| found.best().is_some()))
                    .or_else(|| versions.first());
                let Some((state, resolution)) = found else {
                    return Err(Error::NoVersions {
                        repository: repository.clone(),
                    });
                };
                let resolution = resolution.clone().ok_or_else(|| Error::NoBuilds {
                    repository: repository.clone(),
                    revision: selector
                        .revision()
                        .unwrap_or_else(|| state.commit.to_string()),
                })?;
                Ok(Builds {
                    commit: Some(state.commit.clone()),
                    version: state.version,
                    resolution,
                    origin: state.origin,
                })
            }
        }
    }

    /// Every version of a repository, ascending, with what its builds are worth on a machine.
    pub fn versions(
        &self,
        repository: &RepositoryId,
        system: &System,
    ) -> Result<Vec<VersionBuilds>> {
        let mut versions = self.block_on(self.survey(repository, &Selector::Newest, system))?;
        if versions.is_empty() {
            return Err(Error::NoVersions {
                repository: repository.clone(),
            });
        }
        versions.reverse();
        Ok(versions
            .into_iter()
            .filter_map(|(state, resolution)| {
                Some(VersionBuilds {
                    version: state.version?,
                    commit: state.commit,
                    resolution,
                })
            })
            .collect())
    }

    /// The states that a selector can mean, newest first, with their builds.
    async fn survey(
        &self,
        repository: &RepositoryId,
        selector: &Selector,
        system: &System,
    ) -> Result<Vec<(State, Option<Resolution>)>> {
        let mut found = Vec::new();
        for state in self.states(repository, selector).await? {
            let names: Option<Vec<String>> = match state.origin {
                Origin::Index => self
                    .index_entry(repository)?
                    .as_ref()
                    .and_then(|entry| entry.version(&Selector::Revision(state.commit.to_string())))
                    .map(|version| version.digests.keys().cloned().collect()),
                Origin::Cache => {
                    let listing = self.cache().listing(repository, &state.commit)?;
                    let listed =
                        listing.map(|listing| listing.variants.into_keys().collect::<Vec<_>>());
                    let here = match listed {
                        Some(listed) => listed,
                        None => self.cache().variants(repository, &state.commit)?,
                    };
                    (!here.is_empty()).then_some(here)
                }
                _ => self
                    .listing(repository, &state.commit)
                    .await?
                    .map(|listing| listing.variants.into_keys().collect()),
            };
            found.push((state, names.map(|names| variant::resolve(system, names))));
        }
        Ok(found)
    }

    async fn states(&self, repository: &RepositoryId, selector: &Selector) -> Result<Vec<State>> {
        if let Some(entry) = self.index_entry(repository)?
            && entry.origin == IndexOrigin::Embedded
        {
            let all = entry.versions.iter();
            let mut versions: Vec<_> = all.map(|entry| (entry.version, &entry.commit)).collect();
            versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
            return pick(repository, selector, &versions, Origin::Index);
        }
        if let Selector::Revision(revision) = selector {
            let commit = if CommitId::is_commit_id(revision) {
                Some(revision.parse()?)
            } else if self.settings().offline {
                self.cache().reference(repository, revision)?
            } else {
                Some(self.hub()?.commit(repository, revision).await?)
            };
            let origin = if self.settings().offline {
                Origin::Cache
            } else {
                Origin::Hub
            };
            return match commit {
                Some(commit) => Ok(vec![State {
                    version: None,
                    commit,
                    origin,
                }]),
                None => Err(self.unknown(repository, selector)),
            };
        }
        let (versions, origin) = if self.settings().offline {
            (self.cache().versions(repository)?, Origin::Cache)
        } else {
            (
                self.hub()?.references(repository).await?.versions(),
                Origin::Hub,
            )
        };
        if origin == Origin::Cache && versions.is_empty() {
            return Err(self.unknown(repository, selector));
        }
        let newest_first = versions
            .iter()
            .rev()
            .map(|(version, commit)| (*version, commit));
        pick(
            repository,
            selector,
            &newest_first.collect::<Vec<_>>(),
            origin,
        )
    }

    fn unknown(&self, repository: &RepositoryId, selector: &Selector) -> Error {
        Error::NotCached {
            kernel: KernelRef::hub(repository.clone(), selector.clone()).to_string(),
            cache: self.cache().root().to_owned(),
            missing: None,
        }
    }
}

/// One commit of a repository.
struct State {
    version: Option<u64>,
    commit: CommitId,
    origin: Origin,
}

fn pick(
    repository: &RepositoryId,
    selector: &Selector,
    versions: &[(u64, &CommitId)],
    origin: Origin,
) -> Result<Vec<State>> {
    let wanted = |version: u64, commit: &CommitId| match selector {
        Selector::Version(number) => *number == version,
        Selector::Revision(revision) => commit.as_str().eq_ignore_ascii_case(revision),
        Selector::Newest => true,
    };
    let found: Vec<_> = versions
        .iter()
        .filter(|(version, commit)| wanted(*version, commit))
        .map(|(version, commit)| State {
            version: Some(*version),
            commit: (*commit).clone(),
            origin,
        })
        .collect();
    match selector {
        Selector::Version(version) if found.is_empty() => Err(Error::VersionNotFound {
            repository: repository.clone(),
            version: *version,
            available: versions.iter().rev().map(|(version, _)| *version).collect(),
        }),
        Selector::Revision(revision) if found.is_empty() => Err(Error::RevisionNotFound {
            repository: repository.clone(),
            revision: revision.clone(),
        }),
        _ => Ok(found),
    }
}
