//! An endpoint of somebody's.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

/// Answers what it is told to, and remembers the bodies.
#[derive(Clone)]
pub(crate) struct Receiver {
    address: SocketAddr,
    status: Arc<AtomicU16>,
    /// Milliseconds until it answers.
    takes: Arc<AtomicU64>,
    heard: Arc<Mutex<Vec<Value>>>,
}

impl Receiver {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let receiver = Receiver {
            address: listener.local_addr().unwrap(),
            status: Arc::new(AtomicU16::new(200)),
            takes: Arc::default(),
            heard: Arc::default(),
        };
        let own = receiver.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let own = own.clone();
                std::thread::spawn(move || own.talk(BufReader::new(stream.unwrap())));
            }
        });
        receiver
    }

    fn talk(&self, mut stream: BufReader<std::net::TcpStream>) {
        loop {
            let mut length = 0;
            loop {
                let mut line = String::new();
                if stream.read_line(&mut line).unwrap_or(0) == 0 {
                    return;
                }
                let line = line.trim_end().to_ascii_lowercase();
                if let Some(value) = line.strip_prefix("content-length: ") {
                    length = value.parse().unwrap();
                }
                if line.is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            if stream.read_exact(&mut body).is_err() {
                return;
            }
            self.heard.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
            std::thread::sleep(Duration::from_millis(self.takes.load(Ordering::SeqCst)));
            let status = self.status.load(Ordering::SeqCst);
            let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 2\r\n\r\nok");
            if stream.get_mut().write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }

    pub(crate) fn answers(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    pub(crate) fn takes(&self, time: Duration) {
        self.takes.store(u64::try_from(time.as_millis()).unwrap(), Ordering::SeqCst);
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    pub(crate) fn heard(&self) -> Vec<Value> {
        self.heard.lock().unwrap().clone()
    }
}
