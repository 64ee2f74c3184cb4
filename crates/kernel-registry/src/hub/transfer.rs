//! Brings one file from the Hub into the cache.
//!
//! A file is written under a unique temporary name, resumed where the connection broke, and gets its
//! name when its size and hash are those of the Hub's tree. Whatever the server answers, nothing
//! else is stored.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kernel_spec::{CommitId, RepositoryId};
use reqwest::StatusCode;
use reqwest::header::{CONTENT_RANGE, ETAG, HeaderMap};
use url::Url;

use super::http::{Ask, failed_request};
use super::retry::Failed;
use super::{Hub, retrying};
use crate::blob::{BlobHasher, BlobId};
use crate::cache::{Cache, names, unique_name};
use crate::error::{Error, RequestContext, Result};
use crate::events::{Event, Events};

/// End of the names of files that are being written, as `huggingface_hub` has it.
const INCOMPLETE: &str = ".incomplete";
/// Time for a transfer whatever its size.
const SHORTEST_TIMEOUT: Duration = Duration::from_secs(120);
/// The slowest connection that a time-out allows for, in bytes a second.
const SLOWEST: u64 = 16 * 1024;
/// Files of this size and above are on the disk before they get their name.
const SYNCED: u64 = 1 << 20;
/// Pause between two looks at a lock.
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// Time after which waiting for a lock is said, and then said again.
const LOCK_MESSAGE: Duration = Duration::from_secs(5);

/// One file to bring.
#[derive(Debug, Clone)]
pub(crate) struct Download<'a> {
    pub(crate) repository: &'a RepositoryId,
    pub(crate) commit: &'a CommitId,
    /// Name relative to the repository's root.
    pub(crate) path: String,
    /// What it must be.
    pub(crate) blob: BlobId,
}

impl Hub {
    /// Makes sure that a file's blob is in the cache.
    pub(crate) async fn download(&self, cache: &Cache, file: &Download<'_>) -> Result<()> {
        let target = cache.blob(file.repository, &file.blob);
        let folder = target.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        let lock = lock(&cache.lock(file.repository, &file.blob), &self.events).await?;
        // Another process may have brought it while this one waited.
        if file
            .blob
            .matches_file(&target)
            .map_err(Error::io("read", &target))?
        {
            self.events.send(Event::DownloadAdvanced {
                bytes: file.blob.size(),
            });
            return Ok(());
        }
        let temporary = folder.join(unique_name(file.blob.id(), INCOMPLETE));
        // Without a lock, what is incomplete may be what another process is just writing.
        if lock.is_some() {
            adopt_incomplete(folder, &file.blob, &temporary)?;
        }
        let url = self.file_address(file)?;
        let brought = retrying(&self.retry, &self.events, || {
            self.attempt(&url, file, &temporary)
        })
        .await;
        let placed = brought
            .and_then(|()| fs::rename(&temporary, &target).map_err(Error::io("write", &target)));
        if placed.as_ref().is_err_and(|error| !is_resumable(error)) {
            let _ = fs::remove_file(&temporary);
        }
        placed.map_err(|error| self.about(error, file.repository, Some(file.commit.as_str())))
    }

    fn file_address(&self, file: &Download<'_>) -> Result<Url> {
        let start = [
            "kernels",
            file.repository.owner(),
            file.repository.name(),
            "resolve",
            file.commit.as_str(),
        ];
        self.address(start.into_iter().chain(file.path.split('/')))
    }

    /// One attempt: continues the temporary file, and checks it when it is complete.
    async fn attempt(
        &self,
        url: &Url,
        file: &Download<'_>,
        temporary: &Path,
    ) -> Result<(), Failed> {
        let mut writer = Writer::open(temporary, &file.blob)?;
        if writer.written < file.blob.size() || file.blob.size() == 0 {
            self.receive(url, file, &mut writer).await?;
        }
        let size = file.blob.size();
        if writer.written < size {
            let context = RequestContext::new(url);
            let reason = format!("it ended after {} of {size} bytes", writer.written);
            return Err(Failed::Again {
                error: Error::Unreachable { context, reason },
                after: None,
            });
        }
        let got = writer.finish()?;
        if got == file.blob.id() {
            return Ok(());
        }
        // Continuing from wrong bytes cannot end well: the next attempt starts anew.
        fs::remove_file(temporary).map_err(Error::io("remove", temporary))?;
        self.events.send(Event::DownloadSetBack { bytes: size });
        Err(Failed::Again {
            error: Error::Corrupt {
                repository: file.repository.clone(),
                path: file.path.clone(),
                reason: format!("expected content {}, got {got}", file.blob.id()),
            },
            after: None,
        })
    }

    async fn receive(
        &self,
        url: &Url,
        file: &Download<'_>,
        writer: &mut Writer,
    ) -> Result<(), Failed> {
        let ask = Ask {
            elsewhere: true,
            from: writer.written,
            timeout: SHORTEST_TIMEOUT + Duration::from_secs(file.blob.size() / SLOWEST),
        };
        let hub = self.endpoint.origin();
        let _slot = self.slots.acquire().await;
        let mut answer = self
            .get(url, ask, |from, headers| {
                if from.origin() == hub {
                    check_headers(from, headers, file)
                } else {
                    Ok(())
                }
            })
            .await?;
        let context = RequestContext::new(url);
        if !continues(answer.status(), answer.headers(), writer.written) {
            self.events.send(Event::DownloadSetBack {
                bytes: writer.written,
            });
            writer.restart()?;
            if answer.status() != StatusCode::OK {
                let reason = "it does not continue where the last answer ended".to_owned();
                let error = Error::BadAnswer { context, reason };
                return Err(Failed::Again {
                    error,
                    after: Some(Duration::ZERO),
                });
            }
        }
        // A whole answer of another length, such as an error page that claims to be content, is not a
        // connection that broke.
        let expected = file.blob.size() - writer.written;
        if let Some(length) = answer.content_length().filter(|length| *length < expected) {
            return Err(Failed::Again {
                error: Error::Corrupt {
                    repository: file.repository.clone(),
                    path: file.path.clone(),
                    reason: format!("the answer has {length} bytes instead of {expected}"),
                },
                after: None,
            });
        }
        while let Some(piece) = answer
            .chunk()
            .await
            .map_err(|error| failed_request(&error, context.clone()))?
        {
            if writer.written + piece.len() as u64 > file.blob.size() {
                return Err(Failed::Fatal(Error::Corrupt {
                    repository: file.repository.clone(),
                    path: file.path.clone(),
                    reason: format!("it is longer than {} bytes", file.blob.size()),
                }));
            }
            writer.write(&piece)?;
            self.events.send(Event::DownloadAdvanced {
                bytes: piece.len() as u64,
            });
        }
        Ok(())
    }
}

