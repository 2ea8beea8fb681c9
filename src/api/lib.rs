//! The HTTP API and its dialects, the only place that knows the protocols. `http` holds what every dialect shares. `openai`, `anthropic`
//! and `ollama` are dialects, and `ops` serves operators.

#[doc(hidden)]
pub mod untrusted;

use std::net::TcpListener;
use std::sync::Arc;

use actix_web::web::Data;
use config::Config;
use http::dialect::{Dialect, Dialects};
use http::paths::Directory;
use http::routes::ServerContext;
use http::state::AppState;
use registry::Registry;

pub use http::access::Access;
pub use http::server::{Interrupted, Reload, Stopped, ignores_hangup, listen};
pub use http::spans::switch_on as trace_requests;

/// The dialects that the server speaks, the default first. To add one, create its folder next to `openai` and name it here.
fn dialects(config: &Config) -> Dialects {
    let others: Vec<Box<dyn Dialect>> = vec![Box::new(anthropic::dialect::Anthropic), Box::new(ollama::dialect::Ollama)];
    Dialects::new(Box::new(openai::dialect::OpenAi::new(config)), others)
}

/// Serves until a signal ends the process, or until `stopped` reports that loading failed. Calls `reload` at each SIGHUP. Blocks.
pub fn serve(
    config: &Config,
    listener: TcpListener,
    registry: Arc<Registry>,
    access: &Access,
    reload: Reload,
    stopped: Stopped,
) -> anyhow::Result<()> {
    let (state, dialects) = (Data::new(AppState::new(config, registry, access.keys.clone())), Data::new(dialects(config)));
    let directory = Data::new(Directory::new(ops::document));
    http::server::serve(config, listener, access, ServerContext { state, dialects, shared_routes: ops::routes, directory }, reload, stopped)
}

#[cfg(test)]
mod tests;
