//! What is kept of an attempt.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::attempt::{Attempt, Failed};

/// A body that takes more than this as JSON text is kept in base64, which never takes more.
const LARGEST_TEXT: usize = 96 << 10;

/// One attempt to deliver a message, for whoever looks at it later. It stands in the attempt's `detail`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// Where it went.
    pub url: String,
    /// What the receiver answered, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// How long until the answer began, or until it was clear that there is none.
    pub latency_ms: u64,
    /// Those headers of the answer that are kept.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The answer's body, as far as it was read, if it is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The same in base64, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
    /// Whether there was more of it, or it did not come in time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
    /// Why it is no success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<Failed>,
}

impl AttemptRecord {
    pub(crate) fn new(url: &str, attempt: &Attempt) -> Self {
        let answer = attempt.answer.as_ref();
        let (body, body_base64) = match answer.map(|answer| answer.body.as_slice()) {
            None | Some([]) => (None, None),
            Some(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) if written(text) <= LARGEST_TEXT => (Some(text.to_owned()), None),
                _ => (None, Some(STANDARD.encode(bytes))),
            },
        };
        AttemptRecord {
            url: url.to_owned(),
            status: answer.map(|answer| answer.status),
            latency_ms: u64::try_from(attempt.latency.as_millis()).unwrap_or(u64::MAX),
            headers: answer.map(|answer| answer.headers.iter().cloned().collect()).unwrap_or_default(),
            body,
            body_base64,
            is_cut: answer.is_some_and(|answer| answer.is_cut),
            failed: attempt.failed.clone(),
        }
    }
}

/// How many bytes a text takes as JSON, at most.
fn written(text: &str) -> usize {
    let long = |c: &char| c.is_control() || matches!(c, '"' | '\\');
    text.len() + text.chars().filter(long).count() * 5
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::attempt::Answer;

    fn record(body: Vec<u8>) -> AttemptRecord {
        let answer = Answer { status: 200, headers: Vec::new(), body, is_cut: false };
        let attempt = Attempt { latency: Duration::from_millis(7), answer: Some(answer), failed: None };
        AttemptRecord::new("https://example.com/", &attempt)
    }

    #[test]
    fn a_body_is_kept_as_text_if_it_is_one_and_never_too_large() {
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
