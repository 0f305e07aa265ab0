//! Tests of `engine/disk/file.rs`.

use super::*;
use proptest::prelude::*;

fn form() -> Form {
    let keys = |heads, head_dim| LayerForm::KeysAndValues { heads, head_dim };
    let states = vec![
        LayerForm::State { bytes: 24 },
        LayerForm::State { bytes: 8 },
    ];
    Form {
        fingerprint: [3; 32],
        kv_format: KvFormat::F16,
        block_size: 4,
        adapter: NO_ADAPTER.into(),
        build: "cpu".into(),
        deterministic: false,
        layers: vec![
            vec![keys(1, 8), keys(2, 8)],
            vec![LayerForm::Latent { heads: 1, size: 16 }],
            states,
        ],
    }
}

fn origin(form: &Form, token_ids: [u32; 4]) -> Origin {
    let root = BlockHash::root(&form.key(), None, None, None);
    Origin {
        key: (0, root.next(&form.key(), &token_ids)),
        parent: root,
        token_ids: token_ids.into(),
    }
}

fn file(form: &Form, origin: &Origin, fill: u8) -> Vec<u8> {
    let data = vec![fill; 2 * 4 * (8 + 16) * 2];
    let mut file = form.header(origin, &data, None);
    file.extend(data);
    file
}

fn read(file: &[u8]) -> Result<Record, FileError> {
    Record::read(&Bytes::copy_from_slice(file), None).map(|(record, _)| record)
}

#[test]
fn a_record_is_read_as_it_was_written() {
    let (form, other) = (
        form(),
        Form {
            deterministic: true,
            ..form()
        },
    );
    let origin = origin(&form, [1, 2, 3, 4]);
    let file = file(&form, &origin, 9);
    let record = read(&file).expect("it is whole");
    assert_eq!(
        (form.check(&record), record.check_block(&origin)),
        (Ok(()), Ok(()))
    );
    assert_eq!(
        (record.data.len(), record.data[0], record.whole.len()),
        (384, 9, file.len())
    );
    assert_eq!(block_of(&record.file_name()), Some(origin.key));
    assert_ne!(
        form.folder_name(),
        other.folder_name(),
        "bits of one build are apart"
    );
}

#[test]
fn a_state_and_a_latent_have_records_of_their_sizes() {
    let form = form();
    for (group, bytes, is_state) in [(0, 384, false), (1, 128, false), (2, 32, true)] {
        let origin = Origin {
            key: (group, origin(&form, [1, 2, 3, 4]).key.1),
            ..origin(&form, [1, 2, 3, 4])
        };
        let write =
            |bytes: usize| [form.header(&origin, &vec![9; bytes], None), vec![9; bytes]].concat();
        let record = read(&write(bytes)).expect("it is whole");
        assert_eq!(
            (form.check(&record), record.check_block(&origin)),
            (Ok(()), Ok(()))
        );
        assert_eq!((record.data.len(), record.is_state()), (bytes, is_state));
        let longer = read(&write(bytes + 1)).map(|_| ()).expect_err("refused");
        assert_eq!(
            longer.to_string(),
            "its length does not follow from its layers"
        );
    }
}

#[test]
fn files_of_other_versions_are_refused_by_their_version() {
    let mut file = file(&form(), &origin(&form(), [1, 2, 3, 4]), 9);
    file[8..12].copy_from_slice(&1_u32.to_le_bytes());
    let message =
        "it has version 1 of its form, and this program reads version 2: compute it again";
    assert_eq!(read(&file).expect_err("refused").to_string(), message);
}

