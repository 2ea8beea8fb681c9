//! The HTTP server: the listening socket, the worker threads and the shutdown.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_http::error::DispatchError;
use actix_http::{Extensions, HttpService};
use actix_service::{ServiceFactoryExt, fn_service, map_config};
use actix_web::dev::{AppConfig, Server, ServerHandle};
use actix_web::middleware::from_fn;
use actix_web::rt::net::TcpStream;
use actix_web::{App, rt, web};
use anyhow::{Context, anyhow};
use socket2::{Domain, SockRef, Socket, Type};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::access::Access;
use super::connection::{Connection, ConnectionTimeouts};
use super::middleware::around;
use super::routes::ServerContext;
use super::state::AppState;
use super::stream;
use super::tls::{Stream, Tls};
use config::Config;

/// The most connections that wait to be accepted.
const BACKLOG: i32 = 4096;
/// The size of the kernel's send buffer for a client that does not read [bytes].
const SEND_BUFFER: usize = 128 << 10;
/// How long an idle connection stays open.
const KEEP_ALIVE: Duration = Duration::from_secs(75);

/// Opens the socket. This comes before any download or load, so that a port in use is reported at once.
pub fn listen(host: IpAddr, port: u16) -> anyhow::Result<TcpListener> {
    let address = SocketAddr::new(host, port);
    let open = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok::<_, std::io::Error>(TcpListener::from(socket))
    };
    open().map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => anyhow!("{address} is in use by another process: stop it, or choose another port with --port"),
        ErrorKind::PermissionDenied => anyhow!("{address} may not be opened by this user: choose a port from 1024 up with --port"),
        ErrorKind::AddrNotAvailable => anyhow!("{host} is not an address of this machine: choose another one with --host"),
        _ => anyhow!("{address} cannot be opened: {error}"),
    })
}

/// A second signal arrived, so the user does not want to wait for the running requests.
#[derive(Debug, thiserror::Error)]
#[error("a second signal ends the process at once")]
pub struct Interrupted;

/// Serves `site` until a signal ends the process, or until `stopped` reports that loading failed. Blocks.
pub fn serve(
    config: &Config,
    listener: TcpListener,
    access: &Access,
    site: ServerContext,
    reload: Reload,
    stopped: Stopped,
) -> anyhow::Result<()> {
    let (state, dialects, access, tls) = (site.state.clone(), site.dialects.clone(), access.clone(), access.tls.clone());
    let (limits, drain) = (&config.limits, Duration::from_secs(config.server.drain_seconds));
    let patience = ConnectionTimeouts { head: Duration::from_secs(limits.head_timeout_seconds), idle: KEEP_ALIVE };
    let server = Server::build().workers(config.server.workers.max(1)).shutdown_timeout(1).disable_signals();
    let stopping = server.graceful_shutdown_signal();
    let http = move || {
        // Each worker runs this once.
        rt::spawn(serving::deliver_events());
        let (site, stopping, dialects, tls) = (site.clone(), stopping.clone(), site.dialects.clone(), tls.clone());
        let app = App::new().wrap(from_fn(around)).configure(|config| site.configure(config));
        let http = HttpService::build()
            .graceful_shutdown_signal(move || {
                let stopping = stopping.clone();
                async move { stopping.notified().await }
            })
            // With half-closed connections allowed, the server would not notice that a client has closed its connection.
            .h1_allow_half_closed(false)
            // `Connection` bounds the time of every head instead.
            .client_request_timeout(Duration::ZERO)
            .client_disconnect_timeout(Duration::from_secs(1))
            .keep_alive(KEEP_ALIVE)
            .on_connect_ext(|connection: &Connection, data: &mut Extensions| {
                data.insert(connection.watch().clone());
            })
            .h1(map_config(app, |()| AppConfig::default()));
        let connect = fn_service(move |stream: TcpStream| {
            bound_socket(&stream);
            let (peer, tls, dialects) = (stream.peer_addr().ok(), tls.clone(), dialects.clone());
            async move {
                let stream = encrypted(stream, tls, patience).await.map_err(DispatchError::Io)?;
                Ok((Connection::new(stream, patience, dialects), peer))
            }
        });
        connect.and_then(http)
    };
    rt::System::new().block_on(async move {
        let signals = Signals::new().context("the signals cannot be handled")?;
        follow_hangups(state.clone(), reload)?;
        let server = server.listen("penstock", listener, http).context("the socket cannot be listened on")?.run();
        let bodies = state.bodies.clone();
        rt::spawn(async move { bodies.give_back().await });
        rt::spawn(access.refresh());
        dialects.iter().for_each(|dialect| dialect.begin(&state));
        rt::spawn(close(server.handle()));
        let shutdown = rt::spawn(shutdown(signals, state, server.handle(), drain));
        tokio::select! {
            result = server => Ok(result?),
            error = stopped => Err(error),
            Ok(Err(interrupted)) = shutdown => Err(interrupted.into()),
        }
    })
}

