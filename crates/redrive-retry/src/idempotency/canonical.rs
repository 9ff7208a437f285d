//! Canonical JSON: no white space, object keys sorted at every level.
//!
//! Equal parameters give equal bytes in any order. NaN and infinity are refused: `serde_json` would write `null`, and two
//! different calls would share a key.

use std::fmt;

use serde::Serialize;
use serde::ser::{self, Serializer};

use super::KeyError;

/// Deepest nesting, as in the parser of `serde_json`.
const MAX_DEPTH: usize = 128;

/// Serialises a value to at most `limit` canonical bytes.
pub(super) fn to_bytes(value: &impl Serialize, limit: usize) -> Result<Vec<u8>, KeyError> {
    let mut out = Vec::new();
    value.serialize(Canonical { out: &mut out, depth: 0, limit })?;
    Ok(out)
}

struct Canonical<'a> {
    out: &'a mut Vec<u8>,
    depth: usize,
    limit: usize,
}

impl<'a> Canonical<'a> {
    fn scalar(self, value: &impl Serialize) -> Result<(), KeyError> {
        serde_json::to_writer(&mut *self.out, value).map_err(|e| KeyError::Value(e.to_string()))?;
        within(self.out.len(), self.limit)
    }

    /// Writes a value whose `Display` form is its JSON form.
    fn display(self, value: impl fmt::Display) -> Result<(), KeyError> {
        self.out.extend_from_slice(value.to_string().as_bytes());
        within(self.out.len(), self.limit)
    }

    fn deeper(self) -> Result<Self, KeyError> {
        if self.depth == MAX_DEPTH {
            return Err(KeyError::TooDeep);
        }
        Ok(Canonical { depth: self.depth + 1, ..self })
    }

    fn list(self, close: &'static [u8]) -> Result<List<'a>, KeyError> {
        let into = self.deeper()?;
        into.out.push(b'[');
        Ok(List { into, first: true, close })
    }

    fn object(self, close: &'static [u8]) -> Result<Object<'a>, KeyError> {
        Ok(Object { into: self.deeper()?, entries: Vec::new(), key: Vec::new(), size: 0, close })
    }

    /// Writes `{"variant":` before the contents of an enum variant; the caller closes it.
    fn open_variant(&mut self, variant: &'static str) -> Result<(), KeyError> {
        self.out.push(b'{');
        Canonical { out: self.out, depth: self.depth, limit: self.limit }.scalar(&variant)?;
        self.out.push(b':');
        Ok(())
    }
}

fn within(size: usize, limit: usize) -> Result<(), KeyError> {
    if size > limit { Err(KeyError::TooLarge { limit }) } else { Ok(()) }
}

macro_rules! integers {
    ($($method:ident($type:ty)),+) => {
        $(fn $method(self, value: $type) -> Result<(), KeyError> { self.display(value) })+
    };
}

impl<'a> Serializer for Canonical<'a> {
    type Ok = ();
    type Error = KeyError;
    type SerializeSeq = List<'a>;
    type SerializeTuple = List<'a>;
    type SerializeTupleStruct = List<'a>;
    type SerializeTupleVariant = List<'a>;
    type SerializeMap = Object<'a>;
    type SerializeStruct = Object<'a>;
    type SerializeStructVariant = Object<'a>;

    integers!(
        serialize_i8(i8),
        serialize_i16(i16),
        serialize_i32(i32),
        serialize_i64(i64),
        serialize_i128(i128),
        serialize_u8(u8),
        serialize_u16(u16),
        serialize_u32(u32),
        serialize_u64(u64),
        serialize_u128(u128),
        serialize_bool(bool)
    );

    fn serialize_f32(self, value: f32) -> Result<(), KeyError> {
        if !value.is_finite() {
            return Err(KeyError::NotFinite);
        }
        self.scalar(&(value + 0.0)) // as f32: its shortest text differs from that of the f64
    }

    fn serialize_f64(self, value: f64) -> Result<(), KeyError> {
        if !value.is_finite() {
            return Err(KeyError::NotFinite);
        }
        self.scalar(&(value + 0.0)) // -0.0 + 0.0 is 0.0: one zero, one key
    }

    fn serialize_char(self, value: char) -> Result<(), KeyError> {
        self.scalar(&value)
    }

    fn serialize_str(self, value: &str) -> Result<(), KeyError> {
        self.scalar(&value)
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<(), KeyError> {
        self.scalar(&value)
    }

    fn serialize_none(self) -> Result<(), KeyError> {
        self.display("null")
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), KeyError> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), KeyError> {
        self.display("null")
    }

    fn serialize_unit_struct(self, _name: &'static str) -> Result<(), KeyError> {
        self.display("null")
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<(), KeyError> {
        self.scalar(&variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), KeyError> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        mut self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), KeyError> {
        self.open_variant(variant)?;
        let inner = self.deeper()?;
        value.serialize(Canonical { out: &mut *inner.out, depth: inner.depth, limit: inner.limit })?;
        inner.out.push(b'}');
        Ok(())
    }

    fn serialize_seq(self, _len: Option<usize>) -> Result<List<'a>, KeyError> {
        self.list(b"]")
    }

    fn serialize_tuple(self, _len: usize) -> Result<List<'a>, KeyError> {
        self.list(b"]")
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<List<'a>, KeyError> {
        self.list(b"]")
    }

    fn serialize_tuple_variant(
        mut self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<List<'a>, KeyError> {
        self.open_variant(variant)?;
        self.list(b"]}")
    }

    fn serialize_map(self, _len: Option<usize>) -> Result<Object<'a>, KeyError> {
        self.object(b"}")
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Object<'a>, KeyError> {
        self.object(b"}")
    }

