//! Receivers: one that verifies the signature, and one that only answers.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use redrive::retry::BoxError;
use redrive_webhook::Secret;
use standardwebhooks::Webhook;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// Called with the body of every request.
pub(super) type Hear = Arc<dyn Fn(&[u8]) + Send + Sync>;

/// Starts a receiver that verifies requests with the standard's own library. It listens as long as the runtime lives.
pub(super) async fn verifying(secret: &Secret, hear: Hear) -> Result<SocketAddr, BoxError> {
    let verifier = Arc::new(Webhook::new(&secret.for_receiver())?);
    let router = Router::new().route("/hook", post(verify)).with_state((verifier, hear));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(address)
}

async fn verify(
    State((verifier, hear)): State<(Arc<Webhook>, Hear)>,
    headers: HeaderMap,
    body: axum::body::Bytes,
) -> StatusCode {
    if verifier.verify(&body, &headers).is_err() {
        return StatusCode::UNAUTHORIZED;
    }
    hear(&body);
    StatusCode::OK
}

/// Starts a receiver that ignores its input. It listens as long as the runtime lives.
pub(super) async fn listen(hear: Hear) -> Result<SocketAddr, BoxError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(talk(stream, Arc::clone(&hear)));
        }
    });
    Ok(address)
}

/// Starts a receiver that accepts connections and never answers.
pub(super) async fn silent() -> Result<SocketAddr, BoxError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            kept.push(stream);
        }
    });
    Ok(address)
}

async fn talk(mut stream: TcpStream, hear: Hear) {
    let _ = stream.set_nodelay(true);
    let mut bytes = Vec::with_capacity(4096);
    loop {
        while let Some((head, body)) = request(&bytes) {
            hear(&bytes[head..head + body]);
            bytes.drain(..head + body);
            if stream.write_all(ANSWER).await.is_err() {
                return;
            }
        }
        match stream.read_buf(&mut bytes).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

/// Lengths of head and body of the first request, once it is complete.
fn request(bytes: &[u8]) -> Option<(usize, usize)> {
    let head = bytes.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&bytes[..head]).ok()?;
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    })?;
    (bytes.len() >= head + length).then_some((head, length))
}
