//! Files of KV blocks in a folder, one per block, read and written by two threads.
//!
//! A folder may be used by several processes and by engines of different models: the files of a [`Form`] are in a
//! folder of their own, and a file has its name only once it is complete. It is written under a temporary name and
//! renamed, so a process may end at any moment. Nothing is forced to the medium: what a power cut leaves incomplete
//! fails its checksum when it is read, and is removed.
//!
//! The least recently used files of all forms are removed when there are more bytes than allowed. A file is used when
//! it is written or read; its time of modification says when.

use super::{Disk, DiskEvent, FileError, Form, Record, block_in, file};
use crate::engine::block_pool::BlockKey;
use crate::engine::faults::InjectedFaults;
use crate::engine::tiers::{HostSlot, Origin};
use crate::platform::{self, Instant};
use bytes::Bytes;
use futures_channel::mpsc as events;
use futures_util::{FutureExt as _, StreamExt as _, future};
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

/// A temporary file of this age was left by a process that has ended.
const TEMPORARY_AGE_MAX: Duration = Duration::from_secs(600);
/// Least time between two looks for files of other processes.
const REFRESH_PERIOD: Duration = Duration::from_secs(1);
/// When files are removed, this part of the allowed bytes becomes free, so that not every write removes one.
const SPARE_PART: u64 = 10;

enum Work {
    Write(Arc<Origin>, Bytes),
    Remove(BlockKey),
    Refresh,
}

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
        let own = folder.join(form.folder_name());
        platform::create_own_folder(&own)?;
        [folder, &own].into_iter().try_for_each(platform::check_own_folder)?;
        let (sender, events) = events::unbounded();
        let (reads, jobs) = channel();
        let reader = Reader { folder: own.clone(), form: form.clone(), events: sender.clone() };
        let (work, works) = channel();
        let (all, form) = (folder.to_owned(), form.clone());
        let writer = Writer { all, own, form, bytes_max, bytes: 0, failing: false, events: sender };
        let threads = vec![
            start("folio-kv-reader", move || reader.run(&jobs))?,
            start("folio-kv-writer", move || writer.run(&works))?,
        ];
        Ok(Self { reads: Some(reads), work: Some(work), events, threads, last_refresh: Instant::now() })
    }

    fn send(&self, work: Work) {
        // The writer ends only with this disk.
        drop(self.work.as_ref().map(|sender| sender.send(work)));
    }
}

impl Disk for FolderDisk {
    fn read(&mut self, slot: HostSlot, origin: Arc<Origin>) {
        drop(self.reads.as_ref().map(|sender| sender.send((slot, origin))));
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
    folder: PathBuf,
    form: Form,
    events: events::UnboundedSender<DiskEvent>,
}

impl Reader {
    fn run(&self, jobs: &Receiver<(HostSlot, Arc<Origin>)>) {
        for (slot, origin) in jobs {
            let start = Instant::now();
            let data = self.read(&origin);
            let event = DiskEvent::Read { slot, data, took: start.elapsed() };
            if self.events.unbounded_send(event).is_err() {
                return;
            }
        }
    }

