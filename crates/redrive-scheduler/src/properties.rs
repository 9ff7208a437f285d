//! Properties and typed headers of a broker message.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::payload::Payload;

/// Headers by name.
pub type Headers = BTreeMap<String, HeaderValue>;

/// Properties and headers of a message, independent of the broker. A property that a broker does not have is `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Properties {
    /// Media type of the body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Compression of the body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_encoding: Option<String>,
    /// Message id set by the sender.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// Correlation id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// Queue for replies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<String>,
    /// Time to live, as set by the sender. Not restored on republication.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiration: Option<String>,
    /// Time of creation, as Unix time in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<u64>,
    /// AMQP `type` of the message.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// User that sent it, validated by the broker. Moved to a header on republication.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_id: Option<String>,
    /// Application that sent it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_id: Option<String>,
    /// Priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// 2 if the message is persistent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery_mode: Option<u8>,
    /// Application headers.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: Headers,
}

impl Properties {
    /// Replaces NUL characters in texts by U+FFFD, because databases refuse them. Bytes are unchanged.
    #[must_use]
    pub(crate) fn without_nul(mut self) -> Self {
        for text in [
            &mut self.content_type,
            &mut self.content_encoding,
            &mut self.message_id,
            &mut self.correlation_id,
            &mut self.reply_to,
            &mut self.expiration,
            &mut self.kind,
            &mut self.user_id,
            &mut self.app_id,
        ] {
            text.iter_mut().for_each(replace_nul);
        }
        replace_nul_in(&mut self.headers);
        self
    }

    /// A header as text, if it is present and is text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.as_text()
    }

    /// A header as a number, if it is present and numeric, or numeric text.
    pub fn number(&self, name: &str) -> Option<i64> {
        self.headers.get(name)?.as_number()
    }
}

/// Header value with its AMQP type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeaderValue {
    /// True or false.
    Bool(bool),
    /// 8 bits, signed.
    I8(i8),
    /// 8 bits.
    U8(u8),
    /// 16 bits, signed.
    I16(i16),
    /// 16 bits.
    U16(u16),
    /// 32 bits, signed.
    I32(i32),
    /// 32 bits.
    U32(u32),
    /// 64 bits, signed.
    I64(i64),
    /// Single-precision float, stored as bits because JSON has no NaN.
    F32(Bits<u32>),
    /// Double-precision float, stored as bits because JSON has no NaN.
    F64(Bits<u64>),
    /// Decimal: scale and unscaled value.
    Decimal(u8, u32),
    /// Text of up to 255 bytes.
    Short(String),
    /// Long string: text, or bytes if it is not UTF-8.
    Long(Payload),
    /// Array of values.
    Array(Vec<HeaderValue>),
    /// Unix time in seconds.
    Timestamp(u64),
    /// Nested table.
    Table(Headers),
    /// Bytes.
    Bytes(Payload),
    /// No value.
    Void,
}

/// Bits of a float.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bits<T> {
    /// The bits.
    pub bits: T,
}

/// Replaces NUL characters, which databases refuse, by U+FFFD.
pub(crate) fn replace_nul(text: &mut String) {
    if text.contains('\0') {
        *text = text.replace('\0', "\u{fffd}");
    }
}

fn replace_nul_in(headers: &mut Headers) {
    if headers.keys().any(|name| name.contains('\0')) {
        let renamed = std::mem::take(headers).into_iter();
        *headers = renamed.map(|(name, value)| (name.replace('\0', "\u{fffd}"), value)).collect();
    }
    headers.values_mut().for_each(HeaderValue::replace_nul);
}

/// Approximate size of headers on the wire, in bytes.
pub(crate) fn headers_size(headers: &Headers) -> usize {
    headers.iter().map(|(name, value)| name.len() + 1 + value.size()).sum::<usize>() + 4
}

impl HeaderValue {
    /// Approximate size on the wire, in bytes.
    pub(crate) fn size(&self) -> usize {
        match self {
            HeaderValue::Short(text) => text.len() + 2,
            HeaderValue::Long(Payload::Text(text) | Payload::Base64(text))
            | HeaderValue::Bytes(Payload::Text(text) | Payload::Base64(text)) => text.len() + 5,
            HeaderValue::Array(values) => values.iter().map(HeaderValue::size).sum::<usize>() + 5,
            HeaderValue::Table(headers) => headers_size(headers) + 1,
            _ => 9,
        }
    }

