//! Any bytes given as a file of KV blocks must be read as blocks that agree with their header, or return an error. The input
//! is written over a sound record: two bytes say where, and the checksum is set anew, so that it stops nothing. The
//! first byte says whether the record is portable or of a folder with a key.
#![no_main]

use folio::engine::memory::BlockHash;
use folio::engine::disk::{FolderKey, Form, Record, file};
use folio::engine::memory::Origin;
use folio::plan::KvFormat;
use libfuzzer_sys::fuzz_target;

fn sound(key: Option<&FolderKey>) -> (Form, Vec<u8>) {
    let keys = |heads, head_dim| file::LayerForm::KeysAndValues { heads, head_dim };
    let form = Form {
        fingerprint: [3; 32],
        kv_format: KvFormat::Q8,
        block_size: 4,
        adapter: file::NO_ADAPTER.into(),
        build: "cpu".into(),
        deterministic: false,
        layers: vec![
            vec![keys(1, 8), keys(2, 8)],
            vec![keys(1, 16)],
            vec![file::LayerForm::State { bytes: 24 }],
        ],
    };
    let (root, token_ids) = (BlockHash::root(&form.key(), None, None, None), [1, 2, 3, 4]);
    let origin = Origin {
        key: (1, root.next(&form.key(), &token_ids)),
        parent: root,
        token_ids: token_ids.into(),
    };
    let data = vec![7; usize::try_from(form.block_bytes(1)).expect("a small block")];
    let record = [form.header(&origin, &data, key), data].concat();
    (form, record)
}

fuzz_target!(|input: &[u8]| {
    let [keyed, low, high, changes @ ..] = input else {
        return;
    };
    let key = (keyed & 1 == 1).then(|| FolderKey::new([5; 32]));
    let (form, mut record) = sound(key.as_ref());
    let at = usize::from(u16::from_le_bytes([*low, *high])) % record.len();
    let end = (at + changes.len()).min(record.len());
    record[at..end].copy_from_slice(&changes[..end - at]);
    record.extend_from_slice(&changes[end - at..]);
    let header_bytes =
        u32::from_le_bytes([record[12], record[13], record[14], record[15]]) as usize;
    if (64..=record.len()).contains(&header_bytes) {
        let (header, data) = record.split_at_mut(header_bytes);
        file::seal(header, data, key.as_ref());
    }
    let Ok((record, _)) = Record::read(&record.into(), key.as_ref()) else {
        return;
    };
    assert_eq!(
        record.form.block_bytes(record.origin.key.0),
        record.data.len() as u64
    );
    assert_eq!(file::block_of(&record.file_name()), Some(record.origin.key));
    assert!(record.check_block(&record.origin).is_ok());
    let _ = form.check(&record);
});