    /// The bytes of a block, if there is a sound file of it. A file that is not is removed.
    fn read(&self, origin: &Origin) -> Option<Bytes> {
        let path = self.folder.join(file::file_name(origin.key));
        let file = match read_block_file(&path, self.form.record_bytes_max()) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!("{}: {error}", path.display());
                return None;
            }
        };
        match block_in(&file, &self.form, origin, InjectedFaults::default()) {
            Ok(data) => Some(data),
            Err(error) => {
                tracing::warn!("{}: {error}; the file is removed", path.display());
                drop(fs::remove_file(&path));
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

/// Writes and removes files.
struct Writer {
    all: PathBuf,
    own: PathBuf,
    form: Form,
    bytes_max: u64,
    /// Bytes of all files, as of the last look and with what was written since.
    bytes: u64,
    /// Whether the last write failed.
    failing: bool,
    events: events::UnboundedSender<DiskEvent>,
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
    fn run(mut self, works: &Receiver<Work>) {
        self.look();
        let mut last_change = changed(&self.own);
        for work in works {
            match work {
                Work::Write(origin, data) => {
                    let done = self.write(&origin, &data);
                    self.tell(DiskEvent::Written { key: origin.key, done });
                    if self.bytes > self.bytes_max {
                        self.look();
                    }
                }
                Work::Remove(key) => drop(fs::remove_file(self.own.join(file::file_name(key)))),
                Work::Refresh => {
                    let change = changed(&self.own);
                    if change != last_change {
                        last_change = change;
                        self.look();
                    }
                }
            }
        }
    }

    fn tell(&self, event: DiskEvent) {
        // Nobody listens any more when the engine ends, but what it has sent is still written.
        drop(self.events.unbounded_send(event));
    }

    /// Writes a file of a block. Returns whether it is there.
    fn write(&mut self, origin: &Origin, data: &[u8]) -> bool {
        let path = self.own.join(file::file_name(origin.key));
        let header = self.form.header(origin, data);
        let outcome = platform::write_own_file(&path, &[&header, data]);
        if let Err(error) = &outcome
            && !self.failing
        {
            tracing::warn!("{}: {error}; KV blocks are not kept on disk until this works again", path.display());
        }
        self.failing = outcome.is_err();
        self.bytes += if self.failing { 0 } else { (header.len() + data.len()) as u64 };
        !self.failing
    }

    /// Counts all files, removes the oldest while there are too many, and tells which blocks can be found.
    fn look(&mut self) {
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
        self.tell(DiskEvent::Found(files.iter().filter_map(|file| file.key).collect()));
        self.tell(DiskEvent::Lost(lost));
    }

    /// The files of blocks in all forms' folders. Temporary files that nobody writes any more are removed.
    fn files(&self) -> Vec<Found> {
        let mut files = Vec::new();
        for folder in entries(&self.all).filter(|entry| entry.path().is_dir()).map(|entry| entry.path()) {
            for entry in entries(&folder) {
                let (name, path) = (entry.file_name(), entry.path());
                let Some(name) = name.to_str() else { continue };
                let Ok(found) = entry.metadata().map(|found| (found.len(), found.modified())) else { continue };
                let (bytes, used) = (found.0, found.1.unwrap_or(SystemTime::UNIX_EPOCH));
                if let Some(key) = file::block_of(name) {
                    files.push(Found { path, bytes, used, key: (folder == self.own).then_some(key) });
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

/// The entries of a folder; none if it cannot be read.
fn entries(folder: &Path) -> impl Iterator<Item = fs::DirEntry> + use<> {
    fs::read_dir(folder).into_iter().flatten().flatten()
}

/// When a file was last added to or removed from a folder.
fn changed(folder: &Path) -> Option<SystemTime> {
    fs::metadata(folder).and_then(|found| found.modified()).ok()
}

/// The records in a folder's files, in no order; what is not sound is left out.
pub fn records_in(folder: &Path) -> Vec<Record> {
    let read = |entry: fs::DirEntry| -> Option<Record> {
        file::block_of(entry.file_name().to_str()?)?;
        let file = read_block_file(&entry.path(), u64::MAX - 1).ok()?;
        Record::read(&file).ok().map(|(record, _)| record)
    };
    entries(folder).flat_map(|form| entries(&form.path())).filter_map(read).collect()
}

/// Adds the blocks of a file to a folder. Returns how many there are.
pub fn import(folder: &Path, file: &Bytes) -> Result<usize, ImportError> {
    let records = Record::read_all(file, file::RECORDS_MAX)?;
    for record in &records {
        let own = folder.join(record.form.folder_name());
        platform::create_own_folder(&own)?;
        [folder, &own].into_iter().try_for_each(platform::check_own_folder)?;
        platform::write_own_file(&own.join(record.file_name()), &[&record.whole])?;
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
mod tests {
    use super::*;
    use crate::engine::block_pool::BlockHash;
    use crate::plan::KvFormat;

    fn form() -> Form {
        Form {
            fingerprint: [3; 32],
            kv_format: KvFormat::F32,
            block_size: 1,
            adapter: file::NO_ADAPTER.into(),
            build: "test".into(),
            deterministic: false,
            layers: vec![vec![file::LayerForm::KeysAndValues { heads: 1, head_dim: 64 }]],
        }
    }

    fn origin(token: u32) -> Arc<Origin> {
        let (key, root) = (form().key(), BlockHash::root(&form().key(), None, None));
        Arc::new(Origin { key: (0, root.next(&key, &[token])), parent: root, token_ids: [token].into() })
    }

    fn data(fill: u32) -> Bytes {
        vec![u8::try_from(fill).expect("a byte"); 512].into()
    }

    /// The next event that is neither about files found nor about none lost.
    fn next(disk: &mut FolderDisk) -> DiskEvent {
        loop {
            match platform::block_on(disk.wait()) {
                DiskEvent::Found(_) => {}
                DiskEvent::Lost(keys) if keys.is_empty() => {}
                event => return event,
            }
        }
    }

    fn read(disk: &mut FolderDisk, token: u32) -> Option<Bytes> {
        disk.read(7, origin(token));
        match next(disk) {
            DiskEvent::Read { slot: 7, data, .. } => data,
            event => panic!("{event:?}"),
        }
    }

    fn write(disk: &mut FolderDisk, token: u32) {
        disk.write(origin(token), data(token));
        match next(disk) {
            DiskEvent::Written { key, done: true } => assert_eq!(key, origin(token).key),
            event => panic!("{event:?}"),
        }
    }

    /// The blocks that a disk finds when it is opened.
    fn found(disk: &mut FolderDisk) -> Vec<BlockKey> {
        match platform::block_on(disk.wait()) {
            DiskEvent::Found(keys) => keys,
            event => panic!("{event:?}"),
        }
    }

    #[test]
    fn what_was_written_is_found_by_the_next_process() {
        let folder = tempfile::tempdir().expect("a folder for this test");
        let open = || FolderDisk::open(folder.path(), 1 << 20, &form()).expect("the folder can be used");
        let mut disk = open();
        assert_eq!(found(&mut disk), []);
        write(&mut disk, 1);
        disk.write(origin(2), data(2));
        drop(disk);
        let mut disk = open();
        let mut keys = found(&mut disk);
        keys.sort_unstable();
        let mut expected = [origin(1).key, origin(2).key];
        expected.sort_unstable();
        assert_eq!(keys, expected, "what was queued is written when the engine ends");
        assert_eq!(read(&mut disk, 1), Some(data(1)));
        assert_eq!(read(&mut disk, 3), None);
        disk.remove(origin(1).key);
        write(&mut disk, 4);
        assert_eq!(read(&mut disk, 1), None, "it was removed before the write");
    }

    #[test]
    fn damaged_files_are_removed() {
        let folder = tempfile::tempdir().expect("a folder for this test");
        let mut disk = FolderDisk::open(folder.path(), 1 << 20, &form()).expect("the folder can be used");
        (1..=4).for_each(|token| write(&mut disk, token));
        let path = |token| folder.path().join(form().folder_name()).join(file::file_name(origin(token).key));
        let whole = fs::read(path(1)).expect("it was written");
        fs::write(path(1), &whole[..whole.len() - 1]).expect("it can be written");
        fs::write(path(2), [&whole[..], &[0]].concat()).expect("it can be written");
        fs::copy(path(4), path(3)).expect("it can be written");
        for token in 1..=3 {
            assert_eq!(read(&mut disk, token), None);
            assert!(!path(token).exists(), "file {token} is removed");
        }
        assert_eq!(read(&mut disk, 4), Some(data(4)));
        fs::remove_file(path(4)).expect("it is there");
        fs::create_dir(path(4)).expect("a folder of this name");
        assert_eq!(read(&mut disk, 4), None);
    }

    #[test]
    fn the_oldest_files_go_when_there_are_too_many() {
        let folder = tempfile::tempdir().expect("a folder for this test");
        let length = form().header(&origin(1), &data(1)).len() as u64 + 512;
        let mut disk = FolderDisk::open(folder.path(), 10 * length, &form()).expect("the folder can be used");
        let path = |token| folder.path().join(form().folder_name()).join(file::file_name(origin(token).key));
        for token in 0..10 {
            write(&mut disk, token);
            let age = Duration::from_secs(1000 - u64::from(token));
            let file = fs::File::options().write(true).open(path(token)).expect("it was written");
            file.set_modified(SystemTime::now() - age).expect("its time can be set");
        }
        assert_eq!(read(&mut disk, 0), Some(data(0)), "reading makes it young");
        let stranger = folder.path().join(form().folder_name()).join("notes");
        fs::write(&stranger, vec![0; 9999]).expect("it can be written");
        disk.write(origin(10), data(10));
        assert!(matches!(next(&mut disk), DiskEvent::Written { done: true, .. }));
        match next(&mut disk) {
            DiskEvent::Lost(keys) => assert_eq!(keys, [origin(1).key, origin(2).key]),
            event => panic!("{event:?}"),
        }
        assert_eq!((read(&mut disk, 0), read(&mut disk, 1)), (Some(data(0)), None));
        assert!(stranger.exists(), "other files are left alone");
    }

    #[test]
    fn two_processes_see_what_the_other_has_written() {
        let folder = tempfile::tempdir().expect("a folder for this test");
        let open = || FolderDisk::open(folder.path(), 1 << 20, &form()).expect("the folder can be used");
        let (mut one, mut two) = (open(), open());
        assert_eq!((found(&mut one), found(&mut two)), (vec![], vec![]));
        platform::pause(Duration::from_millis(20));
        write(&mut one, 1);
        two.send(Work::Refresh);
        loop {
            match platform::block_on(two.wait()) {
                DiskEvent::Found(keys) => break assert_eq!(keys, [origin(1).key]),
                DiskEvent::Lost(keys) => assert_eq!(keys, []),
                event => panic!("{event:?}"),
            }
        }
        write(&mut two, 1);
        assert_eq!(read(&mut one, 1), Some(data(1)), "both wrote it");
    }

    #[test]
    fn a_file_with_several_blocks_is_imported() {
        let folder = tempfile::tempdir().expect("a folder for this test");
        let records: Vec<_> =
            (1..=3).map(|token| super::super::record_of(&form(), &origin(token), &data(token))).collect();
        let file = Bytes::from(records.concat());
        assert_eq!(import(folder.path(), &file).expect("it is sound"), 3);
        let mut disk = FolderDisk::open(folder.path(), 1 << 20, &form()).expect("the folder can be used");
        assert_eq!(read(&mut disk, 2), Some(data(2)));
        assert_eq!(records_in(folder.path()).len(), 3);
        let cut = import(folder.path(), &file.slice(1..)).expect_err("it is damaged");
        assert_eq!(cut.to_string(), "it is not a file of KV blocks");
    }

    #[cfg(unix)]
    #[test]
    fn links_are_not_followed_and_files_of_other_processes_stay() {
        let folder = tempfile::tempdir().expect("a folder for this test");
        let elsewhere = tempfile::tempdir().expect("a folder for this test");
        let own = folder.path().join(form().folder_name());
        let mut disk = FolderDisk::open(folder.path(), 1 << 20, &form()).expect("the folder can be used");
        (1..=2).for_each(|token| write(&mut disk, token));
        let path = |token| own.join(file::file_name(origin(token).key));
        let moved = elsewhere.path().join("block");
        fs::rename(path(1), &moved).expect("it was written");
        std::os::unix::fs::symlink(&moved, path(1)).expect("the folder takes links");
        assert_eq!(read(&mut disk, 1), None, "a link is no file of this folder");
        assert!(moved.exists(), "what it leads to stays");
        // A process that is writing now, and one that has ended.
        let [new, old] = ["new", "old"].map(|name| own.join(format!("{}{name}", platform::TEMPORARY)));
        for temporary in [&new, &old] {
            fs::write(temporary, "half").expect("it can be written");
        }
        let file = fs::File::options().write(true).open(&old).expect("it was written");
        file.set_modified(SystemTime::now() - TEMPORARY_AGE_MAX * 2).expect("its time can be set");
        drop(disk);
        let mut disk = FolderDisk::open(folder.path(), 1 << 20, &form()).expect("the folder can be used");
        found(&mut disk);
        assert!(new.exists() && !old.exists());
    }

    #[test]
    fn files_of_other_models_count_within_the_bytes_of_a_folder() {
        let folder = tempfile::tempdir().expect("a folder for this test");
        let length = form().header(&origin(1), &data(1)).len() as u64 + 512;
        let other = Form { fingerprint: [4; 32], ..form() };
        let theirs = folder.path().join(other.folder_name());
        fs::create_dir_all(&theirs).expect("the folder takes folders");
        for token in 1..=4 {
            let file = theirs.join(file::file_name(origin(token).key));
            fs::write(&file, vec![0; length as usize]).expect("it can be written");
            let file = fs::File::options().write(true).open(&file).expect("it was written");
            file.set_modified(SystemTime::now() - Duration::from_secs(1000)).expect("its time can be set");
        }
        let mut disk = FolderDisk::open(folder.path(), 5 * length, &form()).expect("the folder can be used");
        (1..=3).for_each(|token| write(&mut disk, token));
        drop(disk);
        let mut disk = FolderDisk::open(folder.path(), 5 * length, &form()).expect("the folder can be used");
        assert_eq!(found(&mut disk).len(), 3, "the older ones of the other model made room");
        assert!(fs::read_dir(&theirs).expect("it is there").count() <= 2);
    }

    #[test]
    fn a_block_whose_hash_does_not_follow_from_its_tokens_is_not_imported() {
        let folder = tempfile::tempdir().expect("a folder for this test");
        let wrong = Origin { token_ids: [9].into(), ..(*origin(1)).clone() };
        let file = super::super::record_of(&form(), &wrong, &data(1));
        let refused = import(folder.path(), &file).expect_err("its hash is another text's");
        assert_eq!(refused.to_string(), "its chain hash does not follow from its tokens");
        assert!(records_in(folder.path()).is_empty());
    }
}
