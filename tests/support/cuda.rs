//! The CUDA kernels, emulated on the CPU.

use folio::backend::cuda::{CudaBackend, CudaOptions, Watch};
use folio::plan::Storage;
use std::path::Path;

/// The emulated kernels, selected as for a device of this compute capability. `None` if there is no compiler; then
/// `FOLIO_REQUIRE_GPU=1` makes the test fail.
pub(crate) fn emulated(activations: Storage, compute: (u32, u32)) -> Option<CudaBackend> {
    opened(activations, compute, Watch::Results)
}

/// The same, where `watch` may find races too.
pub(crate) fn opened(
    activations: Storage,
    compute: (u32, u32),
    watch: Watch,
) -> Option<CudaBackend> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda");
    let cache_dir = Some(Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-emulator"));
    let options = CudaOptions {
        cache_dir,
        activations,
        ..CudaOptions::default()
    };
    match CudaBackend::emulated(&sources, compute, &options, watch) {
        Ok(backend) => Some(backend),
        Err(error) => {
            let required = std::env::var("FOLIO_REQUIRE_GPU").is_ok_and(|value| value == "1");
            assert!(!required, "FOLIO_REQUIRE_GPU=1, but {error}");
            println!("SKIPPED: {error}, so no CUDA kernel was run");
            None
        }
    }
}
