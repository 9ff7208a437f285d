//! One small program per feature. This library is empty; the programs are the examples of this package:
//!
//! | program | shows |
//! |---|---|
//! | `guard_http_call` | a guarded call with classes of errors, `Retry-After`, circuit breaker and budget |
//! | `idempotent_payment` | ten concurrent callers, one charge |
//! | `custom_category` | a category of your own, errors that know their class, a policy from configuration |
//! | `audit_and_verify` | an audit log as JSON lines, every decision in it recomputed |
//!
//! `cargo run -p redrive-examples --example guard_http_call`
