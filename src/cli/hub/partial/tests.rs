//! Tests of `cli/hub/partial.rs`.

use super::*;

fn remote(hash: &str, size: u64) -> Remote {
    Remote {
        name: "a.bin".into(),
        hash: hash.into(),
        size,
    }
}

#[test]
fn both_hashes_are_the_published_ones() {
    let check = |hash: &str, contents: &[u8]| {
        let folder = tempfile::tempdir().expect("a folder for this test");
        let remote = remote(hash, contents.len() as u64);
        let (path, to) = (folder.path().join("a.incomplete"), folder.path().join("a"));
        // In two parts; the second resumes what the first has left.
        let (head, tail) = contents.split_at(contents.len() / 2);
        Partial::open(path.clone(), &remote)
            .and_then(|mut partial| partial.add(head))
            .expect("it is written");
        let mut partial = Partial::open(path, &remote).expect("it opens");
        assert_eq!(partial.bytes(), head.len() as u64);
        partial.add(tail).expect("it is written");
        assert!(partial.is_long_enough());
        partial.finish(&to).expect("the hash is right");
        assert_eq!(fs::read(to).expect("it is there"), contents);
    };
    // `git hash-object` and `sha256sum` of the same text.
    check(
        "8ab686eafeb1f44702738c8b0f24f2567c36da6d",
        b"Hello, World!\n",
    );
    check(
        "c98c24b677eff44860afea6f493bbaec5bb1c4cbb209c6fc2bbb47f66ff2ad31",
        b"Hello, World!\n",
    );
    check("e69de29bb2d1d6434b8b29ae775ad8c2e48c5391", b"");
}

#[test]
fn a_full_disk_error_says_how_much_is_missing() {
    let full = io::Error::from(ErrorKind::StorageFull);
    let message = write_error(Path::new("blobs/a"), &full, 3 << 30);
    assert!(
        message.contains("disk is full")
            && message.contains("3.00 GiB")
            && message.contains("blobs/a")
    );
    let other = write_error(
        Path::new("blobs/a"),
        &io::Error::from(ErrorKind::PermissionDenied),
        1,
    );
    assert!(
        !other.contains("full") && other.contains("blobs/a"),
        "{other}"
    );
}
