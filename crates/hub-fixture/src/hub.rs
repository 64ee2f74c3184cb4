//! The server as tests see it.

use std::path::Path;
use std::sync::Arc;

use crate::directory;
use crate::error::{Error, Result};
use crate::fault::Fault;
use crate::kernel::KernelTree;
use crate::log::LoggedRequest;
use crate::routes::Site;
use crate::server::{Server, Shared, State};
use crate::store::{Store, Trust};

/// Entries on a page of a tree, as on the Hub.
const PAGE_SIZE: usize = 1000;

/// A Hub that runs until it is dropped.
#[derive(Debug)]
pub struct Hub {
    shared: Arc<Shared>,
    _server: Server,
}

/// Collects what a [`Hub`] will serve.
#[derive(Debug, Default)]
pub struct HubBuilder {
    owners: Vec<(String, Trust)>,
    kernels: Vec<KernelTree>,
    directories: Vec<(std::path::PathBuf, Trust)>,
    tokens: Vec<String>,
    page_size: Option<usize>,
    resolve_cache: bool,
}

impl HubBuilder {
    /// Adds an owner of repositories. Owners of added kernels that are not added themselves are
    /// organisations that are not trusted.
    #[must_use]
    pub fn organization(mut self, name: impl Into<String>, trust: Trust) -> Self {
        self.owners.push((name.into(), trust));
        self
    }

    /// Adds a repository.
    #[must_use]
    pub fn kernel(mut self, tree: KernelTree) -> Self {
        self.kernels.push(tree);
        self
    }

    /// Adds several repositories.
    #[must_use]
    pub fn kernels(mut self, trees: impl IntoIterator<Item = KernelTree>) -> Self {
        self.kernels.extend(trees);
        self
    }

    /// Adds every repository of a directory, `<owner>/<name>/<branch>/<files>`, where `%2F` stands
    /// for a slash in a branch's name. Names that start with a dot are left out.
    #[must_use]
    pub fn directory(mut self, directory: impl AsRef<Path>, trust: Trust) -> Self {
        self.directories
            .push((directory.as_ref().to_owned(), trust));
        self
    }

    /// Adds a token that may read private and gated repositories. Once there is one, other tokens
    /// are refused; without any, every token is let through as an unknown user's.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.tokens.push(token.into());
        self
    }

    /// Sets how many entries a page of a tree holds, 1000 unless set.
    #[must_use]
    pub const fn page_size(mut self, entries: usize) -> Self {
        self.page_size = Some(entries);
        self
    }

    /// Serves files that are kept in git through a relative redirect, as the real Hub does.
    #[must_use]
    pub const fn resolve_cache(mut self) -> Self {
        self.resolve_cache = true;
        self
    }

    /// Starts serving.
    pub fn start(self) -> Result<Hub> {
        let mut store = Store::default();
        let mut kernels = self.kernels;
        let mut owners = self.owners;
        for (path, trust) in self.directories {
            let (found, trees) = directory::read(&path)?;
            owners.extend(found.into_iter().map(|owner| (owner, trust)));
            kernels.extend(trees);
        }
        for tree in &kernels {
            store.put(tree)?;
            let owner = tree.repository_id()?.owner().to_owned();
            store.owners.entry(owner).or_insert(Trust::Untrusted);
        }
        store.owners.extend(owners);
        store.tokens.extend(self.tokens);

        let listener = Server::listen().map_err(Error::Listen)?;
        let port = listener.local_addr().map_err(Error::Listen)?.port();
        let shared = Arc::new(Shared {
            site: Site {
                endpoint: format!("http://127.0.0.1:{port}"),
                storage: format!("http://localhost:{port}"),
                page_size: self.page_size.unwrap_or(PAGE_SIZE).max(1),
                resolve_cache: self.resolve_cache,
            },
            state: std::sync::Mutex::new(State {
                store,
                ..State::default()
            }),
        });
        let server = Server::start(listener, Arc::clone(&shared)).map_err(Error::Listen)?;
        Ok(Hub {
            shared,
            _server: server,
        })
    }
}

impl Hub {
    /// Starts with nothing.
    pub fn builder() -> HubBuilder {
        HubBuilder::default()
    }

    /// Serves every tree of [`samples`](crate::samples); `kernels-test` is trusted, `someone` not.
    pub fn with_samples() -> Result<Self> {
        Self::builder()
            .organization("kernels-test", Trust::Trusted)
            .kernels(crate::samples::all())
            .start()
    }

    /// Address of the server, what `HF_ENDPOINT` takes.
    pub fn endpoint(&self) -> &str {
        &self.shared.site.endpoint
    }

    /// Address that large files are redirected to: another origin, the same server.
    pub fn storage_endpoint(&self) -> &str {
        &self.shared.site.storage
    }

    /// The commit that a branch, tag or commit of a repository is at.
    pub fn commit(&self, repository: &str, revision: &str) -> Option<String> {
        let snapshot = self.shared.state().store.snapshot(repository, revision)?;
        Some(snapshot.commit.clone())
    }

    /// Puts a repository in, or replaces its present state; earlier commits stay reachable.
    pub fn put(&self, tree: &KernelTree) -> Result<()> {
        self.shared.state().store.put(tree)
    }

    /// Takes a repository away.
    pub fn remove(&self, repository: &str) {
        self.shared.state().store.repositories.remove(repository);
    }

    /// Changes what is said of an owner.
    pub fn set_trust(&self, owner: impl Into<String>, trust: Trust) {
        self.shared.state().store.owners.insert(owner.into(), trust);
    }

    /// Makes requests fail from now on. Of several faults the first that matches applies.
    pub fn inject(&self, fault: Fault) {
        self.shared.state().faults.push(fault);
    }

    /// Ends all faults.
    pub fn clear_faults(&self) {
        self.shared.state().faults.clear();
    }

    /// Every request so far, in the order of the answers.
    pub fn requests(&self) -> Vec<LoggedRequest> {
        self.shared.state().log.clone()
    }

    /// The lines of every request so far, `METHOD /path?query`.
    pub fn request_lines(&self) -> Vec<String> {
        self.shared
            .state()
            .log
            .iter()
            .map(LoggedRequest::line)
            .collect()
    }

    /// Forgets the requests so far.
    pub fn clear_requests(&self) {
        self.shared.state().log.clear();
    }
}
