//! Tests of `platform/own_file.rs`.

use super::*;

#[test]
fn a_folder_that_others_may_write_to_is_refused() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    for (mode, is_own) in [
        (0o700, true),
        (0o755, true),
        (0o770, false),
        (0o777, false),
        (0o702, false),
    ] {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(folder.path(), permissions).expect("it is ours");
        assert_eq!(check_own_folder(folder.path()).is_ok(), is_own, "{mode:o}");
    }
}

#[test]
fn links_and_long_files_are_not_read() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let (file, link) = (folder.path().join("file"), folder.path().join("link"));
    write_own_file(&file, &[b"long", b" text"]).expect("the folder takes files");
    write_own_file(&file, &[b"text"]).expect("it is replaced");
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &fs::metadata(&file).expect("it is there").permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(
        fs::read_dir(folder.path()).expect("it is there").count(),
        1,
        "no temporary file is left"
    );
    std::os::unix::fs::symlink(&file, &link).expect("the folder takes links");
    assert_eq!(read_own_file(&file, 4).expect("it is ours"), b"text");
    assert!(read_own_file(&file, 3).is_err());
    assert!(read_own_file(&link, 4).is_err());
    assert!(read_own_file(folder.path(), 4).is_err());
    assert!(
        open_no_link(
            OpenOptions::new().write(true).create(true).truncate(true),
            &link
        )
        .is_err()
    );
    assert_eq!(
        read_own_file(&file, 4).expect("nothing was written through the link"),
        b"text"
    );
}

#[test]
fn of_several_who_create_a_file_one_writes_it() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let file = folder.path().join("file");
    let create = |text: &'static str| {
        create_own_file(&file, &[text.as_bytes()]).expect("the folder takes files")
    };
    let created: Vec<bool> = std::thread::scope(|scope| {
        let threads =
            ["1111", "2222", "3333", "4444"].map(|text| scope.spawn(move || create(text)));
        threads
            .into_iter()
            .map(|thread| thread.join().expect("it does not panic"))
            .collect()
    });
    assert_eq!(created.iter().filter(|&&is_first| is_first).count(), 1);
    let [first, others @ ..]: [u8; 4] = read_secret_file(&file).expect("it is ours");
    assert_eq!(others, [first; 3], "it is whole");
    assert_eq!(
        fs::read_dir(folder.path()).expect("it is there").count(),
        1,
        "no temporary file is left"
    );
}

#[test]
fn a_secret_that_others_may_read_is_none() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let file = folder.path().join("file");
    write_own_file(&file, &[b"text"]).expect("the folder takes files");
    for (mode, is_secret) in [
        (0o600, true),
        (0o400, true),
        (0o640, false),
        (0o602, false),
        (0o644, false),
    ] {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(&file, permissions).expect("it is ours");
        assert_eq!(read_secret_file::<4>(&file).is_ok(), is_secret, "{mode:o}");
    }
    assert!(read_secret_file::<5>(&file).is_err(), "it is shorter");
    assert!(read_secret_file::<3>(&file).is_err(), "it is longer");
}
