//! Minimal blocking HTTP client and request parser.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Timeout of an answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Sends one request on its own connection: returns the status and the body as JSON (null if it is none).
pub(super) fn ask(
    server: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> io::Result<(u16, serde_json::Value)> {
    let mut stream = TcpStream::connect_timeout(&server, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let text = String::from_utf8_lossy(&answer);
    let cut_off = || io::Error::new(io::ErrorKind::UnexpectedEof, "the answer was cut off");
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(cut_off)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(cut_off)?;
    // A short body was cut off.
    let length = header(head, "content-length").and_then(|length| length.parse::<usize>().ok());
    if length.is_some_and(|length| body.len() < length) {
        return Err(cut_off());
    }
    Ok((status, serde_json::from_str(body).unwrap_or_default()))
}

/// Reads one request: its head and its body. `None` at the end of the connection.
pub(super) fn read_request(stream: &mut TcpStream, kept: &mut Vec<u8>) -> Option<(String, Vec<u8>)> {
    let mut piece = [0; 4096];
    loop {
        if let Some(at) = kept.windows(4).position(|end| end == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&kept[..at]).into_owned();
            let length = header(&head, "content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
            if kept.len() >= at + 4 + length {
                let body = kept[at + 4..at + 4 + length].to_vec();
                kept.drain(..at + 4 + length);
                return Some((head, body));
            }
        }
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => return None,
            Ok(count) => kept.extend_from_slice(&piece[..count]),
        }
    }
}

pub(super) fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let named = |line: &'a str| line.split_once(':').filter(|(known, _)| known.eq_ignore_ascii_case(name));
    head.lines().find_map(named).map(|(_, value)| value.trim())
}
