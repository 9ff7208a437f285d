//! The message contract `RetryMessage`: decoding of protobuf and JSON, and encoding.

use base64::Engine as _;
use base64::engine::general_purpose::{GeneralPurpose, STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use prost::Message as _;
use serde::Deserialize;
use serde_json::Value;

use crate::strict;

/// Code generated from `retry_message.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/redrive.scheduler.rs"));
}

pub use self::generated::RetryMessage;

/// Maximum length of message ids and queue names in bytes: the limit of AMQP short strings.
pub const MAX_NAME_BYTES: usize = 255;

/// Maximum value of `retry_count` and `max_retries`.
pub const MAX_RETRIES: i32 = 10_000;

/// A delivery is not a valid `RetryMessage`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Not a `RetryMessage` in protobuf.
    #[error("not a RetryMessage in protobuf: {why}")]
    Protobuf {
        /// The reason.
        why: String,
    },
    /// Not a `RetryMessage` in JSON.
    #[error("not a RetryMessage in JSON: {why}")]
    Json {
        /// The reason.
        why: String,
    },
    /// A field is missing or out of range.
    #[error("{field} {why}")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// The reason.
        why: String,
    },
    /// The content type is neither protobuf nor JSON.
    #[error(
        "the content type {content_type:?} is not that of a RetryMessage, and there is no x-death header: send \
         application/x-protobuf or application/json"
    )]
    ContentType {
        /// The content type.
        content_type: String,
    },
    /// The `x-death` header names no usable queue.
    #[error("it was dead-lettered, but its x-death header names no queue to republish it to")]
    NoOrigin,
}

impl RetryMessage {
    /// Decodes protobuf. Unknown fields are ignored; wrong wire types and numbers out of range are errors.
    pub fn from_protobuf(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::decode_protobuf(bytes).map(|(message, _)| message)
    }

    /// Decodes protobuf and counts the unknown fields.
    pub(crate) fn decode_protobuf(bytes: &[u8]) -> Result<(Self, usize), DecodeError> {
        let unknown = strict::check(bytes).map_err(|why| DecodeError::Protobuf { why })?;
        let message =
            RetryMessage::decode(bytes).map_err(|error| DecodeError::Protobuf { why: error.to_string() })?;
        Ok((message.checked()?, unknown))
    }

    /// Decodes JSON: field names in snake case or camel case, bytes in base64, numbers as numbers or text.
    pub fn from_json(bytes: &[u8]) -> Result<Self, DecodeError> {
        // Serde would accept an array as the fields in order.
        if bytes.trim_ascii_start().first() != Some(&b'{') {
            return Err(json("it is not an object".to_owned()));
        }
        let form: JsonForm = serde_json::from_slice(bytes).map_err(|error| json(error.to_string()))?;
        let message = RetryMessage {
            message_id: form.message_id.unwrap_or_default(),
            original_payload: decode_base64(&form.original_payload.unwrap_or_default())
                .ok_or_else(|| json("original_payload is not base64".into()))?,
            original_queue: form.original_queue.unwrap_or_default(),
            error_reason: form.error_reason.unwrap_or_default(),
            retry_count: number("retry_count", form.retry_count.as_ref())?,
            max_retries: number("max_retries", form.max_retries.as_ref())?,
            next_retry_at_ms: number("next_retry_at_ms", form.next_retry_at_ms.as_ref())?,
        };
        message.checked()
    }

    /// Encodes as JSON, with field names in snake case.
    pub fn to_json(&self) -> String {
        serde_json::json!({
            "message_id": self.message_id,
            "original_payload": STANDARD.encode(&self.original_payload),
            "original_queue": self.original_queue,
            "error_reason": self.error_reason,
            "retry_count": self.retry_count,
            "max_retries": self.max_retries,
            // As in protobuf's JSON mapping: 64-bit numbers are text, because JavaScript cannot represent them.
            "next_retry_at_ms": self.next_retry_at_ms.to_string(),
        })
        .to_string()
    }

