//! Accepts connections and serves HTTP/1 requests on them, with limits on the number of connections, on the time and size of
//! headers, and on the time that a client may stop reading.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tower_service::Service;

use super::connection::WriteTimeout;
use crate::api::peer::Peer;
use crate::api::{Connections, LimitArgs};

/// Read buffer of a connection. A request head of 60 KiB is accepted and one of 200 KiB refused.
const MAX_HEADER_BYTES: usize = 64 << 10;

const MAX_HEADER_LINES: usize = 64;

/// Answer to a connection of an address that has too many.
const TOO_MANY_CONNECTIONS: &[u8] =
    b"HTTP/1.1 429 Too Many Requests\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n";

/// Delay after a failed accept, such as one with too many open files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// HTTP server on one listening socket, with the connections accepted on it.
#[derive(Debug)]
pub(crate) struct Server {
    listener: TcpListener,
    router: Router,
    http: http1::Builder,
    connections: Arc<Connections>,
    /// Maximum time for which a client may stop reading.
    write_timeout: Duration,
    in_flight: GracefulShutdown,
}

impl Server {
    pub(crate) fn new(
        listener: TcpListener,
        router: Router,
        limits: &LimitArgs,
        connections: Arc<Connections>,
    ) -> Self {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(limits.header_timeout)
            .max_buf_size(MAX_HEADER_BYTES)
            .max_headers(MAX_HEADER_LINES)
            .half_close(false);
        Server {
            listener,
            router,
            http,
            connections,
            write_timeout: limits.body_timeout,
            in_flight: GracefulShutdown::new(),
        }
    }

    /// Accepts connections until `stop` resolves.
    pub(crate) async fn run(&self, stop: impl Future<Output = ()>) {
        tokio::pin!(stop);
        loop {
            tokio::select! {
                biased;
                () = &mut stop => return,
                () = self.accept() => {}
            }
        }
    }

    /// Stops accepting and waits for the requests in flight, at most until the deadline.
    pub(crate) async fn finish(self, deadline: Instant) {
        drop(self.listener);
        if tokio::time::timeout_at(deadline, self.in_flight.shutdown()).await.is_err() {
            let left = self.connections.count();
            tracing::warn!(target: "redrive::serve", left, "closing connections with unfinished requests: the shutdown timeout has passed");
        }
    }

    async fn accept(&self) {
        let permit = self.connections.acquire().await;
        let (stream, peer) = match self.listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(target: "redrive::serve", %error, "failed to accept a connection");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                return;
            }
        };
        let Some(slot) = self.connections.opened(permit, peer.ip()) else {
            // Closed at once, so that the address takes no slot from others; the answer may get lost.
            let _ = stream.try_write(TOO_MANY_CONNECTIONS);
            tracing::debug!(target: "redrive::serve", %peer, "refused a connection: its address has too many");
            return;
        };
        let _ = stream.set_nodelay(true); // only affects latency
        let Ok(local) = stream.local_addr() else { return }; // closed already
        let from = Peer::new(local, peer);
        let router = self.router.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let mut router = router.clone();
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(from.clone());
            async move { router.call(request).await }
        });
        let stream = TokioIo::new(WriteTimeout::new(stream, self.write_timeout));
        let connection = self.in_flight.watch(self.http.serve_connection(stream, service));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(target: "redrive::serve", %peer, %error, "connection ended early: the client left, timed out or sent no HTTP");
            }
            drop(slot);
        });
    }
}
