//! A collector, and whether it takes in what it gets.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, Method, Request, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::trace::SpanData;
use prost::Message;
use rustls::pki_types::CertificateDer;

use crate::failure::Failure;
use crate::https::{self, HttpsClient};

/// How long it may take to take something in. What it does not take in is not sent again: there is more to come.
const PATIENCE: Duration = Duration::from_secs(10);

/// So much of an answer is read, to use the connection again. Longer ones end it.
const LONGEST_ANSWER: usize = 64 << 10;

const AGENT: &str = concat!("Redrive/", env!("CARGO_PKG_VERSION"));

pub(super) struct Collector {
    /// As it is named in the log.
    url: String,
    traces: Uri,
    metrics: Uri,
    headers: HeaderMap,
    http: HttpsClient<Full<Bytes>>,
    /// So that it is said once, and not every few seconds.
    is_away: AtomicBool,
}

impl Collector {
    pub(super) fn new(
        url: &str,
        headers: HeaderMap,
        authorities: Vec<CertificateDer<'static>>,
    ) -> Result<Self, Failure> {
        let at = |path: &str| {
            format!("{url}{path}").parse::<Uri>().map_err(|error| Failure::Usage(format!("{url}: {error}")))
        };
        Ok(Collector {
            url: url.to_owned(),
            traces: at("/v1/traces")?,
            metrics: at("/v1/metrics")?,
            headers,
            http: https::client(authorities)?,
            is_away: AtomicBool::new(false),
        })
    }

    /// Says whether it has them now.
    pub(super) async fn take_spans(
        &self,
        spans: Vec<SpanData>,
        resource: &ResourceAttributesWithSchema,
    ) -> bool {
        let resource_spans = group_spans_by_resource_and_scope(spans, resource);
        self.take(&self.traces, &ExportTraceServiceRequest { resource_spans }).await
    }

    /// Says whether it has them now.
    pub(super) async fn take_metrics(&self, message: &ExportMetricsServiceRequest) -> bool {
        self.take(&self.metrics, message).await
    }

    async fn take(&self, to: &Uri, message: &impl Message) -> bool {
        let sent = tokio::time::timeout(PATIENCE, self.send(to, message.encode_to_vec())).await;
        let why = match sent {
            Ok(Ok(())) => None,
            Ok(Err(why)) => Some(why),
            Err(_) => Some(format!("it has not answered for {} seconds", PATIENCE.as_secs())),
        };
        let was_away = self.is_away.swap(why.is_some(), Ordering::Relaxed);
        match &why {
            Some(why) if !was_away => tracing::warn!(
                target: "redrive::telemetry",
                collector = self.url,
                why,
                "traces and metrics are left out, because the collector does not take them in; events are not concerned"
            ),
            None if was_away => {
                tracing::info!(target: "redrive::telemetry", collector = self.url, "the collector takes them in again");
            }
            _ => {}
        }
        why.is_none()
    }

    async fn send(&self, to: &Uri, body: Vec<u8>) -> Result<(), String> {
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = to.clone();
        let headers = request.headers_mut();
        headers.extend(self.headers.clone());
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static(AGENT));
        let response = self.http.request(request).await.map_err(|error| https::cause(&error))?;
        let status = response.status();
        let _ = Limited::new(response.into_body(), LONGEST_ANSWER).collect().await; // the status has said it
        if status.is_success() { Ok(()) } else { Err(format!("it answered {status}")) }
    }
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collector").field("url", &self.url).finish_non_exhaustive()
    }
}
