//! The secret of a token: shown once, stored as its hash.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom, SystemRandom};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Prefix of every token, so that secret scanners find it.
const PREFIX: &str = "rdt_";

/// A token in clear text. `Debug` hides it.
pub(crate) struct Secret(String);

impl Secret {
    /// Generates a token of 32 random bytes.
    pub(crate) fn new() -> Result<Self, NoRandomness> {
        Ok(Secret(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random::<32>()?))))
    }

    /// Reveals the token, for its only display.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    pub(crate) fn hash(&self) -> SecretHash {
        SecretHash::of(&self.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// SHA-256 of a token. A token has 256 random bits, so a slow hash is not needed.
#[derive(Clone, Copy, Debug, Eq)]
pub(crate) struct SecretHash([u8; 32]);

impl SecretHash {
    pub(crate) fn of(token: &str) -> Self {
        SecretHash(Sha256::digest(token.as_bytes()).into())
    }

    /// As hexadecimal text.
    pub(crate) fn to_text(self) -> String {
        hex(&self.0)
    }

    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let byte = |at: usize| u8::from_str_radix(text.get(at * 2..at * 2 + 2)?, 16).ok();
        let mut bytes = [0; 32];
        for (at, slot) in bytes.iter_mut().enumerate() {
            *slot = byte(at)?;
        }
        (text.len() == 64).then_some(SecretHash(bytes))
    }
}

impl PartialEq for SecretHash {
    /// Compares in constant time.
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

/// A new id: short enough to type.
pub(crate) fn new_id() -> Result<String, NoRandomness> {
    Ok(hex(&random::<8>()?))
}

fn random<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| NoRandomness)?;
    Ok(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The system has no random numbers.
#[derive(Debug, thiserror::Error)]
#[error("the system gives no random numbers, so no token can be created: check /dev/urandom")]
pub(crate) struct NoRandomness;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_stored_as_its_hash_only() {
        let (one, two) = (Secret::new().unwrap(), Secret::new().unwrap());
        assert!(one.reveal().starts_with("rdt_") && one.reveal().len() == 47, "{}", one.reveal());
        assert_ne!(one.reveal(), two.reveal());
        assert!(one.hash() == SecretHash::of(one.reveal()) && one.hash() != two.hash());
        assert_eq!(SecretHash::from_text(&one.hash().to_text()), Some(one.hash()));
        for bad in ["", "00", &"0".repeat(63), &"0".repeat(66), &"é".repeat(32)] {
            assert_eq!(SecretHash::from_text(bad), None, "{bad}");
        }
        assert_eq!(format!("{one:?}"), "Secret(…)");
    }
}
