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

/// Splits `items` into consecutive chunks of `chunk` elements (the last may be shorter) and calls
/// `work(chunk index, chunk)` for each, on all threads at once where there are threads.
///
/// The split never depends on the number of threads, so neither do results.
pub fn for_each_chunk<T: Send>(items: &mut [T], chunk: usize, work: impl Fn(usize, &mut [T]) + Send + Sync) {
    assert!(chunk > 0, "a chunk holds at least one element");
    #[cfg(not(target_arch = "wasm32"))]
    {
        use rayon::prelude::*;
        items.par_chunks_mut(chunk).enumerate().for_each(|(index, part)| work(index, part));
    }
    #[cfg(target_arch = "wasm32")]
    items.chunks_mut(chunk).enumerate().for_each(|(index, part)| work(index, part));
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

/// Items for x86-64 processors, and others for the rest.
macro_rules! on_x86_64 {
    ({ $($x86:item)* } else { $($other:item)* }) => {
        $(#[cfg(target_arch = "x86_64")] $x86)*
        $(#[cfg(not(target_arch = "x86_64"))] $other)*
    };
}
pub(crate) use on_x86_64;
