//! Load of the server: `GET /load` in vLLM's form, and `GET /v1/loads`, which routers query to balance load.

use crate::engine::handle::Stats;
use crate::platform;
use crate::server::state::{ModelState, ServerState};
use crate::server::wire::error::ApiError;
use crate::text::iso_time;
use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

/// Number of running answers.
pub(crate) async fn load(State(server): State<ServerState>) -> Json<Value> {
    Json(json!({"server_load": server.active_answers()}))
}

/// `GET /get_load`: load in SGLang's form, of each loaded model.
pub(crate) async fn sglang_load(State(server): State<ServerState>) -> Json<Value> {
    Json(
        server
            .models
            .loaded()
            .iter()
            .enumerate()
            .map(|(rank, model)| {
                let stats: Stats = model.engine.stats();
                json!({
                    "dp_rank": rank,
                    "num_reqs": stats.requests_running + stats.requests_waiting,
                    "num_waiting_reqs": stats.requests_waiting,
                    "num_tokens": stats.tokens_stored,
                })
            })
            .collect(),
    )
}

/// Load of each loaded model, under the names that SGLang's routers expect.
pub(crate) async fn loads(State(server): State<ServerState>) -> Result<Json<Value>, ApiError> {
    server.models.check()?;
    let models = server.models.loaded();
    let loads: Vec<_> = models
        .iter()
        .enumerate()
        .filter_map(|(rank, model)| load_of(rank, model))
        .collect();
    Ok(Json(json!({
        "timestamp": iso_time(platform::unix_time()),
        "version": env!("CARGO_PKG_VERSION"),
        "dp_rank_count": loads.len(),
        "loads": loads,
    })))
}

/// Load of one engine; `None` if it is gone.
fn load_of(rank: usize, model: &ModelState) -> Option<Value> {
    let info = model.ready().ok()?;
    let stats: Stats = model.engine.stats();
    let slots = stats.blocks_total * u64::from(info.block_size);
    let total = stats.requests_running + stats.requests_waiting;
    Some(json!({
        "dp_rank": rank,
        "model": model.model_names[0],
        "num_running_reqs": stats.requests_running,
        "num_waiting_reqs": stats.requests_waiting,
        "num_waiting_uncached_tokens": 0,
        "num_total_reqs": total,
        "num_used_tokens": stats.tokens_stored,
        "max_total_num_tokens": slots,
        "token_usage": share_of(stats.blocks_used, stats.blocks_total),
        "gen_throughput": model.throughput.rate(stats.generation_tokens),
        "cache_hit_rate": share_of(stats.prefix_hits, stats.prefix_queries),
        "utilization": share_of(stats.requests_running, u64::from(info.max_num_seqs)),
        "max_running_requests": info.max_num_seqs,
    }))
}

fn share_of(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}
