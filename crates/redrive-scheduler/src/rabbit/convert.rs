//! Converts AMQP properties and headers to [`Properties`] and back, keeping types.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, ByteArray, DecimalValue, FieldArray, FieldTable, LongString, ShortString};

use crate::payload::Payload;
use crate::properties::{Bits, HeaderValue, Headers, Properties, headers_size};

/// Maximum nesting of headers. JSON readers stop at 128 levels, and each level here is two there.
const MAX_DEPTH: usize = 32;

/// Replaces values that are nested deeper.
const TOO_DEEP: &str = "(left out: nested deeper than 32 levels)";

/// Converts from AMQP. Values nested too deep are replaced by a note.
pub(super) fn from_amqp(properties: &BasicProperties) -> Properties {
    let text = |text: &Option<ShortString>| text.as_ref().map(ToString::to_string);
    Properties {
        content_type: text(properties.content_type()),
        content_encoding: text(properties.content_encoding()),
        message_id: text(properties.message_id()),
        correlation_id: text(properties.correlation_id()),
        reply_to: text(properties.reply_to()),
        expiration: text(properties.expiration()),
        timestamp: *properties.timestamp(),
        kind: text(properties.kind()),
        user_id: text(properties.user_id()),
        app_id: text(properties.app_id()),
        priority: *properties.priority(),
        delivery_mode: *properties.delivery_mode(),
        headers: properties.headers().as_ref().map(|table| from_table(table, MAX_DEPTH)).unwrap_or_default(),
    }
}

/// Converts to AMQP. Text too long for its field, which only an edit can produce, is left out.
pub(super) fn to_amqp(properties: &Properties) -> BasicProperties {
    let mut amqp = BasicProperties::default();
    let short =
        |text: &Option<String>| text.as_ref().and_then(|text| ShortString::try_new(text.as_str()).ok());
    macro_rules! set {
        ($($value:expr => $with:ident),* $(,)?) => {
            $(if let Some(value) = $value { amqp = amqp.$with(value); })*
        };
    }
    set!(
        short(&properties.content_type) => with_content_type,
        short(&properties.content_encoding) => with_content_encoding,
        short(&properties.message_id) => with_message_id,
        short(&properties.correlation_id) => with_correlation_id,
        short(&properties.reply_to) => with_reply_to,
        short(&properties.expiration) => with_expiration,
        properties.timestamp => with_timestamp,
        short(&properties.kind) => with_type,
        short(&properties.user_id) => with_user_id,
        short(&properties.app_id) => with_app_id,
        properties.priority => with_priority,
        properties.delivery_mode => with_delivery_mode,
    );
    if properties.headers.is_empty() { amqp } else { amqp.with_headers(to_table(&properties.headers)) }
}

fn from_table(table: &FieldTable, deeper: usize) -> Headers {
    table.inner().iter().map(|(name, value)| (name.to_string(), from_value(value, deeper))).collect()
}

fn to_table(headers: &Headers) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        if let Ok(name) = ShortString::try_new(name.as_str()) {
            table.insert(name, to_value(value));
        }
    }
    table
}

/// Converts a value with at most `deeper` further levels.
fn from_value(value: &AMQPValue, deeper: usize) -> HeaderValue {
    match value {
        AMQPValue::FieldArray(_) | AMQPValue::FieldTable(_) if deeper == 0 => HeaderValue::text(TOO_DEEP),
        AMQPValue::Boolean(value) => HeaderValue::Bool(*value),
        AMQPValue::ShortShortInt(value) => HeaderValue::I8(*value),
        AMQPValue::ShortShortUInt(value) => HeaderValue::U8(*value),
        AMQPValue::ShortInt(value) => HeaderValue::I16(*value),
        AMQPValue::ShortUInt(value) => HeaderValue::U16(*value),
        AMQPValue::LongInt(value) => HeaderValue::I32(*value),
        AMQPValue::LongUInt(value) => HeaderValue::U32(*value),
        AMQPValue::LongLongInt(value) => HeaderValue::I64(*value),
        AMQPValue::Float(value) => HeaderValue::F32(Bits { bits: value.to_bits() }),
        AMQPValue::Double(value) => HeaderValue::F64(Bits { bits: value.to_bits() }),
        AMQPValue::DecimalValue(DecimalValue { scale, value }) => HeaderValue::Decimal(*scale, *value),
        AMQPValue::ShortString(value) => HeaderValue::Short(value.to_string()),
        AMQPValue::LongString(value) => HeaderValue::Long(Payload::of(value.as_bytes().to_vec())),
        AMQPValue::FieldArray(values) => {
            HeaderValue::Array(values.as_slice().iter().map(|value| from_value(value, deeper - 1)).collect())
        }
        AMQPValue::Timestamp(value) => HeaderValue::Timestamp(*value),
        AMQPValue::FieldTable(table) => HeaderValue::Table(from_table(table, deeper - 1)),
        AMQPValue::ByteArray(value) => HeaderValue::Bytes(Payload::of(value.as_slice().to_vec())),
        AMQPValue::Void => HeaderValue::Void,
    }
}

