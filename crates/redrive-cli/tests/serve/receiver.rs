//! Webhook endpoint for tests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

/// Responds with a given status and records the bodies.
#[derive(Clone)]
pub(crate) struct Receiver {
    address: SocketAddr,
    status: Arc<AtomicU16>,
    response_delay_ms: Arc<AtomicU64>,
    received: Arc<Mutex<Vec<Value>>>,
}

impl Receiver {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let receiver = Receiver {
            address: listener.local_addr().unwrap(),
            status: Arc::new(AtomicU16::new(200)),
            response_delay_ms: Arc::default(),
            received: Arc::default(),
        };
        let own = receiver.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let own = own.clone();
                std::thread::spawn(move || own.serve(BufReader::new(stream.unwrap())));
            }
        });
        receiver
    }

    fn serve(&self, mut stream: BufReader<std::net::TcpStream>) {
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
            self.received.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
            std::thread::sleep(Duration::from_millis(self.response_delay_ms.load(Ordering::SeqCst)));
            let status = self.status.load(Ordering::SeqCst);
            let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 2\r\n\r\nok");
            if stream.get_mut().write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }

    pub(crate) fn respond_with(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    pub(crate) fn respond_after(&self, time: Duration) {
        self.response_delay_ms.store(u64::try_from(time.as_millis()).unwrap(), Ordering::SeqCst);
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    pub(crate) fn received(&self) -> Vec<Value> {
        self.received.lock().unwrap().clone()
    }
}
