//! Minimal AMQP client for malformed messages that a client library refuses.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::world::TIMEOUT;

/// Property flags of a content header.
pub(crate) const CONTENT_TYPE: u16 = 1 << 15;
pub(crate) const HEADERS: u16 = 1 << 13;
pub(crate) const CORRELATION_ID: u16 = 1 << 10;

const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const HEARTBEAT: u8 = 8;

/// A connection with one channel, in confirm mode.
pub(crate) struct Raw {
    stream: TcpStream,
}

/// A message as on the wire.
pub(crate) struct RawMessage {
    /// Class, weight, size, flags and properties.
    pub(crate) header: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

/// Encodes a short string.
pub(crate) fn short(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    [&[u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

/// Encodes a long string.
pub(crate) fn long(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    [&u32::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
}

impl Raw {
    /// Connects to `amqp://guest:guest@host:port`.
    pub(crate) fn connect(broker: &str) -> Self {
        let address = broker.split('@').nth(1).unwrap().split('/').next().unwrap();
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        let mut raw = Raw { stream };
        raw.stream.write_all(b"AMQP\0\0\x09\x01").unwrap();
        raw.until((10, 10));
        raw.method(0, (10, 11), &[long(""), short("PLAIN"), long("\0guest\0guest"), short("en_US")].concat());
        raw.until((10, 30));
        raw.method(0, (10, 31), &[0x07, 0xff, 0, 2, 0, 0, 0, 0]); // 2047 channels, 128 KiB a frame, no heartbeat
        raw.method(0, (10, 40), &[short("/"), short(""), vec![0]].concat());
        raw.until((10, 41));
        raw.method(1, (20, 10), &short(""));
        raw.until((20, 11));
        raw.method(1, (85, 10), &[0]);
        raw.until((85, 11));
        raw
    }

    /// Publishes a message and waits for the confirm.
    pub(crate) fn publish(&mut self, queue: &str, body: &[u8], flags: u16, properties: &[u8]) {
        self.method(1, (60, 40), &[vec![0, 0], short(""), short(queue), vec![0]].concat());
        let size = (body.len() as u64).to_be_bytes();
        let header = [&[0, 60, 0, 0], size.as_slice(), &flags.to_be_bytes(), properties].concat();
        self.frame(HEADER, 1, &header);
        self.frame(BODY, 1, body);
        self.until((60, 80));
    }

    /// Gets the next message of a queue.
    pub(crate) fn next(&mut self, queue: &str) -> RawMessage {
        let began = std::time::Instant::now();
        loop {
            self.method(1, (60, 70), &[vec![0, 0], short(queue), vec![1]].concat());
            if let Some(message) = self.got() {
                return message;
            }
            assert!(began.elapsed() < TIMEOUT, "no message arrives in {queue}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn got(&mut self) -> Option<RawMessage> {
        loop {
            let (kind, payload) = self.read();
            match (kind, payload.get(..4)) {
                (METHOD, Some([0, 60, 0, 71])) => break,
                (METHOD, Some([0, 60, 0, 72])) => return None,
                _ => {}
            }
        }
        let (_, header) = self.read();
        let size = u64::from_be_bytes(header[4..12].try_into().unwrap());
        let mut body = Vec::new();
        while (body.len() as u64) < size {
            body.extend(self.read().1);
        }
        Some(RawMessage { header, body })
    }

    fn method(&mut self, channel: u16, (class, method): (u16, u16), arguments: &[u8]) {
        let payload = [class.to_be_bytes().as_slice(), &method.to_be_bytes(), arguments].concat();
        self.frame(METHOD, channel, &payload);
    }

    fn frame(&mut self, kind: u8, channel: u16, payload: &[u8]) {
        let frame = [[kind].as_slice(), &channel.to_be_bytes(), &long(payload), &[0xce]].concat();
        self.stream.write_all(&frame).unwrap();
    }

    /// Waits for a method. Panics if the broker closes.
    fn until(&mut self, wanted: (u16, u16)) {
        loop {
            let (kind, payload) = self.read();
            if kind != METHOD {
                continue;
            }
            let number = |at: usize| u16::from_be_bytes([payload[at], payload[at + 1]]);
            match (number(0), number(2)) {
                method if method == wanted => return,
                (10, 50) | (20, 40) => panic!("closed: {}", String::from_utf8_lossy(&payload)),
                _ => {}
            }
        }
    }

    fn read(&mut self) -> (u8, Vec<u8>) {
        loop {
            let mut head = [0; 7];
            self.stream.read_exact(&mut head).unwrap();
            let size = u32::from_be_bytes(head[3..].try_into().unwrap()) as usize;
            let mut payload = vec![0; size + 1];
            self.stream.read_exact(&mut payload).unwrap();
            payload.truncate(size);
            if head[0] != HEARTBEAT {
                return (head[0], payload);
            }
        }
    }
}
