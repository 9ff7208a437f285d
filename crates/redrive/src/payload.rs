//! Payloads: from a Rust value to the JSON text that is stored.

use std::sync::Arc;

use redrive_retry::idempotency::{Fingerprint, KeyError};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::InvalidPayloadError;

/// A payload that names its event type, so that publisher and handler cannot disagree on it.
///
/// ```
/// use redrive::EventPayload;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct OrderCreated { order: u64 }
///
/// impl EventPayload for OrderCreated {
///     const TYPE: &'static str = "order.created";
/// }
/// ```
pub trait EventPayload: Serialize + DeserializeOwned + Send + 'static {
    /// The event type.
    const TYPE: &'static str;
}

pub(crate) fn to_json(payload: &impl Serialize) -> Result<Arc<str>, InvalidPayloadError> {
    let refuse = |why: String| InvalidPayloadError { why };
    let text = serde_json::to_string(payload).map_err(|error| refuse(error.to_string()))?;
    // serde_json writes NaN and infinity as null. A text with a null is checked.
    if text.contains("null")
        && let Err(error @ KeyError::NotFinite) = Fingerprint::of(payload)
    {
        return Err(refuse(error.to_string()));
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_without_a_json_form_are_refused() {
        for bad in [f64::NAN, f64::INFINITY] {
            let error = to_json(&std::collections::BTreeMap::from([("x", bad)])).unwrap_err();
            assert!(error.to_string().contains("NaN or infinite"), "{error}");
        }
        let keys = std::collections::BTreeMap::from([(vec![1], 1)]);
        assert!(to_json(&keys).is_err());
        assert_eq!(&*to_json(&json!({"x": null})).unwrap(), r#"{"x":null}"#);
    }
}
