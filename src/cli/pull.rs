//! `folio pull`: brings a model into the cache and prints where it is.

use super::hub::{self, HubName, HubOptions};
use anyhow::Result;
use clap::Args;
use std::io::Write as _;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// org/repo[@revision][:QUANT or :FILE.gguf]
    #[arg(value_name = "NAME")]
    name: HubName,
    #[command(flatten)]
    hub: HubOptions,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let path = hub::fetch(&options.name, options.hub)?;
    Ok(writeln!(std::io::stdout(), "{}", path.display())?)
}
