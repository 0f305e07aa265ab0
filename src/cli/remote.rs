//! A server that runs already, as `ps`, `load`, `stop` and `chat --server` speak to it.

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::Args;
use futures_channel::mpsc;
use futures_util::{SinkExt as _, Stream};
use serde_json::{Value, json};
use std::fmt;
use std::io::{BufRead as _, BufReader};
use std::time::Duration;
use ureq::http::Response;
use ureq::{Agent, Body, RequestBuilder};

/// Where `folio serve` listens by default.
const HERE: &str = "http://127.0.0.1:8000";
/// Timeout for the DNS lookup and for connecting.
const CONNECT_MAX: Duration = Duration::from_secs(15);
/// Longer than a server needs to load its largest model.
const ANSWER_MAX: Duration = Duration::from_secs(3600);
/// Maximum bytes of an answer that is not a stream.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Events that wait to be printed.
const EVENTS_MAX: usize = 64;

/// Which server.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub(crate) struct ServerArgs {
    /// URL of a running server, such as http://gpu.example.org:8000
    #[arg(long, env = "FOLIO_SERVER", value_name = "URL")]
    server: Option<String>,
    /// API key of that server
    #[arg(
        long,
        env = "FOLIO_API_KEY",
        value_name = "KEY",
        hide_env_values = true
    )]
    api_key: Option<String>,
}

/// A running server.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    agent: Agent,
    base: String,
    api_key: Option<String>,
}

/// One of its models.
#[derive(Debug)]
pub(crate) struct RemoteModel {
    /// Its first name.
    pub(crate) name: String,
    /// `loaded`, `loading`, `unloaded` or `unloading`.
    pub(crate) status: String,
    /// Why it could not be loaded, or why it is not any more.
    pub(crate) failure: Option<String>,
    /// Maximum tokens of prompt and answer together, if it is loaded.
    pub(crate) context: Option<u64>,
    names: Vec<String>,
}

impl ServerArgs {
    /// The server, if one is named.
    pub(crate) fn named(&self) -> Option<Remote> {
        self.server
            .as_deref()
            .map(|url| Remote::new(url, self.api_key.clone()))
    }

    /// The server that is named, or the one of this machine.
    pub(crate) fn remote(&self) -> Remote {
        self.named()
            .unwrap_or_else(|| Remote::new(HERE, self.api_key.clone()))
    }
}

impl Remote {
    /// A server; nothing is sent yet.
    fn new(url: &str, api_key: Option<String>) -> Self {
        let config = Agent::config_builder()
            .user_agent(concat!("folio/", env!("CARGO_PKG_VERSION")))
            .max_redirects(0)
            .http_status_as_error(false)
            .timeout_resolve(Some(CONNECT_MAX))
            .timeout_connect(Some(CONNECT_MAX))
            .timeout_recv_response(Some(ANSWER_MAX))
            .build();
        // Clients of OpenAI's API are given the URL with its version.
        let base = url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        let base = if base.contains("://") {
            base
        } else {
            format!("http://{base}")
        };
        Self {
            agent: config.into(),
            base,
            api_key,
        }
    }

    /// The answer to a request without a body.
    pub(crate) fn get(&self, path: &str) -> Result<Value> {
        let request = self.with_key(self.agent.get(format!("{}{path}", self.base)));
        self.json(request.call())
    }

