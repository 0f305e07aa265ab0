//! CPU reference.

pub mod sample;
