//! Flags for telemetry: collector, headers, service name and interval.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri};
use clap::Args;
use percent_encoding::percent_decode_str;
use redrive_retry::duration::parse_duration;
use rustls::pki_types::CertificateDer;
use tokio::runtime::Handle;

use super::Telemetry;
use super::collector::Collector;
use crate::failure::Failure;

/// Standard variable with headers as `name=value`, separated by commas.
const STANDARD_HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";

/// Flags for telemetry.
#[derive(Debug, Args)]
#[command(next_help_heading = "Telemetry")]
pub struct TelemetryArgs {
    /// Send traces and metrics to this collector by OTLP over HTTP, such as http://127.0.0.1:4318 [default:
    /// OTEL_EXPORTER_OTLP_ENDPOINT, or none]
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<CollectorUrl>,
    /// Send this header to the collector, such as 'authorization: Bearer …'; repeatable. Keep tokens in the environment
    /// [default: OTEL_EXPORTER_OTLP_HEADERS]
    #[arg(long, value_name = "NAME: VALUE", hide_env_values = true)]
    otlp_header: Vec<HeaderText>,
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
        let collector = Collector::new(&url.0, headers, authorities)?;
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
        self.otlp_header.iter().map(HeaderText::parse).collect()
    }
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

/// Base URL of a collector, without `/v1/traces` and `/v1/metrics`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CollectorUrl(String);

impl FromStr for CollectorUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let usage = "use the address of a collector for OTLP over HTTP, such as http://127.0.0.1:4318";
        let uri: Uri = text.parse().map_err(|_| usage.to_owned())?;
        let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
        // Credentials in the URL would be logged and never sent.
        let is_plain = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
        if !is_http || !is_plain || uri.query().is_some() {
            return Err(usage.to_owned());
        }
        Ok(CollectorUrl(text.trim_end_matches('/').to_owned()))
    }
}

/// Unparsed header. It may hold a token, so it is never shown, and it is parsed where no error repeats it.
#[derive(Clone)]
pub(crate) struct HeaderText(String);

impl HeaderText {
    fn parse(&self) -> Result<(HeaderName, HeaderValue), Failure> {
        let parsed = self.0.split_once(':').and_then(|(name, value)| header(name, value));
        parsed.ok_or_else(|| {
            Failure::Usage("otlp_header: use a text such as 'authorization: Bearer …'".to_owned())
        })
    }
}

impl FromStr for HeaderText {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(HeaderText(text.to_owned()))
    }
}

impl fmt::Debug for HeaderText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeaderText(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_parsed_and_never_shown() {
        let text: HeaderText = "Authorization: Bearer s3cret".parse().unwrap_or_else(|never| match never {});
        let (name, value) = text.parse().unwrap();
        assert_eq!((name.as_str(), value.to_str().unwrap()), ("authorization", "Bearer s3cret"));
        assert!(!format!("{text:?} {value:?}").contains("s3cret"));
        for bad in ["s3cret", "two words: s3cret", "a: s3\ncret"] {
            let failure = HeaderText(bad.to_owned()).parse().unwrap_err();
            assert!(!format!("{failure:?}").contains("s3"), "{failure:?}");
        }
        let (name, value) = standard_header("api-key=a%20b").unwrap();
        assert_eq!((name.as_str(), value.to_str().unwrap()), ("api-key", "a b"));
        assert!(standard_header("s3cret").is_err());
    }

    #[test]
    fn a_collector_url_is_http_without_credentials() {
        for good in ["http://127.0.0.1:4318", "https://otlp.example.com/", "https://example.com/otlp"] {
            assert!(good.parse::<CollectorUrl>().is_ok(), "{good}");
        }
        for bad in ["", "localhost:4318", "grpc://x", "https://anna:pw@example.com", "https://x/?token=y"] {
            assert!(bad.parse::<CollectorUrl>().unwrap_err().contains("such as"), "{bad}");
        }
    }
}
