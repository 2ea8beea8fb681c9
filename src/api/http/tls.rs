//! TLS. The certificate is read again when its files change. New connections use the new certificate, and open ones continue.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::rt::net::TcpStream;
use anyhow::{Context as _, anyhow};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::server::TlsStream;

use config::Config;
use keys::Version;
use outside::read_regular;

/// Far above any real chain of certificates.
const MAX_BYTES: u64 = 16 << 20;

/// The server's certificate and its private key.
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    current: RwLock<Current>,
}

#[derive(Clone)]
struct Current {
    config: Arc<ServerConfig>,
    versions: [Option<Version>; 2],
    /// The last error that was logged.
    fault: Option<String>,
}

impl Tls {
    /// Reads the files that the configuration names. Returns `None` if it names none.
    ///
    /// # Errors
    /// Fails if a file is invalid, or if the key does not belong to the certificate.
    pub fn open(config: &Config) -> anyhow::Result<Option<Arc<Self>>> {
        let (certificate, key) = (config.server.tls_cert.clone(), config.server.tls_key.clone());
        if certificate.as_os_str().is_empty() {
            return Ok(None);
        }
        let current = read(&certificate, &key)?;
        Ok(Some(Arc::new(Self { certificate, key, current: RwLock::new(current) })))
    }

    fn current(&self) -> Current {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the files again if they have changed. The old certificate stays in use until both files are valid and belong together.
    pub fn refresh(&self) {
        let before = self.current();
        let after = match versions(&self.certificate, &self.key) {
            Ok(versions) if versions == before.versions => return,
            Ok(_) => read(&self.certificate, &self.key),
            Err(error) => Err(error),
        };
        let after = match after {
            Ok(after) => {
                tracing::info!("the certificate was read again");
                after
            }
            Err(error) => {
                let fault = format!("{error:#}");
                if before.fault.as_ref() != Some(&fault) {
                    tracing::error!("the certificate stays as it was: {}", fault.escape_debug());
                }
                Current { fault: Some(fault), ..before }
            }
        };
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = after;
    }

    /// Performs the TLS handshake with a client, within `patience`.
    ///
    /// # Errors
    /// Fails if the client does not speak TLS, shares no version or cipher with the server, or is late.
    pub async fn accept(&self, stream: TcpStream, patience: Duration) -> io::Result<Stream> {
        let acceptor = TlsAcceptor::from(self.current().config);
        let stream = timeout(patience, acceptor.accept(stream)).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        Ok(Stream::Tls(Box::new(stream)))
    }
}

fn versions(certificate: &Path, key: &Path) -> anyhow::Result<[Option<Version>; 2]> {
    let version = |path: &Path| Version::of(path).with_context(|| path.display().to_string());
    Ok([version(certificate)?, version(key)?])
}

fn read(certificate: &Path, key: &Path) -> anyhow::Result<Current> {
    // The versions are read first. If a file changes before it is read, it is only read once more than needed.
    let versions = versions(certificate, key)?;
    let in_certificate = || format!("server.tls_cert, {}", certificate.display());
    let in_key = || format!("server.tls_key, {}", key.display());
    let pem = read_regular(certificate, MAX_BYTES).with_context(in_certificate)?;
    let chain = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>().with_context(in_certificate)?;
    anyhow::ensure!(!chain.is_empty(), "{}: the file holds no certificate in PEM", in_certificate());
    let secret = PrivateKeyDer::from_pem_slice(&read_regular(key, MAX_BYTES).with_context(in_key)?).with_context(in_key)?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider())).with_safe_default_protocol_versions()?;
    let config = builder.with_no_client_auth().with_single_cert(chain, secret);
    let mut config = config.map_err(|error| anyhow!("{} and {}: {error}", certificate.display(), key.display()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Current { config: Arc::new(config), versions, fault: None })
}

/// A client's connection, with or without TLS.
pub enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Plain(stream) => stream.peer_addr(),
            Self::Tls(stream) => stream.get_ref().0.peer_addr(),
        }
    }

    /// Writes as many bytes as fit without waiting.
    pub fn write_now(&mut self, cx: &mut Context, bytes: &[u8]) {
        // A client that does not read misses the rest.
        match self {
            Self::Plain(stream) => drop(stream.try_write(bytes)),
            Self::Tls(stream) => {
                let _ = Pin::new(&mut **stream).poll_write(cx, bytes);
                let _ = Pin::new(&mut **stream).poll_flush(cx);
            }
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context, buffer: &mut ReadBuf) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
        }
    }
}
