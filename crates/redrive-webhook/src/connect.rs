//! Connections that are made only where the guard lets them.
//!
//! A name is resolved once for each connection, or for several that are made at the same time. What is checked is what is connected to:
//! there is no second look-up in between that could say something else.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tower_service::Service;

use crate::guard::{Forbidden, Guard};
use crate::look_ups::LookUps;

/// What finds the addresses of a name.
pub(crate) type Resolve = Arc<
    dyn Fn(String, u16) -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>> + Send + Sync,
>;

/// As the system does it.
pub(crate) fn system_resolver() -> Resolve {
    let look_ups = LookUps::new();
    Arc::new(move |name, port| {
        let look_ups = look_ups.clone();
        let look_up = |name: &str, port: u16| Ok((name, port).to_socket_addrs()?.collect());
        Box::pin(async move { look_ups.run(name, port, look_up).await })
    })
}

/// Why there is no connection.
#[derive(Debug, Error)]
pub(crate) enum ConnectError {
    #[error("the name cannot be resolved")]
    Resolve(#[source] io::Error),
    #[error(transparent)]
    Forbidden(#[from] Forbidden),
    #[error("it would not be encrypted on its way to {0}; use https, or allow plain HTTP explicitly")]
    Plain(SocketAddr),
    #[error("nobody answers")]
    Refused(#[source] io::Error),
    #[error("it took longer than {0:?}")]
    Timeout(Duration),
    #[error("this machine has no room for another connection")]
    NoRoom(#[source] io::Error),
}

/// Whether it is this machine that has nothing left: files or memory for another connection. It says nothing about the receiver. (That
/// no address of our own can be used does: so it is said of every receiver that has only a kind of address that this machine has not.)
fn is_ours(error: &io::Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    error.kind() == io::ErrorKind::OutOfMemory || matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
}

/// Opens connections to whom the guard allows.
#[derive(Clone)]
pub(crate) struct GuardedTcp {
    pub(crate) guard: Arc<Guard>,
    pub(crate) resolve: Resolve,
    pub(crate) allows_plain: bool,
    pub(crate) longest: Duration,
}

impl GuardedTcp {
    /// The addresses behind a host, all of them checked.
    pub(crate) async fn addresses(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, ConnectError> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let addresses = match bare.parse() {
            Ok(address) => vec![SocketAddr::new(address, port)],
            Err(_) => (self.resolve)(bare.to_owned(), port).await.map_err(ConnectError::Resolve)?,
        };
        self.guard.check_all(addresses.iter().map(SocketAddr::ip))?;
        if addresses.is_empty() {
            return Err(ConnectError::Resolve(io::Error::other("it has no address")));
        }
        Ok(addresses)
    }

    /// Whether something may be sent there unencrypted.
    pub(crate) fn check_plain(&self, addresses: &[SocketAddr]) -> Result<(), ConnectError> {
        // A range that was opened by hand is one's own.
        let is_own = |address: &&SocketAddr| self.guard.is_exception(address.ip());
        match addresses.iter().find(|address| !is_own(address)) {
            Some(address) if !self.allows_plain => Err(ConnectError::Plain(*address)),
            _ => Ok(()),
        }
    }

    async fn connect(&self, uri: &Uri) -> Result<TcpStream, ConnectError> {
        let is_plain = uri.scheme_str() == Some("http");
        let port = uri.port_u16().unwrap_or(if is_plain { 80 } else { 443 });
        let addresses = self.addresses(uri.host().unwrap_or_default(), port).await?;
        if is_plain {
            self.check_plain(&addresses)?;
        }
        let until = Instant::now() + self.longest;
        let mut last = io::Error::other("it has no address");
        for (tried, address) in addresses.iter().enumerate() {
            // One that swallows everything leaves time for the others.
            let left = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
            let part = Instant::now() + until.saturating_duration_since(Instant::now()) / left;
            match timeout_at(part, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    let _ = stream.set_nodelay(true); // only slower without it
                    return Ok(stream);
                }
                Ok(Err(error)) if is_ours(&error) => return Err(ConnectError::NoRoom(error)),
                Ok(Err(error)) => last = error,
                Err(_) => last = io::ErrorKind::TimedOut.into(),
            }
        }
        match last.kind() {
            io::ErrorKind::TimedOut => Err(ConnectError::Timeout(self.longest)),
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

/// The same with TLS, all of it within the time for a connection.
#[derive(Clone)]
pub(crate) struct GuardedConnector {
    pub(crate) https: HttpsConnector<GuardedTcp>,
    pub(crate) longest: Duration,
}

impl Service<Uri> for GuardedConnector {
    type Response = MaybeHttpsStream<TokioIo<TcpStream>>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.https.poll_ready(context)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connecting, longest) = (self.https.call(uri), self.longest);
        Box::pin(async move {
            timeout(longest, connecting).await.unwrap_or_else(|_| Err(ConnectError::Timeout(longest).into()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_says_nothing_about_the_receiver_is_ours() {
        for (code, is_ours) in
            [(24, true), (23, true), (12, true), (99, false), (101, false), (111, false), (110, false)]
        {
            assert_eq!(super::is_ours(&io::Error::from_raw_os_error(code)), is_ours, "{code}");
        }
    }
}
