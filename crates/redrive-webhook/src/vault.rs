//! Encrypts secrets at rest (AES-256-GCM) with keys that are kept outside the database.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::digest;
use ring::rand::{SecureRandom as _, SystemRandom};
use thiserror::Error;

/// Version byte of the layout: version, key id, nonce, ciphertext with tag.
const LAYOUT: u8 = 1;

/// Length of a key id (a prefix of the key's SHA-256) in bytes.
const KEY_ID_BYTES: usize = 4;

/// A key is invalid, or a secret cannot be decrypted.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Error)]
pub enum VaultError {
    /// Not a key.
    #[error("a key is 32 bytes in base64: make one with `openssl rand -base64 32`")]
    Key,
    /// Encrypted with a key that was not given.
    #[error("it was encrypted with another key; give that key as well, after the new one")]
    OtherKey,
    /// Changed, or moved from another endpoint.
    #[error("it was changed since it was encrypted, or belongs to another endpoint")]
    Damaged,
}

/// Encrypts with the newest key, and decrypts with any of its keys.
pub struct Vault {
    keys: Vec<(LessSafeKey, [u8; KEY_ID_BYTES])>,
}

impl Vault {
    /// A vault with one or more keys, the newest first: 32 bytes in base64 each.
    pub fn new<'k>(keys: impl IntoIterator<Item = &'k str>) -> Result<Self, VaultError> {
        let keys: Result<Vec<_>, _> = keys.into_iter().map(read_key).collect();
        let keys = keys?;
        if keys.is_empty() {
            return Err(VaultError::Key);
        }
        Ok(Vault { keys })
    }

    /// Generates a key, in base64.
    pub fn generate_key() -> String {
        let mut key = [0; 32];
        SystemRandom::new().fill(&mut key).expect("the operating system provides random bytes");
        STANDARD.encode(key)
    }

    /// Encrypts a secret and binds it to `owner`: [`Vault::open`] needs the same owner.
    pub fn seal(&self, owner: &[u8], secret: &[u8]) -> Vec<u8> {
        let (key, id) = &self.keys[0];
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).expect("the operating system provides random bytes");
        let mut sealed = secret.to_vec();
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(owner), &mut sealed)
            .expect("a secret is shorter than the limit of AES-GCM");
        [&[LAYOUT][..], id, &nonce, &sealed].concat()
    }

    /// Decrypts and authenticates a sealed secret of `owner`.
    pub fn open(&self, owner: &[u8], sealed: &[u8]) -> Result<Vec<u8>, VaultError> {
        let rest = sealed.strip_prefix(&[LAYOUT]).ok_or(VaultError::Damaged)?;
        let (id, rest) = rest.split_at_checked(KEY_ID_BYTES).ok_or(VaultError::Damaged)?;
        let (nonce, rest) = rest.split_at_checked(NONCE_LEN).ok_or(VaultError::Damaged)?;
        let (key, _) = self.keys.iter().find(|(_, known)| known == id).ok_or(VaultError::OtherKey)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| VaultError::Damaged)?;
        let mut opened = rest.to_vec();
        let length =
            key.open_in_place(nonce, Aad::from(owner), &mut opened).map_err(|_| VaultError::Damaged)?.len();
        opened.truncate(length);
        Ok(opened)
    }

    /// Whether the secret is encrypted with the newest key; if not, encrypt it again.
    pub fn is_current(&self, sealed: &[u8]) -> bool {
        sealed.get(1..=KEY_ID_BYTES) == Some(&self.keys[0].1)
    }
}

fn read_key(text: &str) -> Result<(LessSafeKey, [u8; KEY_ID_BYTES]), VaultError> {
    let bytes = STANDARD.decode(text.trim()).map_err(|_| VaultError::Key)?;
    let key = UnboundKey::new(&AES_256_GCM, &bytes).map_err(|_| VaultError::Key)?;
    let mut id = [0; KEY_ID_BYTES];
    id.copy_from_slice(&digest::digest(&digest::SHA256, &bytes).as_ref()[..KEY_ID_BYTES]);
    Ok((LessSafeKey::new(key), id))
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
    fn only_the_owner_can_decrypt() {
        let vault = Vault::new([NEW]).unwrap();
        let sealed = vault.seal(b"ep_1", b"whsec_x");
        assert!(!sealed.windows(7).any(|part| part == b"whsec_x"));
        assert_eq!(vault.open(b"ep_1", &sealed).unwrap(), b"whsec_x");
        assert_eq!(vault.open(b"ep_2", &sealed), Err(VaultError::Damaged));
        assert_ne!(vault.seal(b"ep_1", b"whsec_x"), sealed, "every encryption has its own nonce");
    }

    #[test]
    fn an_old_key_decrypts_until_it_is_removed() {
        let old = Vault::new([OLD]).unwrap();
        let sealed = old.seal(b"ep", b"secret");
        let both = Vault::new([NEW, OLD]).unwrap();
        assert_eq!(both.open(b"ep", &sealed).unwrap(), b"secret");
        assert!(!both.is_current(&sealed) && both.is_current(&both.seal(b"ep", b"secret")));
        assert_eq!(Vault::new([NEW]).unwrap().open(b"ep", &sealed), Err(VaultError::OtherKey));
    }

    #[test]
    fn every_change_of_a_byte_is_detected() {
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
    fn invalid_keys_are_refused_and_never_shown() {
        for key in ["", "hunter2", "c2hvcnQ="] {
            assert_eq!(Vault::new([key]).map(drop), Err(VaultError::Key), "{key}");
        }
        assert_eq!(Vault::new([]).map(drop), Err(VaultError::Key));
        assert_eq!(format!("{:?}", Vault::new([NEW]).unwrap()), "Vault of 1 keys");
    }
}
