//! Trees of kernels: what a kernel needs, what that needs, and so on.
//!
//! A kernel that several others need is resolved once. A circle, and two states of one repository in
//! one tree, are errors: the first could never be loaded, and of the second a kernel would get one
//! or the other by chance.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::future::try_join_all;
use kernel_spec::{CommitId, Dependency, KernelRef, RepositoryId, Requirement, Selector, System};

use crate::error::{Error, Result};
use crate::registry::Registry;
use crate::resolved::Resolved;

type Nodes = BTreeMap<Dependency, Resolved>;

impl Registry {
    /// Resolves a kernel and all that it needs. The kernels of one level are resolved at once.
    pub(crate) async fn resolve_tree(
        &self,
        reference: &KernelRef,
        system: &System,
    ) -> Result<Resolved> {
        let mut root = self.resolve_one(reference, system).await?;
        let mut nodes = Nodes::new();
        let mut level: BTreeSet<Dependency> = needs(&root).cloned().collect();
        while !level.is_empty() {
            let found = try_join_all(level.iter().map(|dependency| async move {
                let reference = dependency.to_kernel_ref();
                Ok::<_, Error>((
                    dependency.clone(),
                    self.resolve_one(&reference, system).await?,
                ))
            }))
            .await?;
            nodes.extend(found);
            level = nodes.values().flat_map(needs).cloned().collect();
            level.retain(|dependency| !nodes.contains_key(dependency));
        }
        check_circles(&root, &nodes)?;
        check_conflicts(&root, &nodes)?;
        let mut done = BTreeMap::new();
        root.dependencies = needs(&root)
            .filter_map(|dependency| link(dependency, &nodes, &mut done))
            .collect();
        Ok(root)
    }
}

fn needs(kernel: &Resolved) -> impl Iterator<Item = &Dependency> {
    kernel.metadata.kernel_depends.iter()
}

/// The node of a dependency with its own dependencies, each made once. There are no circles.
fn link(
    dependency: &Dependency,
    nodes: &Nodes,
    done: &mut BTreeMap<Dependency, Arc<Resolved>>,
) -> Option<Arc<Resolved>> {
    if let Some(kernel) = done.get(dependency) {
        return Some(Arc::clone(kernel));
    }
    let mut kernel = nodes.get(dependency)?.clone();
    let below: Vec<_> = needs(&kernel)
        .filter_map(|need| link(need, nodes, done))
        .collect();
    kernel.dependencies = below;
    let kernel = Arc::new(kernel);
    done.insert(dependency.clone(), Arc::clone(&kernel));
    Some(kernel)
}

/// Looks for a kernel that needs itself.
fn check_circles(root: &Resolved, nodes: &Nodes) -> Result<()> {
    let mut finished = BTreeSet::new();
    let mut path: Vec<Dependency> = as_dependency(root).into_iter().collect();
    for dependency in needs(root) {
        visit(dependency, nodes, &mut path, &mut finished)?;
    }
    Ok(())
}

fn visit(
    dependency: &Dependency,
    nodes: &Nodes,
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
    for need in nodes.get(dependency).into_iter().flat_map(needs) {
        visit(need, nodes, path, finished)?;
    }
    path.pop();
    finished.insert(dependency.clone());
    Ok(())
}

/// The root as a dependency would name it.
fn as_dependency(root: &Resolved) -> Option<Dependency> {
    let repository = root.repository.clone()?;
    let requirement = match (&root.reference.source, root.version) {
        (
            kernel_spec::KernelSource::Hub {
                selector: Selector::Revision(revision),
                ..
            },
            _,
        ) => Requirement::Revision(revision.clone()),
        (_, Some(version)) => Requirement::Version(version),
        _ => return None,
    };
    Some(Dependency {
        repository,
        requirement,
    })
}

/// Looks for two states of one repository. Two names of one commit are one state.
fn check_conflicts(root: &Resolved, nodes: &Nodes) -> Result<()> {
    let mut seen: BTreeMap<RepositoryId, (Option<CommitId>, String)> = BTreeMap::new();
    let all = nodes
        .iter()
        .map(|(dependency, kernel)| (dependency.to_string(), kernel))
        .chain([(root.reference.to_string(), root)]);
    for (name, kernel) in all {
        let Some(repository) = &kernel.repository else {
            continue;
        };
        let state = (kernel.commit.clone(), name);
        match seen.get(repository) {
            Some((commit, first)) if *commit != state.0 => {
                return Err(Error::DependencyConflict {
                    repository: repository.clone(),
                    first: format!("`{first}`"),
                    second: format!("`{}`", state.1),
                });
            }
            Some(_) => {}
            None => drop(seen.insert(repository.clone(), state)),
        }
    }
    Ok(())
}
