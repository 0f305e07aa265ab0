//! Files in folders of this test.

use super::*;
use crate::engine::disk::record_of;
use crate::engine::disk::writer::TEMPORARY_AGE_MAX;
use crate::engine::memory::BlockHash;
use crate::plan::KvFormat;

fn form() -> Form {
    Form {
        fingerprint: [3; 32],
        kv_format: KvFormat::F32,
        block_size: 1,
        adapter: file::NO_ADAPTER.into(),
        build: "test".into(),
        deterministic: false,
        layers: vec![vec![file::LayerForm::KeysAndValues {
            heads: 1,
            head_dim: 64,
        }]],
    }
}

fn origin(token: u32) -> Arc<Origin> {
    let (key, root) = (
        form().key(),
        BlockHash::root(&form().key(), None, None, None),
    );
    Arc::new(Origin {
        key: (0, root.next(&key, &[token])),
        parent: root,
        token_ids: [token].into(),
    })
}

fn data(fill: u32) -> Bytes {
    vec![u8::try_from(fill).expect("a byte"); 512].into()
}

/// The next event that is neither about files found or refused nor about none lost.
fn next(disk: &mut FolderDisk) -> DiskEvent {
    loop {
        match platform::block_on(disk.wait()) {
            DiskEvent::Found(_) | DiskEvent::Refused(_) | DiskEvent::Emptied => {}
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
    let open =
        || FolderDisk::open(folder.path(), 1 << 20, &form()).expect("the folder can be used");
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
    assert_eq!(
        keys, expected,
        "what was queued is written when the engine ends"
    );
    assert_eq!(read(&mut disk, 1), Some(data(1)));
    assert_eq!(read(&mut disk, 3), None);
    disk.remove(origin(1).key);
    write(&mut disk, 4);
    assert_eq!(read(&mut disk, 1), None, "it was removed before the write");
}

#[test]
fn damaged_files_are_removed() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let mut disk =
        FolderDisk::open(folder.path(), 1 << 20, &form()).expect("the folder can be used");
    (1..=4).for_each(|token| write(&mut disk, token));
    let path = |token| {
        folder
            .path()
            .join(form().folder_name())
            .join(file::file_name(origin(token).key))
    };
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
    let length = form().header(&origin(1), &data(1), None).len() as u64 + 512;
    let mut disk =
        FolderDisk::open(folder.path(), 10 * length, &form()).expect("the folder can be used");
    let path = |token| {
        folder
            .path()
            .join(form().folder_name())
            .join(file::file_name(origin(token).key))
    };
    for token in 0..10 {
        write(&mut disk, token);
        let age = Duration::from_secs(1000 - u64::from(token));
        let file = fs::File::options()
            .write(true)
            .open(path(token))
            .expect("it was written");
        file.set_modified(SystemTime::now() - age)
            .expect("its time can be set");
    }
    assert_eq!(read(&mut disk, 0), Some(data(0)), "reading makes it young");
    let stranger = folder.path().join(form().folder_name()).join("notes");
    fs::write(&stranger, vec![0; 9999]).expect("it can be written");
    disk.write(origin(10), data(10));
    assert!(matches!(
        next(&mut disk),
        DiskEvent::Written { done: true, .. }
    ));
    match next(&mut disk) {
        DiskEvent::Lost(keys) => assert_eq!(keys, [origin(1).key, origin(2).key]),
        event => panic!("{event:?}"),
    }
    assert_eq!(
        (read(&mut disk, 0), read(&mut disk, 1)),
        (Some(data(0)), None)
    );
    assert!(stranger.exists(), "other files are left alone");
}

#[test]
fn two_processes_see_what_the_other_has_written() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let open =
        || FolderDisk::open(folder.path(), 1 << 20, &form()).expect("the folder can be used");
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
    let records: Vec<_> = (1..=3)
        .map(|token| record_of(&form(), &origin(token), &data(token)))
        .collect();
    let file = Bytes::from(records.concat());
    assert_eq!(import(folder.path(), &file).expect("it is sound"), 3);
    let mut disk =
        FolderDisk::open(folder.path(), 1 << 20, &form()).expect("the folder can be used");
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
    let mut disk =
        FolderDisk::open(folder.path(), 1 << 20, &form()).expect("the folder can be used");
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
    let file = fs::File::options()
        .write(true)
        .open(&old)
        .expect("it was written");
    file.set_modified(SystemTime::now() - TEMPORARY_AGE_MAX * 2)
        .expect("its time can be set");
    drop(disk);
    let mut disk =
        FolderDisk::open(folder.path(), 1 << 20, &form()).expect("the folder can be used");
    found(&mut disk);
    assert!(new.exists() && !old.exists());
}

