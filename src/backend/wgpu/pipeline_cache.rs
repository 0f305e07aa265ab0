//! The pipeline cache on disk: Vulkan drivers compile a kernel once per driver version instead of once per start.
//!
//! The file name contains adapter and driver. The file is written under a temporary name and renamed, so a reader never
//! sees a partial file. A cache that cannot be read or written costs time but is not an error.

use super::device::{Gpu, WgpuOptions};
use std::path::PathBuf;

fn path(gpu: &Gpu, options: &WgpuOptions) -> Option<PathBuf> {
    let key = wgpu::util::pipeline_cache_key(&gpu.info)?;
    let driver = format!("{}-{}", gpu.info.driver, gpu.info.driver_info);
    let driver: String = driver.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    Some(options.cache_dir.as_ref()?.join(format!("{key}-{driver}.bin")))
}

/// The cache filled from disk, if the adapter supports pipeline caches.
#[allow(unsafe_code, reason = "a pipeline cache is made from bytes that a driver wrote")]
pub(super) fn restore(gpu: &Gpu, options: &WgpuOptions) -> Option<wgpu::PipelineCache> {
    if !gpu.device.features().contains(wgpu::Features::PIPELINE_CACHE) {
        return None;
    }
    let data = std::fs::read(path(gpu, options)?).ok();
    let make = |data: Option<&[u8]>| {
        let descriptor = wgpu::PipelineCacheDescriptor { label: Some("folio"), data, fallback: true };
        // SAFETY: the bytes come from `store`, whose file name contains adapter and driver; wgpu and the driver check
        // their own headers and fall back to an empty cache.
        gpu.catch(|| unsafe { gpu.device.create_pipeline_cache(&descriptor) }).ok()
    };
    make(data.as_deref())
}

/// Writes the cache to a temporary file and renames it.
pub(super) fn store(gpu: &Gpu, options: &WgpuOptions, cache: &wgpu::PipelineCache) {
    let (Some(path), Some(data)) = (path(gpu, options), cache.get_data()) else { return };
    let beside = path.with_extension(format!("{}.tmp", std::process::id()));
    let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    let written = folder.and_then(|()| std::fs::write(&beside, data)).and_then(|()| std::fs::rename(&beside, &path));
    if let Err(error) = written {
        tracing::debug!("the pipeline cache {} was not written: {error}", path.display());
    }
}
