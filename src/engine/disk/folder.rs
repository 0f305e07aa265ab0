//! Files of KV blocks in a folder, one per block, read and written by two threads.
//!
//! Only files with a hash keyed with the folder's [key](super::key) are read, which nobody else can write.
//!
//! A folder may be used by several processes and by engines of different models: the files of a [`Form`] are in a
//! folder of their own, and a file has its name only once it is complete. It is written under a temporary name and
//! renamed, so a process may end at any moment. Nothing is forced to the medium: what a power cut leaves incomplete
//! fails its checksum when it is read, and is removed.
//!
//! The least recently used files of all forms are removed when there are more bytes than allowed. A file is used when
//! it is written or read; its time of modification says when.

use super::key::FolderKey;
use super::place::{Place, entries, folders_in};
use super::writer::{Work, Writer};
use super::{Disk, DiskEvent, FileError, Form, Record, block_in, file};
use crate::engine::memory::BlockKey;
use crate::engine::memory::{HostSlot, Origin};
use crate::platform::{self, Instant};
use bytes::Bytes;
use futures_channel::mpsc as events;
use futures_util::{FutureExt as _, StreamExt as _, future};
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

/// Least time between two looks for files of other processes.
const REFRESH_PERIOD: Duration = Duration::from_secs(1);

/// The files of one engine in a folder.
#[derive(Debug)]
pub struct FolderDisk {
    reads: Option<Sender<(HostSlot, Arc<Origin>)>>,
    work: Option<Sender<Work>>,
    events: events::UnboundedReceiver<DiskEvent>,
    threads: Vec<JoinHandle<()>>,
    last_refresh: Instant,
}

impl FolderDisk {
    /// Opens or creates a folder, with at most `bytes_max` bytes of files. What it holds already is found while the
    /// engine runs.
    pub fn open(folder: &Path, bytes_max: u64, form: &Form) -> io::Result<Self> {
        let place = Place::new(folder, form);
        let refused = place.prepare()?;
        let (sender, events) = events::unbounded();
        let (reads, jobs) = channel();
        let reader = Reader {
            place: place.clone(),
            form: form.clone(),
            events: sender.clone(),
        };
        let (work, works) = channel();
        if refused > 0 {
            drop(sender.unbounded_send(DiskEvent::Refused(refused)));
        }
        let writer = Writer::new(place, form.clone(), bytes_max, sender);
        let threads = vec![
            start("folio-kv-reader", move || reader.run(&jobs))?,
            start("folio-kv-writer", move || writer.run(&works))?,
        ];
        Ok(Self {
            reads: Some(reads),
            work: Some(work),
            events,
            threads,
            last_refresh: Instant::now(),
        })
    }

    fn send(&self, work: Work) {
        // The writer ends only with this disk.
        drop(self.work.as_ref().map(|sender| sender.send(work)));
    }
}

impl Disk for FolderDisk {
    fn read(&mut self, slot: HostSlot, origin: Arc<Origin>) {
        drop(
            self.reads
                .as_ref()
                .map(|sender| sender.send((slot, origin))),
        );
    }

    fn write(&mut self, origin: Arc<Origin>, data: Bytes) {
        self.send(Work::Write(origin, data));
    }

    fn remove(&mut self, key: BlockKey) {
        self.send(Work::Remove(key));
    }

    fn refresh(&mut self) {
        if self.last_refresh.elapsed() >= REFRESH_PERIOD {
            self.last_refresh = Instant::now();
            self.send(Work::Refresh);
        }
    }

    fn take(&mut self) -> Option<DiskEvent> {
        self.events.try_recv().ok()
    }

    fn wait(&mut self) -> Pin<Box<dyn Future<Output = DiskEvent> + '_>> {
        let next = self.events.next().then(|event| async move {
            match event {
                Some(event) => event,
                None => future::pending().await,
            }
        });
        Box::pin(next)
    }
}

impl Drop for FolderDisk {
    /// Waits until everything is written.
    fn drop(&mut self) {
        (self.reads, self.work) = (None, None);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread for files of KV blocks panicked");
            }
        }
    }
}

fn start(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(run)
}

/// Reads files.
struct Reader {
    place: Place,
    form: Form,
    events: events::UnboundedSender<DiskEvent>,
}

impl Reader {
    fn run(&self, jobs: &Receiver<(HostSlot, Arc<Origin>)>) {
        for (slot, origin) in jobs {
            let start = Instant::now();
            let data = self.read(&origin);
            let event = DiskEvent::Read {
                slot,
                data,
                took: start.elapsed(),
            };
            if self.events.unbounded_send(event).is_err() {
                return;
            }
        }
    }

    /// The bytes of a block, if there is a sound file of it. A file that is not is removed.
    fn read(&self, origin: &Origin) -> Option<Bytes> {
        let path = self.place.file(origin.key);
        let file = match read_block_file(&path, self.form.record_bytes_max()) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!("{}: {error}", path.display());
                return None;
            }
        };
        // Without a key nothing can be read; the writer makes a new one, and tells so.
        let key = self.place.key().ok()?;
        match block_in(&file, &self.form, origin, Some(&key)) {
            Ok(data) => Some(data),
            Err(error) => {
                tracing::warn!("{}: {error}; the file is removed", path.display());
                drop(fs::remove_file(&path));
                drop(self.events.unbounded_send(DiskEvent::Refused(1)));
                None
            }
        }
    }
}

/// Reads a file of at most `bytes_max` bytes, and marks it as used.
fn read_block_file(path: &Path, bytes_max: u64) -> io::Result<Bytes> {
    // Opening a pipe would wait for its writer.
    if !fs::symlink_metadata(path)?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidData, "not a file"));
    }
    let mut file = platform::open_no_link(OpenOptions::new().read(true), path)?;
    let length = file.metadata()?.len().min(bytes_max);
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    file.by_ref().take(bytes_max + 1).read_to_end(&mut bytes)?;
    // Without this mark it is removed earlier, which does no harm.
    drop(file.set_modified(SystemTime::now()));
    Ok(bytes.into())
}

/// The records in a folder's files, in no order; what is not sound, or not of this folder, is left out.
pub fn records_in(folder: &Path) -> Vec<Record> {
    let Ok(key) = FolderKey::read(folder) else {
        return Vec::new();
    };
    folders_in(folder)
        .flat_map(|form| entries(&form))
        .filter_map(|entry: fs::DirEntry| -> Option<Record> {
            file::block_of(entry.file_name().to_str()?)?;
            let file = read_block_file(&entry.path(), u64::MAX - 1).ok()?;
            Record::read(&file, Some(&key))
                .ok()
                .map(|(record, _)| record)
        })
        .collect()
}

/// Adds the blocks of a file to a folder, with hashes keyed with its key. Returns how many there are.
pub fn import(folder: &Path, file: &Bytes) -> Result<usize, ImportError> {
    let records = Record::read_all(file, file::RECORDS_MAX)?;
    for record in &records {
        let place = Place::new(folder, &record.form);
        place.prepare()?;
        let header = record.header(Some(&place.key()?));
        platform::write_own_file(&place.file(record.origin.key), &[&header, &record.data])?;
    }
    Ok(records.len())
}

/// Why a file was not imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// It is not a sound file.
    #[error(transparent)]
    File(#[from] FileError),
    /// The folder cannot be written.
    #[error(transparent)]
    Folder(#[from] io::Error),
}

#[cfg(test)]
mod tests;
