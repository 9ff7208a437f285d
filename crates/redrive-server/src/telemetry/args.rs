//! Flags for telemetry: collector, headers, service name and interval.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use clap::Args;
use percent_encoding::percent_decode_str;
use redrive_api::client::ServerUrl;
use redrive_retry::duration::parse_duration;
use rustls::pki_types::CertificateDer;
use tokio::runtime::Handle;

use super::Telemetry;
use super::collector::Collector;
use crate::failure::Failure;
use crate::hidden_text::HiddenText;

/// Standard variable with headers as `name=value`, separated by commas.
const STANDARD_HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";

/// Flags for telemetry.
#[derive(Debug, Args)]
#[command(next_help_heading = "Telemetry")]
pub struct TelemetryArgs {
    /// Send traces and metrics to this collector by OTLP over HTTP, such as http://127.0.0.1:4318 [default:
    /// OTEL_EXPORTER_OTLP_ENDPOINT, or none]
    #[arg(long, value_name = "URL", value_parser = collector_url)]
    otlp_endpoint: Option<ServerUrl>,
    /// Send this header to the collector, such as 'authorization: Bearer …'; repeatable. Keep tokens in the environment
    /// [default: OTEL_EXPORTER_OTLP_HEADERS]
    #[arg(long, value_name = "NAME: VALUE", hide_env_values = true)]
    otlp_header: Vec<HiddenText>,
    /// Service name reported to the collector [default: OTEL_SERVICE_NAME, or redrive; SERVICE_NAME for the scheduler]
    #[arg(long, value_name = "NAME")]
    otlp_service_name: Option<String>,
    /// Interval between two metric exports
    #[arg(long, value_name = "DURATION", value_parser = parse_interval, default_value = "60s")]
    otlp_interval: Duration,
}

impl TelemetryArgs {
    /// Starts telemetry if a collector is configured. `name` is the default service name; `authorities` are trusted for the
    /// collector's certificate; `runtime` drives the connections.
    pub(crate) fn start(
        &self,
        name: &str,
        authorities: Vec<CertificateDer<'static>>,
        runtime: &Handle,
    ) -> Result<Option<Telemetry>, Failure> {
        let headers = self.headers()?;
        let is_off = std::env::var("OTEL_SDK_DISABLED").is_ok_and(|text| text.eq_ignore_ascii_case("true"));
        let Some(url) = self.otlp_endpoint.as_ref().filter(|_| !is_off) else { return Ok(None) };
        let collector = Collector::new(&url.to_string(), headers, authorities)?;
        let service = self.otlp_service_name.as_deref();
        Ok(Some(Telemetry::new(collector, name, service, self.otlp_interval, runtime)))
    }

    /// Warns if the environment asks for an OTLP protocol other than http/protobuf.
    pub(crate) fn warn_unsupported_protocol(&self) {
        let requested = std::env::var("OTEL_EXPORTER_OTLP_PROTOCOL").unwrap_or_default();
        if self.otlp_endpoint.is_some() && !matches!(requested.as_str(), "" | "http/protobuf") {
            tracing::warn!(
                target: "redrive::telemetry",
                requested,
                "ignoring OTEL_EXPORTER_OTLP_PROTOCOL: only http/protobuf is supported, usually on port 4318"
            );
        }
    }

    /// Headers for the collector. Errors never contain a value, which may be a token.
    pub fn headers(&self) -> Result<HeaderMap, Failure> {
        if self.otlp_header.is_empty() {
            let text = std::env::var(STANDARD_HEADERS).unwrap_or_default();
            let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
            return pairs.map(standard_header).collect();
        }
        self.otlp_header.iter().map(given_header).collect()
    }
}

fn given_header(text: &HiddenText) -> Result<(HeaderName, HeaderValue), Failure> {
    let parsed = text.0.split_once(':').and_then(|(name, value)| header(name, value));
    parsed
        .ok_or_else(|| Failure::Usage("otlp_header: use a text such as 'authorization: Bearer …'".to_owned()))
}

fn standard_header(pair: &str) -> Result<(HeaderName, HeaderValue), Failure> {
    let parsed = pair.split_once('=').and_then(|(name, value)| {
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
        header(name, &value)
    });
    parsed.ok_or_else(|| Failure::Usage(format!("{STANDARD_HEADERS}: use name=value, separated by commas")))
}

fn header(name: &str, value: &str) -> Option<(HeaderName, HeaderValue)> {
    let mut value = HeaderValue::try_from(value.trim()).ok()?;
    value.set_sensitive(true);
    Some((HeaderName::try_from(name.trim()).ok()?, value))
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text).map_err(|error| error.to_string())?;
    let is_sane = (Duration::from_millis(100)..=Duration::from_secs(86_400)).contains(&interval);
    if is_sane { Ok(interval) } else { Err("use 100ms to 24h".to_owned()) }
}

/// Parses the base URL of a collector, without `/v1/traces` and `/v1/metrics`. Credentials in it would be logged and never sent.
fn collector_url(text: &str) -> Result<ServerUrl, String> {
    let usage = "use the address of a collector for OTLP over HTTP, such as http://127.0.0.1:4318";
    text.parse().map_err(|_| usage.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_parsed_and_never_shown() {
        let text = HiddenText::from("Authorization: Bearer s3cret".to_owned());
        let (name, value) = given_header(&text).unwrap();
        assert_eq!((name.as_str(), value.to_str().unwrap()), ("authorization", "Bearer s3cret"));
        assert!(!format!("{text:?} {value:?}").contains("s3cret"));
        for bad in ["s3cret", "two words: s3cret", "a: s3\ncret"] {
            let failure = given_header(&HiddenText(bad.to_owned())).unwrap_err();
            assert!(!format!("{failure:?}").contains("s3"), "{failure:?}");
        }
        let (name, value) = standard_header("api-key=a%20b").unwrap();
        assert_eq!((name.as_str(), value.to_str().unwrap()), ("api-key", "a b"));
        assert!(standard_header("s3cret").is_err());
    }

    #[test]
    fn a_collector_url_is_http_without_credentials() {
        for good in ["http://127.0.0.1:4318", "https://otlp.example.com/", "https://example.com/otlp"] {
            assert!(collector_url(good).is_ok(), "{good}");
        }
        for bad in ["", "localhost:4318", "grpc://x", "https://anna:pw@example.com", "https://x/?token=y"] {
            assert!(collector_url(bad).unwrap_err().contains("such as"), "{bad}");
        }
    }
}
