//! A client of a running server, for commands.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;

use crate::config::{Config, Overrides};

/// Time that the server may take to answer. Unloading waits for the engine's last step.
const PATIENCE: Duration = Duration::from_secs(120);
const MAX_ANSWER: u64 = 64 << 20;

#[derive(clap::Args, Debug)]
pub struct RemoteArgs {
    /// The server's address, such as http://127.0.0.1:8080 [default: $PENSTOCK_HOST, or the configured address]. An API key is taken from
    /// $PENSTOCK_API_KEY
    #[arg(long, value_name = "URL", conflicts_with = "port")]
    url: Option<String>,
    /// The port of a server on this machine
    #[arg(long)]
    port: Option<u16>,
}

impl RemoteArgs {
    /// The address in a flag or variable. None if there is none.
    pub fn named(&self) -> Option<String> {
        let variable = || variable("PENSTOCK_HOST").filter(|_| self.port.is_none());
        self.url.clone().or_else(variable).map(|url| with_scheme(&url))
    }

    /// The configuration of a server on this machine.
    pub fn config(&self, file: Option<&Path>) -> anyhow::Result<Config> {
        Ok(Config::load(file, &Overrides { port: self.port, ..Overrides::default() })?)
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

pub struct Remote {
    url: String,
    key: Option<String>,
    agent: ureq::Agent,
}

impl Remote {
    pub fn new(args: &RemoteArgs, config: Option<&Path>) -> anyhow::Result<Self> {
        let url = match args.named() {
            Some(url) => url,
            None => configured(&args.config(config)?),
        };
        let settings = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).http_status_as_error(false).max_redirects(0);
        Ok(Self { url, key: variable("PENSTOCK_API_KEY"), agent: settings.build().into() })
    }

    pub fn get(&self, path: &str) -> anyhow::Result<Value> {
        let mut request = self.agent.get(format!("{}{path}", self.url));
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        self.answer(request.call())
    }

    pub fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let mut request = self.agent.post(format!("{}{path}", self.url)).header("content-type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        self.answer(request.send(body.to_string()))
    }

    fn answer(&self, answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> anyhow::Result<Value> {
        let hint =
            || format!("{}: no server answers: start one with `penstock serve`, or name another address with --url or --port", self.url);
        let mut answer = answer.with_context(hint)?;
        let text = answer.body_mut().with_config().limit(MAX_ANSWER).read_to_string().with_context(hint)?;
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        if answer.status().is_success() {
            return Ok(value);
        }
        match value["error"]["message"].as_str() {
            Some(message) => bail!("{message}"),
            None => bail!("{}: the server answers with status {}", self.url, answer.status().as_u16()),
        }
    }
}

fn with_scheme(url: &str) -> String {
    let url = url.trim_end_matches('/');
    if url.contains("://") { url.to_owned() } else { format!("http://{url}") }
}

/// The configured server's address, for a client on this machine.
fn configured(config: &Config) -> String {
    let host = match config.server.host {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let scheme = if config.server.tls_cert.as_os_str().is_empty() { "http" } else { "https" };
    format!("{scheme}://{}", std::net::SocketAddr::new(host, config.server.port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigSources;

    #[test]
    fn an_address_is_given_or_configured() {
        assert_eq!(with_scheme("localhost:80/"), "http://localhost:80");
        assert_eq!(with_scheme("https://a.example"), "https://a.example");
        let env = [("HOME", "/home/u"), ("PENSTOCK__SERVER__HOST", "0.0.0.0"), ("PENSTOCK__SERVER__PORT", "81")];
        let env = env.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
        let config = Config::load_from(&ConfigSources { env, ..Default::default() }, &Overrides::default()).unwrap();
        assert_eq!(configured(&config), "http://127.0.0.1:81");
    }
}
