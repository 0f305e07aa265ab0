//! The disk tier: files of KV blocks that outlive the process. [`file`](mod@file) is their form, [`FolderDisk`] keeps
//! them in a folder, [`MemoryDisk`] where there are no files.
//!
//! Nothing but an engine or an explicit import puts a block into a folder: its files are hashed with the folder's
//! [key]. [`writer`] also looks after the folder.
//!
//! A [`Disk`] works beside the engine: it is asked for something and says later what has become of it. The scheduler
//! knows which blocks it holds and decides what is read and written ([`memory`](super::memory)).

pub mod file;
mod folder;
mod key;
mod memory;
mod place;
mod writer;

pub use file::{FileError, Form, MAGIC, Record};
pub use folder::{FolderDisk, ImportError, import, records_in};
pub use key::FolderKey;
pub use memory::{MemoryDisk, MemoryFiles};

use super::memory::BlockKey;
use super::memory::{HostSlot, Origin};
use bytes::Bytes;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// What has become of something that a [`Disk`] was asked.
#[derive(Clone, Debug)]
pub enum DiskEvent {
    /// The block that was asked for this slot; `None` if there is no such file, or no sound one.
    Read {
        /// The slot that it was asked for.
        slot: HostSlot,
        /// The block's bytes.
        data: Option<Bytes>,
        /// How long it took; zero where times mean nothing.
        took: Duration,
    },
    /// A block was written, or could not be.
    Written {
        /// The block.
        key: BlockKey,
        /// Whether its file can be found now.
        done: bool,
    },
    /// There are files of these blocks.
    Found(Vec<BlockKey>),
    /// There are no files of these blocks any more.
    Lost(Vec<BlockKey>),
    /// There are no files any more.
    Emptied,
    /// So many files were damaged or put there by somebody else, and are removed.
    Refused(u64),
    /// Whether files can be read and written. They can when a disk is opened.
    Usable(bool),
}

/// A place for files of KV blocks. No call waits for a file.
pub trait Disk {
    /// Whether blocks can be written.
    fn is_written(&self) -> bool {
        true
    }

    /// Reads the file of a block, for a slot of host memory. Answered by [`DiskEvent::Read`].
    fn read(&mut self, slot: HostSlot, origin: Arc<Origin>);

    /// Writes a file of a block. Answered by [`DiskEvent::Written`].
    fn write(&mut self, origin: Arc<Origin>, data: Bytes);

    /// Removes the file of a block.
    fn remove(&mut self, key: BlockKey);

    /// Looks for files that others have written or removed.
    fn refresh(&mut self) {}

    /// The next event, if there is one.
    fn take(&mut self) -> Option<DiskEvent>;

    /// Waits for the next event. Nothing is lost if it is not awaited to the end.
    fn wait(&mut self) -> Pin<Box<dyn Future<Output = DiskEvent> + '_>>;
}

/// The bytes of a block from its file, if the file is what it should be and was written for the folder with this key.
pub fn block_in(
    file: &Bytes,
    form: &Form,
    origin: &Origin,
    key: Option<&FolderKey>,
) -> Result<Bytes, FileError> {
    let (record, rest) = Record::read(file, key)?;
    if !rest.is_empty() {
        return Err(FileError::Damaged("it has more than one block"));
    }
    form.check(&record)?;
    record.check_block(origin)?;
    Ok(record.data)
}

/// The portable record of a block.
pub fn record_of(form: &Form, origin: &Origin, data: &[u8]) -> Bytes {
    let mut record = form.header(origin, data, None);
    record.extend_from_slice(data);
    record.into()
}
