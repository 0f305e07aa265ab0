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
mod tests;
