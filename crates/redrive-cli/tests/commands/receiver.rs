//! Endpoint that records requests and responds with a given status.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

/// Recorded request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

pub(crate) struct Receiver {
    port: u16,
    status: Arc<AtomicU16>,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Receiver {
    pub(crate) fn start(status: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (status, requests) = (Arc::new(AtomicU16::new(status)), Arc::new(Mutex::new(Vec::new())));
        let (answer, kept) = (Arc::clone(&status), Arc::clone(&requests));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if let Some(request) = read(&stream) {
                    kept.lock().unwrap().push(request);
                    let status = answer.load(Ordering::Relaxed);
                    let _ = write!(
                        &stream,
                        "HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                    );
                }
            }
        });
        Receiver { port, status, requests }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/hook", self.port)
    }

    pub(crate) fn respond_with(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length")?.1.parse().ok()?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request { headers, body: String::from_utf8(body).ok()? })
}
