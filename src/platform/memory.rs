//! The memory of the machine.

/// Bytes that 32-bit addresses reach.
#[cfg(target_arch = "wasm32")]
const ADDRESSABLE: u64 = 4 << 30;
/// Bytes of that for the engine's program, tokenizers and requests. Memory in use does not count: that of an earlier
/// model is free again, but WebAssembly cannot give it back.
#[cfg(target_arch = "wasm32")]
const TAB_RESERVE: u64 = 256 << 20;

/// Where [`memory_available`] comes from, for display.
pub const MEMORY_SOURCE: &str = if cfg!(target_arch = "wasm32") {
    "what a tab's 4 GiB for the processor leave"
} else {
    "the machine's available memory"
};

/// Bytes that a process can still allocate without swapping: the system's number of available bytes, or on Linux the
/// rest of the control group's limit if that is less; in a browser tab, the bytes that WebAssembly can address for a
/// model. `None` where it is not known.
pub fn memory_available() -> Option<u64> {
    #[cfg(target_arch = "wasm32")]
    {
        Some(ADDRESSABLE - TAB_RESERVE)
    }
    #[cfg(any(windows, target_os = "macos"))]
    {
        let mut system = sysinfo::System::new();
        system.refresh_memory();
        Some(system.available_memory()).filter(|bytes| *bytes > 0)
    }
    #[cfg(not(any(windows, target_os = "macos", target_arch = "wasm32")))]
    linux::available_below(std::path::Path::new("/"))
}

/// Bytes of the machine's memory that this process has; `None` where it is not known, for example in a browser tab.
pub fn memory_resident() -> Option<u64> {
    #[cfg(any(windows, target_os = "macos"))]
    {
        let (mut system, own) = (sysinfo::System::new(), sysinfo::get_current_pid().ok()?);
        system.refresh_processes(sysinfo::ProcessesToUpdate::Some(&[own]), true);
        system.process(own).map(sysinfo::Process::memory)
    }
    #[cfg(target_arch = "wasm32")]
    {
        None
    }
    #[cfg(not(any(windows, target_os = "macos", target_arch = "wasm32")))]
    linux::resident(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// Gives memory that was freed back to the system, after much of it was. Allocators keep some of it otherwise.
pub fn return_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[allow(
        unsafe_code,
        reason = "the C library has no safe interface to its allocator"
    )]
    // SAFETY: this function may be called at any time from any thread, and touches only memory that is free.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Linux tells it by files.
#[cfg(any(test, not(any(windows, target_os = "macos", target_arch = "wasm32"))))]
mod linux {
    use std::path::Path;

    pub(super) fn available_below(root: &Path) -> Option<u64> {
        let text = |path: &str| std::fs::read_to_string(root.join(path)).ok();
        let system = available(&text("proc/meminfo")?)?;
        Some(group(&text).map_or(system, |left| left.min(system)))
    }

    fn available(meminfo: &str) -> Option<u64> {
        row(meminfo, "MemAvailable:")
    }

    pub(super) fn resident(status: &str) -> Option<u64> {
        row(status, "VmRSS:")
    }

    /// The bytes of a line such as `MemAvailable:   12345678 kB`.
    fn row(text: &str, name: &str) -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace()
            .next()?
            .parse::<u64>()
            .ok()?
            .checked_mul(1024)
    }

    /// What is left of the lowest limit of this process's control group and its parents (version 2).
    fn group(text: &impl Fn(&str) -> Option<String>) -> Option<u64> {
        let groups = text("proc/self/cgroup")?;
        let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let number = |path: String| text(&path)?.trim().parse::<u64>().ok();
        Path::new(own)
            .ancestors()
            .filter_map(|group| {
                let group = Path::new("sys/fs/cgroup").join(group).display().to_string();
                // The word `max` is no number: this group has no limit.
                Some(
                    number(format!("{group}/memory.max"))?
                        .saturating_sub(number(format!("{group}/memory.current"))?),
                )
            })
            .min()
    }
}

#[cfg(test)]
mod tests;
