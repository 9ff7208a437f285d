//! TCP and TLS connections, only to addresses that the guard allows.
//!
//! The connector checks the resolved addresses and connects to the same addresses. There is no second lookup in between, so DNS
//! rebinding cannot bypass the guard.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper_rustls::HttpsConnector;
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::{self, Instant, timeout_at};
use tower_service::Service;

use crate::dns::DnsLookups;
use crate::guard::{Forbidden, Guard};
use crate::kept_connection::KeptConnection;

/// Resolves a host name and port to addresses.
pub(crate) type Resolve = Arc<
    dyn Fn(String, u16) -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>> + Send + Sync,
>;

/// Name resolution of the operating system.
pub(crate) fn system_resolver() -> Resolve {
    let dns = DnsLookups::new();
    Arc::new(move |name, port| {
        let dns = dns.clone();
        let look_up = |name: &str, port: u16| Ok((name, port).to_socket_addrs()?.collect());
        Box::pin(async move { dns.run(name, port, look_up).await })
    })
}

/// A connection failed.
#[derive(Debug, Error)]
pub(crate) enum ConnectError {
    #[error("the name cannot be resolved")]
    Resolve(#[source] io::Error),
    #[error(transparent)]
    Forbidden(#[from] Forbidden),
    #[error("the request to {0} would not be encrypted; use https, or allow plain HTTP explicitly")]
    Plain(SocketAddr),
    #[error("connection refused or unreachable")]
    Refused(#[source] io::Error),
    #[error("connecting took longer than {0:?}")]
    Timeout(Duration),
    #[error("this machine has no resources for another connection")]
    LocalResources(#[source] io::Error),
}

/// Whether this machine lacks file descriptors or memory, which says nothing about the receiver. (`EADDRNOTAVAIL` is not among them: it
/// also means that this machine has no IPv6, say.)
fn is_local_exhaustion(error: &io::Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    error.kind() == io::ErrorKind::OutOfMemory || matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
}

/// Opens TCP connections to addresses that the guard allows.
#[derive(Clone)]
pub(crate) struct GuardedTcp {
    pub(crate) guard: Arc<Guard>,
    pub(crate) resolve: Resolve,
    pub(crate) allows_plain: bool,
    pub(crate) timeout: Duration,
}

impl GuardedTcp {
    /// Resolves a host and checks every address with the guard. Plain HTTP is allowed to private networks, or if it is switched on.
    pub(crate) async fn addresses(
        &self,
        host: &str,
        port: u16,
        is_plain: bool,
    ) -> Result<Vec<SocketAddr>, ConnectError> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let addresses = match bare.parse() {
            Ok(address) => vec![SocketAddr::new(address, port)],
            Err(_) => (self.resolve)(bare.to_owned(), port).await.map_err(ConnectError::Resolve)?,
        };
        self.guard.check_all(addresses.iter().map(SocketAddr::ip))?;
        if addresses.is_empty() {
            return Err(ConnectError::Resolve(io::Error::other("the name has no address")));
        }
        // Ranges that the guard allows by exception are private networks.
        let is_private = |address: &&SocketAddr| self.guard.is_exception(address.ip());
        match addresses.iter().find(|address| !is_private(address)) {
            Some(address) if is_plain && !self.allows_plain => Err(ConnectError::Plain(*address)),
            _ => Ok(addresses),
        }
    }

    async fn connect(&self, uri: &Uri) -> Result<TcpStream, ConnectError> {
        let is_plain = uri.scheme_str() == Some("http");
        let port = uri.port_u16().unwrap_or(if is_plain { 80 } else { 443 });
        let addresses = self.addresses(uri.host().unwrap_or_default(), port, is_plain).await?;
        let until = Instant::now() + self.timeout;
        let mut last = io::Error::other("the name has no address");
        for (tried, address) in addresses.iter().enumerate() {
            // Each address gets an equal share of the remaining time, so one that drops packets does not use all of it.
            let left = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
            let share = Instant::now() + until.saturating_duration_since(Instant::now()) / left;
            match timeout_at(share, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    let _ = stream.set_nodelay(true); // only latency depends on it
                    return Ok(stream);
                }
                Ok(Err(error)) if is_local_exhaustion(&error) => {
                    return Err(ConnectError::LocalResources(error));
                }
                Ok(Err(error)) => last = error,
                Err(_) => last = io::ErrorKind::TimedOut.into(),
            }
        }
        match last.kind() {
            io::ErrorKind::TimedOut => Err(ConnectError::Timeout(self.timeout)),
            _ => Err(ConnectError::Refused(last)),
        }
    }
}

impl Service<Uri> for GuardedTcp {
    type Response = TokioIo<TcpStream>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { this.connect(&uri).await.map(TokioIo::new) })
    }
}

/// Opens TCP and TLS connections within one timeout.
#[derive(Clone)]
pub(crate) struct GuardedConnector {
    pub(crate) https: HttpsConnector<GuardedTcp>,
    pub(crate) timeout: Duration,
}

impl Service<Uri> for GuardedConnector {
    type Response = KeptConnection;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.https.poll_ready(context)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connecting, timeout) = (self.https.call(uri), self.timeout);
        Box::pin(async move {
            let connected = time::timeout(timeout, connecting).await;
            let stream = connected.unwrap_or_else(|_| Err(ConnectError::Timeout(timeout).into()))?;
            Ok(KeptConnection::new(stream))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_local_exhaustion_is_not_blamed_on_the_receiver() {
        for (code, is_local_exhaustion) in
            [(24, true), (23, true), (12, true), (99, false), (101, false), (111, false), (110, false)]
        {
            assert_eq!(
                super::is_local_exhaustion(&io::Error::from_raw_os_error(code)),
                is_local_exhaustion,
                "{code}"
            );
        }
    }
}
