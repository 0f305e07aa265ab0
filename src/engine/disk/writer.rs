//! The thread that writes and removes files. It also looks after the folder: it removes the least recently used files,
//! and makes a folder again that has vanished.

use super::place::{Place, entries, folders_in};
use super::{DiskEvent, Form, file};
use crate::engine::memory::BlockKey;
use crate::engine::memory::Origin;
use crate::platform;
use bytes::Bytes;
use futures_channel::mpsc as events;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, SystemTime};

/// A temporary file of this age was left by a process that has ended.
pub(super) const TEMPORARY_AGE_MAX: Duration = Duration::from_secs(600);
/// When files are removed, this part of the allowed bytes becomes free, so that not every write removes one.
const SPARE_PART: u64 = 10;
/// How often the folder is looked at while there is nothing to do, so that its loss is known before a request needs it.
const IDLE_PERIOD: Duration = Duration::from_secs(2);

/// What the thread does.
pub(super) enum Work {
    Write(Arc<Origin>, Bytes),
    Remove(BlockKey),
    Refresh,
}

/// Writes and removes files.
pub(super) struct Writer {
    pub(super) place: Place,
    pub(super) form: Form,
    pub(super) bytes_max: u64,
    pub(super) events: events::UnboundedSender<DiskEvent>,
    /// Bytes of all files, as of the last look and with what was written since.
    bytes: u64,
    /// When the folder of the form last changed, as of the last look.
    last_change: Option<SystemTime>,
    /// Whether the last write failed.
    failing: bool,
    /// Whether the folder is gone and could not be made again.
    missing: bool,
}

/// A file of a block.
struct Found {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
    /// Its block, if it is in the folder of this form.
    key: Option<BlockKey>,
}

impl Writer {
    pub(super) fn new(
        place: Place,
        form: Form,
        bytes_max: u64,
        events: events::UnboundedSender<DiskEvent>,
    ) -> Self {
        Self {
            place,
            form,
            bytes_max,
            events,
            bytes: 0,
            last_change: None,
            failing: false,
            missing: false,
        }
    }

    pub(super) fn run(mut self, works: &Receiver<Work>) {
        self.look();
        loop {
            match works.recv_timeout(IDLE_PERIOD) {
                Ok(Work::Write(origin, data)) => {
                    let done = self.write(&origin, &data);
                    self.tell(DiskEvent::Written {
                        key: origin.key,
                        done,
                    });
                    if self.bytes > self.bytes_max {
                        self.look();
                    }
                }
                Ok(Work::Remove(key)) => drop(fs::remove_file(self.place.file(key))),
                Ok(Work::Refresh) | Err(RecvTimeoutError::Timeout) => self.refresh(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn tell(&self, event: DiskEvent) {
        // Nobody listens any more when the engine ends, but what it has sent is still written.
        drop(self.events.unbounded_send(event));
    }

    /// Looks at the folder if something has changed in it, and makes it again if it has vanished.
    fn refresh(&mut self) {
        if !self.place.is_there() {
            let error = self.restore().err();
            self.note(self.failing && error.is_some(), error.is_some(), error);
        } else {
            self.note(self.failing, false, None);
            if changed(&self.place.own) != self.last_change {
                self.look();
            }
        }
    }

    /// Writes a file of a block. Returns whether it is there.
    fn write(&mut self, origin: &Origin, data: &[u8]) -> bool {
        let mut outcome = self.try_write(origin, data);
        if outcome
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::NotFound)
        {
            let restored = self.restore();
            outcome = restored.and_then(|()| self.try_write(origin, data));
        }
        let failing = outcome.is_err();
        self.note(failing, self.missing && failing, outcome.err());
        !failing
    }

    fn try_write(&mut self, origin: &Origin, data: &[u8]) -> io::Result<()> {
        let header = self.form.header(origin, data, Some(&self.place.key()?));
        platform::write_own_file(&self.place.file(origin.key), &[&header, data])?;
        self.bytes += (header.len() + data.len()) as u64;
        Ok(())
    }

    /// Makes a folder again that has vanished, or its key.
    fn restore(&mut self) -> io::Result<()> {
        let had_folder = self.place.own.is_dir();
        let refused = self.place.prepare()?;
        if !had_folder {
            tracing::warn!(
                "{}: this folder of KV blocks had vanished and is made again",
                self.place.all.display()
            );
        }
        self.tell(DiskEvent::Emptied);
        self.tell(DiskEvent::Refused(refused));
        self.look();
        Ok(())
    }

    /// Tells, once, that the folder cannot be used, and when it can be again.
    fn note(&mut self, failing: bool, missing: bool, error: Option<io::Error>) {
        let (was_usable, is_usable) = (!self.failing && !self.missing, !failing && !missing);
        (self.failing, self.missing) = (failing, missing);
        if was_usable == is_usable {
            return;
        }
        if let Some(error) = error {
            let all = self.place.all.display();
            tracing::warn!("{all}: {error}; KV blocks are not kept on disk until this works again");
        }
        self.tell(DiskEvent::Usable(is_usable));
    }

    /// Counts all files, removes the oldest while there are too many, and tells which blocks can be found.
    fn look(&mut self) {
        self.last_change = changed(&self.place.own);
        let mut files = self.files();
        self.bytes = files.iter().map(|file| file.bytes).sum();
        let mut lost = Vec::new();
        if self.bytes > self.bytes_max {
            files.sort_by_key(|file| file.used);
            let kept = self.bytes_max - self.bytes_max / SPARE_PART;
            let mut removed = 0;
            for file in &files {
                if self.bytes <= kept {
                    break;
                }
                // Another process may have removed it.
                drop(fs::remove_file(&file.path));
                self.bytes -= file.bytes;
                lost.extend(file.key);
                removed += 1;
            }
            files.drain(..removed);
        }
        self.tell(DiskEvent::Found(
            files.iter().filter_map(|file| file.key).collect(),
        ));
        self.tell(DiskEvent::Lost(lost));
    }

    /// The files of blocks in all forms' folders. Temporary files that nobody writes any more are removed.
    fn files(&self) -> Vec<Found> {
        let mut files = Vec::new();
        for folder in std::iter::once(self.place.all.clone()).chain(folders_in(&self.place.all)) {
            for entry in entries(&folder) {
                let (name, path) = (entry.file_name(), entry.path());
                let Some(name) = name.to_str() else { continue };
                let Ok(found) = entry
                    .metadata()
                    .map(|found| (found.len(), found.modified()))
                else {
                    continue;
                };
                let (bytes, used) = (found.0, found.1.unwrap_or(SystemTime::UNIX_EPOCH));
                if let Some(key) = file::block_of(name)
                    && folder != self.place.all
                {
                    files.push(Found {
                        path,
                        bytes,
                        used,
                        key: (folder == self.place.own).then_some(key),
                    });
                } else if name.starts_with(platform::TEMPORARY)
                    && used.elapsed().is_ok_and(|age| age > TEMPORARY_AGE_MAX)
                {
                    drop(fs::remove_file(&path));
                }
            }
        }
        files
    }
}

/// When a file was last added to or removed from a folder.
fn changed(folder: &Path) -> Option<SystemTime> {
    fs::metadata(folder).and_then(|found| found.modified()).ok()
}
