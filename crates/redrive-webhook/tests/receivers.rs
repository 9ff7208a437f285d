//! The HTTP client against receivers over real sockets: healthy, slow, broken and hostile ones.
#![allow(clippy::unwrap_used)] // a panic is a failed test

mod receiver;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use receiver::{header_of, one_request};
use redrive_retry::FailureClass;
use redrive_webhook::{
    Attempt, Client, ClientBuilder, Deadlines, EndpointUrl, Failed, Guard, Header, MAX_BODY, Message, Phase,
    Secret, Secrets,
};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

const BODY: &[u8] = br#"{"type":"order.created","data":{"n":1}}"#;

/// Requests that a receiver got.
type Requests = mpsc::UnboundedReceiver<String>;

/// A receiver that replies to every request with these pieces, with a pause before each.
async fn receiver(response: Vec<(Duration, Vec<u8>)>) -> (SocketAddr, Requests, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, requests) = mpsc::unbounded_channel();
    let (connections, response) = (Arc::new(AtomicUsize::new(0)), Arc::new(response));
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(talk(stream, Arc::clone(&response), sender.clone()));
        }
    });
    (address, requests, connections)
}

async fn talk(
    mut stream: TcpStream,
    response: Arc<Vec<(Duration, Vec<u8>)>>,
    requests: mpsc::UnboundedSender<String>,
) {
    while let Some(request) = one_request(&mut stream).await {
        let _ = requests.send(request);
        for (pause, piece) in &*response {
            tokio::time::sleep(*pause).await;
            if stream.write_all(piece).await.is_err() {
                return;
            }
        }
    }
}

fn at_once(response: impl AsRef<[u8]>) -> Vec<(Duration, Vec<u8>)> {
    vec![(Duration::ZERO, response.as_ref().to_vec())]
}

fn response(status: &str, headers: &str, body: &str) -> Vec<(Duration, Vec<u8>)> {
    at_once(format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len()))
}

fn loopback() -> Guard {
    Guard::default().allow("127.0.0.1/32".parse().unwrap())
}

/// A client with short deadlines.
fn client() -> ClientBuilder {
    let deadlines = Deadlines {
        connect: Duration::from_secs(2),
        first_byte: Duration::from_secs(2),
        total: Duration::from_secs(6),
    };
    Client::builder().guard(loopback()).deadlines(deadlines)
}

fn secret() -> Secret {
    "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD".parse().unwrap()
}

async fn send_to(client: &Client, url: &str) -> Attempt {
    let url: EndpointUrl = url.parse().unwrap();
    let timestamp = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let message = Message { id: "msg_1", timestamp: timestamp.try_into().unwrap(), body: BODY };
    let headers = [Header::new("x-tenant", "acme").unwrap()];
    client.send(&url, &Secrets::new(secret()), &headers, message, None).await
}

async fn answered(pieces: Vec<(Duration, Vec<u8>)>) -> Attempt {
    let (address, ..) = receiver(pieces).await;
    send_to(&client().build().unwrap(), &format!("http://{address}/hook")).await
}

fn status(status: u16, retry_after_ms: Option<u64>) -> Option<Failed> {
    Some(Failed::Status { status, retry_after_ms })
}

#[tokio::test]
async fn the_reference_library_verifies_the_signature() {
    let (address, mut requests, _) =
        receiver(response("200 OK", "X-Request-Id: r1\r\nSet-Cookie: s3cret\r\n", "thanks")).await;
    let attempt = send_to(&client().build().unwrap(), &format!("http://{address}/hook?x=1")).await;
    assert!(attempt.is_success() && attempt.failure().is_none(), "{attempt:?}");
    let response = attempt.response.unwrap();
    assert_eq!((response.status, &*response.body, response.is_cut), (200, &b"thanks"[..], false));
    // Only the listed headers are kept.
    let names: Vec<_> = response.headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["content-length", "x-request-id"]);

    let request = requests.recv().await.unwrap();
    assert!(request.starts_with("POST /hook?x=1 HTTP/1.1\r\n"), "{request}");
    let mut headers = hyper::HeaderMap::new();
    for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        headers.insert(name, header_of(&request, name).unwrap().parse().unwrap());
    }
    let body = request.split_once("\r\n\r\n").unwrap().1.as_bytes();
    let verifier = standardwebhooks::Webhook::new(&secret().for_receiver()).unwrap();
    verifier.verify(body, &headers).unwrap();
    assert!(verifier.verify(b"{}", &headers).is_err());
    assert_eq!(body, BODY);
    assert_eq!(header_of(&request, "content-type"), Some("application/json"));
    assert_eq!(header_of(&request, "x-tenant"), Some("acme"));
    assert_eq!(header_of(&request, "host"), Some(&*address.to_string()));
    assert!(header_of(&request, "user-agent").unwrap().starts_with("Redrive/"));
    assert_eq!(header_of(&request, "accept-encoding"), None, "no compression is requested");
}