/// Returns the stream, encrypted if the server has a certificate.
async fn encrypted(stream: TcpStream, tls: Option<Arc<Tls>>, patience: ConnectionTimeouts) -> std::io::Result<Stream> {
    match tls {
        Some(tls) => tls.accept(stream, patience.head).await,
        None => Ok(Stream::Plain(stream)),
    }
}

/// Bounds the kernel's buffer for a client, and how long it is kept if the client does not read.
fn bound_socket(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    // A system without these options still has the stream's own bounds.
    let _ = socket.set_send_buffer_size(SEND_BUFFER);
    let _ = socket.set_tcp_user_timeout(Some(stream::WRITE_TIMEOUT));
}

/// The signals that stop the server.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

/// Ends with the reason why the server has to stop. It is boxed, so that the server is compiled in this crate and not in the binary's.
pub type Stopped = Pin<Box<dyn Future<Output = anyhow::Error>>>;

/// Reads the configuration again and applies the settings that can change at run time. Returns `None` if the configuration is invalid,
/// after logging why.
pub type Reload = Arc<dyn Fn() -> Option<Config> + Send + Sync>;

/// Reads the configuration again at each SIGHUP, unless the process ignores the signal. Running requests are not affected.
fn follow_hangups(state: web::Data<AppState>, reload: Reload) -> std::io::Result<()> {
    if ignores_hangup() {
        return Ok(());
    }
    let mut hangup = signal(SignalKind::hangup())?;
    rt::spawn(async move {
        while hangup.recv().await.is_some() {
            let reload = reload.clone();
            if let Ok(Some(config)) = web::block(move || reload()).await {
                state.set_limits(&config.limits);
                state.keys.refresh();
            }
        }
    });
    Ok(())
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Whether the process was started with SIGHUP ignored, as under `nohup`, which it then keeps.
pub fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 1 != 0)
}

/// Stops accepting connections once a fault is about to end the process. Under supervision, clients then wait at the port for the next
/// process.
async fn close(server: ServerHandle) {
    registry::closing().await;
    server.pause().await;
}

/// Shuts down on the first signal: refuses new requests and lets running ones end within `deadline`. Returns an error on a second signal.
async fn shutdown(mut signals: Signals, state: web::Data<AppState>, server: ServerHandle, deadline: Duration) -> Result<(), Interrupted> {
    signals.next().await;
    state.drain.start();
    tracing::info!(active = state.drain.num_active(), seconds = deadline.as_secs(), "shutting down: waiting for running requests");
    let end = Instant::now() + deadline;
    let drained = async {
        while state.drain.num_active() > 0 && Instant::now() < end {
            rt::time::sleep(Duration::from_millis(10)).await;
        }
        if state.drain.num_active() > 0 {
            tracing::warn!(active = state.drain.num_active(), "the deadline has passed: cutting running requests");
            state.drain.cut();
            rt::time::sleep(Duration::from_millis(300)).await;
        }
        // Give responses that have just completed time to reach their sockets.
        rt::time::sleep(Duration::from_millis(50)).await;
        server.stop(true).await;
    };
    tokio::select! {
        () = drained => Ok(()),
        () = signals.next() => Err(Interrupted),
    }
}
