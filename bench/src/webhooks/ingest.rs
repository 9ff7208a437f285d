//! Requests per second that are on disk when they are answered: `redrive serve`, compared with a bare handler with one
//! insert and group commit.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use clap::Args;
use redrive::retry::BoxError;
use rusqlite::Connection;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

/// Clients that send one request after the other.
const CLIENTS: usize = 32;

const BODY: &str = r#"{"type":"order.created","payload":{"order":7,"customer":"c-4711","lines":[{"sku":"A-1","quantity":2}],"total":"129.90"}}"#;

/// Runs the bare handler as a process.
#[derive(Debug, Args)]
pub(crate) struct BareIngest {
    db: PathBuf,
}

#[derive(Deserialize)]
struct Posted<'a> {
    #[serde(rename = "type")]
    event_type: &'a str,
    #[serde(borrow)]
    payload: &'a RawValue,
}

struct Insert {
    id: uuid::Uuid,
    event_type: String,
    payload: String,
    done: oneshot::Sender<bool>,
}

impl BareIngest {
    pub(crate) fn run(self) -> Result<String, BoxError> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async move {
            let (sender, receiver) = std::sync::mpsc::channel();
            std::thread::spawn(move || write(&self.db, &receiver));
            let router = Router::new().route("/v1/events", post(ingest)).with_state(sender);
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
            println!("listens on http://{} ", listener.local_addr()?);
            axum::serve(listener, router).await?;
            Ok(String::new())
        })
    }
}

async fn ingest(
    State(writer): State<std::sync::mpsc::Sender<Insert>>,
    body: axum::body::Bytes,
) -> (StatusCode, String) {
    let Ok(Posted { event_type, payload }) = serde_json::from_slice(&body) else {
        return (StatusCode::BAD_REQUEST, String::new());
    };
    let (done, committed) = oneshot::channel();
    let id = uuid::Uuid::now_v7();
    let insert = Insert { id, event_type: event_type.to_owned(), payload: payload.get().to_owned(), done };
    if writer.send(insert).is_err() || !committed.await.unwrap_or(false) {
        return (StatusCode::INTERNAL_SERVER_ERROR, String::new());
    }
    (StatusCode::ACCEPTED, format!(r#"{{"id":"{id}"}}"#))
}

/// Writes all waiting inserts in one transaction with one sync.
fn write(path: &Path, inserts: &std::sync::mpsc::Receiver<Insert>) {
    let run = || -> rusqlite::Result<()> {
        let connection = Connection::open(path)?;
        connection.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
             CREATE TABLE event (key INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, type TEXT NOT NULL, payload TEXT NOT NULL)",
        )?;
        while let Ok(first) = inserts.recv() {
            let batch: Vec<Insert> = std::iter::once(first).chain(inserts.try_iter()).collect();
            connection.execute_batch("BEGIN IMMEDIATE")?;
            for insert in &batch {
                connection
                    .prepare_cached("INSERT INTO event (id, type, payload) VALUES (?1, ?2, ?3)")?
                    .execute((insert.id.as_bytes(), &insert.event_type, &insert.payload))?;
            }
            connection.execute_batch("COMMIT")?;
            for insert in batch {
                let _ = insert.done.send(true);
            }
        }
        Ok(())
    };
    if let Err(error) = run() {
        eprintln!("the bare handler cannot write: {error}");
    }
}

/// A server process, killed when dropped.
struct Process {
    child: Child,
    address: SocketAddr,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    fn start(mut command: Command) -> Result<Self, BoxError> {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let stdout = child.stdout.take().ok_or("no output")?;
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line)?;
        let address = line.split_once("http://").and_then(|(_, rest)| rest.split_whitespace().next());
        let address = address.and_then(|address| address.parse().ok());
        match address {
            Some(address) => Ok(Process { child, address }),
            None => {
                let _ = child.kill();
                Err(format!("a server did not start: {line:?}").into())
            }
        }
    }
}

/// Requests per second of `redrive serve`, which is found beside this program.
pub(super) async fn ours(folder: &Path, time: Duration) -> Result<f64, BoxError> {
    let program = std::env::current_exe()?.with_file_name("redrive");
    if !program.exists() {
        return Err(
            format!("{} is not there: cargo build --release -p redrive-cli", program.display()).into()
        );
    }
    let mut command = Command::new(program);
    command.args(["serve", "--listen", "127.0.0.1:0", "--db"]);
    command.arg(folder.join(format!("ingest-{}.db", uuid::Uuid::new_v4())));
    let process = Process::start(command)?;
    load(process.address, time).await
}

/// Requests per second of the bare handler.
pub(super) async fn bare(folder: &Path, time: Duration) -> Result<f64, BoxError> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("bare-ingest").arg(folder.join(format!("bare-{}.db", uuid::Uuid::new_v4())));
    let process = Process::start(command)?;
    load(process.address, time).await
}

async fn load(address: SocketAddr, time: Duration) -> Result<f64, BoxError> {
    let request = Arc::new(format!(
        "POST /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{BODY}",
        BODY.len()
    ));
    let (answered, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let (request, answered, is_over) =
            (Arc::clone(&request), Arc::clone(&answered), Arc::clone(&is_over));
        clients.spawn(async move {
            let mut stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let mut bytes = vec![0; 4096];
            while !is_over.load(Ordering::Relaxed) {
                stream.write_all(request.as_bytes()).await?;
                let mut read = 0;
                while !is_whole(&bytes[..read]) {
                    match stream.read(&mut bytes[read..]).await? {
                        0 => return Err(BoxError::from("the server has hung up")),
                        more => read += more,
                    }
                }
                if !bytes.starts_with(b"HTTP/1.1 202") {
                    return Err(String::from_utf8_lossy(&bytes[..read]).into_owned().into());
                }
                answered.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
    }
    tokio::time::sleep(time / 5).await; // warm-up
    let (began, before) = (Instant::now(), answered.load(Ordering::Relaxed));
    tokio::time::sleep(time).await;
    #[allow(clippy::cast_precision_loss)]
    let rate = (answered.load(Ordering::Relaxed) - before) as f64 / began.elapsed().as_secs_f64();
    is_over.store(true, Ordering::Relaxed);
    for client in clients.join_all().await {
        client?;
    }
    Ok(rate)
}

/// Whether a response is complete.
fn is_whole(bytes: &[u8]) -> bool {
    let Some(head) = bytes.windows(4).position(|end| end == b"\r\n\r\n") else { return false };
    let text = String::from_utf8_lossy(&bytes[..head]);
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    length.is_some_and(|length| bytes.len() >= head + 4 + length)
}
