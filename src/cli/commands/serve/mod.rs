//! `folio serve`: the HTTP API and the chat page. It listens while the model loads, so that `/health` can say
//! "loading"; Ctrl-C, SIGTERM or SIGHUP lets open streams finish.
//!
//! One model is loaded when the server starts, and the server ends with it. Several models, or one with
//! `--idle-unload`, are loaded when they are asked for: [`served`] lists them with their options, which may come from a
//! file ([`config`]), and [`fleet`] loads them.

mod access;
pub(crate) mod config;
mod fleet;
pub(crate) mod foreign;
mod generation;
mod media;
mod open_files;
pub(crate) mod served;
mod traces;

use crate::cli::hub::{self, HubArgs};
use crate::cli::session::Session;
use crate::cli::terminal::output::note;
use crate::cli::{LogFormat, log_to_stderr};
use access::{Access, AccessArgs};
use anyhow::{Context as _, Result, anyhow};
use clap::builder::BoolishValueParser;
use clap::{ArgMatches, Args};
use config::ConfigFile;
use folio::engine::handle::Status;
use folio::platform;
use folio::server::socket::{self, Address, Listener, Proxies, SocketOptions};
use folio::server::{Limits, Puller, ResponseBytes, ServerOptions, ServerState, TraceSink};
use media::MediaLimits;
use served::{Served, ServedArgs, Sources};
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{OnceCell, oneshot};
use traces::{TraceArgs, Traces};

/// What is logged by default: warnings, a line for each request, and what the program tells in any case.
const LOGGED: &str = "folio=warn,folio::access=info,folio::notes=info";
/// Interval at which the server checks whether its engine is ready or has ended.
const POLL: Duration = Duration::from_millis(10);
/// Ports after a taken one that are tried, to propose one.
const PORTS_TRIED: usize = 20;

