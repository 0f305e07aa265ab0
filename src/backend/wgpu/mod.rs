//! wgpu backend.
