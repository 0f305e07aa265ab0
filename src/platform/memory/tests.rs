//! Tests of `platform/memory.rs`.

use super::linux::available_below;

#[test]
fn the_machine_s_own_memory_is_known() {
    let bytes = super::memory_available().expect("every system that runs tests tells it");
    assert!((1 << 20..1 << 50).contains(&bytes), "{bytes}");
    let own = super::memory_resident().expect("as it tells this");
    assert!((1 << 20..1 << 36).contains(&own), "{own}");
}

fn machine(files: &[(&str, &str)]) -> Option<u64> {
    let root = tempfile::tempdir().expect("a folder for this test");
    for (name, text) in files {
        let path = root.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("the folder is made");
        std::fs::write(path, text).expect("the folder takes files");
    }
    available_below(root.path())
}

#[test]
fn the_lowest_limit_counts() {
    let meminfo = (
        "proc/meminfo",
        "MemTotal: 2000 kB\nMemAvailable:   1000 kB\n",
    );
    assert_eq!(machine(&[]), None);
    assert_eq!(machine(&[meminfo]), Some(1_024_000));
    let own = ("proc/self/cgroup", "0::/a/b\n");
    let limit = ("sys/fs/cgroup/a/memory.max", "500000\n");
    let used = ("sys/fs/cgroup/a/memory.current", "100000\n");
    assert_eq!(
        machine(&[meminfo, own, limit, used]),
        Some(400_000),
        "a parent's limit counts too"
    );
    let none = ("sys/fs/cgroup/a/memory.max", "max\n");
    assert_eq!(machine(&[meminfo, own, none, used]), Some(1_024_000));
    let high = ("sys/fs/cgroup/a/memory.max", "5000000000\n");
    assert_eq!(machine(&[meminfo, own, high, used]), Some(1_024_000));
    let over = ("sys/fs/cgroup/a/memory.max", "50000\n");
    assert_eq!(machine(&[meminfo, own, over, used]), Some(0));
}
