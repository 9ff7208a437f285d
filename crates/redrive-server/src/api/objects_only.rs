//! A deserializer that accepts only a JSON object for a structure.
//!
//! The derived code of serde also accepts an array with the values in the order of the fields: `["order.created", {}]` would be an event.
//! No document promises that order, and a mistyped request must not mean something.

use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, MapAccess, SeqAccess, Unexpected, VariantAccess,
    Visitor,
};

/// Wraps a deserializer, and everything that it reads.
pub(super) struct ObjectsOnly<D>(pub(super) D);

/// Wraps the visitor of a value: of a structure, which refuses an array, or of any other value.
struct Value<V> {
    visitor: V,
    is_structure: bool,
}

fn any<V>(visitor: V) -> Value<V> {
    Value { visitor, is_structure: false }
}

fn structure<V>(visitor: V) -> Value<V> {
    Value { visitor, is_structure: true }
}

macro_rules! forward {
    ($($method:ident)*) => { $(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.0.$method(any(visitor))
        }
    )* };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for ObjectsOnly<D> {
    type Error = D::Error;

    forward! {
        deserialize_any deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128 deserialize_f32 deserialize_f64
        deserialize_char deserialize_str deserialize_string deserialize_bytes deserialize_byte_buf deserialize_option
        deserialize_unit deserialize_seq deserialize_map deserialize_identifier deserialize_ignored_any
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_struct(name, fields, structure(visitor))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_enum(name, variants, any(visitor))
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_unit_struct(name, any(visitor))
    }

    // The name passes through: it is how serde_json recognises a raw value.
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_newtype_struct(name, any(visitor))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_tuple(len, any(visitor))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_tuple_struct(name, len, any(visitor))
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

macro_rules! forward_values {
    ($($method:ident($value:ty))*) => { $(
        fn $method<E: serde::de::Error>(self, value: $value) -> Result<V::Value, E> {
            self.visitor.$method(value)
        }
    )* };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Value<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_structure { f.write_str("an object") } else { self.visitor.expecting(f) }
    }

    forward_values! {
        visit_bool(bool) visit_i64(i64) visit_i128(i128) visit_u64(u64) visit_u128(u128) visit_f64(f64) visit_char(char)
        visit_str(&str) visit_borrowed_str(&'de str) visit_string(String) visit_bytes(&[u8])
        visit_borrowed_bytes(&'de [u8]) visit_byte_buf(Vec<u8>)
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_some(ObjectsOnly(inner))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_newtype_struct(ObjectsOnly(inner))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, array: A) -> Result<V::Value, A::Error> {
        if self.is_structure {
            return Err(A::Error::invalid_type(Unexpected::Seq, &self));
        }
        self.visitor.visit_seq(ObjectsOnly(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_map(ObjectsOnly(object))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, variant: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_enum(ObjectsOnly(variant))
    }
}

impl<'de, T: DeserializeSeed<'de>> DeserializeSeed<'de> for ObjectsOnly<T> {
    type Value = T::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<T::Value, D::Error> {
        self.0.deserialize(ObjectsOnly(inner))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for ObjectsOnly<A> {
    type Error = A::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, A::Error> {
        self.0.next_element_seed(ObjectsOnly(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for ObjectsOnly<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        self.0.next_key_seed(ObjectsOnly(seed))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        self.0.next_value_seed(ObjectsOnly(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for ObjectsOnly<A> {
    type Error = A::Error;
    type Variant = ObjectsOnly<A::Variant>;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self::Variant), A::Error> {
        let (value, variant) = self.0.variant_seed(ObjectsOnly(seed))?;
        Ok((value, ObjectsOnly(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for ObjectsOnly<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.unit_variant()
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, A::Error> {
        self.0.newtype_variant_seed(ObjectsOnly(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(len, any(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.struct_variant(fields, structure(visitor))
    }
}

#[cfg(test)]
mod tests {
    use redrive_api::dlq::RetryDeadMany;
    use redrive_api::endpoints::UpdateEndpoint;
    use redrive_api::events::PublishEvent;
    use redrive_api::subscriptions::Pull;

    use crate::api::body::from_json;

    #[test]
    fn an_array_is_not_accepted_for_an_object_at_any_depth() {
        for bad in [
            r#"["a", 1, null, {}, null, null, null]"#,
            r#"{"type": "a", "payload": 1, "retry": [1, 2, 3, 4, "none"]}"#,
        ] {
            let error = from_json::<PublishEvent>(bad.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("expected an object"), "{error}");
        }
        assert!(from_json::<Pull>(b"[1, 2, 3]").is_err());
        assert!(from_json::<Pull>(b"[]").is_err());
        assert!(from_json::<RetryDeadMany>(br#"{"filter": ["a"]}"#).is_err());
        assert!(from_json::<UpdateEndpoint>(br#"{"retry": [3]}"#).is_err());
        assert!(from_json::<Pull>(b"{} x").is_err(), "nothing may follow");
    }

    #[test]
    fn every_other_value_is_read_as_before() {
        let text = r#"{"type": "a", "payload": {"n": [1e400, {"x": "\ud800"}]}, "metadata": {"k": "ü"}, "delay_ms": 5,
                       "retry": {"max_attempts": 3, "jitter": "none"}}"#;
        let event: PublishEvent = from_json(text.as_bytes()).unwrap();
        assert_eq!(event.payload.get(), r#"{"n": [1e400, {"x": "\ud800"}]}"#, "payloads stay as they are");
        assert_eq!((event.metadata["k"].as_str(), event.delay_ms), ("ü", Some(5)));
        assert_eq!(event.retry.unwrap().max_attempts, Some(3));
        let pull: Pull = from_json(br#"{"max": null, "wait_ms": 7}"#).unwrap();
        assert_eq!((pull.max, pull.wait_ms), (None, Some(7)));
        let update: UpdateEndpoint = from_json(br#"{"description": null, "patterns": ["a", "b"]}"#).unwrap();
        assert_eq!(update.patterns.unwrap(), ["a", "b"]);
    }
}
