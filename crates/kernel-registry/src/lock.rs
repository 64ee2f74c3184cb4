//! Writing `kernels.lock`.
//!
//! The result is what the Python `kernels lock` writes for the same needs: every needed kernel with
//! the commit of its branch, and what the metadata of *all* its builds needs, so that one lock serves
//! machines of every kind.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::try_join_all;
use kernel_spec::{CommitId, Dependency, KernelRef, Lockfile, Requirement, Selector};

use crate::embedded;
use crate::error::{Error, Result};
use crate::registry::Registry;

/// The commit of one kernel, and what its builds need.
struct Locked {
    commit: CommitId,
    needs: BTreeSet<Dependency>,
}

impl Registry {
    /// Locks kernels, and all that they need, to the commits that their branches have now.
    pub fn write_lock(&self, roots: &[Dependency]) -> Result<Lockfile> {
        self.block_on(self.lock_all(roots))
    }

    async fn lock_all(&self, roots: &[Dependency]) -> Result<Lockfile> {
        let mut nodes: BTreeMap<Dependency, Locked> = BTreeMap::new();
        let mut level: BTreeSet<Dependency> = roots.iter().cloned().collect();
        while !level.is_empty() {
            let found = try_join_all(level.iter().map(|dependency| async move {
                Ok::<_, Error>((dependency.clone(), self.lock_one(dependency).await?))
            }))
            .await?;
            nodes.extend(found);
            level = nodes
                .values()
                .flat_map(|node| node.needs.iter().cloned())
                .collect();
            level.retain(|dependency| !nodes.contains_key(dependency));
        }
        let mut finished = BTreeSet::new();
        for root in roots {
            check_circle(root, &nodes, &mut Vec::new(), &mut finished)?;
        }
        Ok(nodes
            .into_iter()
            .map(|(dependency, node)| (dependency, node.commit))
            .collect())
    }

    async fn lock_one(&self, dependency: &Dependency) -> Result<Locked> {
        let repository = &dependency.repository;
        if let Some(locked) = self.lock_embedded(dependency)? {
            return Ok(locked);
        }
        if self.settings().offline {
            return Err(Error::Setting {
                name: "--offline".to_owned(),
                reason: format!("only the Hub can say which commit `{dependency}` has now"),
            });
        }
        self.trust(repository).await?;
        let commit = match &dependency.requirement {
            Requirement::Version(version) => {
                let mut versions = self.hub()?.references(repository).await?.versions();
                versions
                    .remove(version)
                    .ok_or_else(|| Error::VersionNotFound {
                        repository: repository.clone(),
                        version: *version,
                        available: versions.into_keys().collect(),
                    })?
            }
            Requirement::Revision(revision) if CommitId::is_commit_id(revision) => {
                revision.parse()?
            }
            Requirement::Revision(revision) => self.hub()?.commit(repository, revision).await?,
        };
        let listing = self
            .listing(repository, &commit)
            .await?
            .ok_or_else(|| Error::NoBuilds {
                repository: repository.clone(),
                revision: dependency.to_string(),
            })?;
        let with_metadata = listing
            .variants
            .iter()
            .filter(|(_, files)| files.metadata().is_some());
        let commit = &commit;
        let all = try_join_all(with_metadata.map(|(variant, files)| async move {
            let bytes = self
                .fetch_metadata(repository, commit, variant, files)
                .await?;
            let metadata = self.check_metadata(&dependency.to_string(), &bytes)?;
            Ok::<_, Error>(metadata.kernel_depends)
        }))
        .await?;
        Ok(Locked {
            commit: commit.clone(),
            needs: all.into_iter().flatten().collect(),
        })
    }

    /// The lock of a kernel that is inside the program.
    fn lock_embedded(&self, dependency: &Dependency) -> Result<Option<Locked>> {
        let repository = &dependency.repository;
        let Some(entry) = self.index_entry(repository)? else {
            return Ok(None);
        };
        let selector = match &dependency.requirement {
            Requirement::Version(version) => Selector::Version(*version),
            Requirement::Revision(revision) => Selector::Revision(revision.clone()),
        };
        let Some(version) = entry.version(&selector) else {
            return Ok(None);
        };
        let builds = embedded::builds(repository, version);
        if builds.is_empty() {
            return Ok(None);
        }
        let mut needs = BTreeSet::new();
        for build in builds {
            let bytes = build.metadata().unwrap_or_default();
            let metadata = self.check_metadata(&dependency.to_string(), bytes)?;
            needs.extend(metadata.kernel_depends);
        }
        Ok(Some(Locked {
            commit: version.commit.clone(),
            needs,
        }))
    }

    /// What a reference asks to be locked. The newest version is locked as the version it is now.
    pub fn dependency_of(&self, reference: &KernelRef) -> Result<Option<Dependency>> {
        let kernel_spec::KernelSource::Hub {
            repository,
            selector,
        } = &reference.source
        else {
            return Ok(None);
        };
        let requirement = match selector {
            Selector::Version(version) => Requirement::Version(*version),
            Selector::Revision(revision) => Requirement::Revision(revision.clone()),
            Selector::Newest => match self.resolve(reference)?.version {
                Some(version) => Requirement::Version(version),
                None => return Ok(None),
            },
        };
        Ok(Some(Dependency {
            repository: repository.clone(),
            requirement,
        }))
    }
}

fn check_circle(
    dependency: &Dependency,
    nodes: &BTreeMap<Dependency, Locked>,
    path: &mut Vec<Dependency>,
    finished: &mut BTreeSet<Dependency>,
) -> Result<()> {
    if let Some(start) = path.iter().position(|step| step == dependency) {
        let mut circle = path.split_off(start);
        circle.push(dependency.clone());
        return Err(Error::DependencyCycle { path: circle });
    }
    if finished.contains(dependency) {
        return Ok(());
    }
    path.push(dependency.clone());
    for need in nodes
        .get(dependency)
        .into_iter()
        .flat_map(|node| &node.needs)
    {
        check_circle(need, nodes, path, finished)?;
    }
    path.pop();
    finished.insert(dependency.clone());
    Ok(())
}
