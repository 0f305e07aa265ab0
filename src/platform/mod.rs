//! What differs between a process and a browser tab: clock, blocking and files. The only place outside `backend/wgpu`
//! and `web` that depends on the target.

#[cfg(not(target_arch = "wasm32"))]
mod file_map;
mod memory;
mod model_file;
mod own_file;
mod pages;
mod processors;
#[cfg(unix)]
mod signals;

pub use memory::{MEMORY_SOURCE, memory_available, memory_resident, return_freed_memory};
pub use model_file::{FileAccess, ModelFile};
pub use own_file::{
    TEMPORARY, check_own_folder, create_own_file, create_own_folder, open_no_link, read_own_file,
    read_secret_file, write_own_file,
};
pub use pages::Pages;
pub use processors::physical_cores;
#[cfg(unix)]
pub use signals::ignores_hang_up;

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

#[cfg(not(target_arch = "wasm32"))]
pub use std::time::{Instant, SystemTime};
#[cfg(target_arch = "wasm32")]
pub use web_time::{Instant, SystemTime};

/// Stack of a thread for [`offload`]: the lists in a hostile template's lists are freed by recursion. The system
/// provides only what is used.
#[cfg(not(target_arch = "wasm32"))]
const OFFLOAD_STACK_BYTES: usize = 256 << 20;

/// Runs a future to completion on this thread. A browser tab must not block; there the caller awaits instead.
#[cfg(not(target_arch = "wasm32"))]
pub fn block_on<F: Future>(future: F) -> F::Output {
    pollster::block_on(future)
}

/// Runs work that would block other futures, on its own thread. A browser tab has no threads and runs it in place.
/// Returns `None` if the work panicked or no thread could be started.
pub async fn offload<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    #[cfg(target_arch = "wasm32")]
    return Some(work());
    #[cfg(not(target_arch = "wasm32"))]
    {
        let (sender, receiver) = futures_channel::oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("offload".into())
            .stack_size(OFFLOAD_STACK_BYTES);
        thread
            .spawn(move || {
                // Sending fails if the request was cancelled and nobody waits any more.
                let _ = sender.send(work());
            })
            .ok()?;
        receiver.await.ok()
    }
}

/// Frees a value that takes long to free on a thread of its own. A browser tab has no threads and frees it in place.
pub fn discard<T: Send + 'static>(value: T) {
    #[cfg(not(target_arch = "wasm32"))]
    // If no thread can be started, the value is freed here.
    drop(
        std::thread::Builder::new()
            .name("discard".into())
            .spawn(move || drop(value)),
    );
    #[cfg(target_arch = "wasm32")]
    drop(value);
}

/// Seconds since the Unix epoch, for the `created` fields of the API.
pub fn unix_time() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs()
}

/// The name of this machine, if it is known.
pub fn host_name() -> Option<String> {
    let file = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .or_else(|_| std::fs::read_to_string("/etc/hostname"));
    file.ok()
        .or_else(|| {
            std::env::var("COMPUTERNAME")
                .or_else(|_| std::env::var("HOSTNAME"))
                .ok()
        })
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
}

/// Number of threads that compute in parallel.
pub fn parallelism() -> usize {
    #[cfg(not(target_arch = "wasm32"))]
    return rayon::current_num_threads();
    #[cfg(target_arch = "wasm32")]
    1
}

/// Creates a future on a new thread and runs it there to completion. `panicked` turns a panic's message into a result.
/// A browser tab has no threads; there the caller awaits the future instead.
pub fn spawn<T, F>(
    name: &str,
    make: impl FnOnce() -> F + Send + 'static,
    panicked: impl FnOnce(String) -> T + Send + 'static,
) -> JoinHandle<T>
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    std::thread::Builder::new()
        .name(name.to_string())
        .spawn(move || {
            run_caught(make).unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                panicked(
                    text.or(panic.downcast_ref::<&str>().copied())
                        .unwrap_or("without a message")
                        .to_string(),
                )
            })
        })
        .expect("this platform has threads")
}

/// Creates a future and runs it to completion; `Err` is a panic's payload.
fn run_caught<F: Future>(make: impl FnOnce() -> F) -> std::thread::Result<F::Output> {
    #[cfg(not(target_arch = "wasm32"))]
    return std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| block_on(make())));
    #[cfg(target_arch = "wasm32")]
    {
        drop(make);
        Err(Box::new("a tab has no threads"))
    }
}

