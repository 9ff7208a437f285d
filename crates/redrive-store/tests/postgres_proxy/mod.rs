//! TCP proxy between a store and the server that cuts connections at a chosen moment, or stops forwarding.
#![allow(dead_code)] // not every test file uses everything

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

/// The moment of a cut.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The server executes the next statement with parameters, and its answer is lost.
    Answer,
    /// The next statement with parameters does not reach the server.
    Request,
}

#[derive(Debug, Default)]
struct State {
    cut: Mutex<Option<Cut>>,
    refuses: Mutex<bool>,
    attempts: AtomicUsize,
    refused: Notify,
    /// Whether nothing is forwarded, while all connections stay open.
    is_stalled: watch::Sender<bool>,
}

pub(crate) struct Proxy {
    port: u16,
    state: Arc<State>,
}

fn target() -> (Config, String) {
    let config: Config = super::postgres_server::server().parse().unwrap();
    let host = match &config.get_hosts()[0] {
        Host::Tcp(host) => host.clone(),
        #[cfg(unix)]
        Host::Unix(_) => panic!("the proxy needs a server on TCP"),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    (config, format!("{host}:{port}"))
}

impl Proxy {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State::default());
        tokio::spawn({
            let state = Arc::clone(&state);
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    state.attempts.fetch_add(1, Ordering::Relaxed);
                    if !*state.refuses.lock().unwrap() {
                        tokio::spawn(forward(client, Arc::clone(&state)));
                    }
                }
            }
        });
        Proxy { port, state }
    }

    /// The client configuration of the server, through this proxy.
    pub(crate) fn config(&self) -> Config {
        let (server, _) = target();
        let mut config = Config::new();
        config.host("127.0.0.1").port(self.port).ssl_mode(tokio_postgres::config::SslMode::Disable);
        if let Some(user) = server.get_user() {
            config.user(user);
        }
        if let Some(password) = server.get_password() {
            config.password(password);
        }
        if let Some(database) = server.get_dbname() {
            config.dbname(database);
        }
        config
    }

    /// Cuts one connection.
    pub(crate) fn cut(&self, cut: Cut) {
        *self.state.cut.lock().unwrap() = Some(cut);
    }

    /// Ends all connections and refuses new ones.
    pub(crate) fn refuse(&self) {
        *self.state.refuses.lock().unwrap() = true;
        self.state.attempts.store(0, Ordering::Relaxed);
        self.state.refused.notify_waiters();
    }

    /// Ends all connections, accepts new ones, and forwards nothing.
    pub(crate) fn fall_silent(&self) {
        self.state.refused.notify_waiters();
        self.be_silent();
    }

    /// Keeps all connections open, accepts new ones, and forwards nothing.
    pub(crate) fn be_silent(&self) {
        self.state.is_stalled.send_replace(true);
    }

    pub(crate) fn heal(&self) {
        self.state.is_stalled.send_replace(false);
        *self.state.refuses.lock().unwrap() = false;
        *self.state.cut.lock().unwrap() = None;
    }

    /// The number of connection attempts since [`refuse`](Self::refuse).
    pub(crate) fn attempts(&self) -> usize {
        self.state.attempts.load(Ordering::Relaxed)
    }
}

/// Whether the bytes start a statement with parameters, by its Bind message.
fn is_statement(bytes: &[u8]) -> bool {
    bytes.first() == Some(&b'B') && bytes.len() > 60
}

async fn forward(client: TcpStream, state: Arc<State>) {
    let (_, address) = target();
    let server = TcpStream::connect(address).await.unwrap();
    let (mut client_in, mut client_out) = client.into_split();
    let (mut server_in, mut server_out) = server.into_split();
    let (mut request, mut answer) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let (mut loses_answer, mut stall) = (false, state.is_stalled.subscribe());
    loop {
        if stall.wait_for(|is_stalled| !is_stalled).await.is_err() {
            return;
        }
        tokio::select! {
            biased; // ending a connection has priority over stall
            () = state.refused.notified() => return,
            _ = stall.changed() => {}
            read = client_in.read(&mut request) => {
                let Ok(count @ 1..) = read else { return };
                if is_statement(&request[..count]) {
                    match state.cut.lock().unwrap().take() {
                        Some(Cut::Request) => return,
                        Some(Cut::Answer) => loses_answer = true,
                        None => {}
                    }
                }
                if server_out.write_all(&request[..count]).await.is_err() {
                    return;
                }
            }
            read = server_in.read(&mut answer) => {
                let Ok(count @ 1..) = read else { return };
                // The server has answered, so the statement is committed.
                if loses_answer || client_out.write_all(&answer[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}
