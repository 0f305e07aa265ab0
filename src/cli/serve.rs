//! `folio serve`: the HTTP API and the chat page. It listens while the model loads, so that `/health` can say
//! "loading"; Ctrl-C, SIGTERM or SIGHUP lets open streams finish.

use super::access::{self, Access, AccessArgs};
use super::open_files;
use super::options::{EngineArgs, ModelArgs};
use super::output::note;
use super::session::Session;
use anyhow::{Context as _, Result};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use folio::platform;
use folio::server::socket::{self, SocketOptions};
use folio::server::{Limits, ResponseBytes, ServerOptions, ServerState};
use folio::text::answer::{ReasoningParser, ToolParser};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::net::TcpListener;

/// Interval at which the server checks whether its engine is ready or has ended.
const POLL: Duration = Duration::from_millis(10);

#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// Address to listen on
    #[arg(long, env = "FOLIO_HOST", default_value = "127.0.0.1", value_parser = access::host)]
    host: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, env = "FOLIO_PORT", default_value_t = 8000)]
    port: u16,
    /// Name of the model in requests, or * for any; may be given several times [default: what --model says,
    /// of a GGUF file the name without folder and ending]
    #[arg(long, env = "FOLIO_SERVED_MODEL_NAME", value_name = "NAME", value_delimiter = ',', num_args = 1..,
          value_parser = NonEmptyStringValueParser::new())]
    served_model_name: Vec<String>,
    #[command(flatten)]
    access: AccessArgs,
    /// Format of the model's tool calls: hermes, llama3_json, mistral, gemma, gemma4, harmony, json [default: found in
    /// its chat template]
    #[arg(long, env = "FOLIO_TOOL_CALL_PARSER", value_name = "NAME")]
    tool_call_parser: Option<ToolParser>,
    /// Format of the model's reasoning: none, think, mistral, gemma, harmony [default: found in its chat template]
    #[arg(long, env = "FOLIO_REASONING_PARSER", value_name = "NAME")]
    reasoning_parser: Option<ReasoningParser>,
    /// Maximum `n` of a request, up to 128
    #[arg(long, env = "FOLIO_CHOICES_MAX", value_name = "N", default_value_t = Limits::default().choices_max,
          value_parser = clap::value_parser!(u32).range(1..=128))]
    choices_max: u32,
    /// Maximum number of prompts in a completions request, up to 2048
    #[arg(long, env = "FOLIO_PROMPTS_MAX", value_name = "N", default_value_t = Limits::default().prompts_max as u32,
          value_parser = clap::value_parser!(u32).range(1..=2048))]
    prompts_max: u32,
    /// Maximum size of a request body, up to 64 MiB
    #[arg(long, env = "FOLIO_BODY_BYTES_MAX", value_name = "BYTES",
          default_value_t = Limits::default().body_bytes_max as u32,
          value_parser = clap::value_parser!(u32).range(1024..=64 << 20))]
    body_bytes_max: u32,
    /// Maximum size of the responses kept for `previous_response_id` and `GET /v1/responses/{id}`
    #[arg(long, env = "FOLIO_RESPONSE_STORE_BYTES", value_name = "BYTES",
          default_value_t = ResponseBytes::default().0)]
    response_store_bytes: usize,
    /// Maximum open connections; when they are reached, the one that has waited longest for a request is closed
    #[arg(long, env = "FOLIO_MAX_CONNECTIONS", value_name = "N",
          default_value_t = SocketOptions::default().connections_max as u32,
          value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,
    /// Maximum connections of one address that have not yet sent a valid request; 0 lifts the limit
    #[arg(long, env = "FOLIO_MAX_CONNECTIONS_PER_PEER", value_name = "N",
          default_value_t = SocketOptions::default().connections_per_peer_max.unwrap_or(0) as u32)]
    max_connections_per_peer: u32,
    /// Seconds that a connection stays open between two requests
    #[arg(long, env = "FOLIO_TIMEOUT_KEEP_ALIVE", value_name = "SECONDS",
          default_value_t = SocketOptions::default().idle_timeout.as_secs() as u32)]
    timeout_keep_alive: u32,
    /// Seconds after a shutdown signal in which requests are still accepted, while /health already answers 503
    #[arg(long, env = "FOLIO_SHUTDOWN_GRACE", value_name = "SECONDS", default_value_t = 0)]
    shutdown_grace: u32,
    /// Seconds after that for running responses to finish
    #[arg(long, env = "FOLIO_SHUTDOWN_TIMEOUT", value_name = "SECONDS", default_value_t = 30)]
    shutdown_timeout: u32,
}