/// A key that nobody can guess.
pub fn random_key() -> [u8; 32] {
    let mut key = [0; 32];
    getrandom::fill(&mut key).expect("the system has a random source");
    key
}

/// An unpredictable number.
pub fn random_u64() -> u64 {
    #[cfg(not(target_arch = "wasm32"))]
    return std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), SystemTime::now());
    #[cfg(target_arch = "wasm32")]
    getrandom::u64().expect("a browser has a random source")
}

/// Blocks this thread for `duration`. In a browser tab it does nothing.
pub fn pause(duration: Duration) {
    #[cfg(not(target_arch = "wasm32"))]
    if !duration.is_zero() {
        std::thread::sleep(duration);
    }
    #[cfg(target_arch = "wasm32")]
    let _ = duration;
}
/// Whether a file that was opened with [`FileAccess::Map`] was truncated while it was in use, so that zeros were read
/// in place of its contents.
pub fn a_mapped_file_is_damaged() -> bool {
    #[cfg(not(target_arch = "wasm32"))]
    return file_map::a_map_is_damaged();
    #[cfg(target_arch = "wasm32")]
    false
}

/// Opens a regular file for reading. Fails at once for a pipe or a device, which might never give a byte.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    // Otherwise opening a pipe waits until somebody writes to it. Regular files do not know this flag.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ));
    }
    Ok(file)
}

/// Reads a whole small regular file; fails if it has more than `bytes_max` bytes.
pub fn read_file(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // The limit applies to the bytes read, because the file may grow.
    open_regular(path)?
        .take(bytes_max + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("more than {bytes_max} bytes"),
        ));
    }
    Ok(bytes)
}

/// Splits `items` into consecutive chunks of `chunk` elements (the last may be shorter) and calls
/// `work(chunk index, chunk)` for each, in parallel where there are threads.
///
/// The split does not depend on the number of threads, so the results do not either.
pub fn for_each_chunk<T: Send>(
    items: &mut [T],
    chunk: usize,
    work: impl Fn(usize, &mut [T]) + Send + Sync,
) {
    assert!(chunk > 0, "a chunk holds at least one element");
    #[cfg(not(target_arch = "wasm32"))]
    {
        use rayon::prelude::*;
        items
            .par_chunks_mut(chunk)
            .enumerate()
            .for_each(|(index, part)| work(index, part));
    }
    #[cfg(target_arch = "wasm32")]
    items
        .chunks_mut(chunk)
        .enumerate()
        .for_each(|(index, part)| work(index, part));
}

/// Whether this processor has the AVX2, FMA and F16C instructions.
pub fn has_avx2() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        has!("avx2") && has!("fma") && has!("f16c")
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Defines items for x86-64, and alternatives for all other targets.
macro_rules! on_x86_64 {
    ({ $($x86:item)* } else { $($other:item)* }) => {
        $(#[cfg(target_arch = "x86_64")] $x86)*
        $(#[cfg(not(target_arch = "x86_64"))] $other)*
    };
}
pub(crate) use on_x86_64;

/// Differs between builds of this program: length and time of its file. Empty if they are not known.
pub fn build_id() -> String {
    let file = std::env::current_exe().and_then(std::fs::metadata);
    let id = file.and_then(|found| Ok((found.len(), found.modified()?)));
    id.map_or_else(
        |_| String::new(),
        |(length, time)| {
            let age = time
                .duration_since(std::time::UNIX_EPOCH)
                .unwrap_or(Duration::ZERO);
            format!("{length}-{}", age.as_nanos())
        },
    )
}

/// Sets an environment variable for system libraries, if no other thread can read it meanwhile: only on Linux, and only
/// while this is the process's only thread. Returns whether it was set.
pub fn set_variable_while_alone(name: &str, value: &str) -> bool {
    let threads = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    if threads != 1 {
        return false;
    }
    #[allow(
        unsafe_code,
        reason = "a driver layer can be configured only by environment variables"
    )]
    // SAFETY: this is the only thread, counted above, so nothing reads or writes the environment meanwhile.
    unsafe {
        std::env::set_var(name, value);
    }
    true
}

#[cfg(test)]
mod tests;
