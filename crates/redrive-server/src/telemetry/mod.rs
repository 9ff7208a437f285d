//! Exports traces and metrics by OTLP over HTTP, if a collector is configured.
//!
//! Nothing waits for the collector. A background thread batches spans from a bounded queue and drops them when it is full; metrics
//! are snapshots of the counters. An unreachable collector is logged once, and once more when it is back.

mod args;
mod collector;
mod event_spans;
mod https;
mod otlp;
mod request_spans;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::resource::{EnvResourceDetector, TelemetryResourceDetector};
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, SpanData, SpanExporter};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use uuid::Uuid;

pub use self::args::TelemetryArgs;
use self::collector::Collector;
pub(crate) use self::event_spans::EventSpans;
pub(crate) use self::request_spans::RequestSpans;
use crate::metric_family::Family;

/// Instrumentation scope of spans and metrics.
const SCOPE: &str = "redrive";

/// Maximum time at shutdown to send buffered telemetry; less if the shutdown deadline comes first.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Service with metrics to export.
pub(crate) trait MetricSource: Send + Sync + 'static {
    /// All metrics; without those of the store if it is unavailable or closed.
    fn families(&self) -> impl Future<Output = Vec<Family>> + Send;
}

/// Exporter of spans and metrics.
#[derive(Debug)]
pub(crate) struct Telemetry {
    collector: Arc<Collector>,
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    resource: Resource,
    metrics_interval: Duration,
    /// Start of the accumulation of the counters.
    since: SystemTime,
}

impl Telemetry {
    fn new(
        collector: Collector,
        name: &str,
        service: Option<&str>,
        metrics_interval: Duration,
        runtime: &Handle,
    ) -> Self {
        let (collector, resource) = (Arc::new(collector), resource(name, service));
        let exporter = Exporter {
            collector: Arc::clone(&collector),
            resource: resource.clone(),
            runtime: runtime.clone(),
        };
        let provider = SdkTracerProvider::builder()
            .with_resource(resource.clone())
            .with_batch_exporter(exporter)
            .build();
        let tracer = provider.tracer(SCOPE);
        Telemetry { collector, provider, tracer, resource, metrics_interval, since: SystemTime::now() }
    }

    /// Layer that exports the spans of delivery attempts.
    pub(crate) fn event_spans(&self) -> EventSpans {
        EventSpans::new(self.tracer.clone())
    }

    /// Factory of a span per HTTP request.
    pub(crate) fn request_spans(&self) -> RequestSpans {
        RequestSpans::new(self.tracer.clone())
    }

    /// Exports the metrics of `source` at every interval until [`MetricExport::finish`].
    pub(crate) fn export_metrics<S: MetricSource>(self, source: Arc<S>) -> MetricExport<S> {
        let telemetry = Arc::new(self);
        let (exporter, metrics) = (Arc::clone(&telemetry), Arc::clone(&source));
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(exporter.metrics_interval).await;
                exporter.send_metrics(metrics.as_ref()).await;
            }
        });
        MetricExport { telemetry, source, task }
    }

    async fn send_metrics(&self, source: &impl MetricSource) {
        let families = source.families().await;
        let message = otlp::message(&families, &self.resource, self.since, SystemTime::now());
        self.collector.send_metrics(&message).await;
    }
}

/// Running export of a service's metrics.
pub(crate) struct MetricExport<S> {
    telemetry: Arc<Telemetry>,
    source: Arc<S>,
    task: JoinHandle<()>,
}

impl<S: MetricSource> MetricExport<S> {
    /// Sends buffered spans and the last metrics; drops them at the deadline.
    pub(crate) async fn finish(self, deadline: Instant) {
        self.task.abort();
        let timeout = deadline.saturating_duration_since(Instant::now()).min(FLUSH_TIMEOUT);
        let provider = self.telemetry.provider.clone();
        let flushed = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(timeout));
        let both = async { tokio::join!(flushed, self.telemetry.send_metrics(self.source.as_ref())) };
        // The collector logs a failed export.
        let _ = tokio::time::timeout(timeout, both).await;
    }
}

/// Context whose parent is a remote span.
fn parent_context(trace: TraceId, span: SpanId, is_sampled: bool) -> Context {
    let flags = if is_sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
    Context::new().with_remote_span_context(SpanContext::new(trace, span, flags, true, TraceState::default()))
}

/// Resource attributes of this process: settings override the standard variables, which override the defaults.
fn resource(name: &str, service: Option<&str>) -> Resource {
    let resource = Resource::builder_empty()
        .with_attributes([
            KeyValue::new("service.name", name.to_owned()),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            // Processes that share a database have separate counters.
            KeyValue::new("service.instance.id", Uuid::new_v4().to_string()),
        ])
        .with_detectors(&[Box::new(TelemetryResourceDetector), Box::new(EnvResourceDetector::new())]);
    match service {
        Some(name) => resource.with_service_name(name.to_owned()).build(),
        None => resource.build(),
    }
}

/// Passes batches of spans to the collector. Called on the batch processor's own thread.
#[derive(Debug)]
struct Exporter {
    collector: Arc<Collector>,
    resource: Resource,
    /// Drives the sockets.
    runtime: Handle,
}

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let (collector, resource) = (Arc::clone(&self.collector), (&self.resource).into());
        let sent = self.runtime.spawn(async move { collector.send_spans(batch, &resource).await });
        match sent.await {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => {
                Err(OTelSdkError::InternalFailure("the collector did not accept the spans".to_owned()))
            }
        }
    }
}
