//! Files of KV blocks in memory, for where there is no folder: a browser tab. They are imported and read; what the
//! engine computes is not written.

use super::{Disk, DiskEvent, FileError, Form, Record, block_in, file};
use crate::engine::memory::BlockKey;
use crate::engine::memory::{HostSlot, Origin};
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Imported files, shared by an engine and its owner.
#[derive(Clone, Debug)]
pub struct MemoryFiles(Arc<Mutex<Shelf>>);

#[derive(Debug)]
struct Shelf {
    bytes_max: u64,
    bytes: u64,
    /// The form of the engine that uses the files, once it has started.
    form: Option<Form>,
    files: HashMap<BlockKey, Bytes>,
    events: VecDeque<DiskEvent>,
}

impl MemoryFiles {
    /// No files yet; at most `bytes_max` bytes of them.
    pub fn new(bytes_max: u64) -> Self {
        let (files, events) = (HashMap::new(), VecDeque::new());
        Self(Arc::new(Mutex::new(Shelf {
            bytes_max,
            bytes: 0,
            form: None,
            files,
            events,
        })))
    }

    /// Adds all blocks of a file for the engine that uses these files. Returns how many there are.
    pub fn import(&self, file: &Bytes) -> Result<usize, FileError> {
        let records = Record::read_all(file, file::RECORDS_MAX)?;
        let mut shelf = self.shelf();
        let form = shelf
            .form
            .as_ref()
            .ok_or(FileError::Damaged("the engine has not started"))?;
        records.iter().try_for_each(|record| form.check(record))?;
        let new: Vec<_> = records
            .iter()
            .filter(|record| !shelf.files.contains_key(&record.origin.key))
            .collect();
        let bytes = shelf.bytes
            + new
                .iter()
                .map(|record| record.whole.len() as u64)
                .sum::<u64>();
        if bytes > shelf.bytes_max {
            return Err(FileError::Damaged("it is larger than what may be imported"));
        }
        shelf.bytes = bytes;
        shelf.files.extend(
            new.iter()
                .map(|record| (record.origin.key, record.whole.clone())),
        );
        shelf.events.push_back(DiskEvent::Found(
            new.iter().map(|record| record.origin.key).collect(),
        ));
        Ok(records.len())
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        // No operation leaves the files in between.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Imported files, as an engine uses them.
#[derive(Debug)]
pub struct MemoryDisk {
    files: MemoryFiles,
    form: Form,
}

impl MemoryDisk {
    /// The disk of an engine with this form.
    pub(in crate::engine) fn new(files: MemoryFiles, form: Form) -> Self {
        let mut shelf = files.shelf();
        let found = DiskEvent::Found(shelf.files.keys().copied().collect());
        shelf.events.push_front(found);
        shelf.form = Some(form.clone());
        drop(shelf);
        Self { files, form }
    }
}

impl Disk for MemoryDisk {
    fn is_written(&self) -> bool {
        false
    }

    fn read(&mut self, slot: HostSlot, origin: Arc<Origin>) {
        let mut shelf = self.files.shelf();
        let file = shelf.files.get(&origin.key);
        let data = file.and_then(|file| block_in(file, &self.form, &origin, None).ok());
        shelf.events.push_back(DiskEvent::Read {
            slot,
            data,
            took: Duration::ZERO,
        });
    }

    fn write(&mut self, origin: Arc<Origin>, _: Bytes) {
        self.files.shelf().events.push_back(DiskEvent::Written {
            key: origin.key,
            done: false,
        });
    }

    fn remove(&mut self, key: BlockKey) {
        let mut shelf = self.files.shelf();
        let removed = shelf.files.remove(&key);
        shelf.bytes -= removed.map_or(0, |file| file.len() as u64);
    }

    fn take(&mut self) -> Option<DiskEvent> {
        self.files.shelf().events.pop_front()
    }

    fn wait(&mut self) -> Pin<Box<dyn Future<Output = DiskEvent> + '_>> {
        // Whoever waits has asked for something, which is done at once.
        match self.take() {
            Some(event) => Box::pin(future::ready(event)),
            None => Box::pin(future::pending()),
        }
    }
}
