//! [`FileMap`]: a mapped file that may be truncated meanwhile without killing the process.
//!
//! Reading a page of a map beyond the end of its file raises SIGBUS, whose default action ends the process. Here, the
//! handler puts zeros in place of the missing pages and notes that the file is damaged; code that computes with the
//! bytes asks [`a_map_is_damaged`] afterwards and reports an error. Other causes of SIGBUS go to the handler that was
//! there before. Windows does not truncate files that are mapped.

#![allow(
    unsafe_code,
    reason = "memory maps and signal handlers need it, and no crate has a handler that returns"
)]

use std::fs::File;
use std::io;

/// A file mapped read-only.
pub(super) struct FileMap {
    map: memmap2::Mmap,
    #[cfg(unix)]
    _guard: guard::Guard,
}

impl FileMap {
    /// Maps the first `bytes` bytes of a file, at least one.
    pub(super) fn new(file: &File, bytes: usize) -> io::Result<Self> {
        // SAFETY: the map is read-only and private. It cannot be enforced that nobody rewrites the file meanwhile;
        // users who ask for a map are told not to. Changed contents can only change weights.
        let map = unsafe { memmap2::MmapOptions::new().len(bytes).map(file)? };
        Ok(Self {
            #[cfg(unix)]
            _guard: guard::Guard::new(map.as_ptr() as usize, map.len())?,
            map,
        })
    }
}

impl AsRef<[u8]> for FileMap {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

/// Whether a mapped file was truncated, and zeros were read in place of its contents. It stays true.
pub(super) fn a_map_is_damaged() -> bool {
    #[cfg(unix)]
    return guard::DAMAGED.load(std::sync::atomic::Ordering::Acquire);
    #[cfg(not(unix))]
    false
}

#[cfg(unix)]
mod guard {
    use std::io;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    /// Maximum maps at once: more than the files of any split model.
    const MAPS_MAX: usize = 2048;

    /// Start and end of each map; both 0 in a free entry. Only atomics, because a signal handler reads them.
    static MAPS: [(AtomicUsize, AtomicUsize); MAPS_MAX] =
        [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; MAPS_MAX];
    pub(super) static DAMAGED: AtomicBool = AtomicBool::new(false);
    /// The handler that was there before, and the size of a page; set before the first map is listed.
    static BEFORE: OnceLock<Option<(libc::sigaction, usize)>> = OnceLock::new();

    /// A map in the list; it leaves the list before it is unmapped.
    pub(super) struct Guard(usize);

    impl Guard {
        pub(super) fn new(start: usize, bytes: usize) -> io::Result<Self> {
            assert!(start > 0 && bytes > 0, "a map is somewhere and not empty");
            if BEFORE.get_or_init(install).is_none() {
                return Err(io::Error::other("no handler for SIGBUS could be installed"));
            }
            for (index, (from, to)) in MAPS.iter().enumerate() {
                if from
                    .compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
                {
                    to.store(start + bytes, Ordering::Release);
                    return Ok(Self(index));
                }
            }
            Err(io::Error::other(format!(
                "more than {MAPS_MAX} files are mapped"
            )))
        }
    }

    impl Drop for Guard {
        fn drop(&mut self) {
            let (from, to) = &MAPS[self.0];
            to.store(0, Ordering::Release);
            from.store(0, Ordering::Release);
        }
    }

    fn install() -> Option<(libc::sigaction, usize)> {
        // SAFETY: `sigaction` is plain data for which zeros are valid; the handler has the signature that SA_SIGINFO
        // asks for, and calls only functions that are safe in a handler.
        unsafe {
            let page = usize::try_from(libc::sysconf(libc::_SC_PAGESIZE)).ok()?;
            let mut before: libc::sigaction = std::mem::zeroed();
            let mut action: libc::sigaction = std::mem::zeroed();
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                on_bus_error;
            action.sa_sigaction = handler as usize;
            // On the alternate stack, as the handler of stack overflows: the fault may come from anywhere.
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            (libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before) == 0)
                .then_some((before, page))
        }
    }

    extern "C" fn on_bus_error(
        _signal: libc::c_int,
        info: *mut libc::siginfo_t,
        _context: *mut libc::c_void,
    ) {
        let Some(Some((before, page))) = BEFORE.get() else {
            return;
        };
        // SAFETY: the kernel passes valid information about the fault.
        let address = unsafe { (*info).si_addr() } as usize;
        let inside = MAPS.iter().find_map(|(from, to)| {
            let (from, to) = (from.load(Ordering::Acquire), to.load(Ordering::Acquire));
            (from..to).contains(&address).then_some(to)
        });
        if inside.is_some_and(|end| replace(address / page * page, end)) {
            DAMAGED.store(true, Ordering::Release);
            return;
        }
        // SAFETY: restores what was there. The instruction then faults again, and that handler sees it.
        unsafe { libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut()) };
    }

    /// Maps zeros over the rest of a map, from the page of the fault on: the end of the file lies before it.
    fn replace(start: usize, end: usize) -> bool {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the range lies within a map of ours, whose pages nothing can read any more; mmap is a system call,
        // which takes no lock of this process.
        let there =
            unsafe { libc::mmap(start as *mut _, end - start, libc::PROT_READ, flags, -1, 0) };
        there != libc::MAP_FAILED
    }
}