/// Whether an incomplete file is worth keeping for the next run.
fn is_resumable(error: &Error) -> bool {
    matches!(error, Error::Unreachable { .. })
        || matches!(error, Error::Http(context) if context.status.is_some_and(|status| status >= 429))
}

/// Whether an answer continues at `from`; from zero, a whole answer does.
fn continues(status: StatusCode, headers: &HeaderMap, from: u64) -> bool {
    match status {
        StatusCode::OK => from == 0,
        StatusCode::PARTIAL_CONTENT => headers
            .get(CONTENT_RANGE)
            .and_then(|value| value.to_str().ok())
            .is_some_and(|range| range.starts_with(&format!("bytes {from}-"))),
        _ => false,
    }
}

/// Compares what the Hub says of a file with what its tree said. Only the Hub's own answers count;
/// storage elsewhere has ETags of its own.
fn check_headers(url: &Url, headers: &HeaderMap, file: &Download<'_>) -> Result<(), Error> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bad = |reason: String| Error::BadAnswer {
        context: RequestContext::new(url),
        reason,
    };
    if let Some(commit) = text("x-repo-commit")
        && !commit.eq_ignore_ascii_case(file.commit.as_str())
    {
        return Err(bad(format!("it is of commit `{}`", commit.escape_debug())));
    }
    // Of an answer without the linked id, the ETag counts only where it is the file's own.
    let tag = text("x-linked-etag").or_else(|| text("x-repo-commit").and(text(ETAG.as_str())));
    if let Some(tag) = tag {
        let tag = tag.trim_start_matches("W/").trim_matches('"');
        if tag != file.blob.id() {
            return Err(bad(format!(
                "its ETag `{}` is not that of the tree",
                tag.escape_debug()
            )));
        }
    }
    Ok(())
}

/// The temporary file, with the hash of what it holds.
struct Writer {
    path: PathBuf,
    file: File,
    hasher: BlobHasher,
    blob: BlobId,
    written: u64,
}

impl Writer {
    /// Opens a temporary file and hashes what an earlier attempt left in it.
    fn open(path: &Path, blob: &BlobId) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(Error::io("write", path))?;
        let mut writer = Self {
            path: path.to_owned(),
            file,
            hasher: blob.hasher(),
            blob: blob.clone(),
            written: 0,
        };
        writer.hash_present().map_err(Error::io("read", path))?;
        if writer.written > blob.size() {
            writer.restart()?;
        }
        Ok(writer)
    }

    fn hash_present(&mut self) -> io::Result<()> {
        let mut piece = vec![0; 64 * 1024];
        loop {
            match self.file.read(&mut piece)? {
                0 => return Ok(()),
                count => {
                    self.hasher.update(&piece[..count]);
                    self.written += count as u64;
                }
            }
        }
    }

    fn restart(&mut self) -> Result<()> {
        self.hasher = self.blob.hasher();
        self.written = 0;
        self.file
            .set_len(0)
            .and_then(|()| self.file.seek(SeekFrom::Start(0)))
            .map(drop)
            .map_err(Error::io("write", &self.path))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all(bytes)
            .map_err(Error::io("write", &self.path))?;
        self.hasher.update(bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }

    fn finish(self) -> Result<String> {
        // Some file systems report a full disk only now. Waiting for the disk for each of many small
        // files takes longer than bringing them, and what is read later is checked then.
        if self.blob.size() >= SYNCED {
            self.file
                .sync_data()
                .map_err(Error::io("write", &self.path))?;
        }
        Ok(self.hasher.finish())
    }
}

/// Continues what a process that is gone left of the same blob. The blob's lock is held, so nobody
/// else is writing it.
fn adopt_incomplete(folder: &Path, blob: &BlobId, temporary: &Path) -> Result<()> {
    let start = format!("{}.", blob.id());
    for name in names(folder)? {
        if name.starts_with(&start)
            && name.ends_with(INCOMPLETE)
            && fs::rename(folder.join(&name), temporary).is_ok()
        {
            break;
        }
    }
    Ok(())
}

/// Locks a file, waiting as long as another process holds it. Where the file system has no locks,
/// the work goes on without: temporary names and the content check keep it safe, only not unique.
async fn lock(path: &Path, events: &Events) -> Result<Option<File>> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(Error::io("write", path))?;
    let start = Instant::now();
    let mut message = LOCK_MESSAGE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(_)) => return Ok(None),
        }
        let waited = start.elapsed();
        if waited >= message {
            events.send(Event::WaitingForLock {
                path: path.to_owned(),
                waited,
            });
            message += LOCK_MESSAGE;
        }
        tokio::time::sleep(LOCK_PAUSE).await;
    }
}