#[test]
fn files_of_other_models_count_within_the_bytes_of_a_folder() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let length = form().header(&origin(1), &data(1), None).len() as u64 + 512;
    let other = Form {
        fingerprint: [4; 32],
        ..form()
    };
    // Files that are older than the folder's key would not be kept.
    drop(FolderDisk::open(folder.path(), 5 * length, &form()).expect("the folder can be used"));
    let theirs = folder.path().join(other.folder_name());
    fs::create_dir_all(&theirs).expect("the folder takes folders");
    for token in 1..=4 {
        let file = theirs.join(file::file_name(origin(token).key));
        fs::write(&file, vec![0; length as usize]).expect("it can be written");
        let file = fs::File::options()
            .write(true)
            .open(&file)
            .expect("it was written");
        file.set_modified(SystemTime::now() - Duration::from_secs(1000))
            .expect("its time can be set");
    }
    let mut disk =
        FolderDisk::open(folder.path(), 5 * length, &form()).expect("the folder can be used");
    (1..=3).for_each(|token| write(&mut disk, token));
    drop(disk);
    let mut disk =
        FolderDisk::open(folder.path(), 5 * length, &form()).expect("the folder can be used");
    assert_eq!(
        found(&mut disk).len(),
        3,
        "the older ones of the other model made room"
    );
    let left = fs::read_dir(&theirs).expect("it is there").count();
    assert!(
        (1..=2).contains(&left),
        "{left} files of the other model are left"
    );
}

#[test]
fn a_block_whose_hash_does_not_follow_from_its_tokens_is_not_imported() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let wrong = Origin {
        token_ids: [9].into(),
        ..(*origin(1)).clone()
    };
    let file = record_of(&form(), &wrong, &data(1));
    let refused = import(folder.path(), &file).expect_err("its hash is another text's");
    assert_eq!(
        refused.to_string(),
        "its chain hash does not follow from its tokens"
    );
    assert!(records_in(folder.path()).is_empty());
}

/// How many files have been refused by the time that this block is read.
fn refused_until_read(disk: &mut FolderDisk, token: u32) -> (u64, Option<Bytes>) {
    disk.read(7, origin(token));
    let mut refused = 0;
    loop {
        match platform::block_on(disk.wait()) {
            DiskEvent::Refused(files) => refused += files,
            DiskEvent::Read { data, .. } => return (refused, data),
            _ => {}
        }
    }
}

fn open(folder: &Path) -> io::Result<FolderDisk> {
    FolderDisk::open(folder, 1 << 20, &form())
}

fn key_of(folder: &Path) -> Vec<u8> {
    fs::read(folder.join("key")).expect("a folder in use has a key")
}

#[test]
fn a_block_that_was_not_written_with_the_key_of_the_folder_is_not_used() {
    let [folder, other] = [(); 2].map(|()| tempfile::tempdir().expect("a folder for this test"));
    let mut disks =
        [&folder, &other].map(|folder| open(folder.path()).expect("the folder can be used"));
    disks
        .iter_mut()
        .for_each(|disk| (1..=3).for_each(|token| write(disk, token)));
    let [disk, _] = &mut disks;
    let place = |folder: &Path, token| Place::new(folder, &form()).file(origin(token).key);
    fs::copy(place(other.path(), 1), place(folder.path(), 1)).expect("it can be written");
    let portable = record_of(&form(), &origin(2), &data(2));
    fs::write(place(folder.path(), 2), portable).expect("it can be written");
    for token in [1, 2] {
        assert_eq!(
            refused_until_read(disk, token),
            (1, None),
            "block {token} was planted"
        );
        assert!(!place(folder.path(), token).exists());
        assert_eq!(
            refused_until_read(disk, token),
            (0, None),
            "it is not found any more"
        );
    }
    assert_eq!(refused_until_read(disk, 3), (0, Some(data(3))));
    let shared = open(folder.path())
        .map(|mut disk| read(&mut disk, 3))
        .expect("the folder can be used");
    assert_eq!(shared, Some(data(3)), "processes share the key");
}

#[test]
fn without_its_key_a_folder_is_as_an_empty_one() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let mut disk = open(folder.path()).expect("the folder can be used");
    (1..=3).for_each(|token| write(&mut disk, token));
    let first = key_of(folder.path());
    fs::remove_file(folder.path().join("key")).expect("it is there");
    assert_eq!(read(&mut disk, 1), None, "nothing is read without a key");
    write(&mut disk, 4);
    assert_ne!(
        key_of(folder.path()),
        first,
        "a new one is made for the first block that is written"
    );
    assert_eq!(
        (read(&mut disk, 1), read(&mut disk, 4)),
        (None, Some(data(4)))
    );
    drop(disk);
    fs::remove_file(folder.path().join("key")).expect("it is there");
    let mut disk = open(folder.path()).expect("the folder can be used");
    assert_eq!(refused_until_read(&mut disk, 4), (1, None));
    assert!(records_in(folder.path()).is_empty());
}