    /// Encodes as protobuf.
    pub fn to_protobuf(&self) -> Vec<u8> {
        self.encode_to_vec()
    }

    fn checked(self) -> Result<Self, DecodeError> {
        check_name("message_id", &self.message_id)?;
        check_name("original_queue", &self.original_queue)?;
        for (field, count) in [("retry_count", self.retry_count), ("max_retries", self.max_retries)] {
            if !(0..=MAX_RETRIES).contains(&count) {
                let why = format!("is {count}: it must be 0 to {MAX_RETRIES}");
                return Err(DecodeError::Field { field, why });
            }
        }
        Ok(self)
    }
}

/// Checks a message id or queue name: not empty, not too long, no NUL.
pub(crate) fn check_name(field: &'static str, name: &str) -> Result<(), DecodeError> {
    let why = if name.is_empty() {
        "is empty: it must be set".to_owned()
    } else if name.len() > MAX_NAME_BYTES {
        format!("has {} bytes: at most {MAX_NAME_BYTES} are allowed", name.len())
    } else if name.contains('\0') {
        "contains a NUL character".to_owned()
    } else {
        return Ok(());
    };
    Err(DecodeError::Field { field, why })
}

fn json(why: String) -> DecodeError {
    DecodeError::Json { why }
}

/// JSON fields before validation. `null` means unset, as in protobuf's JSON mapping.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonForm {
    #[serde(default, alias = "messageId")]
    message_id: Option<String>,
    #[serde(default, alias = "originalPayload")]
    original_payload: Option<String>,
    #[serde(default, alias = "originalQueue")]
    original_queue: Option<String>,
    #[serde(default, alias = "errorReason")]
    error_reason: Option<String>,
    #[serde(default, alias = "retryCount")]
    retry_count: Option<Value>,
    #[serde(default, alias = "maxRetries")]
    max_retries: Option<Value>,
    #[serde(default, alias = "nextRetryAtMs")]
    next_retry_at_ms: Option<Value>,
}

fn number<T: TryFrom<i64> + Default>(field: &'static str, value: Option<&Value>) -> Result<T, DecodeError> {
    let Some(value) = value else { return Ok(T::default()) };
    let number = match value {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    number
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| json(format!("{field} is not an integer in range")))
}

