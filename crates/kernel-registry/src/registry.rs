//! The registry: settings, and the calls that everything else goes through.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use kernel_spec::index::RepositoryEntry;
use kernel_spec::lockfile::LOCKFILE_NAME;
use kernel_spec::{Index, KernelRef, Lockfile, RepositoryId, System};
use url::Url;

use crate::cache::{Cache, is_absent};
use crate::embedded;
use crate::environment::{Environment, Token, parse_endpoint};
use crate::error::{Error, Result};
use crate::events::{Event, EventSink, Events};
use crate::hub::{Hub, HubOptions, RetryPolicy};
use crate::install::InstalledKernel;
use crate::resolved::{Resolved, Trust};
use crate::signature::SignaturePolicy;
use crate::system::{self, python::PythonEnvironment};

/// Finds kernels and brings them to this machine. Cheap to clone; every call may block.
///
/// ```
/// use kernel_registry::Registry;
///
/// let folder = tempfile::tempdir()?;
/// let registry = Registry::builder().cache_dir(folder.path()).offline(true).build()?;
/// let missing = registry.resolve(&"kernels-test/relu@v1".parse()?).unwrap_err();
/// assert_eq!(missing.kind(), "untrusted");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

struct Inner {
    settings: Settings,
    events: Events,
    system: OnceLock<System>,
    lock: OnceLock<Option<Lockfile>>,
    hub: OnceLock<Hub>,
    runtime: OnceLock<tokio::runtime::Runtime>,
    publishers: Mutex<BTreeMap<String, PublisherAnswer>>,
}

/// What the Hub said of an owner in this process; locked while it is asked.
pub(crate) type PublisherAnswer = Arc<tokio::sync::Mutex<Option<Trust>>>;

/// What a registry was told.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) cache: Cache,
    pub(crate) endpoint: Url,
    token: Option<Token>,
    read_timeout: Option<Duration>,
    retry: RetryPolicy,
    /// No request leaves this machine.
    pub(crate) offline: bool,
    /// Commits come from the lock only.
    pub(crate) locked: bool,
    pub(crate) lockfile: PathBuf,
    pub(crate) allowed: BTreeSet<RepositoryId>,
    pub(crate) require_signed: bool,
    pub(crate) signatures: SignaturePolicy,
    pub(crate) local_kernels: BTreeMap<RepositoryId, PathBuf>,
}

/// Options of a [`Registry`]. What is not set comes from the environment variables.
#[derive(Default)]
#[must_use]
pub struct RegistryBuilder {
    cache_dir: Option<PathBuf>,
    endpoint: Option<String>,
    token: Option<String>,
    offline: Option<bool>,
    locked: bool,
    frozen: bool,
    lockfile: Option<PathBuf>,
    trust: BTreeSet<RepositoryId>,
    require_signed: bool,
    signatures: SignaturePolicy,
    local_kernels: BTreeMap<RepositoryId, PathBuf>,
    system: Option<System>,
    retry: RetryPolicy,
    events: Events,
}

