//! `folio cache`: takes the KV blocks of a prompt, with its recurrent states, out of an engine into one file, and puts
//! such a file into a folder for `--kv-disk`.

use crate::cli::options::{EngineArgs, ModelArgs};
use crate::cli::request::{server_options, set_field};
use crate::cli::session::{Opened, Tells};
use crate::cli::terminal::output::{note, result};
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

/// Questions after a system message; one is enough for a model without a recurrent state.
const QUESTIONS: [&str; 2] = ["Hello", "What is it?"];
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
    check_begins(&args.file).with_context(at)?;
    let file = platform::read_file(&args.file, FILE_BYTES_MAX).with_context(at)?;
    let count = disk::import(&args.kv_disk, &file.into()).with_context(at)?;
    result(format_args!(
        "{count} blocks are in {}",
        args.kv_disk.display()
    ))?;
    // They belong to no key, and several keys share nothing unless they may.
    note("a server with several API keys finds these blocks with --share-prefixes only");
    Ok(())
}

/// Looks at the beginning of a file, before all of it is read.
fn check_begins(path: &Path) -> Result<()> {
    let mut head = [0; disk::MAGIC.len()];
    let read = std::io::Read::read_exact(&mut platform::open_regular(path)?, &mut head);
    ensure!(
        read.is_ok() && head == *disk::MAGIC,
        "it is not a file of KV blocks"
    );
    Ok(())
}

fn export(args: &ExportArgs) -> Result<()> {
    let prompt =
        fs::read_to_string(&args.prompt).with_context(|| args.prompt.display().to_string())?;
    // The blocks pass through a folder beside the file: it has room for what the file has room for.
    let mut folder = args.out.clone().into_os_string();
    folder.push(format!(".tmp-{:016x}", platform::random_u64()));
    let folder = PathBuf::from(folder);
    let outcome = compute(args, &prompt, &folder).and_then(|keeps_states| {
        let records = in_order(disk::records_in(&folder));
        let (states, blocks): (Vec<_>, Vec<_>) = records.iter().partition(|record| record.is_state());
        ensure!(
            !records.is_empty(),
            "the prompt is shorter than a block (--block-size), so there is nothing to export"
        );
        ensure!(
            !keeps_states || !states.is_empty(),
            "no recurrent state after a block of the prompt was kept (--state-snapshots), without which its blocks are \
             of no use elsewhere"
        );
        write(&args.out, &records).with_context(|| args.out.display().to_string())?;
        let first_group = blocks.iter().filter(|record| record.origin.key.0 == 0);
        let tokens: usize = first_group.map(|record| record.origin.token_ids.len()).sum();
        let states = if keeps_states { format!(", with {} states,", states.len()) } else { String::new() };
        result(format_args!("{} blocks of {tokens} tokens{states} are in {}", blocks.len(), args.out.display()))
    });
    // There may be none.
    drop(fs::remove_dir_all(&folder));
    outcome
}

/// Computes a prompt, with files of its blocks in `folder`. Returns whether the model keeps a recurrent state.
fn compute(args: &ExportArgs, prompt: &str, folder: &Path) -> Result<bool> {
    let (model, text) = args.model.open_with_text()?;
    let keeps_states = model.record(Storage::F32).state_group().is_some();
    let mut config = args.engine.config()?;
    ensure!(
        config.prefix_caching,
        "--no-prefix-caching leaves nothing to export"
    );
    config.kv_disk = Some(DiskConfig {
        folder: folder.to_owned(),
        bytes: u64::MAX,
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let session = Opened::new(model, text)
        .start(args.engine.device()?, config, Tells::Nothing)?
        .wait_ready()?;
    let has_template = session.text.template.is_some();
    let outcome = requests(prompt, has_template, keeps_states).and_then(|requests| {
        let api = LocalApi::new(session.api_state(vec![args.model.name()], server_options(true)));
        for (path, body) in requests {
            runtime.block_on(async { api.post(path, &body).await?.json().await })?;
        }
        Ok(())
    });
    // Everything is written when the engine has ended.
    outcome.and(session.close()).map(|()| keeps_states)
}

/// The routes and the bodies for a prompt, to be sent one after the other. A state is kept where a prompt differs from
/// what is cached, so that a system message needs a second question: then there is a state after its last whole block.
fn requests(
    prompt: &str,
    has_template: bool,
    keeps_states: bool,
) -> Result<Vec<(&'static str, Value)>> {
    if let Ok(body) = serde_json::from_str(prompt) {
        return Ok(vec![request(body)?]);
    }
    if !has_template {
        return Ok(vec![request(
            [("prompt".to_owned(), json!(prompt))].into_iter().collect(),
        )?]);
    }
    QUESTIONS[..if keeps_states { 2 } else { 1 }]
        .iter()
        .map(|question| {
            let messages = [
                json!({"role": "system", "content": prompt}),
                json!({"role": "user", "content": question}),
            ];
            request(
                [("messages".to_owned(), json!(messages))]
                    .into_iter()
                    .collect(),
            )
        })
        .collect()
}

/// The route and the body of a request that computes its prompt.
fn request(mut body: Map<String, Value>) -> Result<(&'static str, Value)> {
    ensure!(
        !body.contains_key("cache_salt"),
        "`cache_salt`: salted blocks never leave the process"
    );
    set_field(&mut body, "max_tokens", 1.into());
    let path = if body.contains_key("messages") {
        "/v1/chat/completions"
    } else {
        "/v1/completions"
    };
    Ok((path, body.into()))
}

/// Sorts blocks by their place in the prompt, then by KV group.
fn in_order(mut records: Vec<Record>) -> Vec<Record> {
    let parents: HashMap<_, _> = records
        .iter()
        .map(|record| (record.origin.key.1, record.origin.parent))
        .collect();
    let depth = |record: &Record| {
        std::iter::successors(parents.get(&record.origin.key.1), |parent| {
            parents.get(parent)
        })
        .count()
    };
    records.sort_by_cached_key(|record| (depth(record), record.origin.key));
    records
}

fn write(out: &Path, records: &[Record]) -> Result<()> {
    let mut file = std::io::BufWriter::new(fs::File::create(out)?);
    // The files of the folder have its key; one that is passed on has none.
    for record in records {
        std::io::Write::write_all(&mut file, &record.header(None))?;
        std::io::Write::write_all(&mut file, &record.data)?;
    }
    Ok(std::io::Write::flush(&mut file)?)
}
