//! Tests of prequantized.
