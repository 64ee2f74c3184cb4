//! Whether a publisher's kernels may run, and remembering the Hub's answer.
//!
//! The Hub lists organisations whose kernels it trusts. Its yes is kept beside the cache, so that
//! kernels that were fetched run without a network, and so that not every call asks again. A no is
//! never kept: it may have changed, and asking again does no harm.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use kernel_spec::RepositoryId;
use serde::{Deserialize, Serialize};
use url::Url;

use crate::cache::{Cache, write_atomically};
use crate::error::{Distrust, Error, Result};
use crate::registry::Registry;
use crate::resolved::Trust;

/// How long an answer is taken without asking again, while the Hub can be asked.
const FRESH: Duration = Duration::from_secs(24 * 60 * 60);
const FORMAT: u32 = 1;

/// The Hub's answers that were yes.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Remembered {
    format: u32,
    /// Seconds since 1970 of the last yes, by endpoint and organisation.
    publishers: BTreeMap<String, BTreeMap<String, u64>>,
}

/// The file that holds them.
#[derive(Debug)]
struct TrustMemory {
    path: PathBuf,
    endpoint: String,
}

impl TrustMemory {
    fn new(cache: &Cache, endpoint: &Url) -> Self {
        Self {
            path: cache.own_folder().join("trust.json"),
            endpoint: endpoint.to_string(),
        }
    }

    /// What is remembered. A file that cannot be read or understood says nothing.
    fn read(&self) -> Remembered {
        fs::read(&self.path)
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .filter(|remembered: &Remembered| remembered.format == FORMAT)
            .unwrap_or_default()
    }

    /// The age of the last yes for an organisation.
    fn age(&self, owner: &str) -> Option<Duration> {
        let remembered = self.read();
        let seconds = *remembered.publishers.get(&self.endpoint)?.get(owner)?;
        let then = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))?;
        // A time in the future, after a change of the clock, counts as old.
        Some(
            SystemTime::now()
                .duration_since(then)
                .unwrap_or(Duration::MAX),
        )
    }

    fn remember(&self, owner: &str, trusted: bool) -> Result<()> {
        let mut remembered = self.read();
        let owners = remembered
            .publishers
            .entry(self.endpoint.clone())
            .or_default();
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let changed = if trusted {
            owners.insert(owner.to_owned(), now.as_secs());
            true
        } else {
            owners.remove(owner).is_some()
        };
        if !changed {
            return Ok(());
        }
        remembered.format = FORMAT;
        // A map of strings and numbers cannot fail to serialise.
        write_atomically(
            &self.path,
            &serde_json::to_vec_pretty(&remembered).unwrap_or_default(),
        )
    }
}

impl Registry {
    /// Decides whether a repository's code may run here. Nothing of it has been fetched yet.
    pub(crate) async fn trust(&self, repository: &RepositoryId) -> Result<Trust> {
        let settings = self.settings();
        if settings.allowed.contains(repository) {
            return Ok(Trust::Allowed);
        }
        let memory = TrustMemory::new(&settings.cache, &settings.endpoint);
        // Kernels of one owner that are resolved at the same time ask once.
        let asked = self.publisher_answer(repository.owner());
        let mut asked = asked.lock().await;
        if let Some(trust) = *asked {
            return Ok(trust);
        }
        let age = memory.age(repository.owner());
        let refuse = |reason| {
            Err(Error::Untrusted {
                repository: repository.clone(),
                reason,
            })
        };
        if settings.offline {
            return match age {
                Some(_) => Ok(Trust::Remembered),
                None => refuse(Distrust::NotRemembered),
            };
        }
        if age.is_some_and(|age| age < FRESH) {
            return Ok(Trust::Remembered);
        }
        match self.hub()?.publisher(repository.owner()).await? {
            None => {
                keep(&memory, repository.owner(), true);
                *asked = Some(Trust::Publisher);
                Ok(Trust::Publisher)
            }
            Some(Distrust::Unreachable(context)) if age.is_some() => {
                self.events().warn(format!(
                    "the Hub could not be asked about `{}` ({context}); its earlier answer is used",
                    repository.owner()
                ));
                Ok(Trust::Remembered)
            }
            Some(reason) => {
                if !matches!(reason, Distrust::Unreachable(_)) {
                    keep(&memory, repository.owner(), false);
                }
                refuse(reason)
            }
        }
    }
}

/// A memory that cannot be written costs a request next time, no more.
fn keep(memory: &TrustMemory, owner: &str, trusted: bool) {
    if let Err(error) = memory.remember(owner, trusted) {
        tracing::debug!(%error, "cannot remember the Hub's answer on `{owner}`");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_yes_is_remembered_for_its_endpoint_and_a_no_takes_it_back() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path());
        let memory = TrustMemory::new(&cache, &Url::parse("http://one/").unwrap());
        assert_eq!(memory.age("org"), None);
        memory.remember("org", false).unwrap();
        assert!(!memory.path.exists());
        memory.remember("org", true).unwrap();
        assert!(memory.age("org").unwrap() < FRESH);
        let other = TrustMemory::new(&cache, &Url::parse("http://two/").unwrap());
        assert_eq!(other.age("org"), None);
        memory.remember("org", false).unwrap();
        assert_eq!(memory.age("org"), None);
    }

    #[test]
    fn a_damaged_memory_says_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let memory = TrustMemory::new(
            &Cache::new(folder.path()),
            &Url::parse("http://one/").unwrap(),
        );
        fs::create_dir_all(memory.path.parent().unwrap()).unwrap();
        fs::write(&memory.path, "{").unwrap();
        assert_eq!(memory.age("org"), None);
    }
}
