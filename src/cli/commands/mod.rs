//! The subcommands: one file or folder for each.

pub(crate) mod bench;
pub(crate) mod cache;
pub(crate) mod chat;
pub(crate) mod devices;
pub(crate) mod embed;
pub(crate) mod generate;
pub(crate) mod list;
pub(crate) mod plan;
pub(crate) mod ps;
pub(crate) mod pull;
pub(crate) mod quantize;
pub(crate) mod rerank;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod selftest;
pub(crate) mod serve;
pub(crate) mod show;
