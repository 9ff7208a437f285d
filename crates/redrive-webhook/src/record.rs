//! JSON record of an attempt, stored in the attempt's `detail`.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::attempt::{Attempt, Failed};

/// A body whose JSON text would be longer is stored as base64, which never is.
const MAX_TEXT_BYTES: usize = 96 << 10;

/// Request URL, response and failure of one attempt, as stored and shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// URL of the request.
    pub url: String,
    /// HTTP status of the response, if one arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Time until the response began or the attempt failed.
    pub latency_ms: u64,
    /// The response headers that are kept.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The response body as far as it was read, if it is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The response body in base64, if it is not text or too long as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
    /// Whether the body was longer, or did not arrive in time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
    /// The failure, if the attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<Failed>,
}

impl AttemptRecord {
    pub(crate) fn new(url: &str, attempt: &Attempt) -> Self {
        let response = attempt.response.as_ref();
        let (body, body_base64) = match response.map(|response| response.body.as_slice()) {
            None | Some([]) => (None, None),
            Some(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) if max_json_len(text) <= MAX_TEXT_BYTES => (Some(text.to_owned()), None),
                _ => (None, Some(STANDARD.encode(bytes))),
            },
        };
        AttemptRecord {
            url: url.to_owned(),
            status: response.map(|response| response.status),
            latency_ms: u64::try_from(attempt.latency.as_millis()).unwrap_or(u64::MAX),
            headers: response.map(|response| response.headers.iter().cloned().collect()).unwrap_or_default(),
            body,
            body_base64,
            is_cut: response.is_some_and(|response| response.is_cut),
            failed: attempt.failed.clone(),
        }
    }
}

/// Upper bound of the length of a text as JSON.
fn max_json_len(text: &str) -> usize {
    let is_escaped = |c: &char| c.is_control() || matches!(c, '"' | '\\');
    text.len() + text.chars().filter(is_escaped).count() * 5
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::attempt::WebhookResponse;

    fn record(body: Vec<u8>) -> AttemptRecord {
        let response = WebhookResponse { status: 200, headers: Vec::new(), body, is_cut: false };
        let attempt = Attempt { latency: Duration::from_millis(7), response: Some(response), failed: None };
        AttemptRecord::new("https://example.com/", &attempt)
    }

    #[test]
    fn a_body_is_stored_as_text_or_base64_within_the_size_limit() {
        assert_eq!(record(b"ok".to_vec()).body.as_deref(), Some("ok"));
        assert_eq!(record(Vec::new()).body, None);
        assert_eq!(record(vec![0xff, 0xfe]).body_base64.as_deref(), Some("//4="));
        for worst in [vec![1_u8; 64 << 10], vec![0xff; 64 << 10], vec![b'x'; 64 << 10], vec![b'"'; 64 << 10]]
        {
            let record = record(worst);
            let written = serde_json::to_string(&record).unwrap();
            assert!(written.len() < 100 << 10, "{}", written.len());
            assert_eq!(serde_json::from_str::<AttemptRecord>(&written).unwrap(), record);
        }
    }
}
