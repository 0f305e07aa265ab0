//! Downloads files of one commit into the cache: several in parallel, each under a lock and each resumable.

use super::cache::RepoFolder;
use super::client::{Client, FetchError, Remote, header};
use super::partial::{PIECE_BYTES, Partial, is_sound};
use super::retry::Retry;
use crate::cli::terminal::output::{bar_style, note};
use crate::cli::terminal::progress::{Lines, Phase, Unit};
use anyhow::{Context as _, Result, bail};
use indicatif::{BinaryBytes, MultiProgress, ProgressBar, ProgressDrawTarget};
use std::io::{ErrorKind, Read};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use ureq::Body;
use ureq::http::Response;

/// Parallel downloads, as many as Python's client has.
const FILES_AT_ONCE: usize = 8;

/// One commit of a repository, and the folder for its files.
pub(super) struct Download<'a> {
    pub(super) client: &'a Client,
    pub(super) folder: &'a RepoFolder,
    pub(super) repo: &'a str,
    pub(super) commit: &'a str,
    /// Compare what the cache has with the hub's hashes, and download again what differs.
    pub(super) verifies: bool,
}

/// Position where the bytes of a response begin.
enum Start {
    /// At the requested byte.
    Here,
    /// At the file's beginning.
    Beginning,
    /// The file's size differs from the expected one.
    Other(u64),
}

impl Download<'_> {
    /// Downloads those of `names` that are missing, or damaged if they are to be verified.
    pub(super) fn fetch(&self, names: &[String]) -> Result<()> {
        let mut wanted = Vec::new();
        for name in names {
            if self.folder.file(self.commit, name)?.is_none() || self.verifies {
                wanted.push(name.as_str());
            }
        }
        let asking = self.client.asking(self.repo);
        let mut remotes = in_parallel(&wanted, |name, _| {
            Ok(self.client.remote(self.repo, self.commit, name)?)
        })?;
        drop(asking);
        if self.verifies {
            remotes = self.damaged(&remotes)?;
        }
        let (known, new): (Vec<_>, Vec<_>) =
            remotes.iter().partition(|remote| self.has_blob(remote));
        for remote in known {
            self.folder.link(self.commit, &remote.name, &remote.hash)?;
        }
        if new.is_empty() {
            return Ok(());
        }
        let bytes: u64 = new.iter().map(|remote| remote.size).sum();
        let files = if new.len() == 1 {
            new[0].name.clone()
        } else {
            format!("{} files", new.len())
        };
        note(format_args!(
            "{}: downloading {files}, {}",
            self.repo,
            BinaryBytes(bytes)
        ));
        let bars = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
        let new: Vec<(&Remote, Arc<AtomicU64>)> = new
            .into_iter()
            .map(|remote| (remote, Arc::default()))
            .collect();
        let lines = bars.is_hidden().then(|| {
            let received: Vec<_> = new.iter().map(|(_, received)| received.clone()).collect();
            Lines::start(
                format!("downloading {}", self.repo),
                Unit::Bytes,
                move || {
                    let received = received
                        .iter()
                        .map(|received| received.load(Ordering::Relaxed));
                    Some((received.sum(), bytes))
                },
            )
        });
        let outcome = in_parallel(&new, |(remote, received), stop| {
            self.fetch_one(remote, &bars, received, stop)
        });
        drop(lines);
        let _ = bars.clear();
        outcome.map(|_| ())
    }

    /// Those files that are missing or damaged. All others are read.
    fn damaged(&self, remotes: &[Remote]) -> Result<Vec<Remote>> {
        let phase = Phase::start("checking files", Unit::Bytes);
        let (read, all) = (
            AtomicU64::new(0),
            remotes.iter().map(|remote| remote.size).sum(),
        );
        let told = |bytes| phase.update(read.fetch_add(bytes, Ordering::Relaxed) + bytes, all);
        Ok(in_parallel(remotes, |remote: &Remote, _: &AtomicBool| {
            let is_intact = self.is_intact(remote, &told, &phase)?;
            Ok((!is_intact).then(|| remote.clone()))
        })?
        .into_iter()
        .flatten()
        .collect())
    }

    /// Whether a file is in the snapshot, with the contents that the hub tells. If it is damaged, it is removed with a
    /// message. `told` gets the bytes of each piece that was read.
    fn is_intact(&self, remote: &Remote, told: &dyn Fn(u64), phase: &Phase) -> Result<bool> {
        let linked = self.folder.file(self.commit, &remote.name)?.is_some();
        let blob = self.folder.blob(&remote.hash);
        // Where links are not allowed, the snapshot holds the contents itself.
        let path = if linked && !blob.exists() {
            self.folder.snapshot(self.commit).join(&remote.name)
        } else {
            blob
        };
        let Ok(found) = std::fs::symlink_metadata(&path) else {
            return Ok(false);
        };
        if found.is_file() && is_sound(&path, remote, told)? {
            return Ok(linked);
        }
        let (repo, name) = (self.repo, &remote.name);
        phase.note(format_args!(
            "{repo}: {name} is damaged in the local cache: downloading it again"
        ));
        match std::fs::remove_file(&path) {
            // Another process has repaired or removed it.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            outcome => outcome
                .map(|()| false)
                .with_context(|| path.display().to_string()),
        }
    }

    fn has_blob(&self, remote: &Remote) -> bool {
        // Does not follow links: a blob is a regular file.
        std::fs::symlink_metadata(self.folder.blob(&remote.hash))
            .is_ok_and(|found| found.is_file() && found.len() == remote.size)
    }

    /// `received` is told the bytes that are there.
    fn fetch_one(
        &self,
        remote: &Remote,
        bars: &MultiProgress,
        received: &AtomicU64,
        stop: &AtomicBool,
    ) -> Result<()> {
        let bar = bars.add(ProgressBar::new(remote.size));
        bar.set_style(bar_style(
            "{msg} {bar:24} {bytes}/{total_bytes} {binary_bytes_per_sec}, {eta} left",
        ));
        bar.set_message(remote.name.clone());
        let mut lock = fd_lock::RwLock::new(self.folder.lock_file(&remote.hash)?);
        if lock.try_write().is_err() {
            let text = format!("{} (another process is downloading it)", remote.name);
            if bar.is_hidden() {
                note(format_args!("{}: waiting for {text}", self.repo));
            }
            bar.set_message(text);
        }
        // If another process held the lock, the file is now complete.
        let guard = lock
            .write()
            .with_context(|| format!("{}: cannot lock the file", remote.name))?;
        if !self.has_blob(remote) {
            let mut partial = Partial::open(self.folder.incomplete(&remote.hash)?, remote)?;
            let told = |bytes| {
                bar.set_position(bytes);
                received.store(bytes, Ordering::Relaxed);
            };
            self.receive(remote, &mut partial, &told, stop)?;
            partial.finish(&self.folder.blob(&remote.hash))?;
        }
        self.folder.link(self.commit, &remote.name, &remote.hash)?;
        drop(guard);
        bar.finish_and_clear();
        Ok(())
    }

    /// Receives what is missing, in as many requests as the retries allow.
    fn receive(
        &self,
        remote: &Remote,
        partial: &mut Partial<'_>,
        told: &dyn Fn(u64),
        stop: &AtomicBool,
    ) -> Result<()> {
        let mut retry = Retry::default();
        while !partial.is_long_enough() {
            told(partial.bytes());
            let answer =
                self.client
                    .bytes(self.repo, self.commit, &remote.name, partial.bytes())?;
            match start_of(&answer, partial.bytes(), remote.size) {
                Start::Here => {}
                Start::Beginning => partial.restart()?,
                Start::Other(bytes) => {
                    let why = format!("size mismatch: got {bytes} bytes, expected {}", remote.size);
                    return partial.discard(&why);
                }
            }
            let before = partial.bytes();
            let cut = copy(answer, partial, told, stop)?;
            if partial.bytes() > before {
                retry.reset();
            }
            if !partial.is_long_enough() && !retry.wait(None) {
                let (name, bytes, size) = (&remote.name, partial.bytes(), remote.size);
                let message = format!(
                    "{name}: the connection keeps failing, {bytes} of {size} bytes are downloaded"
                );
                bail!(FetchError::Unreachable(format!(
                    "{message} ({cut}); run the command again to resume"
                )));
            }
        }
        Ok(())
    }
}