    fn serialize_struct_variant(
        mut self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Object<'a>, KeyError> {
        self.open_variant(variant)?;
        self.object(b"}}")
    }
}

struct List<'a> {
    into: Canonical<'a>,
    first: bool,
    close: &'static [u8],
}

impl List<'_> {
    fn element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), KeyError> {
        if !std::mem::take(&mut self.first) {
            self.into.out.push(b',');
        }
        value.serialize(Canonical { out: self.into.out, depth: self.into.depth, limit: self.into.limit })
    }

    fn close(self) {
        self.into.out.extend_from_slice(self.close);
    }
}

/// Collects entries until the end, because they are written in the order of their keys.
struct Object<'a> {
    into: Canonical<'a>,
    entries: Vec<(Vec<u8>, Vec<u8>)>,
    key: Vec<u8>,
    size: usize,
    close: &'static [u8],
}

impl Object<'_> {
    fn key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), KeyError> {
        let mut text = Vec::new();
        key.serialize(Canonical { out: &mut text, depth: self.into.depth, limit: self.into.limit })?;
        self.key = match text.first() {
            Some(b'"') => text,
            Some(b'[' | b'{' | b'n') | None => return Err(KeyError::KeyNotText),
            // Numbers and booleans as keys are written as text, like in serde_json.
            Some(_) => [b"\"", text.as_slice(), b"\""].concat(),
        };
        Ok(())
    }

    fn value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), KeyError> {
        let mut text = Vec::new();
        value.serialize(Canonical { out: &mut text, depth: self.into.depth, limit: self.into.limit })?;
        self.size += self.key.len() + text.len();
        within(self.size, self.into.limit)?;
        self.entries.push((std::mem::take(&mut self.key), text));
        Ok(())
    }

    fn close(mut self) -> Result<(), KeyError> {
        self.entries.sort();
        if self.entries.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(KeyError::KeyTwice);
        }
        let out = self.into.out;
        out.push(b'{');
        for (index, (key, value)) in self.entries.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            out.extend_from_slice(key);
            out.push(b':');
            out.extend_from_slice(value);
        }
        out.extend_from_slice(self.close);
        within(out.len(), self.into.limit)
    }
}

macro_rules! list_trait {
    ($($trait:ident::$method:ident),+) => {
        $(impl ser::$trait for List<'_> {
            type Ok = ();
            type Error = KeyError;
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), KeyError> {
                self.element(value)
            }
            fn end(self) -> Result<(), KeyError> {
                self.close();
                Ok(())
            }
        })+
    };
}

list_trait!(
    SerializeSeq::serialize_element,
    SerializeTuple::serialize_element,
    SerializeTupleStruct::serialize_field,
    SerializeTupleVariant::serialize_field
);

