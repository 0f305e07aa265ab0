//! CPU reference.
