//! `penstock serve`: the HTTP server.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use anyhow::anyhow;
use tokio::sync::oneshot;

use super::engine_args::EngineArgs;
use super::log_args::LogArgs;
use super::output::show;
use super::reload::Reloader;
use super::supervise;
use crate::api;
use crate::config::{AdapterFlag, Config, Mmproj, Overrides, find_model, misnamed_variables};
use crate::engine::BACKENDS;
use crate::registry::Registry;
use crate::telemetry;
use grammar::keep_trials_ready;

const EXAMPLES: &str = "Examples:
  penstock serve                              serve the default model
  penstock serve --model smollm2:135m         a model of the catalogue (see `penstock list`)
  penstock serve --model ./some.gguf --port 9000
  penstock serve --host 0.0.0.0               also answer other machines";

#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ServeArgs {
    /// The address to listen on
    #[arg(long, value_name = "IP")]
    host: Option<IpAddr>,
    /// The port to listen on; 0 takes a free one
    #[arg(long)]
    port: Option<u16>,
    /// A model to serve: an id of the catalogue or the path of a GGUF file; can be given several times
    #[arg(long = "model", value_name = "MODEL")]
    models: Vec<String>,
    /// The picture encoder of the one --model that is a file, or none [default: the file beside the model, if one fits]
    #[arg(long, value_name = "FILE.gguf|none")]
    mmproj: Option<Mmproj>,
    /// A smaller model with the same vocabulary that drafts the answers of the one --model: an id, or a GGUF file
    #[arg(long, value_name = "MODEL", alias = "model-draft")]
    draft: Option<String>,
    /// An adapter (LoRA, control vector): its name as a model, and a GGUF file or a PEFT folder; changes the first model, or BASE; can be
    /// given several times
    #[arg(long = "adapter", value_name = "NAME[@BASE]=PATH")]
    adapters: Vec<AdapterFlag>,
    /// Load each model N times: on N GPUs, starting at --device, or on parts of the CPU
    #[arg(long, value_name = "N")]
    replicas: Option<usize>,
    /// Restart the server if it crashes, hangs or loses its GPU; the port stays open
    #[arg(long)]
    supervise: bool,
    /// The process that supervises this one and gave it the listening socket as stdin
    #[arg(long, hide = true, value_name = "PID", conflicts_with = "supervise")]
    supervised: Option<u32>,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

pub fn run(args: ServeArgs, config: Option<&Path>) -> anyhow::Result<()> {
    let ServeArgs { host, port, models, mmproj, draft, adapters, replicas, supervise, supervised, log, engine } = args;
    let adapters = adapters.into_iter().map(|AdapterFlag(entry)| entry).collect();
    let overrides = log.add_to(Overrides { host, port, models, mmproj, draft, adapters, replicas, ..engine.overrides() });
    let file = config.map(Path::to_owned);
    let config = Config::load(file.as_deref(), &overrides)?;
    telemetry::init(&log.of(&config))?;
    if supervise {
        return supervise::run(&config);
    }
    misnamed_variables().iter().for_each(|warning| tracing::warn!("{warning}"));
    keep_trials_ready();
    let access = api::Access::open(&config)?;
    let listener = match supervised {
        Some(parent) => supervise::inherited(parent)?,
        None => api::listen(config.server.host, config.server.port)?,
    };
    let address = listener.local_addr()?;
    warn_if_open(&config, &access, address);
    let backends: Vec<&str> = BACKENDS.iter().rev().map(|backend| backend.kind.name()).collect();
    metrics::set_build_info(env!("CARGO_PKG_VERSION"), &backends.join(","));
    for name in &config.server.default_models {
        if let Some(hint) = find_model(&config.models, name).and_then(|entry| entry.hint_for(name)) {
            tracing::warn!("{hint}");
        }
    }
    let registry = Registry::new(&config, &config.server.default_models)?;
    registry.spawn_janitor()?;
    let _sending = telemetry::traces::start(&config.traces)?.inspect(|_| api::trace_requests());
    let site = Address { address, tls: access.has_tls(), keys: access.needs_keys(), page: config.server.chat_page };
    let loaded = load(registry.clone(), site)?;
    let stopped: api::Stopped = Box::pin(async move {
        match loaded.await {
            Ok(Ok(())) => std::future::pending().await,
            Ok(Err(error)) => error,
            Err(_) => anyhow!("the thread that loads models ended unexpectedly"),
        }
    });
    let reload = Reloader { file, overrides, log, registry: registry.clone(), first: config.clone() };
    let reload = Arc::new(move || reload.reload());
    let result = api::serve(&config, listener, registry.clone(), &access, reload, stopped);
    registry.stop();
    result
}