/// Position where the bytes of a response begin.
fn start_of(answer: &Response<Body>, start: u64, size: u64) -> Start {
    let headers = answer.headers();
    if answer.status() == 206 {
        // `bytes 100-199/200`
        let range =
            header(headers, "content-range").and_then(|range| range.trim().strip_prefix("bytes "));
        let total = range.and_then(|range| number(range.split_once('/')?.1));
        let first = range.and_then(|range| number(range.split('-').next()?));
        return match (first, total) {
            (_, Some(total)) if total != size => Start::Other(total),
            (Some(first), _) if first == start => Start::Here,
            // If this is wrong, the hash check fails later.
            _ => Start::Beginning,
        };
    }
    match header(headers, "content-length").and_then(number) {
        Some(total) if answer.status() == 200 && total != size => Start::Other(total),
        _ => Start::Beginning,
    }
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse::<u64>().ok()
}

/// Copies until the response ends, and says how it ended.
fn copy(
    answer: Response<Body>,
    partial: &mut Partial<'_>,
    told: &dyn Fn(u64),
    stop: &AtomicBool,
) -> Result<String> {
    if !answer.status().is_success() {
        return Ok("the hub has no bytes at this position".to_owned());
    }
    let mut reader = answer.into_body().into_reader();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        if stop.load(Ordering::Relaxed) {
            bail!("the download of another file failed");
        }
        match reader.read(&mut piece) {
            Ok(0) => return Ok("the response ended early".to_owned()),
            Ok(count) => {
                partial.add(&piece[..count])?;
                told(partial.bytes());
            }
            Err(error) => return Ok(error.to_string()),
        }
    }
}

/// Runs `work` for all items, some at a time. The first failure stops the others and is returned.
fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(&T, &AtomicBool) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let failure = Mutex::new(None);
    let results: Vec<Mutex<Option<R>>> = items.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..items.len().min(FILES_AT_ONCE) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { break };
                    match work(item, &stop) {
                        Ok(result) => *locked(&results[index]) = Some(result),
                        Err(error) => {
                            // The error is stored before stopping, because stopping makes the other downloads fail too.
                            locked(&failure).get_or_insert(error);
                            stop.store(true, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    match failure
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
    {
        Some(error) => Err(error),
        None => Ok(results
            .iter()
            .filter_map(|result| locked(result).take())
            .collect()),
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
