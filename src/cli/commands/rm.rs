//! `folio rm`: removes a model from the Hugging Face cache.

use crate::cli::hub::{self, HubName};
use crate::cli::terminal::output;
use anyhow::Result;
use clap::Args;
use indicatif::BinaryBytes;

#[derive(Args, Debug)]
pub(crate) struct RmArgs {
    /// Model name: org/repo
    #[arg(value_name = "NAME")]
    name: HubName,
}

pub(crate) fn run(args: &RmArgs) -> Result<()> {
    let bytes = hub::remove(&args.name)?;
    output::result(format_args!(
        "removed {}, {}",
        args.name,
        BinaryBytes(bytes)
    ))
}
