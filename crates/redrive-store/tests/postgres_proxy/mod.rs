//! Stands between a store and the server, and cuts the connection at a chosen moment, or says nothing for a while.
#![allow(dead_code)] // not every test file uses everything

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

/// When to cut.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The next statement that changes something is carried out, and its answer lost.
    Answer,
    /// The next statement that changes something does not arrive.
    Question,
}

#[derive(Debug, Default)]
struct State {
    cut: Mutex<Option<Cut>>,
    refuses: Mutex<bool>,
    attempts: AtomicUsize,
    refused: Notify,
    /// Every connection stays open, new ones too, and nothing is carried.
    is_silent: watch::Sender<bool>,
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
                        tokio::spawn(carry(client, Arc::clone(&state)));
                    }
                }
            }
        });
        Proxy { port, state }
    }

    /// The address of the server, by way of this.
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

    /// Once.
    pub(crate) fn cut(&self, cut: Cut) {
        *self.state.cut.lock().unwrap() = Some(cut);
    }

    /// Ends all connections and takes no more.
    pub(crate) fn refuse(&self) {
        *self.state.refuses.lock().unwrap() = true;
        self.state.attempts.store(0, Ordering::Relaxed);
        self.state.refused.notify_waiters();
    }

    /// Ends all connections, takes more, and says nothing.
    pub(crate) fn fall_silent(&self) {
        self.state.refused.notify_waiters();
        self.be_silent();
    }

    /// Takes every call from now on, and carries nothing.
    pub(crate) fn be_silent(&self) {
        self.state.is_silent.send_replace(true);
    }

    pub(crate) fn heal(&self) {
        self.state.is_silent.send_replace(false);
        *self.state.refuses.lock().unwrap() = false;
        *self.state.cut.lock().unwrap() = None;
    }

    /// How often somebody has tried since [`refuse`](Self::refuse).
    pub(crate) fn attempts(&self) -> usize {
        self.state.attempts.load(Ordering::Relaxed)
    }
}

/// Only statements with parameters change something here: they begin with a Bind.
fn is_statement(bytes: &[u8]) -> bool {
    bytes.first() == Some(&b'B') && bytes.len() > 60
}

async fn carry(client: TcpStream, state: Arc<State>) {
    let (_, address) = target();
    let server = TcpStream::connect(address).await.unwrap();
    let (mut client_in, mut client_out) = client.into_split();
    let (mut server_in, mut server_out) = server.into_split();
    let (mut question, mut answer) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let (mut loses_answer, mut silence) = (false, state.is_silent.subscribe());
    loop {
        if silence.wait_for(|is_silent| !is_silent).await.is_err() {
            return;
        }
        tokio::select! {
            biased; // who ends a connection means it, also if it falls silent in the same moment
            () = state.refused.notified() => return,
            _ = silence.changed() => {}
            read = client_in.read(&mut question) => {
                let Ok(count @ 1..) = read else { return };
                if is_statement(&question[..count]) {
                    match state.cut.lock().unwrap().take() {
                        Some(Cut::Question) => return,
                        Some(Cut::Answer) => loses_answer = true,
                        None => {}
                    }
                }
                if server_out.write_all(&question[..count]).await.is_err() {
                    return;
                }
            }
            read = server_in.read(&mut answer) => {
                let Ok(count @ 1..) = read else { return };
                // The server has answered, so it is committed.
                if loses_answer || client_out.write_all(&answer[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}
