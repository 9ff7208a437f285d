//! Receivers for tests, over real sockets.
#![allow(dead_code)] // not every test file uses everything

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What is said to one request.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub(crate) status: &'static str,
    /// With their line ends.
    pub(crate) headers: String,
    pub(crate) body: String,
    pub(crate) after: Duration,
}

impl Said {
    pub(crate) fn new(status: &'static str) -> Self {
        Said { status, headers: String::new(), body: String::new(), after: Duration::ZERO }
    }
}

/// Listens until it is dropped, and remembers what it heard.
#[derive(Clone, Debug)]
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    heard: Arc<Mutex<Vec<String>>>,
    /// How many requests are being answered, and the most that ever were.
    at_once: Arc<Mutex<(usize, usize)>>,
    _task: Arc<tokio::task::AbortHandle>,
}

impl Receiver {
    /// Says something to each request, which are counted from 0.
    pub(crate) async fn new(say: impl Fn(usize, &str) -> Said + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let (say, all) = (Arc::new(say), Arc::clone(&heard));
        let at_once: Arc<Mutex<(usize, usize)>> = Arc::default();
        let under_way = Arc::clone(&at_once);
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (say, heard) = (Arc::clone(&say), Arc::clone(&all));
                let under_way = Arc::clone(&under_way);
                tokio::spawn(async move {
                    while let Some(request) = one_request(&mut stream).await {
                        {
                            let mut under_way = under_way.lock().unwrap();
                            under_way.0 += 1;
                            under_way.1 = under_way.1.max(under_way.0);
                        }
                        let said = {
                            let mut heard = heard.lock().unwrap();
                            heard.push(request.clone());
                            say(heard.len() - 1, &request)
                        };
                        tokio::time::sleep(said.after).await;
                        under_way.lock().unwrap().0 -= 1;
                        let Said { status, headers, body, .. } = said;
                        let answer = format!(
                            "HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}",
                            body.len()
                        );
                        if stream.write_all(answer.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Receiver { address, heard, at_once, _task: Arc::new(task.abort_handle()) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    pub(crate) fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }

    /// How many requests were being answered at the same time, at most.
    pub(crate) fn most_at_once(&self) -> usize {
        self.at_once.lock().unwrap().1
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

/// What comes after the head.
pub(crate) fn body_of(request: &str) -> &str {
    request.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}
