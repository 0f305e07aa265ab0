//! [`Pages`]: large, zeroed memory.

/// Memory that begins at the boundary of a page and is zero until it is written. Pages that are never written take no
/// memory.
///
/// It comes directly from the system. An allocator may return memory that was used before, which it writes zeros to:
/// a whole KV pool would be touched before the first request.
#[cfg(not(target_arch = "wasm32"))]
pub struct Pages(memmap2::MmapMut);
/// Zeroed memory.
#[cfg(target_arch = "wasm32")]
pub struct Pages(Vec<u32>);

impl Pages {
    /// `bytes` bytes, a positive multiple of 4; `None` if there is not enough memory.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn zeroed(bytes: usize) -> Option<Self> {
        let pages = memmap2::MmapMut::map_anon(bytes).ok()?;
        // With small pages, streaming through weights misses the address cache all the time. Neighboring maps share
        // huge pages. A system without them refuses, which costs nothing.
        #[cfg(target_os = "linux")]
        let _ = pages.advise(memmap2::Advice::HugePage);
        Some(Self(pages))
    }

    /// `bytes` bytes, a positive multiple of 4; `None` if there is not enough memory.
    #[cfg(target_arch = "wasm32")]
    pub fn zeroed(bytes: usize) -> Option<Self> {
        let words = bytes / 4;
        Vec::<u32>::new().try_reserve_exact(words).ok()?;
        Some(Self(vec![0; words]))
    }

    /// The memory as words.
    pub fn words(&self) -> &[u32] {
        bytemuck::cast_slice(&self.0[..])
    }

    /// The memory as words, to write.
    pub fn words_mut(&mut self) -> &mut [u32] {
        bytemuck::cast_slice_mut(&mut self.0[..])
    }
}