pub(crate) fn run(args: ServeArgs) -> Result<()> {
    let access = args.access.read()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // The port is opened first, so that a port in use is reported before the model loads.
    let listener = runtime.block_on(listen(&args))?;
    let address = listener.local_addr()?;
    let session = Session::start_to_serve(&args.model, &args.engine)?;
    warn_if_open(&access, address);
    let sockets = SocketOptions {
        connections_max: open_files::connections(args.max_connections as usize),
        connections_per_peer_max: Some(args.max_connections_per_peer as usize).filter(|limit| *limit > 0),
        idle_timeout: Duration::from_secs(args.timeout_keep_alive.into()),
        shutdown_grace: Duration::from_secs(args.shutdown_grace.into()),
        shutdown_timeout: Some(Duration::from_secs(args.shutdown_timeout.into())),
        ..SocketOptions::default()
    };
    let state = state(args, access, &session);
    runtime.block_on(async {
        let stop = async {
            tokio::select! {
                () = announce(&session, address) => {}
                () = socket::shutdown_signal() => {}
            }
        };
        socket::serve(listener, state, sockets, stop).await;
    });
    // The runtime keeps running meanwhile, so that a second signal ends the process even while a model is loading.
    let end = session.close();
    // Work on separate threads ends with the process; nothing waits for it.
    runtime.shutdown_background();
    end
}

/// Warns if the server accepts requests from other machines without an API key.
fn warn_if_open(access: &Access, address: SocketAddr) {
    if !address.ip().is_loopback() && access.api_keys.is_empty() {
        note(format_args!("warning: {address} is reachable from other machines and no --api-key is set"));
    }
}

/// Prints the server's address once it is ready. Returns when the engine has ended by itself.
async fn announce(session: &Session, address: SocketAddr) {
    let mut told = false;
    while !session.is_finished() {
        if let (false, Some(info)) = (told, session.handle.info()) {
            told = true;
            let (device, context, seqs) = (&info.device, info.max_model_len, info.max_num_seqs);
            note(format_args!("ready on http://{address} ({device}, context {context}, {seqs} sequences at once)"));
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn listen(args: &ServeArgs) -> Result<TcpListener> {
    let place = format!("{}:{}", args.host, args.port);
    TcpListener::bind((args.host.as_str(), args.port)).await.with_context(|| format!("cannot listen on {place}"))
}

/// The state of the routes, from the arguments and the model.
fn state(args: ServeArgs, access: Access, session: &Session) -> ServerState {
    let (any, mut names): (Vec<_>, Vec<_>) = args.served_model_name.into_iter().partition(|name| name == "*");
    if names.is_empty() {
        names.push(args.model.served_name());
    }
    let Access { api_keys, allowed_origins, mut allowed_hosts, metrics_open } = access;
    if args.host.parse::<IpAddr>().is_ok_and(|address| !address.is_loopback()) {
        allowed_hosts.extend(platform::host_name().into_iter().flat_map(|name| access::own_names(&name)));
    }
    allowed_hosts.push(args.host);
    let limits = Limits {
        choices_max: args.choices_max,
        prompts_max: args.prompts_max as usize,
        body_bytes_max: args.body_bytes_max as usize,
    };
    let (tool_call_parser, reasoning_parser) = (args.tool_call_parser, args.reasoning_parser);
    let options = ServerOptions {
        api_keys,
        allowed_origins,
        allowed_hosts,
        metrics_open,
        any_model: !any.is_empty(),
        limits,
        tool_call_parser,
        reasoning_parser,
        response_store_bytes: ResponseBytes(args.response_store_bytes),
        ..ServerOptions::default()
    };
    session.api_state(names, options)
}
