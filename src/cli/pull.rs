//! `folio pull`: brings a model into the cache and prints where it is.

use super::hub::{self, HubName, HubOptions};
use super::output;
use anyhow::Result;
use clap::Args;

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
    output::result(path.display())
}
