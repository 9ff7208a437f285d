//! What a message carries beside its body: properties, and headers with their types.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::payload::Payload;

/// Headers by name.
pub type Headers = BTreeMap<String, HeaderValue>;

/// What a message carries beside its body. Every broker has some of these; what it does not have is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Properties {
    /// What the body is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// How it is packed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_encoding: Option<String>,
    /// The id that its sender gave it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// To what it belongs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// Where an answer is expected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<String>,
    /// When it ends by itself, as its sender wrote it. Never restored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiration: Option<String>,
    /// When it was made, as Unix time in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<u64>,
    /// What kind of message it is.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Who has sent it, proved by the broker. Never restored; a copy stands in a header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_id: Option<String>,
    /// Which program has sent it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_id: Option<String>,
    /// How urgent it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// 2 if the broker is to keep it on disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery_mode: Option<u8>,
    /// The rest.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: Headers,
}

impl Properties {
    /// The same without NUL characters in any text, because no database would keep them: U+FFFD stands in their place. Bytes stay
    /// as they are.
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
            if let Some(text) = text.as_mut().filter(|text| text.contains('\0')) {
                *text = text.replace('\0', "\u{fffd}");
            }
        }
        if self.headers.iter().any(|(name, value)| name.contains('\0') || value.has_nul()) {
            self.headers = clean(self.headers);
        }
        self
    }

    /// A header as text, if it is there and is text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.as_text()
    }

    /// A header as a number, if it is there and is one, or text that is one.
    pub fn number(&self, name: &str) -> Option<i64> {
        self.headers.get(name)?.as_number()
    }
}

/// The value of a header, with the type it has on the wire.
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
    /// 32 bits with a point; as bits, because JSON has no NaN.
    F32(Bits<u32>),
    /// 64 bits with a point; as bits, for the same reason.
    F64(Bits<u64>),
    /// A number with a fixed point: the digits, and how many of them stand behind it.
    Decimal(u8, u32),
    /// Text of up to 255 bytes.
    Short(String),
    /// Text, or bytes where it is none.
    Long(Payload),
    /// Several values.
    Array(Vec<HeaderValue>),
    /// Unix time in seconds.
    Timestamp(u64),
    /// Values by name.
    Table(Headers),
    /// Bytes.
    Bytes(Payload),
    /// Nothing.
    Void,
}

/// A number with a point, by its bits.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bits<T> {
    /// The bits.
    pub bits: T,
}

fn clean(headers: Headers) -> Headers {
    headers.into_iter().map(|(name, value)| (name.replace('\0', "\u{fffd}"), value.without_nul())).collect()
}

/// About how many bytes headers take on the wire.
pub(crate) fn headers_size(headers: &Headers) -> usize {
    headers.iter().map(|(name, value)| name.len() + 1 + value.size()).sum::<usize>() + 4
}

impl HeaderValue {
    /// About how many bytes it takes on the wire.
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

    fn has_nul(&self) -> bool {
        match self {
            HeaderValue::Short(text) => text.contains('\0'),
            HeaderValue::Array(values) => values.iter().any(HeaderValue::has_nul),
            HeaderValue::Table(headers) => {
                headers.iter().any(|(name, value)| name.contains('\0') || value.has_nul())
            }
            _ => false,
        }
    }

    fn without_nul(self) -> Self {
        match self {
            HeaderValue::Short(text) => HeaderValue::Short(text.replace('\0', "\u{fffd}")),
            HeaderValue::Array(values) => {
                HeaderValue::Array(values.into_iter().map(HeaderValue::without_nul).collect())
            }
            HeaderValue::Table(headers) => HeaderValue::Table(clean(headers)),
            other => other,
        }
    }

    /// Text.
    pub fn text(text: impl Into<String>) -> Self {
        HeaderValue::Long(Payload::of(text.into().into_bytes()))
    }

    /// As text, if it is.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            HeaderValue::Short(text) | HeaderValue::Long(Payload::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// As a number, if it is one, or text that is one.
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
    fn every_type_of_header_is_kept_in_json() {
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
        .map(|(place, value)| (place.to_string(), value))
        .collect();
        let properties = Properties { headers, kind: Some("order".into()), ..Properties::default() };
        let json = serde_json::to_string(&properties).unwrap();
        assert!(!json.contains("\\u0000"), "no database would take it: {json}");
        assert_eq!(serde_json::from_str::<Properties>(&json).unwrap(), properties);
    }

    #[test]
    fn no_text_keeps_a_nul() {
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
    fn numbers_are_read_whatever_their_width() {
        for value in [HeaderValue::I8(3), HeaderValue::U32(3), HeaderValue::I64(3), HeaderValue::text(" 3 ")]
        {
            assert_eq!(value.as_number(), Some(3));
        }
        assert_eq!(HeaderValue::text("three").as_number(), None);
        assert_eq!(HeaderValue::Bool(true).as_number(), None);
    }
}