/// Decodes base64 with or without padding, in either alphabet.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    const FORMS: [GeneralPurpose; 4] = [STANDARD, URL_SAFE, STANDARD_NO_PAD, URL_SAFE_NO_PAD];
    FORMS.iter().find_map(|form| form.decode(text).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message() -> RetryMessage {
        RetryMessage {
            message_id: "m-1".into(),
            original_payload: vec![0, 1, 0xff],
            original_queue: "orders".into(),
            error_reason: "timed out".into(),
            retry_count: 2,
            max_retries: 3,
            next_retry_at_ms: 1_700_000_000_000,
        }
    }

    /// Literal bytes, so that the test notices a change of the contract.
    #[test]
    fn the_contract_has_the_specified_numbers() {
        let bytes =
            RetryMessage { original_payload: b"x".to_vec(), next_retry_at_ms: 5, ..message() }.to_protobuf();
        let expected =
            [&b"\x0a\x03m-1\x12\x01x\x1a\x06orders\x22\x09timed out"[..], &[0x28, 2, 0x30, 3, 0x38, 5]]
                .concat();
        assert_eq!(bytes, expected);
        assert_eq!(RetryMessage::from_protobuf(&expected).unwrap().retry_count, 2);
    }

    #[test]
    fn json_field_names_are_read_in_both_cases() {
        let snake = r#"{"message_id":"m","original_payload":"AAE","original_queue":"q","retry_count":"1",
            "next_retry_at_ms":"1700000000000","error_reason":null}"#;
        let camel = r#"{"messageId":"m","originalPayload":"AAE=","originalQueue":"q","retryCount":1,
            "nextRetryAtMs":1700000000000}"#;
        let read = RetryMessage::from_json(snake.as_bytes()).unwrap();
        assert_eq!(read, RetryMessage::from_json(camel.as_bytes()).unwrap());
        assert_eq!((&read.original_payload[..], read.next_retry_at_ms), (&[0, 1][..], 1_700_000_000_000));
    }

    #[test]
    fn departures_from_the_contract_are_named() {
        for (bad, why) in [
            (r#"{"message_id":"m","original_queue":"q","colour":"red"}"#, "unknown field `colour`"),
            (r#"{"message_id":"m","messageId":"n","original_queue":"q"}"#, "duplicate field"),
            (r#"{"message_id":7,"original_queue":"q"}"#, "expected a string"),
            (r#"{"message_id":"m","original_queue":"q","retry_count":1.5}"#, "retry_count is not an integer"),
            (r#"{"message_id":"m","original_queue":"q","retry_count":3000000000}"#, "in range"),
            (r#"{"message_id":"m","original_queue":"q","original_payload":"%"}"#, "not base64"),
            (r#"{"message_id":"m","original_queue":"q","retry_count":-1}"#, "retry_count is -1"),
            (
                r#"{"message_id":"m","original_queue":"q","max_retries":2000000000}"#,
                "max_retries is 2000000000",
            ),
            (r#"{"message_id":"","original_queue":"q"}"#, "message_id is empty"),
            (r#"{"message_id":"m"}"#, "original_queue is empty"),
            (r#"{"message_id":"m","original_queue":"a\u0000b"}"#, "NUL"),
            (r#"["m","AAE=","q"]"#, "not an object"),
            ("", "JSON"),
        ] {
            let error = RetryMessage::from_json(bad.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(why), "{bad}: {error}");
        }
        let long = RetryMessage { message_id: "x".repeat(256), ..message() };
        assert!(
            RetryMessage::from_protobuf(&long.to_protobuf()).unwrap_err().to_string().contains("at most 255")
        );
        let negative = RetryMessage { retry_count: -1, ..message() };
        assert!(RetryMessage::from_protobuf(&negative.to_protobuf()).is_err());
    }

    /// A newer sender may have more fields than this release knows.
    #[test]
    fn unknown_protobuf_fields_are_ignored_and_counted() {
        for more in
            [&[0x40, 1][..], &[0x42, 3, b'n', b'e', b'w'], &[0x45, 1, 2, 3, 4], &[0x43, 0x08, 1, 0x44]]
        {
            let bytes = [&message().to_protobuf(), more].concat();
            assert_eq!(RetryMessage::decode_protobuf(&bytes), Ok((message(), 1)), "{more:?}");
        }
        assert_eq!(RetryMessage::decode_protobuf(&message().to_protobuf()), Ok((message(), 0)));
    }

    fn messages() -> impl Strategy<Value = RetryMessage> {
        (
            "[^\0]{1,60}",
            any::<Vec<u8>>(),
            "[^\0]{1,60}",
            any::<String>(),
            0..=MAX_RETRIES,
            0..=MAX_RETRIES,
            any::<i64>(),
        )
            .prop_map(|(id, payload, queue, reason, count, max, next)| RetryMessage {
                message_id: id,
                original_payload: payload,
                original_queue: queue,
                error_reason: reason,
                retry_count: count,
                max_retries: max,
                next_retry_at_ms: next,
            })
    }

    proptest! {
        #[test]
        fn messages_round_trip(message in messages()) {
            prop_assert_eq!(&RetryMessage::from_protobuf(&message.to_protobuf()).unwrap(), &message);
            prop_assert_eq!(&RetryMessage::from_json(message.to_json().as_bytes()).unwrap(), &message);
        }

        #[test]
        fn decoding_never_panics(bytes: Vec<u8>) {
            let _ = RetryMessage::from_protobuf(&bytes);
            let _ = RetryMessage::from_json(&bytes);
        }

        #[test]
        fn decoding_a_damaged_message_never_panics(message in messages(), at: prop::sample::Index, byte: u8) {
            let mut bytes = message.to_protobuf();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let _ = RetryMessage::from_protobuf(&bytes);
            let _ = RetryMessage::from_protobuf(&bytes[..at]);
        }
    }
}