    /// The answer to a request.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.json(self.send(path, body))
    }

    /// The events of a streamed answer, up to `[DONE]`. They are read on a thread of their own, which ends with the
    /// first event after the stream was dropped.
    pub(crate) fn events(
        &self,
        path: &str,
        body: &Value,
    ) -> Result<impl Stream<Item = Result<Value>> + use<>> {
        let response = self
            .send(path, body)
            .map_err(|error| self.unreachable(&error))?;
        let (mut sender, events) = mpsc::channel(EVENTS_MAX);
        if response.status() != 200 {
            bail!("{}", refusal(response));
        }
        std::thread::Builder::new()
            .name("events".into())
            .spawn(move || {
                for line in BufReader::new(response.into_body().into_reader()).lines() {
                    let event = match line.context("the connection broke") {
                        Ok(line) => match line.strip_prefix("data: ") {
                            Some("[DONE]") => return,
                            Some(data) => event(data),
                            // Comments, and the empty lines between events.
                            None => continue,
                        },
                        Err(error) => Err(error),
                    };
                    let is_last = event.is_err();
                    if folio::platform::block_on(sender.send(event)).is_err() || is_last {
                        return;
                    }
                }
            })
            .context("a thread for the answer")?;
        Ok(events)
    }

    /// The server's models, in its order.
    pub(crate) fn models(&self) -> Result<Vec<RemoteModel>> {
        let list = self.get("/v1/models")?;
        let mut models: Vec<RemoteModel> = Vec::new();
        for card in list["data"]
            .as_array()
            .context("the server has no list of models")?
        {
            let (id, root) = (
                text(&card["id"]).context("a model has no name")?,
                text(&card["root"]),
            );
            let name = root.unwrap_or_else(|| id.clone());
            match models.iter_mut().find(|model| model.name == name) {
                Some(model) => model.names.push(id),
                None => models.push(RemoteModel {
                    name,
                    status: text(&card["status"]["value"]).unwrap_or_else(|| "loaded".to_owned()),
                    failure: text(&card["status"]["reason"]),
                    context: card["max_model_len"].as_u64(),
                    names: vec![id],
                }),
            }
        }
        Ok(models)
    }

    /// The model with this name; without one, the first.
    pub(crate) fn model(&self, name: Option<&str>) -> Result<RemoteModel> {
        let models = self.models()?;
        let known: Vec<_> = models
            .iter()
            .flat_map(|model| model.names.clone())
            .collect();
        let found = models
            .into_iter()
            .find(|model| name.is_none_or(|name| model.names.iter().any(|own| own == name)));
        found.with_context(|| {
            format!(
                "{} has no model {}; it has {}",
                self.base,
                name.unwrap_or("at all"),
                known.join(", ")
            )
        })
    }

    /// Has a model loaded or unloaded, and does not wait for it.
    pub(crate) fn ask(&self, what: &str, name: &str) -> Result<()> {
        self.post(&format!("/models/{what}"), &json!({"model": name}))
            .map(drop)
    }

    fn send(&self, path: &str, body: &Value) -> Result<Response<Body>, ureq::Error> {
        let request = self.with_key(self.agent.post(format!("{}{path}", self.base)));
        request
            .content_type("application/json")
            .send(body.to_string())
    }

    fn with_key<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.api_key {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        }
    }

    fn json(&self, answer: Result<Response<Body>, ureq::Error>) -> Result<Value> {
        let response = answer.map_err(|error| self.unreachable(&error))?;
        ensure!(response.status() == 200, "{}", refusal(response));
        let body = response
            .into_body()
            .into_with_config()
            .limit(ANSWER_BYTES_MAX)
            .read_to_vec();
        let body = body.map_err(|error| self.unreachable(&error))?;
        serde_json::from_slice(&body)
            .with_context(|| format!("{} is not a server of folio's kind", self.base))
    }

    fn unreachable(&self, error: &ureq::Error) -> anyhow::Error {
        anyhow!(
            "no answer from {}: {error}; is `folio serve` running there? --server names another place",
            self.base
        )
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

impl fmt::Display for Remote {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.base)
    }
}

/// The JSON of an event, or the error that it tells.
fn event(data: &str) -> Result<Value> {
    let event: Value = serde_json::from_str(data).context("an event is not JSON")?;
    match event["error"]["message"].as_str() {
        Some(message) => bail!("{message}"),
        None => Ok(event),
    }
}

/// What a server says when it refuses a request.
fn refusal(response: Response<Body>) -> String {
    let status = response.status();
    let body = response
        .into_body()
        .into_with_config()
        .limit(ANSWER_BYTES_MAX)
        .read_to_vec()
        .unwrap_or_default();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    body["error"]["message"]
        .as_str()
        .map_or_else(|| format!("the server answered {status}"), str::to_owned)
}
