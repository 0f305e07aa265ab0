//! Tests of `platform/processors.rs`.

use super::*;

#[test]
fn processors_that_share_a_core_count_once() {
    let root = tempfile::tempdir().expect("a folder for this test");
    let write = |name: &str, text: &str| {
        let path = root.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("the folder is made");
        std::fs::write(path, text).expect("the folder takes files");
    };
    assert_eq!(cores_below(root.path()), None);
    write(
        "proc/self/status",
        "Name:\tfolio\nCpus_allowed_list:\t0-1,4-5,7\n",
    );
    assert_eq!(cores_below(root.path()), None, "no topology");
    for (processor, siblings) in [
        (0, "0,4\n"),
        (1, "1,5\n"),
        (4, "0,4\n"),
        (5, "1,5\n"),
        (7, "3,7\n"),
    ] {
        write(
            &format!("sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list"),
            siblings,
        );
    }
    assert_eq!(cores_below(root.path()), Some(3));
    assert_eq!(list("0-x"), None);
}
