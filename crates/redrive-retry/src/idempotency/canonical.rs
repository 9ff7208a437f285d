//! Canonical JSON: no white space, object keys sorted at every level.
//!
//! Equal parameters give equal bytes in any order. NaN and infinity are refused: `serde_json` would write `null`, and two
//! different calls would share a key.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde::ser::{self, Serializer};

use super::KeyError;

/// Maximum nesting depth, as in the parser of `serde_json`.
const MAX_DEPTH: usize = 128;

/// Serialises a value to at most `limit` canonical bytes.
pub(super) fn to_bytes(value: &impl Serialize, limit: usize) -> Json {
    value.serialize(Canonical { depth: 0, limit })
}

/// Canonical JSON of a value.
type Json = Result<Vec<u8>, KeyError>;

/// Serialiser of one value, `depth` levels below the root.
#[derive(Copy, Clone)]
struct Canonical {
    depth: usize,
    limit: usize,
}

impl Canonical {
    /// Writes a value that contains no others like `serde_json`.
    fn scalar<T: Serialize + ?Sized>(self, value: &T) -> Json {
        let mut json = Vec::new();
        serde_json::to_writer(&mut json, value).map_err(|e| KeyError::Value(e.to_string()))?;
        self.within(json.len())?;
        Ok(json)
    }

    fn float(self, is_finite: bool, value: &impl Serialize) -> Json {
        if is_finite { self.scalar(value) } else { Err(KeyError::NotFinite) }
    }

    fn within(self, size: usize) -> Result<(), KeyError> {
        if size > self.limit { Err(KeyError::TooLarge { limit: self.limit }) } else { Ok(()) }
    }

    fn deeper(self) -> Result<Self, KeyError> {
        if self.depth == MAX_DEPTH {
            return Err(KeyError::TooDeep);
        }
        Ok(Canonical { depth: self.depth + 1, ..self })
    }

    fn list(self, variant: Option<&'static str>) -> Result<List, KeyError> {
        Ok(List { inner: self.deeper()?, variant, json: vec![b'['] })
    }

    fn object(self, variant: Option<&'static str>) -> Result<Object, KeyError> {
        Ok(Object { inner: self.deeper()?, variant, key: Vec::new(), entries: BTreeMap::new(), size: 0 })
    }

    /// Wraps the contents of an enum variant as `{"variant":contents}`.
    fn close(self, variant: Option<&'static str>, mut json: Vec<u8>) -> Json {
        if let Some(variant) = variant {
            json = [b"{", self.scalar(variant)?.as_slice(), b":", &json, b"}"].concat();
        }
        self.within(json.len())?;
        Ok(json)
    }
}

macro_rules! scalars {
    ($($method:ident($type:ty)),+) => {
        $(fn $method(self, value: $type) -> Json { self.scalar(&value) })+
    };
}

impl Serializer for Canonical {
    type Ok = Vec<u8>;
    type Error = KeyError;
    type SerializeSeq = List;
    type SerializeTuple = List;
    type SerializeTupleStruct = List;
    type SerializeTupleVariant = List;
    type SerializeMap = Object;
    type SerializeStruct = Object;
    type SerializeStructVariant = Object;

    scalars!(
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
        serialize_bool(bool),
        serialize_char(char),
        serialize_str(&str),
        serialize_bytes(&[u8])
    );

    fn serialize_f32(self, value: f32) -> Json {
        self.float(value.is_finite(), &(value + 0.0)) // as f32: its shortest text differs from that of the f64
    }

    fn serialize_f64(self, value: f64) -> Json {
        self.float(value.is_finite(), &(value + 0.0)) // -0.0 + 0.0 is 0.0: one zero, one key
    }

    fn serialize_none(self) -> Json {
        self.scalar(&())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Json {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Json {
        self.scalar(&())
    }

    fn serialize_unit_struct(self, _name: &'static str) -> Json {
        self.scalar(&())
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Json {
        self.scalar(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Json {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Json {
        self.close(Some(variant), value.serialize(self.deeper()?)?)
    }

    fn serialize_seq(self, _len: Option<usize>) -> Result<List, KeyError> {
        self.list(None)
    }

    fn serialize_tuple(self, _len: usize) -> Result<List, KeyError> {
        self.list(None)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<List, KeyError> {
        self.list(None)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<List, KeyError> {
        self.list(Some(variant))
    }

    fn serialize_map(self, _len: Option<usize>) -> Result<Object, KeyError> {
        self.object(None)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Object, KeyError> {
        self.object(None)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Object, KeyError> {
        self.object(Some(variant))
    }
}

struct List {
    inner: Canonical,
    variant: Option<&'static str>,
    json: Vec<u8>,
}

impl List {
    fn element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), KeyError> {
        if self.json.len() > 1 {
            self.json.push(b',');
        }
        self.json.extend(value.serialize(self.inner)?);
        self.inner.within(self.json.len())
    }

    fn close(mut self) -> Json {
        self.json.push(b']');
        self.inner.close(self.variant, self.json)
    }
}

/// Collects entries until the end, because they are written in the order of their keys.
struct Object {
    inner: Canonical,
    variant: Option<&'static str>,
    key: Vec<u8>,
    entries: BTreeMap<Vec<u8>, Vec<u8>>,
    size: usize,
}

impl Object {
    fn key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), KeyError> {
        let json = key.serialize(self.inner)?;
        self.key = match json.first() {
            Some(b'"') => json,
            Some(b'[' | b'{' | b'n') | None => return Err(KeyError::KeyNotText),
            // Numbers and booleans as keys are written as text, like in serde_json.
            Some(_) => [b"\"", json.as_slice(), b"\""].concat(),
        };
        Ok(())
    }

    fn value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), KeyError> {
        let json = value.serialize(self.inner)?;
        self.size += self.key.len() + json.len();
        self.inner.within(self.size)?;
        match self.entries.insert(std::mem::take(&mut self.key), json) {
            Some(_) => Err(KeyError::KeyTwice),
            None => Ok(()),
        }
    }

    fn close(self) -> Json {
        let mut json = vec![b'{'];
        for (key, value) in self.entries {
            if json.len() > 1 {
                json.push(b',');
            }
            json.extend(key);
            json.push(b':');
            json.extend(value);
        }
        json.push(b'}');
        self.inner.close(self.variant, json)
    }
}

macro_rules! list_trait {
    ($($trait:ident::$method:ident),+) => {
        $(impl ser::$trait for List {
            type Ok = Vec<u8>;
            type Error = KeyError;
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), KeyError> {
                self.element(value)
            }
            fn end(self) -> Json {
                self.close()
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
        $(impl ser::$trait for Object {
            type Ok = Vec<u8>;
            type Error = KeyError;
            fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), KeyError> {
                self.key(key)?;
                self.value(value)
            }
            fn end(self) -> Json {
                self.close()
            }
        })+
    };
}

struct_trait!(SerializeStruct, SerializeStructVariant);

impl ser::SerializeMap for Object {
    type Ok = Vec<u8>;
    type Error = KeyError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), KeyError> {
        self.key(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), KeyError> {
        self.value(value)
    }

    fn end(self) -> Json {
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
