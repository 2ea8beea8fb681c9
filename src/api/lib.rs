//! HTTP and its dialects: the only place that knows them. `http` holds what every dialect shares, `openai`, `anthropic` and `ollama` are
//! dialects, and `ops` is for operators.

#[doc(hidden)]
pub mod untrusted;

use std::net::TcpListener;
use std::sync::Arc;

use actix_web::web::Data;
use config::Config;
use http::dialect::{Dialect, Dialects};
use http::paths::Directory;
use http::routes::Site;
use http::state::AppState;
use registry::Registry;

pub use http::access::Access;
pub use http::server::{Interrupted, Reload, ignores_hangup, listen};
pub use http::spans::switch_on as trace_requests;

/// The dialects that the server speaks, the default first. To add one, write its folder beside `openai` and name it here.
fn dialects(config: &Config) -> Dialects {
    let others: Vec<Box<dyn Dialect>> = vec![Box::new(anthropic::dialect::Anthropic), Box::new(ollama::dialect::Ollama)];
    Dialects::new(Box::new(openai::dialect::OpenAi::new(config)), others)
}

/// Serves until a signal ends the process, or `stopped` reports that loading failed. `reload` is called at each SIGHUP. Blocks.
pub fn serve(
    config: &Config,
    listener: TcpListener,
    registry: Arc<Registry>,
    access: &Access,
    reload: Reload,
    stopped: impl Future<Output = anyhow::Error> + 'static,
) -> anyhow::Result<()> {
    let (state, dialects) = (Data::new(AppState::new(config, registry, access.keys.clone())), Data::new(dialects(config)));
    let directory = Data::new(Directory::new(ops::document));
    http::server::serve(config, listener, access, Site { state, dialects, shared_routes: ops::routes, directory }, reload, stopped)
}

#[cfg(test)]
mod tests;
