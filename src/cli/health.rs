//! `penstock health`: checks the health of the server of this configuration. A container has no other program for this.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use ureq::tls::TlsConfig;

use serde_json::Value;

use super::output::print;
use super::remote::RemoteArgs;
use super::serve::reachable;

/// The most of an answer that is read [bytes].
const MAX_BODY: u64 = 1 << 20;
/// Time that the server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(clap::Args, Debug)]
#[command(after_help = "Prints a line, and exits with 0 if the server accepts requests, otherwise with 1.

Examples:
  penstock health
  penstock health --port 9000 --live
  penstock health --url https://llm.example")]
pub struct HealthArgs {
    #[command(flatten)]
    remote: RemoteArgs,
    /// Check only that the process and its engines are alive, which they are also while models load
    #[arg(long)]
    live: bool,
}

pub fn run(args: &HealthArgs, config: Option<&Path>) -> anyhow::Result<()> {
    let path = if args.live { "health" } else { "ready" };
    let (address, tls) = match args.remote.named() {
        Some(url) => (url, TlsConfig::builder().build()),
        None => {
            let server = args.remote.config(config)?.server;
            let scheme = if server.tls_cert.as_os_str().is_empty() { "http" } else { "https" };
            let address = reachable(SocketAddr::new(server.host, server.port));
            // The certificate has the site's name, but the request goes to this machine's address.
            (format!("{scheme}://{address}"), TlsConfig::builder().disable_verification(true).build())
        }
    };
    let is_own = args.remote.named().is_none();
    let agent = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).http_status_as_error(false).tls_config(tls);
    let agent: ureq::Agent = if is_own { agent.proxy(None) } else { agent }.build().into();
    let answer = agent.get(format!("{address}/{path}")).call();
    let mut answer = answer.with_context(|| format!("{address} does not answer"))?;
    let status = answer.status();
    ensure!(status.is_success(), "{address} answers {}: see its log", status.as_u16());
    let lost = lost_replicas(&answer.body_mut().with_config().limit(MAX_BODY).read_to_string().unwrap_or_default());
    print(&format!("{address} {}{lost}\n", if args.live { "is alive" } else { "accepts requests" }))
}

/// What an answer says about replicas that have left. Empty if it names none, as those of other servers.
fn lost_replicas(body: &str) -> String {
    let body: Value = serde_json::from_str(body).unwrap_or_default();
    let name =
        |lost: &Value| Some(format!("replica {} of {} ({})", lost["replica"].as_u64()?, lost["model"].as_str()?, lost["device"].as_str()?));
    let names: Vec<String> = body["lost_replicas"].as_array().into_iter().flatten().filter_map(name).collect();
    if names.is_empty() { String::new() } else { format!(", without {}", names.join(", ")) }
}
