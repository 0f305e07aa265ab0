//! The HTTP API in process: the router is called without sockets, in front of the real engine on the fake device (for
//! everything about form and faults) and on the CPU with the demo model (for everything about text). `grammars`: what
//! stands behind structured output.
#![cfg(feature = "server")]

mod answers;
mod bad_requests;
mod document;
mod edges;
mod embeddings;
mod faults;
mod fields;
mod grammars;
mod harness;
mod local;
mod peers;
mod routes;
mod scores;
mod sockets;
mod structured;
mod tools;
