//! Accepts connections and serves requests on them, with every limit that a server in the open needs: on their number, on the
//! time that a header may take, on its size, and on how long a client may not read.

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

use super::connection::Impatient;
use super::places::Connections;
use crate::api::LimitArgs;
use crate::api::origin::Peer;

/// How much is buffered of a connection: no header is larger.
const BUFFER: usize = 64 << 10;

/// The most lines in a header.
const LINES: usize = 64;

/// After an error that is not a connection's own, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// A socket that is listened on, and all connections that came by it.
#[derive(Debug)]
pub(crate) struct Server {
    listener: TcpListener,
    router: Router,
    http: http1::Builder,
    connections: Arc<Connections>,
    /// How long a client may not read.
    patience: Duration,
    under_way: GracefulShutdown,
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
            .max_buf_size(BUFFER)
            .max_headers(LINES)
            .half_close(false);
        Server {
            listener,
            router,
            http,
            connections,
            patience: limits.body_timeout,
            under_way: GracefulShutdown::new(),
        }
    }

    /// Accepts connections until it is to stop.
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

    /// Waits until all requests that are under way are answered, but not longer than until then.
    pub(crate) async fn finish(self, until: Instant) {
        drop(self.listener);
        if tokio::time::timeout_at(until, self.under_way.shutdown()).await.is_err() {
            let left = self.connections.count();
            tracing::warn!(target: "redrive::serve", left, "connections are cut off before they were done");
        }
    }

    async fn accept(&self) {
        let room = self.connections.room().await;
        let (stream, peer) = match self.listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(target: "redrive::serve", %error, "a connection was not accepted");
                tokio::time::sleep(PAUSE).await;
                return;
            }
        };
        let place = self.connections.opened(room);
        let _ = stream.set_nodelay(true); // an answer that comes later is an answer
        let router = self.router.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let mut router = router.clone();
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(Peer(peer));
            async move { router.call(request).await }
        });
        let stream = TokioIo::new(Impatient::new(stream, self.patience));
        let connection = self.under_way.watch(self.http.serve_connection(stream, service));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                // The client has gone, was too slow, or does not speak HTTP.
                tracing::debug!(target: "redrive::serve", %peer, %error, "a connection ended early");
            }
            drop(place);
        });
    }
}