#[tokio::test]
async fn connections_are_reused() {
    let (address, _heard, connections) = receiver(response("204 No Content", "", "")).await;
    let client = client().build().unwrap();
    for _ in 0..5 {
        assert!(send_to(&client, &format!("http://{address}/")).await.is_success());
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

/// A receiver on its own thread that answers the first request twice: the second time when it is told to, which it reports. It answers
/// nothing else on that connection, and one request on another connection with 500.
fn receiver_that_answers_twice() -> (SocketAddr, std::sync::mpsc::Sender<()>, std::sync::mpsc::Receiver<()>) {
    use std::io::{Read as _, Write as _};
    use std::sync::mpsc::channel;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let ((go, is_go), (done, is_done)) = (channel(), channel());
    std::thread::spawn(move || {
        const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        let mut buffer = [0; 4096];
        let (mut kept, _) = listener.accept().unwrap();
        assert!(kept.read(&mut buffer).unwrap() > 0);
        kept.write_all(OK).unwrap();
        is_go.recv().unwrap();
        kept.write_all(OK).unwrap();
        done.send(()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        assert!(other.read(&mut buffer).unwrap() > 0);
        other.write_all(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n").unwrap();
        let _ = other.read(&mut buffer);
    });
    (address, go, is_done)
}

#[tokio::test]
async fn a_late_answer_is_not_credited_to_the_next_message() {
    let (address, answer_again, is_done) = receiver_that_answers_twice();
    let client = client().build().unwrap();
    let url = format!("http://{address}/hook");
    assert!(send_to(&client, &url).await.is_success());
    answer_again.send(()).unwrap();
    is_done.recv().unwrap(); // blocks the only thread of the runtime, so that it does not notice the second answer
    let attempt = send_to(&client, &url).await;
    assert_eq!(attempt.failed, status(500, None), "the next message is sent on another connection");
}

#[tokio::test]
async fn only_2xx_is_success_and_redirects_are_not_followed() {
    let (other, _heard, asked) = receiver(response("200 OK", "", "")).await;
    for code in [
        "301 Moved Permanently",
        "302 Found",
        "303 See Other",
        "307 Temporary Redirect",
        "308 Permanent Redirect",
    ] {
        let attempt = answered(response(code, &format!("Location: http://{other}/internal\r\n"), "")).await;
        assert_eq!(attempt.failed, status(code[..3].parse().unwrap(), None), "{code}");
    }
    assert_eq!(asked.load(Ordering::SeqCst), 0, "the redirect was not followed");
    assert_eq!(answered(response("500 Oops", "", "broken")).await.failure(), Some(FailureClass::Transient));
    assert_eq!(answered(response("404 Not Found", "", "")).await.failure(), Some(FailureClass::Transient));
}

#[tokio::test]
async fn a_410_is_permanent() {
    let attempt = answered(response("410 Gone", "", "")).await;
    assert!(attempt.is_gone() && attempt.failure() == Some(FailureClass::Permanent), "{attempt:?}");
}

#[tokio::test]
async fn retry_after_is_read_in_both_forms() {
    for code in ["429 Too Many Requests", "503 Service Unavailable"] {
        let attempt = answered(response(code, "Retry-After: 120\r\n", "")).await;
        assert_eq!(attempt.failure(), Some(FailureClass::retry_after(Duration::from_secs(120))), "{code}");
        let later = std::time::SystemTime::now() + Duration::from_secs(3600);
        let date = format!("Retry-After: {}\r\n", httpdate::fmt_http_date(later));
        let failure = answered(response(code, &date, "")).await.failure();
        let Some(FailureClass::Throttled { retry_after: Some(wait_ms) }) = failure else {
            panic!("{code}: {failure:?}")
        };
        assert!((3_590_000..=3_600_000).contains(&wait_ms), "{wait_ms}");
    }
    let failure = answered(response("429 No", "Retry-After: soon\r\n", "")).await.failure();
    assert_eq!(failure, Some(FailureClass::Throttled { retry_after: None }));
    let failure = answered(response("500 No", "Retry-After: 9\r\n", "")).await.failure();
    assert_eq!(failure, Some(FailureClass::Transient));
}

#[tokio::test]
async fn a_429_and_a_503_that_states_a_rate_limit_are_throttled() {
    for (reply, headers, class) in [
        ("429 Too Many", "", FailureClass::Throttled { retry_after: None }),
        ("503 Busy", "RateLimit-Remaining: 0\r\n", FailureClass::Throttled { retry_after: None }),
        ("503 Busy", "RateLimit: \"default\";r=0;t=9\r\n", FailureClass::Throttled { retry_after: None }),
        ("503 Busy", "X-RateLimit-Limit: 10\r\n", FailureClass::Throttled { retry_after: None }),
        (
            "503 Busy",
            "X-Rate-Limit-Reset: 9\r\nRetry-After: 3\r\n",
            FailureClass::retry_after(Duration::from_secs(3)),
        ),
        ("429 Too Many", "Retry-After: 0\r\n", FailureClass::Throttled { retry_after: None }),
        (
            "429 Too Many",
            "Retry-After: Fri, 06 Nov 2020 08:49:37 GMT\r\n",
            FailureClass::Throttled { retry_after: None },
        ),
        (
            "503 Busy",
            "Retry-After: 0\r\nRateLimit-Remaining: 0\r\n",
            FailureClass::Throttled { retry_after: None },
        ),
        ("503 Busy", "", FailureClass::Transient),
        ("500 Oops", "RateLimit-Remaining: 0\r\n", FailureClass::Transient),
    ] {
        let attempt = answered(response(reply, headers, "")).await;
        assert_eq!(attempt.failure(), Some(class), "{reply} {headers}");
    }
    let attempt = answered(response("200 OK", "X-RateLimit-Remaining: 7\r\n", "")).await;
    let kept = attempt.response.unwrap().headers;
    assert!(kept.contains(&("x-ratelimit-remaining".to_owned(), "7".to_owned())), "{kept:?}");
    assert!(attempt.failed.is_none());
}

#[tokio::test]
async fn a_silent_receiver_times_out() {
    let began = Instant::now();
    let attempt = answered(Vec::new()).await;
    let timeout = Failed::Timeout { waiting_for: Phase::Response, limit_ms: 4000 };
    assert_eq!((attempt.failed, attempt.response), (Some(timeout), None));
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_receiver_that_drips_its_head_times_out() {
    let drip = |text: &str| text.bytes().map(|byte| (Duration::from_millis(300), vec![byte])).collect();
    let attempt = answered(drip("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")).await;
    assert_eq!(attempt.failure(), Some(FailureClass::Timeout), "{attempt:?}");
}

#[tokio::test]
async fn a_receiver_that_drips_its_body_is_a_success_with_a_cut_body() {
    let mut pieces = at_once("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n");
    pieces.extend(std::iter::repeat_n((Duration::from_secs(1), b"x".to_vec()), 60));
    let began = Instant::now();
    let attempt = answered(pieces).await;
    assert!(attempt.is_success() && attempt.response.unwrap().is_cut);
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

#[tokio::test]
async fn closed_connections_and_invalid_http_are_failures() {
    let long_head = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    let many_headers = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(500));
    for nonsense in [
        "SSH-2.0-OpenSSH_9.2\r\n",
        "\0\0\0\0\0\0\0\0\r\n\r\n",
        "HTTP/1.1 abc\r\n\r\n",
        &long_head,
        &many_headers,
    ] {
        let attempt = answered(at_once(nonsense)).await;
        assert!(matches!(attempt.failed, Some(Failed::Broken { .. })), "{nonsense:.20}: {attempt:?}");
        assert_eq!(attempt.failure(), Some(FailureClass::Transient));
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            one_request(&mut stream).await; // then closes the connection
        }
    });
    let attempt = send_to(&client().build().unwrap(), &format!("http://{address}/")).await;
    assert!(matches!(attempt.failed, Some(Failed::Broken { .. })), "{attempt:?}");
}

#[tokio::test]
async fn only_the_first_bytes_of_a_huge_response_are_read() {
    let mut pieces = at_once("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    let chunk = format!("100000\r\n{}\r\n", "x".repeat(1 << 20)).into_bytes();
    pieces.extend(std::iter::repeat_n((Duration::ZERO, chunk), 1000));
    let attempt = answered(pieces).await;
    let response = attempt.response.unwrap();
    assert_eq!((response.body.len(), response.is_cut), (MAX_BODY, true));
}

#[tokio::test]
async fn compressed_bodies_are_not_decompressed() {
    // Stands for a decompression bomb.
    let bomb = "\u{1f}x\u{8}bomb";
    let attempt = answered(response("200 OK", "Content-Encoding: gzip\r\n", bomb)).await;
    assert_eq!(attempt.response.unwrap().body, bomb.as_bytes());
}

#[tokio::test]
async fn refused_connections_and_unresolved_names_are_failures() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let attempt = send_to(&client().build().unwrap(), &format!("http://{address}/")).await;
    assert!(matches!(attempt.failed, Some(Failed::Connect { .. })), "{attempt:?}");
    let nowhere =
        client().resolver(|_, _| async { Err(std::io::Error::other("no such name")) }).build().unwrap();
    let attempt = send_to(&nowhere, "https://nowhere.example/").await;
    assert_eq!(attempt.failed, Some(Failed::Resolve { why: "no such name".into() }));
    let empty = client().resolver(|_, _| async { Ok(Vec::new()) }).build().unwrap();
    assert!(matches!(send_to(&empty, "https://empty.example/").await.failed, Some(Failed::Resolve { .. })));
}

#[tokio::test]
async fn nothing_is_sent_to_a_forbidden_address_in_any_spelling() {
    let (address, _heard, connections) = receiver(response("200 OK", "", "")).await;
    let port = address.port();
    // Loopback in every spelling, and names that resolve to it.
    let strict = Client::builder()
        .allow_plain()
        .resolver(move |_, port| async move { Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))]) });
    let strict = strict.build().unwrap();
    for host in [
        "127.0.0.1",
        "127.1",
        "0x7f.1",
        "2130706433",
        "0177.1",
        "[::ffff:127.0.0.1]",
        "localhost",
        "innocent.example",
    ] {
        let url = format!("http://{host}:{port}/");
        let attempt = send_to(&strict, &url).await;
        assert!(matches!(attempt.failed, Some(Failed::Forbidden { .. })), "{host}: {attempt:?}");
        let at_creation = strict.check(&url.parse().unwrap()).await;
        assert!(matches!(at_creation, Err(Failed::Forbidden { .. })), "{host}: {at_creation:?}");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 0);
}

