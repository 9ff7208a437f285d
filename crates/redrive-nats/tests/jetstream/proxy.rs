//! Proxy between client and server that drops answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Flag in the number of answers to drop: the next answer is forwarded.
const PASS: u32 = 100;

/// Forwards all traffic except the answers to drop.
pub(crate) struct Proxy {
    pub(crate) url: String,
    lose: Arc<AtomicU32>,
}

impl Proxy {
    /// Starts a proxy in front of the server at this address.
    pub(crate) async fn before(url: &str) -> Self {
        let server = url.trim_start_matches("nats://").to_owned();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("nats://{}", listener.local_addr().unwrap());
        let lose = Arc::new(AtomicU32::new(0));
        let losing = Arc::clone(&lose);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (server, losing) = (TcpStream::connect(&server).await.unwrap(), Arc::clone(&losing));
                tokio::spawn(carry(client, server, losing));
            }
        });
        Proxy { url, lose }
    }

    /// Drops the next `answers` answers. With one request at a time each answer is one packet.
    pub(crate) fn lose(&self, answers: u32) {
        self.lose.store(answers, Ordering::SeqCst);
    }

    /// Forwards one answer and drops the next `answers`.
    pub(crate) fn lose_after_one(&self, answers: u32) {
        self.lose.store(PASS + answers, Ordering::SeqCst);
    }

    /// Number of answers still to be dropped.
    pub(crate) fn left(&self) -> u32 {
        self.lose.load(Ordering::SeqCst)
    }
}

async fn carry(client: TcpStream, server: TcpStream, lose: Arc<AtomicU32>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
    let mut piece = vec![0; 1 << 16];
    while let Ok(size @ 1..) = from_server.read(&mut piece).await {
        let is_answer = piece.starts_with(b"MSG") || piece.starts_with(b"HMSG");
        let next = |left: u32| left.checked_sub(if left > PASS { PASS } else { 1 });
        let is_lost = |left: u32| left <= PASS;
        if is_answer && lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).is_ok_and(is_lost) {
            continue;
        }
        if to_client.write_all(&piece[..size]).await.is_err() {
            return;
        }
    }
}
