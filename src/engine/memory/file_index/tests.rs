//! Tests of `engine/memory/file_index.rs`.

use super::*;

fn origin(token: u32) -> Arc<Origin> {
    let root = BlockHash::root(&[7; 32], None, None, None);
    Arc::new(Origin {
        key: (0, root.next(&[7; 32], &[token])),
        parent: root,
        token_ids: [token].into(),
    })
}

#[test]
fn a_block_is_written_once() {
    let mut files = FileIndex::new(DiskUse::ReadAndWrite, vec![10]);
    let key = origin(1).key;
    assert!(files.wants(&key) && files.start_write(&origin(1)));
    assert!(!files.wants(&key), "it is on its way");
    files.end_write(&key);
    files.add(key);
    assert!(!files.wants(&key) && files.holds(&key), "it is there");
    files.withdraw(key);
    assert!(
        files.wants(&key) && files.take_jobs().len() == 1,
        "its file is removed"
    );
}

#[test]
fn only_so_much_is_on_its_way() {
    let mut files = FileIndex::new(DiskUse::ReadAndWrite, vec![WRITING_BYTES_MAX]);
    assert!(files.start_write(&origin(1)));
    assert!(!files.start_write(&origin(2)), "one block fills the limit");
    files.end_write(&origin(1).key);
    assert!(files.start_write(&origin(2)));
}

#[test]
fn a_lost_device_loses_what_was_copied_from_it() {
    let mut files = FileIndex::new(DiskUse::ReadAndWrite, vec![10]);
    let [copied, copying] = [1, 2].map(origin);
    assert!(files.start_write(&copied) && files.start_write(&copying) && files.hand_over(&copied));
    files.finish(7, origin(3));
    files.restart();
    assert!(!files.wants(&copied.key) && files.wants(&copying.key) && !files.has_finished());
    assert_eq!(files.writing_bytes, 10);
}

#[test]
fn a_withdrawn_copy_is_not_written_in_place_of_a_later_one() {
    let mut files = FileIndex::new(DiskUse::ReadAndWrite, vec![10]);
    let [first, second] = [1, 1].map(origin);
    assert!(files.start_write(&first));
    files.withdraw(first.key);
    assert!(files.start_write(&second));
    assert!(
        !files.hand_over(&first),
        "its content turned out to be wrong"
    );
    files.abandon(&first);
    assert!(files.hand_over(&second));
}

#[test]
fn finished_blocks_come_in_order_unless_they_are_overwritten() {
    let mut files = FileIndex::new(DiskUse::ReadAndWrite, vec![10]);
    (0..4).for_each(|block| files.finish(block, origin(block)));
    assert_eq!(
        files.take_finished(0, 1).map(|found| found.key),
        Some(origin(1).key)
    );
    assert_eq!(files.take_finished(0, 1), None);
    let mut order = Vec::new();
    while let Some((block, _)) = files.next_finished() {
        order.push(block);
    }
    assert_eq!(order, [0, 2, 3]);
}
