//! TLS endpoints: only those with a trusted certificate get messages.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use redrive_servers::Authority;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use crate::world::{TestDatabase, World, endpoint, refused};

/// TLS endpoint that records requests and responds with 200.
struct TlsReceiver {
    address: SocketAddr,
    received: Arc<Mutex<Vec<Value>>>,
}

impl TlsReceiver {
    /// Starts on `host` with a certificate of this authority for 127.0.0.1.
    fn start(authority: &Authority, host: &str) -> Self {
        let (key, certificate) = authority.sign().unwrap();
        let certificates = CertificateDer::pem_file_iter(certificate).unwrap().map(Result::unwrap).collect();
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(certificates, PrivateKeyDer::from_pem_file(key).unwrap())
            .unwrap();
        let (config, listener) = (Arc::new(config), TcpListener::bind((host, 0)).unwrap());
        let address = listener.local_addr().unwrap();
        let received = Arc::<Mutex<Vec<Value>>>::default();
        let kept = Arc::clone(&received);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (config, kept) = (Arc::clone(&config), Arc::clone(&kept));
                std::thread::spawn(move || {
                    let tls = ServerConnection::new(config).unwrap();
                    let mut stream = BufReader::new(StreamOwned::new(tls, stream));
                    while let Some(body) = read_request(&mut stream) {
                        kept.lock().unwrap().push(body);
                    }
                });
            }
        });
        TlsReceiver { address, received }
    }

    fn received(&self) -> Vec<Value> {
        self.received.lock().unwrap().clone()
    }
}

fn read_request(stream: &mut BufReader<StreamOwned<ServerConnection, TcpStream>>) -> Option<Value> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok().filter(|read| *read > 0)?;
        match line.trim_end().to_ascii_lowercase() {
            line if line.is_empty() => break,
            line => {
                length = line.strip_prefix("content-length: ").map_or(length, |text| text.parse().unwrap());
            }
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()?;
    Some(serde_json::from_slice(&body).unwrap())
}

fn serve(authority: Option<&Path>) -> World {
    let trusted = authority.map(|path| ["--ca-file".to_owned(), path.display().to_string()]);
    let mut flags = vec!["--allow-range", "127.0.0.0/8", "--max-attempts", "2", "--base-delay", "10ms"];
    flags.extend(trusted.iter().flatten().map(String::as_str));
    TestDatabase::sqlite().serve(&flags)
}

/// Creates an endpoint; returns its id.
fn make(world: &World, at: &str) -> String {
    world.create_endpoint(&endpoint(format!("https://{at}/hook"), "order.*"))
}

#[test]
fn only_endpoints_with_trusted_certificates_get_messages() {
    let (known, stranger) = (Authority::new().unwrap(), Authority::new().unwrap());
    let (trusted, untrusted) =
        (TlsReceiver::start(&known, "127.0.0.1"), TlsReceiver::start(&stranger, "127.0.0.1"));
    let misnamed = TlsReceiver::start(&known, "127.0.0.2");
    let world = serve(Some(&known.certificate()));
    let good = make(&world, &trusted.address.to_string());
    let bad = make(&world, &untrusted.address.to_string());
    let other = make(&world, &misnamed.address.to_string());
    let event = world.publish("order.created", &json!({"n": 1}));

    let attempts = |id: &str| world.get(&format!("/v1/endpoints/{id}/attempts")).ok(200)["data"].clone();
    world.until("it is delivered", || attempts(&good).as_array().unwrap().len() == 1);
    assert_eq!(
        (&attempts(&good)[0]["succeeded"], &trusted.received()[0]["data"]),
        (&json!(true), &json!({"n": 1}))
    );

    world.until("the policy's attempts are made", || attempts(&bad).as_array().unwrap().len() == 2);
    for attempt in attempts(&bad).as_array().unwrap() {
        assert_eq!(attempt["event_id"], json!(event));
        assert_eq!(
            (&attempt["succeeded"], &attempt["class"]),
            (&json!(false), &json!("transient")),
            "{attempt}"
        );
        let failed = attempt["request"]["failed"].as_str().unwrap();
        assert!(failed.contains("no TLS with the endpoint: invalid peer certificate"), "{attempt}");
        assert!(attempt["request"]["status"].is_null(), "{attempt}");
    }
    let dead = |id: &str| world.get(&format!("/v1/dlq?subscription={id}")).ok(200)["data"].clone();
    world.until("it is dead-lettered", || dead(&bad).as_array().unwrap().len() == 1);
    let letter = &dead(&bad)[0];
    assert_eq!(letter["reason"], "attempts_exhausted", "{letter}");
    assert!(letter.to_string().contains("no TLS with the endpoint"), "{letter}");
    assert_eq!(untrusted.received(), [] as [Value; 0], "no message was sent");
    world.until("the wrong host name fails, too", || attempts(&other).as_array().unwrap().len() == 2);
    let why = attempts(&other)[0]["request"]["failed"].clone();
    assert!(why.as_str().unwrap().contains("not valid for"), "{why}");
    assert_eq!(misnamed.received(), [] as [Value; 0]);
}

#[test]
fn without_a_ca_file_only_system_certificates_are_trusted() {
    let authority = Authority::new().unwrap();
    let (receiver, world) = (TlsReceiver::start(&authority, "127.0.0.1"), serve(None));
    let id = make(&world, &receiver.address.to_string());
    let tried = world.post(&format!("/v1/endpoints/{id}/test"), &json!({})).ok(200);
    assert!(tried["failed"].as_str().unwrap().contains("UnknownIssuer"), "{tried}");
    assert_eq!(receiver.received(), [] as [Value; 0]);
}

#[test]
fn a_ca_file_without_certificates_is_refused_at_the_start() {
    let database = TestDatabase::sqlite();
    let said = refused(&database, &["--ca-file", "nowhere.pem"]);
    assert!(said.contains("nowhere.pem"), "{said}");
    let empty = tempfile::NamedTempFile::new().unwrap();
    let said = refused(&database, &["--ca-file", empty.path().to_str().unwrap()]);
    assert!(said.contains("BEGIN CERTIFICATE"), "{said}");
}
