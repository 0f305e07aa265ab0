//! What differs between a process and a browser tab: clock and blocking. The one place outside `backend/wgpu` and
//! `web` that names a target.

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
