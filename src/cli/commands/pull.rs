//! `folio pull`: downloads a model into the cache, repairs what is damaged there, and prints its path.

use crate::cli::hub::{self, HubArgs, HubName};
use crate::cli::terminal::output;
use anyhow::Result;
use clap::Args;

#[derive(Args, Debug)]
pub(crate) struct PullArgs {
    /// Model name: org/repo[@revision][:QUANT or :FILE.gguf], or a short one such as qwen3:0.6b
    #[arg(value_name = "NAME")]
    name: HubName,
    #[command(flatten)]
    hub: HubArgs,
}

pub(crate) fn run(args: &PullArgs) -> Result<()> {
    let path = hub::fetch(&args.name, args.hub, true)?;
    output::result(path.display())
}
