//! `folio serve`: the HTTP API and the chat page. Listens at once, so that `/health` can say "loading"; Ctrl-C or
//! SIGTERM lets open streams finish.

use super::options::{EngineOptions, ModelOptions};
use super::output::note;
use super::session::Session;
use anyhow::{Context as _, Result};
use clap::Args;
use folio::server::socket::{self, SocketOptions};
use folio::server::{Limits, ServerOptions, ServerState};
use folio::text::answer::{ReasoningParser, ToolParser};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;

/// How often the server looks whether its engine is ready, or gone.
const POLL: Duration = Duration::from_millis(10);

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    engine: EngineOptions,
    /// Address to listen on
    #[arg(long, env = "FOLIO_HOST", default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, env = "FOLIO_PORT", default_value_t = 8000)]
    port: u16,
    /// Name of the model in requests; may be given several times [default: what --model says]
    #[arg(long, env = "FOLIO_SERVED_MODEL_NAME", value_name = "NAME", value_delimiter = ',', num_args = 1..)]
    served_model_name: Vec<String>,
    /// Key that requests must carry; with several, any of them, and their users take turns
    #[arg(long, env = "FOLIO_API_KEY", value_name = "KEY", hide_env_values = true, value_delimiter = ',')]
    api_key: Vec<String>,
    /// Site whose pages may use this server, as its origin (https://example.org), or * for all; may be given several
    /// times
    #[arg(long, env = "FOLIO_ALLOWED_ORIGINS", value_name = "ORIGIN", value_delimiter = ',')]
    allowed_origins: Vec<String>,
    /// Host name that requests may name besides localhost and the address; may be given several times
    #[arg(long, env = "FOLIO_ALLOWED_HOST", value_name = "HOST", value_delimiter = ',')]
    allowed_host: Vec<String>,
    /// How the model writes tool calls: hermes, llama3_json, mistral, gemma, gemma4, harmony, json [default: as its
    /// chat template says]
    #[arg(long, env = "FOLIO_TOOL_CALL_PARSER", value_name = "NAME")]
    tool_call_parser: Option<ToolParser>,
    /// How the model marks its thoughts: none, think, mistral, gemma, harmony [default: as its chat template says]
    #[arg(long, env = "FOLIO_REASONING_PARSER", value_name = "NAME")]
    reasoning_parser: Option<ReasoningParser>,
    /// Choices of one request (its `n`), at most 128
    #[arg(long, env = "FOLIO_CHOICES_MAX", value_name = "N", default_value_t = Limits::default().choices_max,
          value_parser = clap::value_parser!(u32).range(1..=128))]
    choices_max: u32,
    /// Prompts of one completions request, at most 2048
    #[arg(long, env = "FOLIO_PROMPTS_MAX", value_name = "N", default_value_t = Limits::default().prompts_max as u32,
          value_parser = clap::value_parser!(u32).range(1..=2048))]
    prompts_max: u32,
    /// Bytes of one request, at most 64 MiB
    #[arg(long, env = "FOLIO_BODY_BYTES_MAX", value_name = "BYTES",
          default_value_t = Limits::default().body_bytes_max as u32,
          value_parser = clap::value_parser!(u32).range(1024..=64 << 20))]
    body_bytes_max: u32,
    /// Seconds after a signal to end in which requests are still taken, while /health already says 503
    #[arg(long, env = "FOLIO_SHUTDOWN_GRACE", value_name = "SECONDS", default_value_t = 0)]
    shutdown_grace: u32,
    /// Seconds after that in which running answers may end
    #[arg(long, env = "FOLIO_SHUTDOWN_TIMEOUT", value_name = "SECONDS", default_value_t = 30)]
    shutdown_timeout: u32,
}

pub(crate) fn run(options: Options) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // The port first: if it is taken, nothing needs to load.
    let listener = runtime.block_on(listen(&options))?;
    let address = listener.local_addr()?;
    let session = Session::start_to_serve(&options.model, &options.engine)?;
    warn_if_open(&options, address);
    let sockets = SocketOptions {
        shutdown_grace: Duration::from_secs(options.shutdown_grace.into()),
        shutdown_timeout: Some(Duration::from_secs(options.shutdown_timeout.into())),
        ..SocketOptions::default()
    };
    let state = state(options, &session);
    runtime.block_on(async {
        let stop = async {
            tokio::select! {
                () = announce(&session, address) => {}
                () = socket::shutdown_signal() => {}
            }
        };
        socket::serve(listener, state, sockets, stop).await;
    });
    // The runtime lives on meanwhile: a second signal must end the process also while a model that is still loading
    // holds up the end.
    let end = session.close();
    // Work that was handed to threads of its own goes on to its end or with the process; nobody waits for it.
    runtime.shutdown_background();
    end
}

/// Whoever reaches this address may use the server.
fn warn_if_open(options: &Options, address: SocketAddr) {
    if !address.ip().is_loopback() && options.api_key.is_empty() {
        note(format_args!("note: {address} can be reached from other machines, and there is no --api-key"));
    }
}

/// Says where to find the server once it is ready; done when the engine has ended by itself.
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

async fn listen(options: &Options) -> Result<TcpListener> {
    let place = format!("{}:{}", options.host, options.port);
    TcpListener::bind((options.host.as_str(), options.port)).await.with_context(|| format!("cannot listen on {place}"))
}

/// What the routes need to know, from what was typed and what the model says.
fn state(options: Options, session: &Session) -> ServerState {
    let names = match options.served_model_name.as_slice() {
        [] => vec![options.model.name()],
        names => names.to_vec(),
    };
    let mut allowed_hosts = options.allowed_host;
    allowed_hosts.push(options.host);
    let api_keys = options.api_key.into_iter().filter(|key| !key.is_empty()).collect();
    // Browsers write an origin without a slash at its end.
    let origin = |origin: String| origin.trim_end_matches('/').to_owned();
    let allowed_origins = options.allowed_origins.into_iter().map(origin).collect();
    let defaults = session.defaults();
    let limits = Limits {
        choices_max: options.choices_max,
        prompts_max: options.prompts_max as usize,
        body_bytes_max: options.body_bytes_max as usize,
    };
    let (tool_call_parser, reasoning_parser) = (options.tool_call_parser, options.reasoning_parser);
    let options = ServerOptions {
        api_keys,
        allowed_origins,
        allowed_hosts,
        defaults,
        limits,
        tool_call_parser,
        reasoning_parser,
    };
    ServerState::new(session.handle.clone(), session.text.clone(), names, options)
}
