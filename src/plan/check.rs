//! Checks a plan before any device exists.
