//! Exports to a collector, which delay nothing.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{Metric, metric, number_data_point};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use redrive_api::endpoints::CreateEndpoint;
use redrive_api::retry::Retry;
use serde_json::json;

use crate::receiver::Receiver;
use crate::world::{JSON, TestDatabase, World, endpoint, event, to_json};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

/// OTLP collector that records spans and metrics.
#[derive(Clone)]
pub(crate) struct Collector {
    status: Arc<AtomicU16>,
    exports: Arc<Mutex<Exports>>,
}

#[derive(Default)]
struct Exports {
    requests: usize,
    headers: Vec<String>,
    resources: Vec<Resource>,
    spans: Vec<Span>,
    /// Of the last export.
    metrics: Vec<Metric>,
}

impl Collector {
    pub(crate) fn start() -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let collector = Collector { status: Arc::new(AtomicU16::new(200)), exports: Arc::default() };
        let own = collector.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let own = own.clone();
                std::thread::spawn(move || while own.serve_connection(&stream).is_some() {});
            }
        });
        (collector, url)
    }

    fn serve_connection(&self, stream: &TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream);
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
            match line.trim() {
                "" => break,
                line => lines.push(line.to_ascii_lowercase()),
            }
        }
        let length = lines.iter().find_map(|line| line.strip_prefix("content-length: "))?.parse().ok()?;
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let status = self.status.load(Ordering::SeqCst);
        let mut got = self.exports.lock().unwrap();
        got.requests += 1;
        if lines[0].starts_with("post /v1/traces ") {
            for all in ExportTraceServiceRequest::decode(&body[..]).unwrap().resource_spans {
                got.resources.extend(all.resource);
                got.spans.extend(all.scope_spans.into_iter().flat_map(|scope| scope.spans));
            }
        } else if lines[0].starts_with("post /v1/metrics ") {
            got.metrics.clear();
            for all in ExportMetricsServiceRequest::decode(&body[..]).unwrap().resource_metrics {
                got.resources.extend(all.resource);
                got.metrics.extend(all.scope_metrics.into_iter().flat_map(|scope| scope.metrics));
            }
        } else {
            panic!("{lines:?}");
        }
        got.headers.extend(lines);
        drop(got);
        let mut stream = stream;
        write!(
            stream,
            "HTTP/1.1 {status} X\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n"
        )
        .ok()
    }

    fn span(&self, name: &str) -> Span {
        let got = self.exports.lock().unwrap();
        let names: Vec<_> = got.spans.iter().map(|span| &span.name).collect();
        got.spans
            .iter()
            .find(|span| span.name == name)
            .unwrap_or_else(|| panic!("{name} in {names:?}"))
            .clone()
    }

    /// Names of all spans.
    pub(crate) fn span_names(&self) -> Vec<String> {
        self.exports.lock().unwrap().spans.iter().map(|span| span.name.clone()).collect()
    }

    /// Distinct service names.
    pub(crate) fn service_names(&self) -> Vec<String> {
        let got = self.exports.lock().unwrap();
        let mut names: Vec<_> =
            got.resources.iter().map(|resource| text(&resource.attributes, "service.name")).collect();
        names.sort();
        names.dedup();
        names
    }

    pub(crate) fn number(&self, name: &str) -> Option<i64> {
        let got = self.exports.lock().unwrap();
        let data = got.metrics.iter().find(|metric| metric.name == name)?.data.clone()?;
        let points = match data {
            metric::Data::Sum(sum) => sum.data_points,
            metric::Data::Gauge(gauge) => gauge.data_points,
            other => panic!("{other:?}"),
        };
        match points[0].value? {
            number_data_point::Value::AsInt(value) => Some(value),
            number_data_point::Value::AsDouble(value) => panic!("{value}"),
        }
    }
}

