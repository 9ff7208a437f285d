//! Webhook receivers outside of the server: they outlive it and count accepted events.

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use crate::dice::Dice;

use super::http::{header, read_request};

/// Behaviour of a receiver.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    Works,
    /// Refuses some requests and drops some connections.
    Flaky,
    /// Refuses all requests.
    Broken,
}

/// Number of times that each event was accepted.
pub(super) type Accepted = Arc<Mutex<HashMap<String, u64>>>;

#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) address: SocketAddr,
    accepted: Accepted,
}

impl Receiver {
    pub(super) fn start(manner: Manner, seed: u64) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let accepted = Accepted::default();
        let kept = Arc::clone(&accepted);
        std::thread::spawn(move || {
            for (number, stream) in (0..).zip(listener.incoming()) {
                let (Ok(stream), kept) = (stream, Arc::clone(&kept)) else { return };
                std::thread::spawn(move || talk(stream, manner, Dice::split(seed, number), &kept));
            }
        });
        Ok(Receiver { address, accepted })
    }

    /// Returns the number of times that each event was accepted.
    pub(super) fn accepted(&self) -> HashMap<String, u64> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn talk(mut stream: TcpStream, manner: Manner, mut dice: Dice, accepted: &Accepted) {
    let mut kept = Vec::new();
    while let Some((head, _body)) = read_request(&mut stream, &mut kept) {
        let Some(id) = header(&head, "webhook-id") else { return };
        let status = match manner {
            Manner::Works => "200 OK",
            Manner::Flaky if dice.percent(20) => "503 Service Unavailable",
            Manner::Flaky if dice.percent(10) => return,
            Manner::Flaky => "204 No Content",
            Manner::Broken => "500 Internal Server Error",
        };
        if status.starts_with('2') {
            let mut accepted = accepted.lock().unwrap_or_else(PoisonError::into_inner);
            *accepted.entry(id.to_owned()).or_default() += 1;
        }
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}
