//! `penstock serve`

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use anyhow::anyhow;
use tokio::sync::oneshot;

use crate::api;
use crate::config::{Backend, Config, Overrides};
use crate::registry::Registry;
use crate::telemetry;

const EXAMPLES: &str = "Examples:
  penstock serve                              serve the default model
  penstock serve --model smollm2:135m         a model of the catalogue (see `penstock list`)
  penstock serve --model ./some.gguf --port 9000
  penstock serve --host 0.0.0.0               answer to other machines too";

#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The address to listen on
    #[arg(long, value_name = "IP")]
    host: Option<IpAddr>,
    /// The port to listen on; 0 takes a free one
    #[arg(long)]
    port: Option<u16>,
    /// A model to serve: an id of the catalogue or the path of a GGUF file; may be given several times
    #[arg(long = "model", value_name = "MODEL")]
    models: Vec<String>,
    /// Where to compute: auto, cpu or cuda
    #[arg(long, value_parser = parse_backend)]
    backend: Option<Backend>,
    /// Index of the GPU
    #[arg(long, value_name = "N")]
    device: Option<u32>,
    /// CPU threads; 0: one a physical core
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// The longest context, in tokens
    #[arg(long, value_name = "TOKENS")]
    context: Option<usize>,
}

/// The `--backend` flag.
pub fn parse_backend(text: &str) -> Result<Backend, String> {
    match text {
        "auto" => Ok(Backend::Auto),
        "cpu" => Ok(Backend::Cpu),
        "cuda" => Ok(Backend::Cuda),
        _ => Err("choose auto, cpu or cuda".into()),
    }
}

pub fn run(args: Args, config: Option<&Path>) -> anyhow::Result<()> {
    let Args { host, port, models, backend, device, threads, context } = args;
    let overrides = Overrides { host, port, models: models.clone(), backend, threads, device, context };
    let config = Config::load(config, &overrides)?;
    telemetry::init(&config.server.log)?;
    let listener = api::listen(config.server.host, config.server.port)?;
    let address = listener.local_addr()?;
    let names = if models.is_empty() { config.server.default_models.clone() } else { models };
    let registry = Registry::new(&config, &names)?;
    let loaded = load(registry.clone(), address)?;
    let stopped = async move {
        match loaded.await {
            Ok(Ok(())) => std::future::pending().await,
            Ok(Err(error)) => error,
            Err(_) => anyhow!("loading ended unexpectedly"),
        }
    };
    let state = api::AppState::new(&config, registry.clone());
    let result = api::serve(&config, listener, state, stopped);
    registry.stop();
    result
}

/// Loads in a thread of its own: probes are answered meanwhile.
fn load(registry: Arc<Registry>, address: SocketAddr) -> anyhow::Result<oneshot::Receiver<anyhow::Result<()>>> {
    let (sender, receiver) = oneshot::channel();
    std::thread::Builder::new().name("load".into()).spawn(move || {
        let result = registry.load_eager();
        if result.is_ok() {
            // A closed stdout is no reason to stop serving.
            let _ = std::io::stdout().lock().write_all(banner(&registry, address).as_bytes());
        }
        let _ = sender.send(result);
    })?;
    Ok(receiver)
}

/// An address that a client on this machine can use.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// What is served where, and a line to try it with.
fn banner(registry: &Registry, address: SocketAddr) -> String {
    let url = format!("http://{}", reachable(address));
    let mut text = format!("Penstock {} is ready on {url} (docs: {url}/docs)\n", env!("CARGO_PKG_VERSION"));
    let mut example = None;
    for info in registry.list() {
        match registry.get_loaded(&info.id) {
            Some(model) => {
                text += &format!("  {}  {} backend, context of {} tokens\n", info.id, model.backend, model.context);
                example.get_or_insert((info.id, model.template.is_some()));
            }
            None => text += &format!("  {}  loaded at its first request\n", info.id),
        }
    }
    if let Some((id, has_template)) = example {
        text += &format!("Try it:\n  {}\n", curl(&url, &id, has_template));
    }
    text
}

/// A line that works in a shell as it stands.
fn curl(url: &str, model: &str, has_template: bool) -> String {
    let (path, body) = if has_template {
        let message = serde_json::json!({"role": "user", "content": "Name three rivers."});
        ("chat/completions", serde_json::json!({"model": model, "messages": [message], "max_tokens": 64}))
    } else {
        ("completions", serde_json::json!({"model": model, "prompt": "The longest rivers are", "max_tokens": 64}))
    };
    let body = body.to_string().replace('\'', "'\\''");
    format!("curl {url}/v1/{path} -H 'content-type: application/json' -d '{body}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_can_be_pasted() {
        let line = curl("http://127.0.0.1:8080", "it's", true);
        assert_eq!(
            line,
            "curl http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' -d '{\"model\":\"it'\\''s\",\
             \"messages\":[{\"role\":\"user\",\"content\":\"Name three rivers.\"}],\"max_tokens\":64}'"
        );
    }

    #[test]
    fn a_wildcard_address_becomes_a_local_one() {
        assert_eq!(reachable("0.0.0.0:80".parse().unwrap()).to_string(), "127.0.0.1:80");
        assert_eq!(reachable("[::]:80".parse().unwrap()).to_string(), "[::1]:80");
        assert_eq!(reachable("10.0.0.1:80".parse().unwrap()).to_string(), "10.0.0.1:80");
    }

    #[test]
    fn a_taken_port_is_said_clearly() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let error = api::listen("127.0.0.1".parse().unwrap(), taken.local_addr().unwrap().port()).unwrap_err();
        assert!(error.to_string().contains("is in use by another process"), "{error}");
    }
}
