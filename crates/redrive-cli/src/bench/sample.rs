//! Sample event: an order of about 200 bytes.

use serde_json::{Value, json};

pub(super) fn payload() -> Value {
    json!({
        "order": 4711, "customer": "c-1234567", "total": "129.90", "currency": "EUR",
        "items": [{"sku": "A-100", "quantity": 2}, {"sku": "B-200", "quantity": 1}],
        "note": "please leave it at the door",
    })
}
