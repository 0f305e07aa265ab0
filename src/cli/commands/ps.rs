//! `folio ps`, `folio load` and `folio stop`: the models of a running server.

use crate::cli::remote::{Remote, ServerArgs};
use crate::cli::terminal::output;
use anyhow::{Result, bail};
use clap::Args;
use folio::engine::fit::Bytes;
use serde_json::{Value, json};
use std::time::Duration;

/// Interval at which a model's state is asked for.
const POLL: Duration = Duration::from_millis(50);

#[derive(Args, Debug)]
pub(crate) struct PsArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct NameArgs {
    /// Name of the model, as `folio ps` lists it
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// Lists the models of a server.
pub(crate) fn run(args: &PsArgs) -> Result<()> {
    let remote = args.server.remote();
    let models = remote.models()?;
    let loaded = remote.get("/api/ps")?;
    if args.json {
        return output::result(json!({"models": models.iter().map(|model| {
            json!({
                "name": model.name,
                "status": model.status,
                "failure": model.failure,
                "max_model_len": model.context,
                "bytes": running(&loaded, &model.name)["size_vram"],
                "expires_at": running(&loaded, &model.name)["expires_at"],
            })
        }).collect::<Vec<_>>()}));
    }
    let mut rows = vec![["name", "status", "memory", "context", ""].map(str::to_owned)];
    rows.extend(models.iter().map(|model| {
        let status = if model.failure.is_some() {
            "failed"
        } else {
            &model.status
        };
        let bytes = running(&loaded, &model.name)["size_vram"].as_u64();
        [
            model.name.clone(),
            status.to_owned(),
            bytes.map_or_else(String::new, |bytes| Bytes(bytes).to_string()),
            model
                .context
                .map_or_else(String::new, |context| context.to_string()),
            model.failure.clone().unwrap_or_default(),
        ]
    }));
    let [name, status, memory, context] = [0, 1, 2, 3].map(|column| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    });
    output::result(
        rows.iter()
            .map(|[first, second, third, fourth, last]| {
                let line = format!(
                    "{first:name$}  {second:status$}  {third:>memory$}  {fourth:>context$}  {last}"
                );
                line.trim_end().to_owned()
            })
            .collect::<Vec<_>>()
            .join("\n"),
    )
}

/// What the server tells of a loaded model, in Ollama's form.
fn running<'a>(loaded: &'a Value, name: &str) -> &'a Value {
    let tagged = format!("{name}:latest");
    let mut models = loaded["models"].as_array().into_iter().flatten();
    models
        .find(|model| model["name"] == name || model["name"] == *tagged)
        .unwrap_or(&Value::Null)
}

/// Has a model loaded, and waits for it.
pub(crate) fn load(args: &NameArgs) -> Result<()> {
    let remote = args.server.remote();
    remote.ask("load", &args.name)?;
    loop {
        let model = remote.model(Some(&args.name))?;
        match (model.failure, model.status.as_str()) {
            (Some(reason), _) => bail!("{}: {reason}", args.name),
            (None, "loaded") => break,
            (None, _) => std::thread::sleep(POLL),
        }
    }
    output::note(format_args!("{} is loaded", args.name));
    Ok(())
}

/// Has a model unloaded when its answers are complete, and waits for that.
pub(crate) fn stop(args: &NameArgs) -> Result<()> {
    let remote = args.server.remote();
    remote.ask("unload", &args.name)?;
    wait_unloaded(&remote, &args.name)?;
    output::note(format_args!("{} is unloaded", args.name));
    Ok(())
}

fn wait_unloaded(remote: &Remote, name: &str) -> Result<()> {
    // A request that comes meanwhile has it loaded again.
    while remote.model(Some(name))?.status == "unloading" {
        std::thread::sleep(POLL);
    }
    Ok(())
}
