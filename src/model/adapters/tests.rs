//! Tests of `model/adapters`.
