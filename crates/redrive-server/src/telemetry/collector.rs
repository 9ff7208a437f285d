//! Sends spans and metrics to an OTLP collector over HTTP, and logs when it becomes unreachable and reachable again.

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

use super::https::{self, HttpsClient};
use crate::failure::Failure;

/// Timeout of one export. A failed export is dropped, not repeated.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Response body that is read to reuse the connection; a longer one closes it.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

const USER_AGENT: &str = concat!("Redrive/", env!("CARGO_PKG_VERSION"));

pub(super) struct Collector {
    /// For the log.
    url: String,
    traces: Uri,
    metrics: Uri,
    headers: HeaderMap,
    http: HttpsClient<Full<Bytes>>,
    /// Logged at changes only.
    is_unreachable: AtomicBool,
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
            is_unreachable: AtomicBool::new(false),
        })
    }

    /// Exports spans; returns whether the collector accepted them.
    pub(super) async fn send_spans(
        &self,
        spans: Vec<SpanData>,
        resource: &ResourceAttributesWithSchema,
    ) -> bool {
        let resource_spans = group_spans_by_resource_and_scope(spans, resource);
        self.export(&self.traces, &ExportTraceServiceRequest { resource_spans }).await
    }

    /// Exports metrics; returns whether the collector accepted them.
    pub(super) async fn send_metrics(&self, message: &ExportMetricsServiceRequest) -> bool {
        self.export(&self.metrics, message).await
    }

    async fn export(&self, to: &Uri, message: &impl Message) -> bool {
        let sent = tokio::time::timeout(EXPORT_TIMEOUT, self.post(to, message.encode_to_vec())).await;
        let why = match sent {
            Ok(Ok(())) => None,
            Ok(Err(why)) => Some(why),
            Err(_) => Some(format!("no response for {} seconds", EXPORT_TIMEOUT.as_secs())),
        };
        let was_unreachable = self.is_unreachable.swap(why.is_some(), Ordering::Relaxed);
        match &why {
            Some(why) if !was_unreachable => tracing::warn!(
                target: "redrive::telemetry",
                collector = self.url,
                why,
                "the collector does not accept exports: traces and metrics are dropped until it does; events are not affected"
            ),
            None if was_unreachable => {
                tracing::info!(target: "redrive::telemetry", collector = self.url, "the collector accepts exports again");
            }
            _ => {}
        }
        why.is_none()
    }

    async fn post(&self, to: &Uri, body: Vec<u8>) -> Result<(), String> {
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = to.clone();
        let headers = request.headers_mut();
        headers.extend(self.headers.clone());
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        let response = self.http.request(request).await.map_err(|error| https::cause(&error))?;
        let status = response.status();
        let _ = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await; // only the status matters
        if status.is_success() { Ok(()) } else { Err(format!("the collector answered {status}")) }
    }
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collector").field("url", &self.url).finish_non_exhaustive()
    }
}