impl RegistryBuilder {
    /// Root of the cache, instead of KERNELS_CACHE and its alternatives.
    pub fn cache_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.cache_dir = Some(path.into());
        self
    }

    /// Address of the Hub, instead of HF_ENDPOINT.
    pub fn endpoint(mut self, address: impl Into<String>) -> Self {
        self.endpoint = Some(address.into());
        self
    }

    /// Token for the Hub, instead of HF_TOKEN and its alternatives. It is sent to the Hub only.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Whether to do without any network, instead of HF_HUB_OFFLINE.
    pub fn offline(mut self, offline: bool) -> Self {
        self.offline = Some(offline);
        self
    }

    /// Whether commits come from `kernels.lock` only; what it does not lock is an error.
    pub fn locked(mut self, locked: bool) -> Self {
        self.locked = locked;
        self
    }

    /// As locked, and without a look at the Hub.
    pub fn frozen(mut self, frozen: bool) -> Self {
        self.frozen = frozen;
        self
    }

    /// The lock, instead of `kernels.lock` in the current folder.
    pub fn lockfile(mut self, path: impl Into<PathBuf>) -> Self {
        self.lockfile = Some(path.into());
        self
    }

    /// Repositories whose code may run whatever the Hub says of their publishers.
    pub fn trust(mut self, repositories: impl IntoIterator<Item = RepositoryId>) -> Self {
        self.trust.extend(repositories);
        self
    }

    /// Whether to refuse kernels without a signature that holds.
    pub fn require_signed(mut self, require: bool) -> Self {
        self.require_signed = require;
        self
    }

    /// Whose signatures count, instead of those of the kernels community on GitHub.
    pub fn signature_policy(mut self, policy: SignaturePolicy) -> Self {
        self.signatures = policy;
        self
    }

    /// Folders that take the place of repositories, before those of LOCAL_KERNELS.
    pub fn local_kernels(
        mut self,
        kernels: impl IntoIterator<Item = (RepositoryId, PathBuf)>,
    ) -> Self {
        self.local_kernels.extend(kernels);
        self
    }

    /// The machine to resolve for, instead of this one.
    pub fn system(mut self, system: System) -> Self {
        self.system = Some(system);
        self
    }

    /// Attempts for a request that may pass, and the pause after the first one, which doubles each
    /// time. Five attempts and half a second where this is not called.
    pub fn retries(mut self, attempts: u32, delay: Duration) -> Self {
        self.retry = RetryPolicy {
            attempts: attempts.max(1),
            delay,
            ..self.retry
        };
        self
    }

    /// Receives what the registry tells while it works.
    pub fn progress(mut self, sink: EventSink) -> Self {
        self.events = Events(Some(sink));
        self
    }

    /// Reads the environment and puts everything together. Touches no network.
    pub fn build(self) -> Result<Registry> {
        let environment = Environment::of_process()?;
        let token = match &self.token {
            Some(text) => Token::new(text, "token")?,
            None => environment.token,
        };
        let endpoint = match &self.endpoint {
            Some(text) => parse_endpoint(text, "endpoint")?,
            None => environment.endpoint,
        };
        let mut local_kernels = environment.local_kernels;
        local_kernels.extend(self.local_kernels);
        let settings = Settings {
            cache: Cache::new(self.cache_dir.unwrap_or(environment.cache))
                .with_copies(environment.copies),
            endpoint,
            token,
            read_timeout: environment.read_timeout,
            retry: self.retry,
            offline: self.offline.unwrap_or(environment.offline) || self.frozen,
            locked: self.locked || self.frozen,
            lockfile: self
                .lockfile
                .unwrap_or_else(|| PathBuf::from(LOCKFILE_NAME)),
            allowed: self.trust,
            require_signed: self.require_signed,
            signatures: self.signatures,
            local_kernels,
        };
        Ok(Registry(Arc::new(Inner {
            settings,
            events: self.events,
            system: self.system.map(OnceLock::from).unwrap_or_default(),
            lock: OnceLock::new(),
            hub: OnceLock::new(),
            runtime: OnceLock::new(),
            publishers: Mutex::default(),
        })))
    }
}

impl Registry {
    /// Options for a new registry.
    pub fn builder() -> RegistryBuilder {
        RegistryBuilder::default()
    }

    /// The cache.
    pub fn cache(&self) -> &Cache {
        &self.0.settings.cache
    }

