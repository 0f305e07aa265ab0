//! Options of the colder tiers of the KV pool.

use super::units::parse_bytes;
use clap::Args;
use folio::config::DiskConfig;
use std::path::PathBuf;

/// The size of the host tier under vLLM's names; `--kv-host-bytes` is a row of the engine's table.
#[derive(Args, Clone, Debug)]
#[group(multiple = false)]
pub(crate) struct HostTierArgs {
    /// --kv-host-bytes in GiB, under vLLM's name
    #[arg(
        long,
        env = "FOLIO_SWAP_SPACE",
        value_name = "GIB",
        value_parser = parse_gib,
        conflicts_with = "kv_host_bytes"
    )]
    swap_space: Option<u64>,
    /// The same in GiB, under vLLM's newer name
    #[arg(
        long,
        env = "FOLIO_KV_OFFLOADING_SIZE",
        value_name = "GIB",
        value_parser = parse_gib,
        conflicts_with = "kv_host_bytes"
    )]
    kv_offloading_size: Option<u64>,
}

impl HostTierArgs {
    /// Bytes of host memory; 0 for none.
    pub(crate) fn bytes(&self) -> u64 {
        self.swap_space.or(self.kv_offloading_size).unwrap_or(0)
    }
}

/// The folder of the disk tier.
#[derive(Args, Clone, Debug)]
pub(crate) struct DiskTierArgs {
    /// Folder for KV blocks of prompts without a cache salt, which later requests and later starts find again; several
    /// processes may use it [default: none]
    #[arg(
        long,
        env = "FOLIO_KV_DISK",
        value_name = "FOLDER",
        requires = "kv_disk_bytes"
    )]
    kv_disk: Option<PathBuf>,
    /// Maximum bytes of the files in --kv-disk, for example 64GiB; the least recently used are removed
    #[arg(long, env = "FOLIO_KV_DISK_BYTES", value_name = "BYTES", value_parser = parse_bytes, requires = "kv_disk")]
    kv_disk_bytes: Option<u64>,
}

impl DiskTierArgs {
    /// The folder and its size; `None` for none.
    pub(crate) fn config(&self) -> Option<DiskConfig> {
        let (folder, bytes) = self.kv_disk.clone().zip(self.kv_disk_bytes)?;
        Some(DiskConfig { folder, bytes })
    }
}

/// A number of GiB, in bytes.
fn parse_gib(text: &str) -> Result<u64, String> {
    let is_number = text
        .trim()
        .ends_with(|last: char| last.is_ascii_digit() || last == '.');
    let bytes = if is_number {
        parse_bytes(&format!("{}GiB", text.trim()))
    } else {
        Err(String::new())
    };
    bytes.map_err(|_| format!("`{text}` is not a number of GiB"))
}

#[cfg(test)]
mod tests;
