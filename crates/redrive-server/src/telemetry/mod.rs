//! Traces and metrics for a collector, by OTLP over HTTP, if one is configured.
//!
//! Nothing waits for a collector. Spans are gathered in a queue of fixed length by a thread of their own, and left out when it is full;
//! metrics are a look at what is counted anyway. A collector that is away is named in the log once, and once more when it is back.

mod args;
mod collector;
mod event_spans;
mod measures;
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
use uuid::Uuid;

pub(crate) use self::args::TelemetryArgs;
use self::collector::Collector;
pub(crate) use self::event_spans::EventSpans;
pub(crate) use self::request_spans::RequestSpans;
use crate::api::Family;

/// Who made the spans and the metrics.
const SCOPE: &str = "redrive";

/// What is counted, by whichever service.
pub(crate) trait Measured: Send + Sync + 'static {
    /// Everything that is counted, also if the store cannot be asked, or was closed.
    fn families(&self) -> impl Future<Output = Vec<Family>> + Send;
}

/// What is sent to a collector, and what it is made of.
#[derive(Debug)]
pub(crate) struct Telemetry {
    collector: Arc<Collector>,
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    resource: Resource,
    /// How often metrics are sent.
    every: Duration,
    /// Since when they are counted.
    since: SystemTime,
}

impl Telemetry {
    fn new(
        collector: Collector,
        name: &str,
        service: Option<&str>,
        every: Duration,
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
        Telemetry { collector, provider, tracer, resource, every, since: SystemTime::now() }
    }

    /// Turns the spans of attempts at events into such for the collector.
    pub(crate) fn event_spans(&self) -> EventSpans {
        EventSpans::new(self.tracer.clone())
    }

    /// Makes a span for every request.
    pub(crate) fn request_spans(&self) -> RequestSpans {
        RequestSpans::new(self.tracer.clone())
    }

    /// Sends metrics now and then, for as long as it is polled.
    pub(crate) async fn measure(self: Arc<Self>, measured: Arc<impl Measured>) {
        loop {
            tokio::time::sleep(self.every).await;
            self.send_metrics(measured.as_ref()).await;
        }
    }

    async fn send_metrics(&self, measured: &impl Measured) {
        let families = measured.families().await;
        let message = measures::message(&families, &self.resource, self.since, SystemTime::now());
        self.collector.take_metrics(&message).await;
    }

    /// Sends what has gathered, or gives it up after this time.
    pub(crate) async fn finish(&self, measured: &impl Measured, within: Duration) {
        let provider = self.provider.clone();
        let flushed = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(within));
        let both = async { tokio::join!(flushed, self.send_metrics(measured)) };
        // Who did not take it in is in the log.
        let _ = tokio::time::timeout(within, both).await;
    }
}

/// Where a span belongs that goes on from one of somebody else's.
fn under(trace: TraceId, span: SpanId, is_sampled: bool) -> Context {
    let flags = if is_sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
    Context::new().with_remote_span_context(SpanContext::new(trace, span, flags, true, TraceState::default()))
}

/// Who we are: what the settings say before what the variables of the standard say before what is so by itself.
fn resource(name: &str, service: Option<&str>) -> Resource {
    let resource = Resource::builder_empty()
        .with_attributes([
            KeyValue::new("service.name", name.to_owned()),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            // Several processes may share a database, and none of them counts for the others.
            KeyValue::new("service.instance.id", Uuid::new_v4().to_string()),
        ])
        .with_detectors(&[Box::new(TelemetryResourceDetector), Box::new(EnvResourceDetector::new())]);
    match service {
        Some(name) => resource.with_service_name(name.to_owned()).build(),
        None => resource.build(),
    }
}

/// Hands spans over to the collector. Called on a thread of its own, which may wait.
#[derive(Debug)]
struct Exporter {
    collector: Arc<Collector>,
    resource: Resource,
    /// Where sockets are served.
    runtime: Handle,
}

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let (collector, resource) = (Arc::clone(&self.collector), (&self.resource).into());
        let sent = self.runtime.spawn(async move { collector.take_spans(batch, &resource).await });
        match sent.await {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(OTelSdkError::InternalFailure("not taken in".to_owned())),
        }
    }
}