macro_rules! struct_trait {
    ($($trait:ident),+) => {
        $(impl ser::$trait for Object<'_> {
            type Ok = ();
            type Error = KeyError;
            fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), KeyError> {
                self.key(key)?;
                self.value(value)
            }
            fn end(self) -> Result<(), KeyError> {
                self.close()
            }
        })+
    };
}

struct_trait!(SerializeStruct, SerializeStructVariant);

impl ser::SerializeMap for Object<'_> {
    type Ok = ();
    type Error = KeyError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), KeyError> {
        self.key(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), KeyError> {
        self.value(value)
    }

    fn end(self) -> Result<(), KeyError> {
        self.close()
    }
}

impl ser::Error for KeyError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        KeyError::Value(message.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use std::collections::{BTreeMap, HashMap};

    fn text(value: &impl Serialize) -> String {
        String::from_utf8(to_bytes(value, 1 << 20).unwrap()).unwrap()
    }

    #[test]
    fn keys_are_sorted_at_every_level() {
        let value = json!({"b": [{"z": 1, "a": null}], "a": {"y": true, "x": "é\n"}});
        assert_eq!(text(&value), r#"{"a":{"x":"é\n","y":true},"b":[{"a":null,"z":1}]}"#);
        let mixed: HashMap<u8, char> = (0..20).map(|n| (n, 'x')).collect();
        let sorted: BTreeMap<u8, char> = mixed.clone().into_iter().collect();
        assert_eq!(text(&mixed), text(&sorted));
    }

    #[test]
    fn every_serde_type_is_written_like_serde_json() {
        #[derive(Serialize)]
        enum Shape {
            Unit,
            Newtype(u8),
            Tuple(u8, bool),
            Struct { b: i128, a: Option<f32> },
        }
        #[derive(Serialize)]
        struct Marker;
        let value = (
            [Shape::Unit, Shape::Newtype(1), Shape::Tuple(2, true), Shape::Struct { b: -3, a: Some(0.1) }],
            Marker,
            ('c', (), f64::MIN_POSITIVE),
        );
        assert_eq!(
            text(&value),
            r#"[["Unit",{"Newtype":1},{"Tuple":[2,true]},{"Struct":{"a":0.1,"b":-3}}],null,["c",null,2.2250738585072014e-308]]"#
        );
    }

    #[test]
    fn nan_and_infinity_are_refused() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(to_bytes(&[value], 100), Err(KeyError::NotFinite));
            #[allow(clippy::cast_possible_truncation)]
            let single = value as f32;
            assert_eq!(to_bytes(&single, 100), Err(KeyError::NotFinite));
        }
        assert_eq!(text(&-0.0), text(&0.0));
        assert_eq!(to_bytes(&BTreeMap::from([(vec![1], 1)]), 100), Err(KeyError::KeyNotText));
        assert_eq!(to_bytes(&BTreeMap::from([((), 1)]), 100), Err(KeyError::KeyNotText));
        assert_eq!(to_bytes(&"x".repeat(101), 100), Err(KeyError::TooLarge { limit: 100 }));
        let many: BTreeMap<u32, u32> = (0..100).map(|n| (n, n)).collect();
        assert_eq!(to_bytes(&many, 100), Err(KeyError::TooLarge { limit: 100 }));
    }

    #[test]
    fn a_duplicate_key_is_refused() {
        struct Twice;
        impl Serialize for Twice {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_map([("a", 1), ("a", 2)])
            }
        }
        assert_eq!(to_bytes(&Twice, 100), Err(KeyError::KeyTwice));
    }

    #[test]
    fn too_deep_nesting_is_refused() {
        let nested = (0..200).fold(json!(1), |inner, _| json!([inner]));
        assert_eq!(to_bytes(&nested, 10_000), Err(KeyError::TooDeep));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (-1e15f64..1e15).prop_map(Value::from),
            ".{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                proptest::collection::hash_map(".{0,6}", inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// The bytes are JSON of an equal value, and canonicalising again gives equal bytes.
        #[test]
        fn canonical_bytes_parse_to_an_equal_value(value in any_json()) {
            let bytes = to_bytes(&value, 1 << 20).unwrap();
            let back: Value = serde_json::from_slice(&bytes).unwrap();
            prop_assert_eq!(to_bytes(&back, 1 << 20).unwrap(), bytes);
        }
    }
}