#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    /// The model, as --model names it; several are loaded when they are asked for
    #[arg(value_name = "MODEL")]
    first: Vec<PathBuf>,
    /// TOML file with options by their long names (`port = 8000`), and with a table of options for each of several
    /// models (`[models.NAME]`)
    #[arg(
        help_heading = "Server",
        long,
        env = "FOLIO_CONFIG",
        value_name = "FILE"
    )]
    config: Option<PathBuf>,
    #[command(flatten)]
    served: ServedArgs,
    /// Address to listen on, or unix:PATH for a Unix socket, which its owner and group may use
    #[arg(help_heading = "Server", long, env = "FOLIO_HOST", default_value = "127.0.0.1", value_parser = access::place)]
    host: String,
    /// Port to listen on; 0 takes a free one
    #[arg(
        help_heading = "Server",
        long,
        env = "FOLIO_PORT",
        default_value_t = 8000
    )]
    port: u16,
    /// Unix socket to listen on, as --host unix:PATH; host and port do not count then
    #[arg(help_heading = "Server", long, env = "FOLIO_UDS", value_name = "PATH")]
    uds: Option<String>,
    /// Path under which a proxy offers this server; paths of requests may begin with it
    #[arg(help_heading = "Server", long, env = "FOLIO_ROOT_PATH", value_name = "PATH",
          value_parser = access::root_path)]
    root_path: Option<String>,
    /// Streams end with the token counts, whatever `stream_options` says
    #[arg(help_heading = "Server", long, env = "FOLIO_ENABLE_FORCE_INCLUDE_USAGE",
          value_parser = BoolishValueParser::new())]
    enable_force_include_usage: bool,
    /// Logprobs name tokens by id (`token_id:123`), as if requests had `return_tokens_as_token_ids`
    #[arg(help_heading = "Server", long, env = "FOLIO_RETURN_TOKENS_AS_TOKEN_IDS",
          value_parser = BoolishValueParser::new())]
    return_tokens_as_token_ids: bool,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    traces: TraceArgs,
    /// Maximum `n` of a request, up to 128
    #[arg(help_heading = "Server", long, env = "FOLIO_CHOICES_MAX", value_name = "N",
          default_value_t = Limits::default().choices_max, value_parser = clap::value_parser!(u32).range(1..=128))]
    choices_max: u32,
    /// Maximum number of prompts in a completions request, up to 2048
    #[arg(help_heading = "Server", long, env = "FOLIO_PROMPTS_MAX", value_name = "N",
          default_value_t = Limits::default().prompts_max as u32,
          value_parser = clap::value_parser!(u32).range(1..=2048))]
    prompts_max: u32,
    /// Maximum size of a request body, up to 64 MiB [default: 4 MiB; 48 MiB for a model that reads images, or several
    /// models]
    #[arg(help_heading = "Server", long, env = "FOLIO_BODY_BYTES_MAX", value_name = "BYTES",
          value_parser = clap::value_parser!(u32).range(1024..=64 << 20))]
    body_bytes_max: Option<u32>,
    /// Maximum images of a request, as image=N or {"image": N} [default: 32]
    #[arg(
        help_heading = "Server",
        long,
        env = "FOLIO_LIMIT_MM_PER_PROMPT",
        value_name = "LIMITS"
    )]
    limit_mm_per_prompt: Option<MediaLimits>,
    /// Maximum memory of all requests that are read, wait and run, beside their KV cache
    #[arg(help_heading = "Server", long, env = "FOLIO_REQUESTS_BYTES_MAX", value_name = "BYTES",
          default_value_t = Limits::default().requests_bytes_max)]
    requests_bytes_max: u64,
    /// Maximum size of a reply, by what its request asks for: choices, tokens, logprobs and alternatives
    #[arg(help_heading = "Server", long, env = "FOLIO_REPLY_BYTES_MAX", value_name = "BYTES",
          default_value_t = Limits::default().reply_bytes_max)]
    reply_bytes_max: u64,
    /// Maximum size of the responses kept for `previous_response_id` and `GET /v1/responses/{id}`
    #[arg(help_heading = "Server", long, env = "FOLIO_RESPONSE_STORE_BYTES", value_name = "BYTES",
          default_value_t = ResponseBytes::default().0)]
    response_store_bytes: usize,
    /// Folder in which these responses are kept as files, so that they outlive the server
    #[arg(
        help_heading = "Server",
        long,
        env = "FOLIO_RESPONSE_STORE",
        value_name = "FOLDER"
    )]
    response_store: Option<PathBuf>,
    /// Seconds that a request waits until one of several models is loaded, unless its answer is a stream; 0 lifts the
    /// limit
    #[arg(
        help_heading = "Server",
        long,
        env = "FOLIO_LOAD_TIMEOUT",
        value_name = "SECONDS",
        default_value_t = 300
    )]
    load_timeout: u32,
    /// Let clients download models of Hugging Face into the cache by /api/pull; --model serves them after a restart
    #[arg(help_heading = "Server", long, env = "FOLIO_ALLOW_PULL", value_parser = BoolishValueParser::new())]
    allow_pull: bool,
    /// Maximum open connections; when they are reached, the one that has waited longest for a request is closed
    #[arg(help_heading = "Server", long, env = "FOLIO_MAX_CONNECTIONS", value_name = "N",
          default_value_t = SocketOptions::default().connections_max as u32,
          value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,
    /// Maximum connections of one address that have not yet sent a valid request; 0 lifts the limit
    #[arg(help_heading = "Server", long, env = "FOLIO_MAX_CONNECTIONS_PER_PEER", value_name = "N",
          default_value_t = SocketOptions::default().connections_per_peer_max.unwrap_or(0) as u32)]
    max_connections_per_peer: u32,
    /// Seconds that a connection stays open between two requests
    #[arg(help_heading = "Server", long, env = "FOLIO_TIMEOUT_KEEP_ALIVE", value_name = "SECONDS",
          default_value_t = SocketOptions::default().idle_timeout.as_secs() as u32)]
    timeout_keep_alive: u32,
    /// Proxies whose X-Forwarded-For tells the addresses of clients, which wrong API keys are counted by: addresses and
    /// networks, separated by commas, or * for all
    #[arg(
        help_heading = "Server",
        long,
        env = "FOLIO_FORWARDED_ALLOW_IPS",
        value_name = "LIST",
        default_value = Proxies::LOCAL
    )]
    forwarded_allow_ips: Proxies,
    /// Form of the lines on stderr: text, or json for one object a line
    #[arg(
        help_heading = "Server",
        long,
        env = "FOLIO_LOG_FORMAT",
        value_name = "FORM",
        default_value = "text"
    )]
    log_format: LogFormat,
    /// Seconds after a shutdown signal in which requests are still accepted, while /health already answers 503
    #[arg(
        help_heading = "Server",
        long,
        env = "FOLIO_SHUTDOWN_GRACE",
        value_name = "SECONDS",
        default_value_t = 0
    )]
    shutdown_grace: u32,
    /// Seconds after that for running responses to finish
    #[arg(
        help_heading = "Server",
        long,
        env = "FOLIO_SHUTDOWN_TIMEOUT",
        value_name = "SECONDS",
        default_value_t = 30
    )]
    shutdown_timeout: u32,
}

