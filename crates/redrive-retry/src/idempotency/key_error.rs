//! [`KeyError`]: the error of an invalid idempotency key, or of parameters that give no key.

/// Longest text of an idempotency key.
pub(super) const MAX_KEY_BYTES: usize = 255;

/// Invalid key or parameters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The key is empty, too long, or has control characters.
    #[error(
        "an idempotency key of {bytes} bytes does not work: use 1 to {MAX_KEY_BYTES} bytes without control characters"
    )]
    NotAKey {
        /// Length of the key.
        bytes: usize,
    },
    /// The operation is empty.
    #[error("the operation is empty: name what must not happen twice, such as \"charge card\"")]
    NoOperation,
    /// A parameter is NaN or infinite.
    #[error("a parameter is NaN or infinite, which JSON cannot represent: leave it out or send it as text")]
    NotFinite,
    /// A map key is not text.
    #[error("a map has a key that is neither text, number nor boolean: use text keys")]
    KeyNotText,
    /// A map has a key twice.
    #[error("a map has the same key twice: keep one of them")]
    KeyTwice,
    /// The parameters are nested too deeply.
    #[error("the parameters are nested more than 128 levels deep: flatten them or use a digest of them")]
    TooDeep,
    /// The parameters are too large.
    #[error("the parameters are larger than {limit} bytes: use a digest of them instead")]
    TooLarge {
        /// Limit in bytes.
        limit: usize,
    },
    /// The `Serialize` implementation failed.
    #[error("the parameters cannot be serialised: {0}")]
    Value(String),
}
