//! `penstock health`: asks the server of this configuration how it is. Containers have no other program that could ask.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use ureq::tls::TlsConfig;

use super::serve::reachable;
use crate::config::{Config, Overrides};

/// How long the server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(clap::Args, Debug)]
#[command(after_help = "Exits with 0 if the server accepts requests, otherwise with 1.

Examples:
  penstock health
  penstock health --port 9000 --live")]
pub struct Args {
    /// The server's port
    #[arg(long)]
    port: Option<u16>,
    /// Only ask whether the process and its engines are alive, which they are while models load
    #[arg(long)]
    live: bool,
}

pub fn run(args: &Args, config: Option<&Path>) -> anyhow::Result<()> {
    let Config { server, .. } = Config::load(config, &Overrides { port: args.port, ..Overrides::default() })?;
    let address = reachable(SocketAddr::new(server.host, server.port));
    let (scheme, path) =
        (if server.tls_cert.as_os_str().is_empty() { "http" } else { "https" }, if args.live { "health" } else { "ready" });
    // The certificate is for the site's name, and what is asked is this machine.
    let tls = TlsConfig::builder().disable_verification(true).build();
    let agent = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).http_status_as_error(false).tls_config(tls).proxy(None);
    let agent: ureq::Agent = agent.build().into();
    let answer = agent.get(format!("{scheme}://{address}/{path}")).call();
    let status = answer.with_context(|| format!("{address} does not answer"))?.status();
    ensure!(status.is_success(), "{address} answers {}: see its log", status.as_u16());
    Ok(())
}
