//! The HTTP API in process: the router is called without sockets, in front of the real engine on the fake device (for
//! everything about form and faults) and on the CPU with the demo model (for everything about text).
#![cfg(feature = "server")]

#[path = "http/answers.rs"]
mod answers;
#[path = "http/bad_requests.rs"]
mod bad_requests;
#[path = "http/edges.rs"]
mod edges;
#[path = "http/embeddings.rs"]
mod embeddings;
#[path = "http/faults.rs"]
mod faults;
#[path = "http/fields.rs"]
mod fields;
#[path = "http/harness.rs"]
mod harness;
#[path = "http/local.rs"]
mod local;
#[path = "http/peers.rs"]
mod peers;
#[path = "http/routes.rs"]
mod routes;
#[path = "http/scores.rs"]
mod scores;
#[path = "http/sockets.rs"]
mod sockets;
#[path = "http/structured.rs"]
mod structured;
#[path = "http/tools.rs"]
mod tools;