#[test]
fn records_of_something_else_are_refused() {
    let form = form();
    let own = origin(&form, [1, 2, 3, 4]);
    let check = |change: &dyn Fn(&mut Form)| {
        let mut other = form.clone();
        change(&mut other);
        let origin = origin(&other, [1, 2, 3, 4]);
        let record = read(&file(&other, &origin, 0)).expect("it is whole");
        form.check(&record).expect_err("it is another").to_string()
    };
    assert_eq!(
        check(&|form| form.fingerprint = [4; 32]),
        "it has another model"
    );
    assert_eq!(
        check(&|form| form.adapter = "a".into()),
        "it has another adapter"
    );
    assert_eq!(
        check(&|form| form.deterministic = true),
        "it has another rule about builds"
    );
    assert_eq!(
        check(&|form| drop(form.layers.pop())),
        "it has another number of groups"
    );
    assert_eq!(
        check(&|form| form.layers[0].reverse()),
        "it has another list of layers"
    );
    let text = read(&file(&form, &origin(&form, [1, 2, 3, 5]), 0)).expect("it is whole");
    assert_eq!(text.check_block(&own), Err(FileError::Other("chain hash")));
    let same_name = Record {
        origin: Origin {
            token_ids: [1, 2, 3, 5].into(),
            ..own.clone()
        },
        ..text
    };
    assert_eq!(same_name.check_block(&own), Err(FileError::Other("text")));
    let strict = |build: &str| Form {
        deterministic: true,
        build: build.into(),
        ..form.clone()
    };
    let (one, two) = (strict("one"), strict("two"));
    let theirs = read(&file(&two, &origin(&two, [1, 2, 3, 4]), 0)).expect("it is whole");
    assert_eq!(
        one.check(&theirs),
        Err(FileError::Other("backend or build"))
    );
}

#[test]
fn any_changed_or_missing_byte_is_noticed() {
    let form = form();
    let whole = file(&form, &origin(&form, [1, 2, 3, 4]), 9);
    for at in 0..whole.len() {
        assert!(read(&whole[..at]).is_err(), "{at} bytes");
        let mut changed = whole.clone();
        changed[at] ^= 1;
        assert!(read(&changed).is_err(), "byte {at}");
    }
}

#[test]
fn only_a_record_with_the_hash_of_its_folder_is_read_there() {
    let form = form();
    let origin = origin(&form, [1, 2, 3, 4]);
    let [own, other] = [1, 2].map(|fill| Some(FolderKey::new([fill; 32])));
    let keys = [own.as_ref(), other.as_ref(), None];
    let record = read(&file(&form, &origin, 9)).expect("it is whole");
    for written in keys {
        let file = Bytes::from([&record.header(written)[..], &record.data].concat());
        for reader in keys {
            let is_same = written.map(|key| key as *const _) == reader.map(|key| key as *const _);
            assert_eq!(Record::read(&file, reader).is_ok(), is_same);
        }
    }
}

#[test]
fn a_file_may_hold_several_records() {
    let form = form();
    let files = [[1, 2, 3, 4], [5, 6, 7, 8]].map(|tokens| file(&form, &origin(&form, tokens), 1));
    let both = Bytes::from(files.concat());
    assert_eq!(Record::read_all(&both, 2).expect("both are whole").len(), 2);
    assert_eq!(
        Record::read_all(&both, 1).map(|_| ()),
        Err(FileError::Damaged("it has too many blocks"))
    );
    assert!(
        Record::read_all(&both.slice(..both.len() - 1), 2).is_err(),
        "the second is cut"
    );
}

#[test]
fn only_names_of_blocks_are_read() {
    let name = file_name((3, BlockHash::from([0xab; 16])));
    assert_eq!(block_of(&name), Some((3, BlockHash::from([0xab; 16]))));
    for wrong in [
        "",
        ".kv",
        "-0.kv",
        "ab-0.kv",
        &name.to_uppercase(),
        &name.replace("-3", "-03"),
        &format!("{name}x"),
    ] {
        assert_eq!(block_of(wrong), None, "{wrong}");
    }
}

proptest! {
    /// A writer that knows the form can make any header; it is still checked.
    #[test]
    fn no_header_makes_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), at in 56usize..300) {
        let form = form();
        let mut file = file(&form, &origin(&form, [1, 2, 3, 4]), 9);
        let at = at.min(file.len());
        let end = (at + bytes.len()).min(file.len());
        file[at..end].copy_from_slice(&bytes[..end - at]);
        let header_bytes = u32::from_le_bytes(file[12..16].try_into().expect("four bytes")) as usize;
        let (header, data) = file.split_at_mut(header_bytes);
        seal(header, data, None);
        let _ = read(&file);
        let _ = read(&bytes);
    }
}