/// Warns if other machines can use the server without a key, or under host names that another site's page could use.
fn warn_if_open(config: &Config, access: &api::Access, address: SocketAddr) {
    if address.ip().is_loopback() {
        return;
    }
    match (access.needs_keys(), config.server.allowed_hosts.is_empty()) {
        (false, true) => tracing::warn!(
            "{address} answers other machines, without a key and under any host name: `penstock keys add NAME` creates a key, and \
             server.allowed_hosts lists names"
        ),
        (false, false) => tracing::warn!("{address} answers other machines without a key: `penstock keys add NAME` creates one"),
        (true, _) => {}
    }
}

/// Loads the models on a separate thread, so that the server answers probes in the meantime.
fn load(registry: Arc<Registry>, site: Address) -> anyhow::Result<oneshot::Receiver<anyhow::Result<()>>> {
    let (sender, receiver) = oneshot::channel();
    std::thread::Builder::new().name("load".into()).spawn(move || {
        let result = registry.load_eager();
        let banner = result.is_ok().then(|| banner(&registry, site));
        let _ = sender.send(result);
        // The server does not need a reader of stdout.
        let _ = show(&banner.unwrap_or_default());
    })?;
    Ok(receiver)
}

/// The address, as a client on this machine can use it.
pub(super) fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// The server's address, and whether clients need TLS and keys.
#[derive(Clone, Copy)]
struct Address {
    address: SocketAddr,
    tls: bool,
    keys: bool,
    /// Whether the chat page is served.
    page: bool,
}

/// The text at start: the address, the models, and a command to try.
fn banner(registry: &Registry, site: Address) -> String {
    let url = format!("{}://{}", if site.tls { "https" } else { "http" }, reachable(site.address));
    let mut text = format!("Penstock {} is ready on {url} (docs: {url}/docs)\n", env!("CARGO_PKG_VERSION"));
    if site.page {
        text += &format!("Chat in a browser: {url}/\n");
    }
    let (mut example, mut later) = (None, Vec::new());
    for info in registry.list() {
        match registry.get_loaded(&info.id) {
            Some(model) => {
                let (context, most) = (model.context(), model.base.spec.context_length);
                let of = if context < most { format!(" (the model was made for {most})") } else { String::new() };
                text += &format!("  {}  {} backend, context of {context} tokens{of}\n", info.id, model.base.backend);
                // A model that chats is the better example.
                let chats = model.template.is_some() && !model.only_continues;
                if example.as_ref().is_none_or(|(_, other)| chats && !other) {
                    example = Some((info.id, chats));
                }
            }
            None => later.push(info.id),
        }
    }
    if !later.is_empty() {
        text += &format!("Loaded at the first request: {}\n", later.join(", "));
    }
    if let Some((id, has_template)) = example {
        text += &format!("Try it:\n  {}\n", curl(&url, &id, has_template, site.keys));
    }
    text
}

/// A curl command that can be pasted into a shell.
fn curl(url: &str, model: &str, has_template: bool, needs_key: bool) -> String {
    let (path, body) = if has_template {
        let message = serde_json::json!({"role": "user", "content": "Name three rivers."});
        ("chat/completions", serde_json::json!({"model": model, "messages": [message], "max_tokens": 64}))
    } else {
        ("completions", serde_json::json!({"model": model, "prompt": "The longest rivers are", "max_tokens": 64}))
    };
    let body = body.to_string().replace('\'', "'\\''");
    let key = if needs_key { " -H \"authorization: Bearer $PENSTOCK_API_KEY\"" } else { "" };
    format!("curl {url}/v1/{path}{key} -H 'content-type: application/json' -d '{body}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_can_be_pasted() {
        let line = curl("http://127.0.0.1:8080", "it's", true, false);
        assert_eq!(
            line,
            "curl http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' -d '{\"model\":\"it'\\''s\",\
             \"messages\":[{\"role\":\"user\",\"content\":\"Name three rivers.\"}],\"max_tokens\":64}'"
        );
    }

    #[test]
    fn the_example_has_a_place_for_the_key() {
        let line = curl("https://127.0.0.1", "m", false, true);
        assert!(line.starts_with("curl https://127.0.0.1/v1/completions -H \"authorization: Bearer $PENSTOCK_API_KEY\" -H "), "{line}");
    }

    #[test]
    fn a_wildcard_address_becomes_a_loopback_address() {
        assert_eq!(reachable("0.0.0.0:80".parse().unwrap()).to_string(), "127.0.0.1:80");
        assert_eq!(reachable("[::]:80".parse().unwrap()).to_string(), "[::1]:80");
        assert_eq!(reachable("10.0.0.1:80".parse().unwrap()).to_string(), "10.0.0.1:80");
    }

    #[test]
    fn a_taken_port_is_a_clear_error() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let error = api::listen("127.0.0.1".parse().unwrap(), taken.local_addr().unwrap().port()).unwrap_err();
        assert!(error.to_string().contains("is in use by another process"), "{error}");
    }
}
