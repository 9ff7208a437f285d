//! HTTP receivers for tests, over real sockets.
#![allow(dead_code)] // not every test file uses everything

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Reply to one request.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: &'static str,
    /// Header lines with their line ends.
    pub(crate) headers: String,
    pub(crate) body: String,
    /// Wait before the reply.
    pub(crate) after: Duration,
}

impl Reply {
    pub(crate) fn new(status: &'static str) -> Self {
        Reply { status, headers: String::new(), body: String::new(), after: Duration::ZERO }
    }
}

/// Records requests and replies to them, until it is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    /// Requests in progress, and their maximum so far.
    concurrency: Arc<Mutex<(usize, usize)>>,
    _task: Arc<tokio::task::AbortHandle>,
}

impl Receiver {
    /// Replies to each request by its number, from 0.
    pub(crate) async fn new(reply_to: impl Fn(usize, &str) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let (reply_to, all) = (Arc::new(reply_to), Arc::clone(&requests));
        let concurrency: Arc<Mutex<(usize, usize)>> = Arc::default();
        let in_flight = Arc::clone(&concurrency);
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (reply_to, requests) = (Arc::clone(&reply_to), Arc::clone(&all));
                let in_flight = Arc::clone(&in_flight);
                tokio::spawn(async move {
                    while let Some(request) = one_request(&mut stream).await {
                        {
                            let mut in_flight = in_flight.lock().unwrap();
                            in_flight.0 += 1;
                            in_flight.1 = in_flight.1.max(in_flight.0);
                        }
                        let reply = {
                            let mut requests = requests.lock().unwrap();
                            requests.push(request.clone());
                            reply_to(requests.len() - 1, &request)
                        };
                        tokio::time::sleep(reply.after).await;
                        in_flight.lock().unwrap().0 -= 1;
                        let Reply { status, headers, body, .. } = reply;
                        let response = format!(
                            "HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}",
                            body.len()
                        );
                        if stream.write_all(response.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Receiver { address, requests, concurrency, _task: Arc::new(task.abort_handle()) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    /// Maximum number of requests in progress at the same time.
    pub(crate) fn max_concurrent(&self) -> usize {
        self.concurrency.lock().unwrap().1
    }
}

pub(crate) async fn one_request(stream: &mut TcpStream) -> Option<String> {
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length =
                header_of(head, "content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
            if body.len() >= length {
                return Some(text);
            }
        }
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => return None,
            Ok(count) => bytes.extend_from_slice(&piece[..count]),
        }
    }
}

pub(crate) fn header_of<'a>(request: &'a str, name: &str) -> Option<&'a str> {
    let named = |line: &'a str| line.split_once(": ").filter(|(known, _)| known.eq_ignore_ascii_case(name));
    request.lines().find_map(named).map(|(_, value)| value)
}

pub(crate) fn body_of(request: &str) -> &str {
    request.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}
