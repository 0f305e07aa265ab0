//! The processors of the machine.

use std::collections::BTreeSet;
use std::path::Path;

/// Physical cores that this process may use: its affinity mask and its control group's quota count. Where the system
/// does not tell which processors share a core, all of them count.
pub fn physical_cores() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    cores_below(Path::new("/")).map_or(processors, |cores| cores.clamp(1, processors))
}

/// Cores of the processors that this process may run on; only Linux tells it by files.
fn cores_below(root: &Path) -> Option<usize> {
    let text = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    let status = text("proc/self/status")?;
    let allowed = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let cores: Option<BTreeSet<String>> = list(allowed)?
        .into_iter()
        .map(|processor| {
            text(&format!(
                "sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
            ))
        })
        .collect();
    cores.map(|cores| cores.len())
}

/// A list such as `0-3,8`.
fn list(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        numbers.extend(
            first.parse::<usize>().ok()?
                ..=last.parse::<usize>().ok().filter(|last| *last < 1 << 16)?,
        );
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
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
}