fn to_value(value: &HeaderValue) -> AMQPValue {
    // Invalid base64, which only an edit can produce, becomes empty.
    let bytes = |payload: &Payload| payload.bytes().map(std::borrow::Cow::into_owned).unwrap_or_default();
    match value {
        HeaderValue::Bool(value) => AMQPValue::Boolean(*value),
        HeaderValue::I8(value) => AMQPValue::ShortShortInt(*value),
        HeaderValue::U8(value) => AMQPValue::ShortShortUInt(*value),
        HeaderValue::I16(value) => AMQPValue::ShortInt(*value),
        HeaderValue::U16(value) => AMQPValue::ShortUInt(*value),
        HeaderValue::I32(value) => AMQPValue::LongInt(*value),
        HeaderValue::U32(value) => AMQPValue::LongUInt(*value),
        HeaderValue::I64(value) => AMQPValue::LongLongInt(*value),
        HeaderValue::F32(value) => AMQPValue::Float(f32::from_bits(value.bits)),
        HeaderValue::F64(value) => AMQPValue::Double(f64::from_bits(value.bits)),
        HeaderValue::Decimal(scale, value) => {
            AMQPValue::DecimalValue(DecimalValue { scale: *scale, value: *value })
        }
        HeaderValue::Short(value) => match ShortString::try_new(value.as_str()) {
            Ok(short) => AMQPValue::ShortString(short),
            Err(_) => AMQPValue::LongString(LongString::from(value.as_str())),
        },
        HeaderValue::Long(value) => AMQPValue::LongString(LongString::from(bytes(value))),
        HeaderValue::Array(values) => {
            AMQPValue::FieldArray(FieldArray::from(values.iter().map(to_value).collect::<Vec<_>>()))
        }
        HeaderValue::Timestamp(value) => AMQPValue::Timestamp(*value),
        HeaderValue::Table(headers) => AMQPValue::FieldTable(to_table(headers)),
        HeaderValue::Bytes(value) => AMQPValue::ByteArray(ByteArray::from(bytes(value))),
        HeaderValue::Void => AMQPValue::Void,
    }
}

/// Approximate size of properties on the wire in bytes; they must fit into one frame.
pub(super) fn size(properties: &Properties) -> usize {
    let texts = [
        &properties.content_type,
        &properties.content_encoding,
        &properties.message_id,
        &properties.correlation_id,
        &properties.reply_to,
        &properties.kind,
        &properties.app_id,
    ];
    let texts: usize = texts.into_iter().flatten().map(|text| text.len() + 1).sum();
    texts + headers_size(&properties.headers) + 64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_and_header_types_round_trip() {
        let values = [
            AMQPValue::Boolean(true),
            AMQPValue::ShortShortInt(-1),
            AMQPValue::ShortShortUInt(1),
            AMQPValue::ShortInt(-2),
            AMQPValue::ShortUInt(2),
            AMQPValue::LongInt(-3),
            AMQPValue::LongUInt(3),
            AMQPValue::LongLongInt(-4),
            AMQPValue::Float(0.5),
            AMQPValue::Double(-0.25),
            AMQPValue::DecimalValue(DecimalValue { scale: 2, value: 314 }),
            AMQPValue::ShortString("short".into()),
            AMQPValue::LongString("long".into()),
            AMQPValue::LongString(LongString::from(vec![0, 0xff])),
            AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::Void, AMQPValue::LongInt(1)])),
            AMQPValue::Timestamp(1_700_000_000),
            AMQPValue::ByteArray(ByteArray::from(vec![0, 1])),
            AMQPValue::Void,
        ];
        let mut table = FieldTable::default();
        for (index, value) in values.into_iter().enumerate() {
            table.insert(index.to_string().into(), value);
        }
        let mut outer = table.clone();
        outer.insert("table".into(), AMQPValue::FieldTable(table));
        let amqp = BasicProperties::default()
            .with_content_type("text/plain".into())
            .with_content_encoding("gzip".into())
            .with_message_id("m".into())
            .with_correlation_id("c".into())
            .with_reply_to("r".into())
            .with_expiration("60000".into())
            .with_timestamp(7)
            .with_type("order".into())
            .with_user_id("guest".into())
            .with_app_id("shop".into())
            .with_priority(5)
            .with_delivery_mode(1)
            .with_headers(outer);
        let properties = from_amqp(&amqp);
        let json = serde_json::to_string(&properties).unwrap();
        let read: Properties = serde_json::from_str(&json).unwrap();
        assert_eq!(to_amqp(&read), amqp);
        assert!(size(&properties) > 200);
    }

    #[test]
    fn headers_nested_too_deep_are_replaced() {
        let nested = |levels: usize| {
            let mut value = AMQPValue::LongString("inside".into());
            for level in 0..levels {
                value = if level % 2 == 0 {
                    AMQPValue::FieldArray(FieldArray::from(vec![value, AMQPValue::Boolean(true)]))
                } else {
                    let mut table = FieldTable::default();
                    table.insert("in".into(), value);
                    AMQPValue::FieldTable(table)
                };
            }
            let mut headers = FieldTable::default();
            headers.insert("deep".into(), value);
            BasicProperties::default().with_headers(headers)
        };
        for (levels, is_whole) in [(MAX_DEPTH, true), (MAX_DEPTH + 1, false), (1000, false)] {
            let properties = from_amqp(&nested(levels));
            let json = serde_json::to_string(&properties).unwrap();
            assert_eq!(json.contains("inside"), is_whole, "{levels}: {json}");
            assert_eq!(json.contains(TOO_DEEP), !is_whole, "{levels}: {json}");
            assert_eq!(serde_json::from_str::<Properties>(&json).unwrap(), properties);
        }
    }

    #[test]
    fn texts_too_long_for_amqp_are_left_out() {
        let properties = Properties {
            correlation_id: Some("x".repeat(256)),
            headers: [
                ("y".repeat(256), HeaderValue::Void),
                ("short".to_owned(), HeaderValue::Short("z".repeat(256))),
            ]
            .into(),
            ..Properties::default()
        };
        let amqp = to_amqp(&properties);
        assert_eq!(*amqp.correlation_id(), None);
        assert_eq!(amqp.headers().as_ref().unwrap().inner().len(), 1, "a long value becomes a long string");
    }
}
