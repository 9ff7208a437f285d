//! How secrets rest: sealed by a key that does not stand in the database.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::digest;
use ring::rand::{SecureRandom as _, SystemRandom};
use thiserror::Error;

/// How the bytes are laid out: this, which key, the nonce, what is sealed.
const LAYOUT: u8 = 1;

/// So many bytes say which key it was.
const NAME: usize = 4;

/// Why something stays closed.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Error)]
pub enum VaultError {
    /// The key is none.
    #[error("a key is 32 bytes in base64: make one with `openssl rand -base64 32`")]
    Key,
    /// It was sealed with a key that is not here.
    #[error("it was sealed with another key; give that one as well, after the new one")]
    OtherKey,
    /// It was changed, or belongs to something else.
    #[error("it was changed since it was sealed, or belongs to another endpoint")]
    Damaged,
}

/// Seals with the newest key, and opens with any.
pub struct Vault {
    keys: Vec<(LessSafeKey, [u8; NAME])>,
}

impl Vault {
    /// With one or more keys, the newest first: 32 bytes in base64 each.
    pub fn new<'k>(keys: impl IntoIterator<Item = &'k str>) -> Result<Self, VaultError> {
        let keys: Result<Vec<_>, _> = keys.into_iter().map(read_key).collect();
        let keys = keys?;
        if keys.is_empty() {
            return Err(VaultError::Key);
        }
        Ok(Vault { keys })
    }

    /// A new key, in base64.
    pub fn generate_key() -> String {
        let mut key = [0; 32];
        SystemRandom::new().fill(&mut key).expect("the system has random numbers");
        STANDARD.encode(key)
    }

    /// Seals something that belongs to `owner` and to nobody else.
    pub fn seal(&self, owner: &[u8], secret: &[u8]) -> Vec<u8> {
        let (key, name) = &self.keys[0];
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).expect("the system has random numbers");
        let mut sealed = secret.to_vec();
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(owner), &mut sealed)
            .expect("a secret is short");
        [&[LAYOUT][..], name, &nonce, &sealed].concat()
    }

    /// Opens what was sealed.
    pub fn open(&self, owner: &[u8], sealed: &[u8]) -> Result<Vec<u8>, VaultError> {
        let rest = sealed.strip_prefix(&[LAYOUT]).ok_or(VaultError::Damaged)?;
        let (name, rest) = rest.split_at_checked(NAME).ok_or(VaultError::Damaged)?;
        let (nonce, rest) = rest.split_at_checked(NONCE_LEN).ok_or(VaultError::Damaged)?;
        let (key, _) = self.keys.iter().find(|(_, known)| known == name).ok_or(VaultError::OtherKey)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| VaultError::Damaged)?;
        let mut opened = rest.to_vec();
        let length =
            key.open_in_place(nonce, Aad::from(owner), &mut opened).map_err(|_| VaultError::Damaged)?.len();
        opened.truncate(length);
        Ok(opened)
    }

    /// Whether it was sealed with the newest key; if not, it should be sealed again.
    pub fn is_current(&self, sealed: &[u8]) -> bool {
        sealed.get(1..=NAME) == Some(&self.keys[0].1)
    }
}

fn read_key(text: &str) -> Result<(LessSafeKey, [u8; NAME]), VaultError> {
    let bytes = STANDARD.decode(text.trim()).map_err(|_| VaultError::Key)?;
    let key = UnboundKey::new(&AES_256_GCM, &bytes).map_err(|_| VaultError::Key)?;
    let mut name = [0; NAME];
    name.copy_from_slice(&digest::digest(&digest::SHA256, &bytes).as_ref()[..NAME]);
    Ok((LessSafeKey::new(key), name))
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vault of {} keys", self.keys.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "b2xkb2xkb2xkb2xkb2xkb2xkb2xkb2xkb2xkb2xkb28=";
    const NEW: &str = "bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmU=";

    #[test]
    fn what_is_sealed_is_opened_by_its_owner_only() {
        let vault = Vault::new([NEW]).unwrap();
        let sealed = vault.seal(b"ep_1", b"whsec_x");
        assert!(!sealed.windows(7).any(|part| part == b"whsec_x"));
        assert_eq!(vault.open(b"ep_1", &sealed).unwrap(), b"whsec_x");
        assert_eq!(vault.open(b"ep_2", &sealed), Err(VaultError::Damaged));
        assert_ne!(vault.seal(b"ep_1", b"whsec_x"), sealed, "each time with another nonce");
    }

    #[test]
    fn a_key_is_exchanged_without_losing_anything() {
        let old = Vault::new([OLD]).unwrap();
        let sealed = old.seal(b"ep", b"secret");
        let both = Vault::new([NEW, OLD]).unwrap();
        assert_eq!(both.open(b"ep", &sealed).unwrap(), b"secret");
        assert!(!both.is_current(&sealed) && both.is_current(&both.seal(b"ep", b"secret")));
        assert_eq!(Vault::new([NEW]).unwrap().open(b"ep", &sealed), Err(VaultError::OtherKey));
    }

    #[test]
    fn no_change_goes_unseen() {
        let vault = Vault::new([NEW]).unwrap();
        let sealed = vault.seal(b"ep", b"secret");
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(vault.open(b"ep", &changed).is_err(), "byte {at}");
            assert!(vault.open(b"ep", &sealed[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn what_is_no_key_is_refused_and_never_shown() {
        for key in ["", "hunter2", "c2hvcnQ="] {
            assert_eq!(Vault::new([key]).map(drop), Err(VaultError::Key), "{key}");
        }
        assert_eq!(Vault::new([]).map(drop), Err(VaultError::Key));
        assert_eq!(format!("{:?}", Vault::new([NEW]).unwrap()), "Vault of 1 keys");
    }
}
