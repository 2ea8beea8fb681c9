//! What every API dialect shares: the server, the middleware, request bodies, streams and errors.

pub mod access;
pub mod access_log;
pub mod auth;
pub mod budget;
pub mod caller;
pub mod choices;
pub mod connection;
pub mod cors;
pub mod deadline;
pub mod dialect;
pub mod error;
pub mod field_schema;
pub mod fields;
pub mod framing;
pub mod head;
pub mod host;
pub mod ignored;
pub mod inflate;
pub mod journal;
pub mod json;
pub mod keyring;
pub mod later;
pub mod left_out;
pub mod metrics;
pub mod middleware;
pub mod moment;
pub mod neutral;
pub mod offered;
pub mod parse;
pub mod paths;
pub mod peers;
pub mod percent;
pub mod record;
pub mod routes;
pub mod server;
pub mod spans;
pub mod sse;
pub mod state;
pub mod stop;
pub mod stream;
pub mod subject;
pub mod tenant;
pub mod tls;
pub mod tool_list;

#[cfg(test)]
mod tests;