/// What serves: the one model and its state, or the state of several.
enum Serving {
    One(Box<Session>, ServerState),
    Several(ServerState),
}

impl Serving {
    /// Finds, downloads and begins to load the only model.
    fn one(model: &Served, options: &ServerOptions) -> Result<Self> {
        let session = Box::new(model.start()?);
        let options = ServerOptions {
            defaults: model.defaults(session.defaults()),
            adapter_reader: model.args.adapters.reader()?,
            ..model.options(options)
        };
        let state = session.api_state_with(model.names.clone(), options);
        Ok(Self::One(session, state))
    }

    fn state(&self) -> &ServerState {
        let (Self::One(_, state) | Self::Several(state)) = self;
        state
    }

    fn close(self) -> Result<()> {
        match self {
            Self::One(session, _) => session.close(),
            Self::Several(state) => {
                state.close();
                Ok(())
            }
        }
    }

    /// The state, once the weights of the only model are loaded, or its engine has ended.
    async fn when_loaded(&self) -> ServerState {
        if let Self::One(session, _) = self {
            while session.handle.status() == Status::Loading && !session.is_finished() {
                tokio::time::sleep(POLL).await;
            }
        }
        self.state().clone()
    }
}

/// Runs work beside the server, which already answers.
fn on_a_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<oneshot::Receiver<T>> {
    let (sender, receiver) = oneshot::channel();
    // The server may have ended before.
    std::thread::Builder::new()
        .name("serve-load".into())
        .spawn(move || drop(sender.send(work())))
        .context("a thread for loading")?;
    Ok(receiver)
}

async fn when_set<T>(cell: &OnceCell<T>) -> &T {
    loop {
        if let Some(value) = cell.get() {
            return value;
        }
        tokio::time::sleep(POLL).await;
    }
}

