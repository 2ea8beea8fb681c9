//! `penstock logits`

use std::path::Path;

#[derive(clap::Args, Debug)]
pub struct Args {}

pub fn run(args: Args, config: Option<&Path>) -> anyhow::Result<()> {
    let _ = (args, config);
    anyhow::bail!("not built yet")
}
