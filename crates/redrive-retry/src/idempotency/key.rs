//! Idempotency keys and payload fingerprints: SHA-256 over canonical JSON.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::key_error::MAX_KEY_BYTES;
use super::{KeyError, canonical};

/// Largest size of parameters or a payload as canonical JSON.
const MAX_INPUT_BYTES: usize = 1 << 20;

/// Key of an operation that must run at most once.
///
/// ```
/// use redrive_retry::idempotency::IdempotencyKey;
/// use serde_json::json;
///
/// let params = json!({"switch_name": "all_execution", "on": true});
/// let key = IdempotencyKey::compute("kill_switch_update", Some("tenant-123"), Some("corr-456"), &params)?;
/// let same = IdempotencyKey::compute(
///     "kill_switch_update", Some("tenant-123"), Some("corr-456"), &json!({"on": true, "switch_name": "all_execution"}),
/// )?;
/// assert_eq!(key, same);
/// # Ok::<(), redrive_retry::idempotency::KeyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IdempotencyKey(Arc<str>);

impl IdempotencyKey {
    /// Computes the key of an operation and its parameters. The order of parameters does not matter.
    ///
    /// `additional_params` may be `&()` for none.
    pub fn compute(
        operation: &str,
        tenant_id: Option<&str>,
        correlation_id: Option<&str>,
        additional_params: &impl Serialize,
    ) -> Result<Self, KeyError> {
        if operation.is_empty() {
            return Err(KeyError::NoOperation);
        }
        let params = canonical::to_bytes(additional_params, MAX_INPUT_BYTES)?;
        // The specification treats None as {}.
        let params = if params == b"null" { b"{}".to_vec() } else { params };
        let text = |value: &str| canonical::to_bytes(&value, MAX_INPUT_BYTES);
        let mut hash = Sha256::new();
        // The canonical object of the specification, with sorted keys.
        for (name, value) in [
            ("{\"additional_params\":", params),
            (",\"correlation_id\":", text(correlation_id.unwrap_or(""))?),
            (",\"operation\":", text(operation)?),
            (",\"tenant_id\":", text(tenant_id.unwrap_or(""))?),
        ] {
            hash.update(name.as_bytes());
            hash.update(value);
        }
        hash.update(b"}");
        Ok(IdempotencyKey(crate::hex::encode(&hash.finalize()).into()))
    }

    /// Creates a key from text: 1 to 255 bytes, no control characters.
    pub fn new(key: impl Into<String>) -> Result<Self, KeyError> {
        let key = key.into();
        if key.is_empty() || key.len() > MAX_KEY_BYTES || key.chars().any(char::is_control) {
            return Err(KeyError::NotAKey { bytes: key.len() });
        }
        Ok(IdempotencyKey(key.into()))
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for IdempotencyKey {
    type Error = KeyError;

    fn try_from(key: String) -> Result<Self, KeyError> {
        IdempotencyKey::new(key)
    }
}

impl From<IdempotencyKey> for String {
    fn from(key: IdempotencyKey) -> String {
        key.0.as_ref().to_owned()
    }
}

/// Hash of the payload of a key, which detects the use of a key with another payload.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Computes the fingerprint of a payload. The order of keys does not matter.
    pub fn of(payload: &impl Serialize) -> Result<Self, KeyError> {
        Ok(Fingerprint(Sha256::digest(canonical::to_bytes(payload, MAX_INPUT_BYTES)?).into()))
    }

    /// Bytes for a store.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Restores a fingerprint from a store.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Fingerprint(bytes)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::hex::encode(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn key(params: &impl Serialize) -> String {
        IdempotencyKey::compute("kill_switch_update", Some("tenant-123"), Some("corr-456"), params)
            .unwrap()
            .into()
    }

    /// Each is `sha256` of the text in the comment, computed by another program.
    #[test]
    fn keys_are_pinned_by_vectors() {
        // {"additional_params":{"switch_name":"all_execution"},"correlation_id":"corr-456","operation":"kill_switch_update","tenant_id":"tenant-123"}
        assert_eq!(key(&json!({"switch_name": "all_execution"})), VECTOR_PARAMS);
        // {"additional_params":{},"correlation_id":"","operation":"charge","tenant_id":""}
        let bare = IdempotencyKey::compute("charge", None, None, &()).unwrap();
        assert_eq!(bare.as_str(), VECTOR_BARE);
        // {"additional_params":{"a":[1,2.5,null,"é"],"b":{"x":true,"y":18446744073709551615}},"correlation_id":"corr-456","operation":"kill_switch_update","tenant_id":"tenant-123"}
        assert_eq!(key(&json!({"b": {"y": u64::MAX, "x": true}, "a": [1, 2.5, null, "é"]})), VECTOR_NESTED);
        let fingerprint = Fingerprint::of(&json!({"b": 1, "a": 2})).unwrap(); // {"a":2,"b":1}
        assert_eq!(fingerprint.to_string(), VECTOR_FINGERPRINT);
    }

    const VECTOR_PARAMS: &str = "b4b6cd7399901d2f626be7417c244b3b5696478ff091bb108dbad2a55a2f0578";
    const VECTOR_BARE: &str = "7ad546d1d3f8874dfb410b5b2d69d858ea167fbb06f40a7064815b514c623f2b";
    const VECTOR_NESTED: &str = "3df5b3544de1e37296e321f8bd26797e706dc25bcb19b810c859c9ce50397d67";
    const VECTOR_FINGERPRINT: &str = "d3626ac30a87e6f7a6428233b3c68299976865fa5508e4267c5415c76af7a772";

    #[test]
    fn equal_parameters_in_any_order_give_equal_keys() {
        assert_eq!(
            key(&json!({"a": 1, "b": {"c": 2, "d": 3}})),
            key(&json!({"b": {"d": 3, "c": 2}, "a": 1}))
        );
        assert_ne!(key(&json!({"a": 1})), key(&json!({"a": "1"})));
        assert_ne!(key(&json!([1, 2])), key(&json!([2, 1])), "the order of a list matters");
        assert_ne!(
            key(&json!({"n": (1u64 << 53) + 1})),
            key(&json!({"n": 1u64 << 53})),
            "large numbers differ"
        );
        assert_eq!(key(&json!({})), key(&()));
    }

    #[test]
    fn operation_tenant_and_correlation_cannot_be_confused() {
        let of = |o, t, c| IdempotencyKey::compute(o, t, c, &()).unwrap();
        assert_ne!(of("a", Some("b"), None), of("a", None, Some("b")));
        assert_ne!(of("ab", None, None), of("a", Some("b"), None));
        assert_ne!(of("a\",\"tenant_id\":\"b", None, None), of("a", Some("b"), None));
    }

    #[test]
    fn an_invalid_key_gets_an_error_that_says_what_to_change() {
        for bad in ["", "a\nb", "\u{7f}", &"k".repeat(256)] {
            let error = IdempotencyKey::new(bad).unwrap_err().to_string();
            assert!(error.contains("1 to 255 bytes without control characters"), "{error}");
        }
        assert!(IdempotencyKey::new("order-7/charge").is_ok());
        assert!(serde_json::from_str::<IdempotencyKey>("\"\"").is_err());
        assert_eq!(IdempotencyKey::compute("", None, None, &()), Err(KeyError::NoOperation));
        let nan =
            IdempotencyKey::compute("op", None, None, &std::collections::BTreeMap::from([("x", f64::NAN)]));
        assert!(nan.unwrap_err().to_string().contains("leave it out or send it as text"));
    }
}