    fn replace_nul(&mut self) {
        match self {
            HeaderValue::Short(text) => replace_nul(text),
            HeaderValue::Array(values) => values.iter_mut().for_each(HeaderValue::replace_nul),
            HeaderValue::Table(headers) => replace_nul_in(headers),
            _ => {}
        }
    }

    /// A text value.
    pub fn text(text: impl Into<String>) -> Self {
        HeaderValue::Long(Payload::of(text.into().into_bytes()))
    }

    /// The value as text, if it is text.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            HeaderValue::Short(text) | HeaderValue::Long(Payload::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The value as a number, if it is numeric or numeric text.
    pub fn as_number(&self) -> Option<i64> {
        match self {
            HeaderValue::I8(number) => Some(i64::from(*number)),
            HeaderValue::U8(number) => Some(i64::from(*number)),
            HeaderValue::I16(number) => Some(i64::from(*number)),
            HeaderValue::U16(number) => Some(i64::from(*number)),
            HeaderValue::I32(number) => Some(i64::from(*number)),
            HeaderValue::U32(number) => Some(i64::from(*number)),
            HeaderValue::I64(number) => Some(*number),
            HeaderValue::Timestamp(number) => i64::try_from(*number).ok(),
            other => other.as_text()?.trim().parse().ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_types_round_trip_through_json() {
        let headers: Headers = [
            HeaderValue::Bool(true),
            HeaderValue::I8(-8),
            HeaderValue::U8(8),
            HeaderValue::I16(-16),
            HeaderValue::U16(16),
            HeaderValue::I32(-32),
            HeaderValue::U32(32),
            HeaderValue::I64(i64::MIN),
            HeaderValue::F32(Bits { bits: f32::NAN.to_bits() }),
            HeaderValue::F64(Bits { bits: 1.5_f64.to_bits() }),
            HeaderValue::Decimal(2, 314),
            HeaderValue::Short("short".into()),
            HeaderValue::text("long"),
            HeaderValue::text("with \0 in it"),
            HeaderValue::Array(vec![HeaderValue::Void, HeaderValue::I8(1)]),
            HeaderValue::Timestamp(1_700_000_000),
            HeaderValue::Table([("inner".to_owned(), HeaderValue::U8(1))].into()),
            HeaderValue::Bytes(Payload::of(vec![0, 255])),
            HeaderValue::Void,
        ]
        .into_iter()
        .enumerate()
        .map(|(index, value)| (index.to_string(), value))
        .collect();
        let properties = Properties { headers, kind: Some("order".into()), ..Properties::default() };
        let json = serde_json::to_string(&properties).unwrap();
        assert!(!json.contains("\\u0000"), "databases refuse NUL: {json}");
        assert_eq!(serde_json::from_str::<Properties>(&json).unwrap(), properties);
    }

    #[test]
    fn nul_characters_are_replaced_in_all_texts() {
        let inner: Headers = [("i\0n".to_owned(), HeaderValue::Short("\0".into()))].into();
        let values = vec![HeaderValue::Table(inner), HeaderValue::text("a\0b")];
        let properties = Properties {
            kind: Some("a\0b".into()),
            headers: [("list".to_owned(), HeaderValue::Array(values))].into(),
            ..Properties::default()
        };
        let clean = properties.without_nul();
        let json = serde_json::to_string(&clean).unwrap();
        assert!(!json.contains("\\u0000"), "{json}");
        assert_eq!(clean.kind.as_deref(), Some("a\u{fffd}b"));
        let untouched = Properties { kind: Some("order".into()), ..Properties::default() };
        assert_eq!(untouched.clone().without_nul(), untouched);
    }

    #[test]
    fn numbers_of_every_width_are_read() {
        for value in [HeaderValue::I8(3), HeaderValue::U32(3), HeaderValue::I64(3), HeaderValue::text(" 3 ")]
        {
            assert_eq!(value.as_number(), Some(3));
        }
        assert_eq!(HeaderValue::text("three").as_number(), None);
        assert_eq!(HeaderValue::Bool(true).as_number(), None);
    }
}
