//! Load of the server: `GET /load` in vLLM's form, and `GET /v1/loads`, which routers query to balance load.

use crate::engine::handle::Stats;
use crate::platform;
use crate::server::state::ServerState;
use crate::server::wire::error::ApiError;
use crate::text::iso_time;
use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

/// Number of running answers.
pub(crate) async fn load(State(state): State<ServerState>) -> Json<Value> {
    Json(json!({"server_load": state.active_answers()}))
}

/// `GET /get_load`: load in SGLang's form.
pub(crate) async fn sglang_load(State(state): State<ServerState>) -> Json<Value> {
    let stats: Stats = state.engine.stats();
    Json(json!([{
        "dp_rank": 0,
        "num_reqs": stats.requests_running + stats.requests_waiting,
        "num_waiting_reqs": stats.requests_waiting,
        "num_tokens": stats.tokens_stored,
    }]))
}

/// Load of the one engine, under the names that SGLang's routers expect.
pub(crate) async fn loads(State(state): State<ServerState>) -> Result<Json<Value>, ApiError> {
    let info = state.ready()?;
    let stats: Stats = state.engine.stats();
    let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
    let slots = stats.blocks_total * u64::from(info.block_size);
    let total = stats.requests_running + stats.requests_waiting;
    let load = json!({
        "dp_rank": 0,
        "num_running_reqs": stats.requests_running,
        "num_waiting_reqs": stats.requests_waiting,
        "num_waiting_uncached_tokens": 0,
        "num_total_reqs": total,
        "num_used_tokens": stats.tokens_stored,
        "max_total_num_tokens": slots,
        "token_usage": share(stats.blocks_used, stats.blocks_total),
        "gen_throughput": state.throughput.rate(stats.generation_tokens),
        "cache_hit_rate": share(stats.prefix_hits, stats.prefix_queries),
        "utilization": share(stats.requests_running, u64::from(info.max_num_seqs)),
        "max_running_requests": info.max_num_seqs,
    });
    Ok(Json(json!({
        "timestamp": iso_time(platform::unix_time()),
        "version": env!("CARGO_PKG_VERSION"),
        "dp_rank_count": 1,
        "loads": [load],
    })))
}