pub(crate) fn run(args: ServeArgs, given: &ArgMatches) -> Result<()> {
    let (mut args, models, has_tables) = with_config(args, given)?;
    log_to_stderr(LOGGED, args.log_format);
    if let Some(path) = args.uds.take() {
        args.host = access::place(&format!("{}{path}", access::UNIX)).context("--uds")?;
    }
    let access = args.access.read()?;
    if let Some(folder) = &args.response_store {
        fs::create_dir_all(folder)
            .with_context(|| format!("--response-store {}", folder.display()))?;
    }
    let traces = args.traces.start()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    // The port is opened first, so that a port in use is reported before the model loads.
    let listener = runtime.block_on(listen(&args))?;
    let front = Front {
        name: models
            .first()
            .map(|model| model.args.model.name())
            .unwrap_or_default(),
        address: listener.address()?,
        sockets: sockets(&args),
        load_timeout: Some(Duration::from_secs(args.load_timeout.into()))
            .filter(|timeout| !timeout.is_zero()),
    };
    warn_if_open(&access, &front.address);
    tell_of_separate_prompts(&access);
    let is_one = models.len() == 1 && !has_tables && models[0].idle_unload().is_none();
    let options = options(args, access, traces.as_ref().map(Traces::sink));
    let load_timeout = front.load_timeout;
    let loading = on_a_thread(move || match is_one {
        true => Serving::one(&models[0], &options),
        false => Ok(Serving::Several(fleet::state(
            models,
            load_timeout,
            options,
        )?)),
    })?;
    let served = runtime.block_on(front.serve(listener, loading));
    // The runtime keeps running meanwhile, so that a second signal ends the process even while a model is loading.
    let end = match served {
        Ok(Some(serving)) => serving.close(),
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    if let Some(traces) = traces {
        traces.close();
    }
    // Work on separate threads ends with the process; nothing waits for it.
    runtime.shutdown_background();
    end
}

/// What a server is to its clients.
struct Front {
    /// The first model's name.
    name: String,
    address: Address,
    sockets: SocketOptions,
    load_timeout: Option<Duration>,
}

impl Front {
    /// Answers until a signal comes, or until the engine of the only model ends. Returns what served, which is `None`
    /// if a signal came before; an error is that of loading.
    async fn serve(
        self,
        listener: Listener,
        loading: oneshot::Receiver<Result<Serving>>,
    ) -> Result<Option<Serving>> {
        let (serving, is_open, mut failure) = (OnceCell::new(), AtomicBool::new(false), None);
        let coming = async {
            let panicked = |_| Err(anyhow!("loading the model panicked, which is a bug"));
            match loading.await.unwrap_or_else(panicked) {
                Ok(loaded) => {
                    let serving = serving.get_or_init(|| std::future::ready(loaded)).await;
                    let state = serving.when_loaded().await;
                    is_open.store(true, Ordering::Release);
                    Some(state)
                }
                Err(error) => {
                    failure = Some(error);
                    None
                }
            }
        };
        let stop = async {
            let serving = when_set(&serving).await;
            // Before, a signal ends the process at once: nothing is to be finished.
            let signal = socket::shutdown_signal();
            tokio::select! {
                () = announce((serving, &is_open), &self.name, &self.address) => {}
                () = signal => tell_drain(serving.state().active_answers()),
            }
        };
        let coming = (coming, self.load_timeout);
        socket::serve_when_ready(listener, coming, self.sockets, stop).await;
        match (serving.into_inner(), failure) {
            (None, Some(error)) => Err(error),
            (serving, _) => Ok(serving),
        }
    }
}

/// The command with all its options.
pub(crate) fn command() -> clap::Command {
    let command = crate::cli::command_line();
    command.find_subcommand("serve").cloned().unwrap_or(command)
}

/// The options with those of --config, the models, and whether they are tables of the file.
fn with_config(args: ServeArgs, given: &ArgMatches) -> Result<(ServeArgs, Vec<Served>, bool)> {
    tell_of_foreign(&args.served)?;
    let Some(path) = &args.config else {
        let named = served::named(&args.first, given)?;
        let models = served::models(Vec::new(), &named, &args.served)?;
        return Ok((args, models, false));
    };
    let typed = foreign::with_long_names(std::env::args_os().skip(2));
    let file = Some(ConfigFile::read(path)?);
    let sources = Sources {
        command: command(),
        known: command(),
        typed: &typed,
        given,
        file,
    };
    let context = || format!("--config {}", path.display());
    let (all, given) = sources.parse::<ServeArgs>(None).with_context(context)?;
    let tables = sources.tables::<ServeArgs>().with_context(context)?;
    let of_file = tables.iter().map(|(_, args)| args).chain([&all]);
    for args in of_file {
        tell_of_foreign(&args.served).with_context(context)?;
    }
    let tables: Vec<_> = tables
        .into_iter()
        .map(|(name, args)| (name, args.served))
        .collect();
    let (named, has_tables) = (served::named(&all.first, &given)?, !tables.is_empty());
    let models = served::models(tables, &named, &all.served)?;
    Ok((all, models, has_tables))
}

/// Says which options of vLLM's change nothing here.
///
/// # Errors
/// One that asks for something that folio cannot do.
fn tell_of_foreign(args: &ServedArgs) -> Result<()> {
    for line in args.foreign.check()? {
        note(line);
    }
    Ok(())
}

fn sockets(args: &ServeArgs) -> SocketOptions {
    SocketOptions {
        connections_max: open_files::connections(args.max_connections as usize),
        connections_per_peer_max: Some(args.max_connections_per_peer as usize)
            .filter(|limit| *limit > 0),
        idle_timeout: Duration::from_secs(args.timeout_keep_alive.into()),
        proxies: args.forwarded_allow_ips.clone(),
        shutdown_grace: Duration::from_secs(args.shutdown_grace.into()),
        shutdown_timeout: Some(Duration::from_secs(args.shutdown_timeout.into())),
        ..SocketOptions::default()
    }
}

/// Warns if the server accepts requests from other machines without an API key.
fn warn_if_open(access: &Access, address: &Address) {
    if let Address::Tcp(address) = address
        && !address.ip().is_loopback()
        && access.api_keys.is_empty()
    {
        note(format_args!(
            "warning: {address} is reachable from other machines and no --api-key is set"
        ));
    }
}

/// Says what several API keys mean for prompts that come from elsewhere.
fn tell_of_separate_prompts(access: &Access) {
    if access.api_keys.len() > 1 && !access.share_prefixes {
        note(
            "each API key has its own cached prompts; blocks of `cache import` are found with --share-prefixes only",
        );
    }
}

/// Says that the first signal has come, and what the next one does.
fn tell_drain(answers: usize) {
    let running = match answers {
        0 => String::new(),
        1 => ", after the answer that is running".to_owned(),
        more => format!(", after the {more} answers that are running"),
    };
    note(format_args!("ending{running}; Ctrl-C again ends at once"));
    tell_service_manager(false);
}

/// Prints the server's address and model once it is ready. Returns when the engine of its only model has ended by
/// itself.
async fn announce((serving, is_open): (&Serving, &AtomicBool), name: &str, address: &Address) {
    let uses = match address {
        Address::Tcp(_) => format!("chat page; API: {address}/v1"),
        Address::Unix(_) => "API: /v1".to_owned(),
    };
    let Serving::One(session, _) = serving else {
        note(format_args!(
            "ready on {address} ({uses}): models are loaded when they are asked for"
        ));
        tell_service_manager(true);
        return std::future::pending().await;
    };
    let mut told = false;
    while !session.is_finished() {
        // From then on, requests are answered.
        if let Some(info) = session.handle.info()
            && is_open.load(Ordering::Acquire)
            && !told
        {
            told = true;
            let (device, context, seqs) = (&info.device, info.max_model_len, info.max_num_seqs);
            note(format_args!(
                "ready on {address} ({uses}): {name} on {device}, context {context}, {seqs} sequences at once"
            ));
            if let Some(advice) = session.advice() {
                note(advice);
            }
            tell_service_manager(true);
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Tells systemd that the server is ready, or that it ends, if systemd started it and asks for that.
fn tell_service_manager(is_ready: bool) {
    #[cfg(target_os = "linux")]
    {
        let state = if is_ready {
            sd_notify::NotifyState::Ready
        } else {
            sd_notify::NotifyState::Stopping
        };
        if let Err(error) = sd_notify::notify(&[state]) {
            tracing::warn!("systemd was not told: {error}");
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = is_ready;
}

async fn listen(args: &ServeArgs) -> Result<Listener> {
    #[cfg(unix)]
    if let Some(path) = args.host.strip_prefix(access::UNIX) {
        return Listener::bind_unix(path.as_ref())
            .with_context(|| format!("cannot listen on {}", args.host));
    }
    let place = format!("{}:{}", args.host, args.port);
    match TcpListener::bind((args.host.as_str(), args.port)).await {
        Ok(listener) => Ok(listener.into()),
        Err(error) => {
            let is_taken = error.kind() == std::io::ErrorKind::AddrInUse;
            let free = if is_taken {
                free_port(&args.host, args.port).await
            } else {
                None
            };
            let advice = free.map_or_else(String::new, |port| format!("; --port {port} is free"));
            Err(anyhow!("cannot listen on {place}: {error}{advice}"))
        }
    }
}

/// The next port that is free.
async fn free_port(host: &str, taken: u16) -> Option<u16> {
    for port in (taken..=u16::MAX).skip(1).take(PORTS_TRIED) {
        if TcpListener::bind((host, port)).await.is_ok() {
            return Some(port);
        }
    }
    None
}

/// Downloads models for clients.
fn puller(options: HubArgs) -> Puller {
    Puller::new(move |name| {
        // Ollama's names of such models begin with the host.
        let plain = ["hf.co/", "huggingface.co/"]
            .iter()
            .find_map(|host| name.strip_prefix(host))
            .unwrap_or(name);
        let name = plain
            .parse()
            .map_err(|why| format!("{plain} is not a model name: {why}"))?;
        hub::fetch(&name, options, false)
            .map(drop)
            .map_err(|error| format!("{error:#}"))
    })
}

/// The options of the routes, without those of a model.
fn options(args: ServeArgs, access: Access, traces: Option<TraceSink>) -> ServerOptions {
    let Access {
        api_keys,
        allowed_origins,
        mut allowed_hosts,
        metrics_open,
        share_prefixes,
    } = access;
    if args
        .host
        .parse::<IpAddr>()
        .is_ok_and(|address| !address.is_loopback())
    {
        allowed_hosts.extend(
            platform::host_name()
                .into_iter()
                .flat_map(|name| access::own_names(&name)),
        );
    }
    if !args.host.starts_with(access::UNIX) {
        allowed_hosts.push(args.host);
    }
    let limits = Limits {
        choices_max: args.choices_max,
        prompts_max: args.prompts_max as usize,
        body_bytes_max: args.body_bytes_max.map(|bytes| bytes as usize),
        images_max: args
            .limit_mm_per_prompt
            .map_or(Limits::default().images_max, |limits| limits.images),
        requests_bytes_max: args.requests_bytes_max,
        reply_bytes_max: args.reply_bytes_max,
    };
    ServerOptions {
        api_keys,
        allowed_origins,
        allowed_hosts,
        metrics_open,
        share_prefixes,
        limits,
        root_path: args.root_path,
        force_usage: args.enable_force_include_usage,
        tokens_as_ids: args.return_tokens_as_token_ids,
        response_store_bytes: ResponseBytes(args.response_store_bytes),
        response_store: args.response_store,
        traces,
        pull: args.allow_pull.then(|| puller(args.served.model.hub)),
        ..ServerOptions::default()
    }
}
