//! Converts NATS headers to [`Properties`] and back. NATS headers are text and may have several values each.

use async_nats::HeaderMap;
use async_nats::header::{HeaderName, HeaderValue as NatsValue, NATS_MESSAGE_ID};

use crate::classify::RETRY_MESSAGE;
use crate::header;
use crate::payload::Payload;
use crate::properties::{HeaderValue, Properties};
use crate::review_message::REVIEW_MESSAGE;
use crate::transport::Publication;

const CONTENT_TYPE: &str = "Content-Type";
const CONTENT_ENCODING: &str = "Content-Encoding";

/// Prefix of headers that the server interprets, such as rollup, which would remove other messages. They are not restored.
const RESERVED: &str = "nats-";

/// Converts from NATS.
pub(super) fn from_nats(headers: Option<&HeaderMap>) -> Properties {
    let mut properties = Properties::default();
    for (name, values) in headers.into_iter().flat_map(HeaderMap::iter) {
        let name: &str = name.as_ref();
        let first = || values.first().map(ToString::to_string);
        if name.eq_ignore_ascii_case(CONTENT_TYPE) {
            properties.content_type = first();
        } else if name.eq_ignore_ascii_case(CONTENT_ENCODING) {
            properties.content_encoding = first();
        } else {
            if name.eq_ignore_ascii_case(NATS_MESSAGE_ID.as_ref()) {
                properties.message_id = first();
            }
            let value = match &values[..] {
                [value] => HeaderValue::text(value.as_str()),
                several => HeaderValue::Array(
                    several.iter().map(|value| HeaderValue::text(value.as_str())).collect(),
                ),
            };
            properties.headers.insert(name.to_owned(), value);
        }
    }
    if properties.text(header::TYPE) == Some(RETRY_MESSAGE) {
        properties.kind = header::take_text(&mut properties, header::TYPE);
    }
    properties
}

/// Original subject named by a header. A review message names that of the message inside, so it has none itself.
pub(super) fn source(properties: &Properties) -> Option<String> {
    let is_review = properties.text(header::TYPE) == Some(REVIEW_MESSAGE);
    properties.text(header::ORIGINAL_QUEUE).filter(|_| !is_review).map(str::to_owned)
}

/// Converts to NATS. Headers that the server interprets are left out.
pub(super) fn to_nats(publication: &Publication) -> HeaderMap {
    let Properties { content_type, content_encoding, kind, headers, .. } = &publication.properties;
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        if is_reserved(name) {
            continue;
        }
        match value {
            HeaderValue::Array(values) => values.iter().for_each(|value| put(&mut map, name, &text(value))),
            value => put(&mut map, name, &text(value)),
        }
    }
    for (name, value) in
        [(CONTENT_TYPE, content_type), (CONTENT_ENCODING, content_encoding), (header::TYPE, kind)]
    {
        if let Some(value) = value {
            put(&mut map, name, value);
        }
    }
    map.insert(NATS_MESSAGE_ID, one_line(&publication.once));
    map
}

fn is_reserved(name: &str) -> bool {
    name.get(..RESERVED.len()).is_some_and(|start| start.eq_ignore_ascii_case(RESERVED))
}

/// Appends a header. An invalid name is left out.
fn put(map: &mut HeaderMap, name: &str, value: &str) {
    if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), one_line(value).parse::<NatsValue>()) {
        map.append(name, value);
    }
}

/// Replaces line breaks, which would end the header.
fn one_line(value: &str) -> String {
    value.replace(['\r', '\n'], " ")
}

/// Header value as text. Types that only other brokers have become JSON.
fn text(value: &HeaderValue) -> String {
    let lossy = |payload: &Payload| match payload.bytes() {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => String::new(),
    };
    match value {
        HeaderValue::Short(text) => text.clone(),
        HeaderValue::Long(payload) | HeaderValue::Bytes(payload) => lossy(payload),
        HeaderValue::Bool(value) => value.to_string(),
        other => match other.as_number() {
            Some(number) => number.to_string(),
            None => serde_json::to_string(other).unwrap_or_default(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publication(properties: Properties) -> Publication {
        Publication {
            id: "t".into(),
            once: "t.retry".into(),
            queue: "orders".into(),
            body: Vec::new(),
            properties,
        }
    }

    #[test]
    fn headers_round_trip_with_all_of_their_values() {
        let mut map = HeaderMap::new();
        map.insert("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        map.append("Customer", "anna");
        map.append("Customer", "bert");
        map.insert("content-type", "text/plain");
        map.insert("Nats-Msg-Id", "m-1");
        map.insert("Nats-Rollup", "all");
        map.insert("Nats-Expected-Last-Sequence", "7");
        let properties = from_nats(Some(&map));
        assert_eq!(properties.content_type.as_deref(), Some("text/plain"));
        assert_eq!(properties.message_id.as_deref(), Some("m-1"));
        let json = serde_json::to_string(&properties).unwrap();
        let read: Properties = serde_json::from_str(&json).unwrap();
        let back = to_nats(&publication(read));
        let values: Vec<_> = back.get_all("Customer").map(|value| value.as_str()).collect();
        assert_eq!(values, ["anna", "bert"]);
        assert_eq!(back.get("traceparent"), map.get("traceparent"));
        assert_eq!(back.get("Content-Type").map(|value| value.as_str()), Some("text/plain"));
        assert_eq!(back.get("Nats-Msg-Id").map(|value| value.as_str()), Some("t.retry"));
        assert_eq!(back.len(), 4, "headers that the server interprets are dropped: {back:?}");
    }

    #[test]
    fn typed_values_become_text_and_line_breaks_are_replaced() {
        let headers = [
            ("count".to_owned(), HeaderValue::I64(3)),
            ("yes".to_owned(), HeaderValue::Bool(true)),
            ("why".to_owned(), HeaderValue::text("one\r\ntwo: three")),
            ("bad name:".to_owned(), HeaderValue::text("x")),
            ("table".to_owned(), HeaderValue::Table([("a".to_owned(), HeaderValue::U8(1))].into())),
        ];
        let map = to_nats(&publication(Properties {
            headers: headers.into(),
            kind: Some("order".into()),
            ..Properties::default()
        }));
        let text = |name: &str| map.get(name).map(|value| value.as_str().to_owned()).unwrap_or_default();
        assert_eq!(
            (text("count"), text("yes"), text("why")),
            ("3".into(), "true".into(), "one  two: three".into())
        );
        assert_eq!(
            (text("table"), text("redrive-type")),
            (r#"{"table":{"a":{"u8":1}}}"#.into(), "order".into())
        );
        assert_eq!(map.len(), 6);
    }

    #[test]
    fn a_header_names_the_origin_except_on_review_messages() {
        let mut map = HeaderMap::new();
        map.insert(header::ORIGINAL_QUEUE, "orders");
        assert_eq!(source(&from_nats(Some(&map))).as_deref(), Some("orders"));
        map.insert(header::TYPE, RETRY_MESSAGE);
        assert_eq!(from_nats(Some(&map)).kind.as_deref(), Some(RETRY_MESSAGE));
        map.insert(header::TYPE, REVIEW_MESSAGE);
        assert_eq!(source(&from_nats(Some(&map))), None);
        assert_eq!(source(&from_nats(None)), None);
    }
}