/// The name is public at creation, and private at sending (DNS rebinding).
#[tokio::test]
async fn dns_rebinding_is_detected_at_connect() {
    let (address, _heard, connections) = receiver(response("200 OK", "Connection: close\r\n", "")).await;
    let asked = Arc::new(AtomicUsize::new(0));
    let answers: [&[&str]; 3] = [&["127.0.0.1"], &["10.0.0.7"], &["127.0.0.1", "::1"]];
    let counted = Arc::clone(&asked);
    let rebinding = client().resolver(move |_, port| {
        let addresses = answers[counted.fetch_add(1, Ordering::SeqCst).min(2)];
        async move {
            Ok(addresses.iter().map(|address| SocketAddr::new(address.parse().unwrap(), port)).collect())
        }
    });
    let rebinding = rebinding.build().unwrap();
    let url = format!("http://rebinding.example:{}/", address.port());
    assert!(send_to(&rebinding, &url).await.is_success());
    for _ in 0..2 {
        let attempt = send_to(&rebinding, &url).await;
        assert!(matches!(attempt.failed, Some(Failed::Forbidden { .. })), "{attempt:?}");
    }
    assert_eq!((asked.load(Ordering::SeqCst), connections.load(Ordering::SeqCst)), (3, 1));
}

#[tokio::test]
async fn public_addresses_require_https() {
    let public =
        Client::builder().resolver(|_, port| async move { Ok(vec![SocketAddr::from(([8, 8, 8, 8], port))]) });
    let public = public.build().unwrap();
    let Some(Failed::Forbidden { why }) = send_to(&public, "http://plain.example/").await.failed else {
        panic!("the request was sent")
    };
    assert!(why.contains("use https"), "{why}");
    assert_eq!(public.check(&"https://tls.example/".parse().unwrap()).await, Ok(()));
}

#[tokio::test]
async fn a_failed_tls_handshake_sends_no_request() {
    // The receiver answers the handshake with plain HTTP.
    let (address, mut requests, _) = receiver(at_once("HTTP/1.1 400 Bad Request\r\n\r\n")).await;
    let attempt = send_to(&client().build().unwrap(), &format!("https://{address}/")).await;
    assert!(attempt.response.is_none() && !attempt.is_success(), "{attempt:?}");
    assert!(requests.try_recv().is_err(), "no request was sent");
}