#[cfg(unix)]
#[test]
fn a_key_is_a_secret_of_32_bytes_or_an_error_that_names_its_file() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().expect("a folder for this test");
    drop(open(folder.path()).expect("the folder can be used"));
    let file = folder.path().join("key");
    let mode =
        |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("it is ours");
    assert_eq!(
        fs::metadata(&file)
            .expect("it is there")
            .permissions()
            .mode()
            & 0o777,
        0o600
    );
    mode(0o400);
    assert!(open(folder.path()).is_ok(), "it need not be written again");
    let refusal = || {
        open(folder.path())
            .map(drop)
            .expect_err("it is refused")
            .to_string()
    };
    mode(0o644);
    let message = refusal();
    assert!(
        message.contains("/key: ") && message.contains("chmod 600"),
        "{message}"
    );
    mode(0o600);
    for bytes in [0, 31, 33] {
        fs::write(&file, vec![0; bytes]).expect("it can be written");
        assert!(refusal().contains("/key: "), "{bytes} bytes");
    }
    fs::remove_file(&file).expect("it is there");
    std::os::unix::fs::symlink("/dev/zero", &file).expect("the folder takes links");
    assert!(refusal().contains("/key: "));
    let import = import(folder.path(), &record_of(&form(), &origin(1), &data(1)));
    assert!(
        import
            .expect_err("it is refused, too")
            .to_string()
            .contains("/key: ")
    );
}

#[test]
fn what_a_folder_holds_is_exported_without_its_key() {
    let [folder, other] = [(); 2].map(|()| tempfile::tempdir().expect("a folder for this test"));
    write(&mut open(folder.path()).expect("the folder can be used"), 1);
    let records = records_in(folder.path());
    let [record] = &records[..] else {
        panic!("{records:?}")
    };
    assert!(
        import(other.path(), &record.whole).is_err(),
        "as it is, it belongs to its folder"
    );
    let portable = [&record.header(None)[..], &record.data].concat();
    assert_eq!(
        import(other.path(), &portable.into()).expect("it is sound"),
        1
    );
    assert_eq!(
        read(&mut open(other.path()).expect("the folder can be used"), 1),
        Some(data(1))
    );
}

/// The events up to one that says whether the disk can be used.
fn until_usable(disk: &mut FolderDisk, expected: bool) {
    loop {
        if let DiskEvent::Usable(usable) = platform::block_on(disk.wait()) {
            return assert_eq!(usable, expected);
        }
    }
}

#[test]
fn a_folder_that_vanishes_is_made_again() {
    let parent = tempfile::tempdir().expect("a folder for this test");
    let folder = parent.path().join("kv");
    let mut disk = open(&folder).expect("the folder can be used");
    let all = |disk: &mut FolderDisk| {
        let mut events = Vec::new();
        loop {
            let event = platform::block_on(disk.wait());
            let is_last = matches!(event, DiskEvent::Written { done: true, .. });
            events.push(event);
            if is_last {
                return events;
            }
        }
    };
    write(&mut disk, 1);
    let first = key_of(&folder);
    fs::remove_dir_all(&folder).expect("it is there");
    assert_eq!(read(&mut disk, 1), None);
    disk.write(origin(2), data(2));
    let events = all(&mut disk);
    assert!(
        events
            .iter()
            .any(|event| matches!(event, DiskEvent::Emptied)),
        "{events:?}"
    );
    assert!(
        !events
            .iter()
            .any(|event| matches!(event, DiskEvent::Usable(_))),
        "nothing failed: {events:?}"
    );
    assert_eq!(read(&mut disk, 2), Some(data(2)));
    assert_ne!(key_of(&folder), first);
    #[cfg(unix)]
    for folder in [&folder, &folder.join(form().folder_name())] {
        let permissions = fs::metadata(folder).expect("it is there").permissions();
        assert_eq!(
            std::os::unix::fs::PermissionsExt::mode(&permissions) & 0o777,
            0o700
        );
    }
    fs::remove_dir_all(folder.join(form().folder_name())).expect("it is there");
    write(&mut disk, 3);
    assert_eq!(
        read(&mut disk, 3),
        Some(data(3)),
        "nor need all of it vanish"
    );
}

#[test]
fn a_folder_that_cannot_be_made_again_is_told_until_it_can() {
    let parent = tempfile::tempdir().expect("a folder for this test");
    let folder = parent.path().join("kv");
    let mut disk = open(&folder).expect("the folder can be used");
    write(&mut disk, 1);
    fs::remove_dir_all(&folder).expect("it is there");
    fs::write(&folder, "a file in its place").expect("the parent takes files");
    until_usable(&mut disk, false);
    for token in [2, 3] {
        disk.write(origin(token), data(token));
        match next(&mut disk) {
            DiskEvent::Written { done, .. } => assert!(!done, "and told once only"),
            event => panic!("{event:?}"),
        }
        assert_eq!(read(&mut disk, token), None);
    }
    fs::remove_file(&folder).expect("it is there");
    until_usable(&mut disk, true);
    write(&mut disk, 4);
    assert_eq!(read(&mut disk, 4), Some(data(4)));
}
