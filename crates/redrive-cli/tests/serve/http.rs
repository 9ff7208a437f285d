//! HTTP client that sends raw requests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Read and write timeout, generous for slow machines.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Asserts the status; returns the body as JSON.
    pub(crate) fn ok(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        self.json()
    }

    /// Asserts a problem document with this status and code.
    pub(crate) fn problem(&self, status: u16, code: &str) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem = self.json();
        assert_eq!(problem["code"], code, "{self:?}");
        assert_eq!(problem["type"], format!("urn:redrive:problem:{code}"));
        assert_eq!(problem["status"], status);
        assert!(
            problem["title"].as_str().unwrap().len() > 5 && problem["detail"].as_str().unwrap().len() > 5
        );
        problem
    }
}

/// Connection to the server.
#[derive(Debug)]
pub(crate) struct Connection {
    reader: BufReader<TcpStream>,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Self {
        Connection::of(TcpStream::connect(address).unwrap())
    }

    pub(crate) fn of(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        Connection { reader: BufReader::new(stream) }
    }

    pub(crate) fn send(&mut self, text: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.reader.get_mut().write_all(text.as_ref())
    }

    /// Next line without its newline; `None` at the end.
    pub(crate) fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.reader.read_line(&mut line).unwrap_or(0);
        (read > 0).then(|| line.trim_end().to_owned())
    }

    /// Reads until the server closes the connection.
    pub(crate) fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        let _ = self.reader.read_to_end(&mut rest); // a reset also ends it
        String::from_utf8_lossy(&rest).into_owned()
    }

    /// Status and headers of the next response.
    pub(crate) fn head(&mut self) -> Option<(u16, Vec<(String, String)>)> {
        let first = self.line()?;
        let status = first.split(' ').nth(1).unwrap_or_else(|| panic!("{first}")).parse().unwrap();
        let mut headers = Vec::new();
        while let Some(line) = self.line().filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':').unwrap();
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Some((status, headers))
    }

    /// Next response, if any.
    pub(crate) fn answer(&mut self) -> Option<Answer> {
        let (status, headers) = self.head()?;
        let length = headers
            .iter()
            .find(|(name, _)| name == "content-length")
            .map(|(_, value)| value.parse().unwrap());
        let mut body = vec![0; length.unwrap_or(0)];
        self.reader.read_exact(&mut body).ok()?;
        Some(Answer { status, headers, body: String::from_utf8(body).unwrap() })
    }
}

/// Formats a request with its content length.
pub(crate) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
    let mut text = format!("{method} {path} HTTP/1.1\r\n");
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        text.push_str("host: localhost\r\n");
    }
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() {
        text.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    text.push_str("\r\n");
    text.push_str(body);
    text
}
