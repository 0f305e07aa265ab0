//! `folio cache`: takes the KV blocks of a prompt out of an engine into one file, and puts such a file into a folder
//! for `--kv-disk`.

use super::options::{EngineArgs, ModelArgs};
use super::output::result;
use super::request::server_options;
use super::session::Session;
use anyhow::{Context as _, Result, ensure};
use clap::{Args, Subcommand};
use folio::config::DiskConfig;
use folio::engine::disk::{self, Record};
use folio::plan::Storage;
use folio::platform;
use folio::server::LocalApi;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Maximum bytes of a prompt's file.
const PROMPT_BYTES_MAX: u64 = 64 << 20;
/// Maximum bytes of a file of blocks: all of it is in memory at once.
const FILE_BYTES_MAX: u64 = 64 << 30;

#[derive(Args, Debug)]
pub(crate) struct CacheArgs {
    #[command(subcommand)]
    command: CacheCommand,
}

#[derive(Subcommand, Debug)]
enum CacheCommand {
    /// Compute a prompt and write its KV blocks to a file
    Export(Box<ExportArgs>),
    /// Put the KV blocks of a file into a folder for --kv-disk
    Import(ImportArgs),
}

#[derive(Args, Debug)]
struct ExportArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// The prompt: a JSON object with `messages` and other fields of a chat request, or with `prompt`; any other text
    /// is the system message of a chat, or without a chat template a prompt
    #[arg(value_name = "PROMPT_FILE")]
    prompt: PathBuf,
    /// The file to write
    #[arg(value_name = "OUT")]
    out: PathBuf,
}

#[derive(Args, Debug)]
struct ImportArgs {
    /// A file that `folio cache export` has written
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The folder to add its blocks to
    #[arg(long, env = "FOLIO_KV_DISK", value_name = "FOLDER")]
    kv_disk: PathBuf,
}

pub(crate) fn run(args: &CacheArgs) -> Result<()> {
    match &args.command {
        CacheCommand::Export(args) => export(args),
        CacheCommand::Import(args) => import(args),
    }
}

fn import(args: &ImportArgs) -> Result<()> {
    let at = || args.file.display().to_string();
    let file = platform::read_file(&args.file, FILE_BYTES_MAX).with_context(at)?;
    let count = disk::import(&args.kv_disk, &file.into()).with_context(at)?;
    result(format_args!("{count} blocks are in {}", args.kv_disk.display()))
}

fn export(args: &ExportArgs) -> Result<()> {
    let prompt = platform::read_file(&args.prompt, PROMPT_BYTES_MAX);
    let prompt = prompt.and_then(|bytes| String::from_utf8(bytes).map_err(std::io::Error::other));
    let prompt = prompt.with_context(|| args.prompt.display().to_string())?;
    // The blocks pass through a folder beside the file: it has room for what the file has room for.
    let mut folder = args.out.clone().into_os_string();
    folder.push(format!(".tmp-{:016x}", platform::random_u64()));
    let folder = PathBuf::from(folder);
    let outcome = compute(args, &prompt, &folder).and_then(|()| {
        let records = in_order(disk::records_in(&folder));
        ensure!(
            !records.is_empty(),
            "the prompt is shorter than a block (--block-size), so there is nothing to export"
        );
        write(&args.out, &records).with_context(|| args.out.display().to_string())?;
        let tokens: usize =
            records.iter().filter(|record| record.origin.key.0 == 0).map(|r| r.origin.token_ids.len()).sum();
        result(format_args!("{} blocks of {tokens} tokens are in {}", records.len(), args.out.display()))
    });
    // There may be none.
    drop(fs::remove_dir_all(&folder));
    outcome
}

/// Computes a prompt, with files of its blocks in `folder`.
fn compute(args: &ExportArgs, prompt: &str, folder: &Path) -> Result<()> {
    let (model, text) = args.model.open_with_text()?;
    ensure!(
        model.record(Storage::F32).state_layers.is_empty(),
        "the model keeps a recurrent state, which files of KV blocks do not hold: its blocks are of no use elsewhere"
    );
    let mut config = args.engine.config()?;
    ensure!(config.prefix_caching, "--no-prefix-caching leaves nothing to export");
    config.kv_disk = Some(DiskConfig { folder: folder.to_owned(), bytes: u64::MAX });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let session = Session::start_on(args.engine.device()?, model, text, config)?.wait_ready()?;
    let outcome = request(prompt, session.text.template.is_some()).and_then(|(path, body)| {
        let api = LocalApi::new(session.api_state(vec![args.model.name()], server_options(true)));
        runtime.block_on(async { api.post(path, &body).await?.json().await })?;
        Ok(())
    });
    // Everything is written when the engine has ended.
    outcome.and(session.close())
}

/// The route and the body for a prompt.
fn request(prompt: &str, has_template: bool) -> Result<(&'static str, Value)> {
    let fields = serde_json::from_str::<Map<String, Value>>(prompt).ok();
    let mut body = fields.unwrap_or_else(|| {
        let system = [json!({"role": "system", "content": prompt}), json!({"role": "user", "content": "Hello"})];
        let field = if has_template { ("messages", json!(system)) } else { ("prompt", json!(prompt)) };
        [(field.0.to_owned(), field.1)].into_iter().collect()
    });
    ensure!(!body.contains_key("cache_salt"), "`cache_salt`: salted blocks never leave the process");
    body.insert("max_tokens".to_owned(), 1.into());
    let path = if body.contains_key("messages") { "/v1/chat/completions" } else { "/v1/completions" };
    Ok((path, body.into()))
}

/// Sorts blocks by their place in the prompt, then by KV group.
fn in_order(mut records: Vec<Record>) -> Vec<Record> {
    let parents: HashMap<_, _> = records.iter().map(|record| (record.origin.key.1, record.origin.parent)).collect();
    let depth = |record: &Record| {
        std::iter::successors(parents.get(&record.origin.key.1), |parent| parents.get(parent)).count()
    };
    records.sort_by_cached_key(|record| (depth(record), record.origin.key));
    records
}

fn write(out: &Path, records: &[Record]) -> Result<()> {
    let mut file = std::io::BufWriter::new(fs::File::create(out)?);
    records.iter().try_for_each(|record| std::io::Write::write_all(&mut file, &record.whole))?;
    Ok(std::io::Write::flush(&mut file)?)
}
