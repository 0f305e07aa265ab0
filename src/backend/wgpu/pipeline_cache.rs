//! The pipeline cache on disk: Vulkan drivers compile a kernel once per driver version instead of once per start.
//!
//! The file name contains adapter and driver. The file is written under a temporary name and renamed, so a reader never
//! sees a partial file. A cache that cannot be read or written costs time but is not an error.
//!
//! A driver may run what it finds in a cache. So a file that is damaged, or that another user or a link put in its
//! place, is ignored: it starts with [`MAGIC`] and a checksum of the rest.

use super::device::{Gpu, WgpuOptions};
use crate::platform;
use std::path::{Path, PathBuf};

/// The first bytes of a file: what it is, and the version of this format.
const MAGIC: &[u8; 16] = b"folio pipelines\x01";
/// Maximum bytes of a file; those of one model have about 1 MiB.
const FILE_BYTES_MAX: u64 = 256 << 20;

fn path(gpu: &Gpu, options: &WgpuOptions) -> Option<PathBuf> {
    let key = wgpu::util::pipeline_cache_key(&gpu.info)?;
    let driver = format!("{}-{}", gpu.info.driver, gpu.info.driver_info);
    let driver: String = driver
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect();
    Some(
        options
            .cache_dir
            .as_ref()?
            .join(format!("{key}-{driver}.bin")),
    )
}

/// The cache filled from disk, if the adapter supports pipeline caches.
#[allow(
    unsafe_code,
    reason = "a pipeline cache is made from bytes that a driver wrote"
)]
pub(super) fn restore(gpu: &Gpu, options: &WgpuOptions) -> Option<wgpu::PipelineCache> {
    if !gpu
        .device
        .features()
        .contains(wgpu::Features::PIPELINE_CACHE)
    {
        return None;
    }
    let data = read_sealed(&path(gpu, options)?, FILE_BYTES_MAX);
    let descriptor = wgpu::PipelineCacheDescriptor {
        label: Some("folio"),
        data: data.as_deref(),
        fallback: true,
    };
    // SAFETY: the bytes come from `store`: the file is this user's, its checksum is right, and its name contains
    // adapter and driver. wgpu and the driver check their own headers and fall back to an empty cache.
    gpu.catch(|| unsafe { gpu.device.create_pipeline_cache(&descriptor) })
        .ok()
}

/// Writes the cache.
pub(super) fn store(gpu: &Gpu, options: &WgpuOptions, cache: &wgpu::PipelineCache) {
    if let (Some(path), Some(data)) = (path(gpu, options), cache.get_data()) {
        write_sealed(&path, &data);
    }
}

/// The data of a file of this user with at most `bytes_max` bytes, if [`write_sealed`] wrote it.
pub(super) fn read_sealed(path: &Path, bytes_max: u64) -> Option<Vec<u8>> {
    let file = platform::read_own_file(path, bytes_max).ok()?;
    unsealed(&file).map(<[u8]>::to_vec)
}

/// Writes data with its checksum to a temporary file and renames it.
pub(super) fn write_sealed(path: &Path, data: &[u8]) {
    let beside = path.with_extension(format!("{}.tmp", std::process::id()));
    let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    let written = folder
        .and_then(|()| std::fs::write(&beside, sealed(data)))
        .and_then(|()| std::fs::rename(&beside, path));
    if let Err(error) = written {
        tracing::debug!("{} was not written: {error}", path.display());
    }
}

/// The contents of a file with this data.
fn sealed(data: &[u8]) -> Vec<u8> {
    [&MAGIC[..], blake3::hash(data).as_bytes(), data].concat()
}

/// The data of a file with these contents; `None` if this program did not write it so.
fn unsealed(file: &[u8]) -> Option<&[u8]> {
    let (checksum, data) = file
        .strip_prefix(MAGIC)?
        .split_at_checked(blake3::OUT_LEN)?;
    (blake3::hash(data).as_bytes() == checksum).then_some(data)
}

#[cfg(test)]
mod tests;
