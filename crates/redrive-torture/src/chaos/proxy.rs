//! TCP proxy between processes and the server that cuts a connection at a change, or forwards nothing for a while.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// No cut is planned.
const WHOLE: u8 = 0;
/// The next change does not arrive.
const QUESTION: u8 = 1;
/// The next change arrives, and its answer does not.
const ANSWER: u8 = 2;

/// A proxy on a port of its own.
#[derive(Debug)]
pub(super) struct Proxy {
    port: u16,
    cut: Arc<AtomicU8>,
    /// Whether all connections, also new ones, stay open and nothing is forwarded; held bytes are forwarded later.
    is_stalled: watch::Sender<bool>,
}

impl Proxy {
    /// Starts to listen.
    pub(super) async fn start(server: &str) -> io::Result<Self> {
        let port = server.rsplit_once(':').and_then(|(_, rest)| rest.split('/').next()?.parse::<u16>().ok());
        let server = port.ok_or(io::ErrorKind::InvalidInput)?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let cut = Arc::new(AtomicU8::new(WHOLE));
        let is_stalled = watch::Sender::new(false);
        let (state, stall) = (Arc::clone(&cut), is_stalled.subscribe());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (state, stall) = (Arc::clone(&state), stall.clone());
                tokio::spawn(async move { drop(carry(client, server, &state, stall).await) });
            }
        });
        Ok(Proxy { port, cut, is_stalled })
    }

    /// Address of the server through the proxy.
    pub(super) fn url(&self) -> String {
        format!("postgres://redrive@127.0.0.1:{}/postgres", self.port)
    }

    /// Cuts the connection of the next change: after it has arrived, or before.
    pub(super) fn cut(&self, after: bool) {
        self.cut.store(if after { ANSWER } else { QUESTION }, Ordering::Relaxed);
    }

    /// Stops forwarding, or resumes it with everything that was held.
    pub(super) fn stall(&self, is_stalled: bool) {
        self.is_stalled.send_replace(is_stalled);
    }

    /// Cancels planned cuts and forwards everything.
    pub(super) fn heal(&self) {
        self.stall(false);
        self.cut.store(WHOLE, Ordering::Relaxed);
    }
}

/// Only statements with parameters change something here: they begin with a Bind.
fn is_change(bytes: &[u8]) -> bool {
    bytes.first() == Some(&b'B') && bytes.len() > 60
}

async fn carry(
    client: TcpStream,
    server: u16,
    cut: &AtomicU8,
    mut stall: watch::Receiver<bool>,
) -> io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", server)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut client_in, mut client_out) = client.into_split();
    let (mut server_in, mut server_out) = server.into_split();
    let (mut question, mut answer) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut loses_answer = false;
    loop {
        if stall.wait_for(|is_stalled| !is_stalled).await.is_err() {
            return Ok(());
        }
        tokio::select! {
            _ = stall.changed() => {}
            read = client_in.read(&mut question) => {
                let count @ 1.. = read? else { return Ok(()) };
                if is_change(&question[..count]) {
                    match cut.swap(WHOLE, Ordering::Relaxed) {
                        QUESTION => return Ok(()),
                        ANSWER => loses_answer = true,
                        _ => {}
                    }
                }
                server_out.write_all(&question[..count]).await?;
            }
            read = server_in.read(&mut answer) => {
                let count @ 1.. = read? else { return Ok(()) };
                // The server has answered, so it is committed.
                if loses_answer {
                    return Ok(());
                }
                client_out.write_all(&answer[..count]).await?;
            }
        }
    }
}