fn text(attributes: &[KeyValue], name: &str) -> String {
    let value =
        attributes.iter().find(|pair| pair.key == name).and_then(|pair| pair.value.as_ref()?.value.clone());
    match value {
        Some(any_value::Value::StringValue(text)) => text,
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        other => panic!("{name}: {other:?} in {attributes:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn serve(url: &str, more: &[&str]) -> World {
    let flags = ["--allow-range", "127.0.0.0/8", "--otlp-endpoint", url];
    TestDatabase::sqlite().serve(&[&flags[..], more].concat())
}

#[test]
fn the_callers_trace_continues_in_every_attempt() {
    let ((collector, url), receiver) = (Collector::start(), Receiver::new());
    let more = ["--otlp-header", "Authorization: Bearer t0ken", "--otlp-service-name", "shop"];
    let mut world = serve(&url, &more);
    receiver.respond_with(500);
    let retry = Some(Retry { base_delay_ms: Some(300), ..Retry::default() });
    world.create_endpoint(&CreateEndpoint { retry, ..endpoint(receiver.url(), "order.*") });
    let traceparent = format!("00-{TRACE}-{CALLER}-01");
    let body = to_json(&event("order.created", 7));
    world.send("POST", "/v1/events", &[JSON, ("traceparent", &traceparent)], &body).ok(202);
    // Not sampled by its caller.
    let unwanted = format!("00-{}-{CALLER}-00", TRACE.replace('4', "5"));
    world.send("POST", "/v1/events", &[JSON, ("traceparent", &unwanted)], &body).ok(202);
    world.until("both failed once", || receiver.received().len() >= 2);
    receiver.respond_with(200);
    world.until("both are done", || world.get("/metrics").body.contains("redrive_events_done_total 2"));
    world.signal("TERM");
    assert!(world.ended().success(), "{}", world.log());

    let request = collector.span("POST /v1/events");
    assert_eq!((hex(&request.trace_id), hex(&request.parent_span_id)), (TRACE.to_owned(), CALLER.to_owned()));
    assert_eq!(text(&request.attributes, "http.response.status_code"), "202");
    let got = collector.exports.lock().unwrap();
    let attempts: Vec<_> = got.spans.iter().filter(|span| span.name == "process order.created").collect();
    let outcomes: Vec<_> = attempts.iter().map(|span| text(&span.attributes, "redrive.outcome")).collect();
    assert!(outcomes.contains(&"retry".to_owned()) && outcomes.contains(&"done".to_owned()), "{outcomes:?}");
    for span in &attempts {
        assert_eq!(hex(&span.trace_id), TRACE, "{span:?}");
        assert_eq!(span.parent_span_id, request.span_id, "child of the request");
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
        assert!(text(&span.attributes, "redrive.subscription").starts_with("ep_"));
        let failed = span.status.as_ref().unwrap();
        let is_retry = text(&span.attributes, "redrive.outcome") == "retry";
        assert_eq!(is_retry, failed.code == 2 && failed.message.contains("500"), "{span:?}");
    }
    assert_eq!(
        got.spans.iter().filter(|span| span.name == "POST /v1/events").count(),
        1,
        "the unsampled request has no span"
    );
    assert!(got.headers.contains(&"authorization: bearer t0ken".to_owned()), "{:?}", got.headers);
    for resource in &got.resources {
        assert_eq!(text(&resource.attributes, "service.name"), "shop");
    }
    drop(got);
    assert_eq!(collector.number("redrive_events_done_total"), Some(2), "exported at shutdown");
    assert!(!world.log().contains("t0ken"));
}

#[test]
fn metrics_are_exported_at_intervals_with_queue_depth() {
    let (collector, url) = Collector::start();
    let world = TestDatabase::sqlite();
    // By the standard variables.
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str()),
        ("OTEL_RESOURCE_ATTRIBUTES", "service.name=by-standard,team=a"),
    ];
    let world = World::start_with(Arc::new(world), &["--otlp-interval", "100ms"], &variables);
    world.publish("order.created", &json!(1));
    world.until("it is exported", || collector.number("redrive_events_done_total") == Some(1));
    assert_eq!(collector.number("redrive_events_pending"), Some(0));
    let got = collector.exports.lock().unwrap();
    let resource = got.resources.last().unwrap();
    assert_eq!(
        (text(&resource.attributes, "service.name"), text(&resource.attributes, "team")),
        ("by-standard".to_owned(), "a".to_owned())
    );
    let times =
        got.metrics.iter().find(|metric| metric.name == "redrive_http_request_duration_seconds").unwrap();
    let Some(metric::Data::Histogram(times)) = &times.data else { panic!("{times:?}") };
    assert!(
        times.data_points.iter().all(|point| point.bucket_counts.len() == point.explicit_bounds.len() + 1)
    );
}

#[test]
fn an_unreachable_collector_delays_nothing() {
    let bind = || TcpListener::bind("127.0.0.1:0").unwrap();
    // One collector accepts connections and never responds, the other is down.
    let (silent, gone) = (bind(), bind());
    let addresses = [&silent, &gone].map(|listener| listener.local_addr().unwrap());
    drop(gone);
    for address in addresses {
        let receiver = Receiver::new();
        let more = ["--otlp-interval", "100ms", "--shutdown-timeout", "2s"];
        let mut world = serve(&format!("http://{address}"), &more);
        world.create_endpoint(&endpoint(receiver.url(), "order.*"));
        // More than the span queue holds.
        let many: Vec<_> = (0..3000).map(|n| event("order.created", n)).collect();
        world.post("/v1/events/batch", &many).ok(202);
        world.until("all are delivered", || receiver.received().len() >= 3000);
        world.until("all are done", || world.get("/metrics").body.contains("redrive_events_done_total 3000"));
        let began = Instant::now();
        world.signal("TERM");
        assert!(world.ended().success(), "{}", world.log());
        assert!(began.elapsed() < Duration::from_secs(20), "the shutdown waited for the collector");
    }
}

#[test]
fn collector_failures_and_recovery_are_logged_once() {
    let (collector, url) = Collector::start();
    collector.status.store(503, Ordering::SeqCst);
    let world = serve(&url, &["--otlp-interval", "100ms"]);
    world.until("ten exports have failed", || collector.exports.lock().unwrap().requests >= 10);
    let said = world.log();
    assert_eq!(said.matches("does not accept exports").count(), 1, "{said}");
    assert!(said.contains("503") && said.contains(&url), "{said}");
    collector.status.store(200, Ordering::SeqCst);
    world.until("the recovery is logged", || world.log().contains("accepts exports again"));
}