    /// The index that is part of the program.
    pub fn index(&self) -> Result<&'static Index> {
        embedded::index()
    }

    /// One repository's entry of the index; none where the index does not know it.
    ///
    /// Reads that entry alone, which is what resolving a kernel needs.
    pub fn index_entry(&self, repository: &RepositoryId) -> Result<Option<RepositoryEntry>> {
        embedded::entry(repository)
    }

    /// The machine that kernels are resolved for: the one given, or this one.
    pub fn system(&self) -> &System {
        self.0
            .system
            .get_or_init(|| system::detect(PythonEnvironment::find().as_ref()))
    }

    /// Resolves a reference, and the kernels that it needs, for [`Registry::system`].
    pub fn resolve(&self, reference: &KernelRef) -> Result<Resolved> {
        self.resolve_for(reference, self.system())
    }

    /// Resolves a reference, and the kernels that it needs, for a machine.
    pub fn resolve_for(&self, reference: &KernelRef, system: &System) -> Result<Resolved> {
        self.block_on(self.resolve_tree(reference, system))
    }

    /// Resolves several references at the same time, for [`Registry::system`]: each with its own
    /// outcome, in the order they were given.
    pub fn resolve_all(&self, references: &[KernelRef]) -> Vec<Result<Resolved>> {
        let system = self.system();
        let all = references
            .iter()
            .map(|reference| self.resolve_tree(reference, system));
        let all = self.block_on(async { Ok(join_all(all).await) });
        // What cannot be set up once could not be set up for each of them.
        all.unwrap_or_else(|error| vec![Err(error)])
    }

    /// Brings a resolved kernel, and those that it needs, to this machine.
    pub fn install(&self, resolved: &Resolved) -> Result<InstalledKernel> {
        self.block_on(self.install_tree(resolved))
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.0.settings
    }

    pub(crate) fn events(&self) -> &Events {
        &self.0.events
    }

    /// The Hub, set up when it is first needed: without it, a warm call takes a few milliseconds.
    pub(crate) fn hub(&self) -> Result<&Hub> {
        let settings = &self.0.settings;
        if let Some(hub) = self.0.hub.get() {
            return Ok(hub);
        }
        let hub = Hub::new(HubOptions {
            endpoint: settings.endpoint.clone(),
            token: settings.token.clone(),
            read_timeout: settings.read_timeout,
            retry: settings.retry,
            events: self.0.events.clone(),
        })?;
        Ok(self.0.hub.get_or_init(|| hub))
    }

    /// The Hub's answer on an owner, to be filled in by the first who needs it.
    pub(crate) fn publisher_answer(&self, owner: &str) -> PublisherAnswer {
        let publishers = self.0.publishers.lock();
        let mut publishers = publishers.unwrap_or_else(PoisonError::into_inner);
        publishers.entry(owner.to_owned()).or_default().clone()
    }

    /// The lock, where the registry is to follow one.
    pub(crate) fn lock(&self) -> Result<Option<&Lockfile>> {
        if let Some(lock) = self.0.lock.get() {
            return Ok(lock.as_ref());
        }
        let settings = &self.0.settings;
        let lock = if settings.locked {
            Some(
                read_lockfile(&settings.lockfile)?.ok_or_else(|| Error::LockMissing {
                    path: settings.lockfile.clone(),
                })?,
            )
        } else {
            None
        };
        Ok(self.0.lock.get_or_init(|| lock).as_ref())
    }

    /// Runs asynchronous work to its end. Within somebody else's runtime, where blocking is not
    /// allowed, it runs on a thread of its own.
    pub(crate) fn block_on<T: Send>(
        &self,
        work: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let runtime = self.runtime()?;
        if tokio::runtime::Handle::try_current().is_err() {
            return runtime.block_on(work);
        }
        std::thread::scope(
            |scope| match scope.spawn(|| runtime.block_on(work)).join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            },
        )
    }

    fn runtime(&self) -> Result<&tokio::runtime::Runtime> {
        if let Some(runtime) = self.0.runtime.get() {
            return Ok(runtime);
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::Setting {
                name: "runtime".to_owned(),
                reason: format!("asynchronous work cannot be set up: {error}"),
            })?;
        Ok(self.0.runtime.get_or_init(|| runtime))
    }
}

/// Reads a lock; none where there is no file.
pub fn read_lockfile(path: &Path) -> Result<Option<Lockfile>> {
    match fs::read(path) {
        Ok(bytes) => Lockfile::from_slice(&bytes)
            .map(Some)
            .map_err(Error::format(format!("`{}`", path.display()))),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(Error::io("read", path)(error)),
    }
}

/// Prints warnings and notes of a registry to a closure; everything else is dropped.
pub fn messages(sink: impl Fn(String) + Send + Sync + 'static) -> EventSink {
    Arc::new(move |event| {
        if let Event::Note(text) | Event::Warning(text) = event {
            sink(text);
        }
    })
}
