//! What differs between a process and a browser tab: clock and blocking. The one place outside `backend/wgpu` and
//! `web` that names a target.

use std::thread::JoinHandle;
use std::time::Duration;

#[cfg(not(target_arch = "wasm32"))]
pub use std::time::{Instant, SystemTime};
#[cfg(target_arch = "wasm32")]
pub use web_time::{Instant, SystemTime};

/// Runs a future to its end on this thread. A tab has no thread to block: there the caller awaits instead.
#[cfg(not(target_arch = "wasm32"))]
pub fn block_on<F: Future>(future: F) -> F::Output {
    pollster::block_on(future)
}

/// Runs work that would hold up other futures: on a thread of its own; in a tab, which has none, right here. `None` if
/// the work panicked or no thread could be started.
pub async fn offload<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    #[cfg(target_arch = "wasm32")]
    return Some(work());
    #[cfg(not(target_arch = "wasm32"))]
    {
        let (sender, receiver) = futures_channel::oneshot::channel();
        let run = move || {
            // Nobody waits any more when the request is gone.
            let _ = sender.send(work());
        };
        std::thread::Builder::new().name("offload".into()).spawn(run).ok()?;
        receiver.await.ok()
    }
}

/// Seconds since the Unix epoch, for the `created` fields of the API.
pub fn unix_time() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

/// Threads that compute at once.
pub fn parallelism() -> usize {
    #[cfg(not(target_arch = "wasm32"))]
    return rayon::current_num_threads();
    #[cfg(target_arch = "wasm32")]
    1
}

/// Runs a future to its end on a thread of its own, where it is also made; `panicked` makes a result of a panic's
/// message. A tab has no threads: there the caller awaits the future instead.
pub fn spawn<T, F>(
    name: &str,
    make: impl FnOnce() -> F + Send + 'static,
    panicked: impl FnOnce(String) -> T + Send + 'static,
) -> JoinHandle<T>
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    let work = move || {
        #[cfg(not(target_arch = "wasm32"))]
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| block_on(make())));
        #[cfg(target_arch = "wasm32")]
        let result = Err(Box::new(make) as Box<dyn std::any::Any>);
        result.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            panicked(text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("without a message").to_string())
        })
    };
    std::thread::Builder::new().name(name.to_string()).spawn(work).expect("this platform has threads")
}

/// A number nobody can guess.
pub fn random_u64() -> u64 {
    #[cfg(not(target_arch = "wasm32"))]
    return std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), SystemTime::now());
    #[cfg(target_arch = "wasm32")]
    getrandom::u64().expect("a browser has a random source")
}

/// Blocks this thread for a while. A tab cannot, and does not.
pub fn pause(duration: Duration) {
    #[cfg(not(target_arch = "wasm32"))]
    if !duration.is_zero() {
        std::thread::sleep(duration);
    }
    #[cfg(target_arch = "wasm32")]
    let _ = duration;
}
