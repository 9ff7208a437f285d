//! Signing secrets and signatures of Standard Webhooks.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use thiserror::Error;

/// Lengths of a symmetric secret that the standard allows, in bytes.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// Length of a generated secret in bytes.
const NEW_SECRET_BYTES: usize = 32;

/// Length of the seed of an Ed25519 key pair in bytes.
const SEED_BYTES: usize = 32;

/// A text is not a valid secret. The message never shows it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Error)]
pub enum SecretError {
    /// The prefix is missing.
    #[error("a secret begins with `whsec_`, a private key with `whsk_`")]
    Prefix,
    /// The text after the prefix is not base64.
    #[error("the text after the prefix is not base64")]
    Encoding,
    /// The length is not allowed by the standard.
    #[error("a secret has 24 to 64 bytes, not {0}: make one with `openssl rand -base64 32`")]
    Length(usize),
    /// The bytes are not an Ed25519 key pair.
    #[error("a private key has the 32 bytes of its seed, or these and the 32 of its public key")]
    Key,
}

/// A signing secret: shared with the receiver (`whsec_…`, signs `v1`), or the private half of a key pair (`whsk_…`, signs `v1a`).
#[derive(Clone)]
pub struct Secret {
    key: Key,
}

#[derive(Clone)]
enum Key {
    Shared(Vec<u8>),
    Private([u8; SEED_BYTES]),
}

impl Secret {
    /// Generates a shared secret.
    pub fn generate() -> Self {
        let mut bytes = vec![0; NEW_SECRET_BYTES];
        fill(&mut bytes);
        Secret { key: Key::Shared(bytes) }
    }

    /// Generates an Ed25519 key pair.
    pub fn generate_pair() -> Self {
        let mut seed = [0; SEED_BYTES];
        fill(&mut seed);
        Secret { key: Key::Private(seed) }
    }

    /// The text that the receiver verifies with: the shared secret, or the public key (`whpk_…`).
    pub fn for_receiver(&self) -> String {
        match &self.key {
            Key::Shared(_) => self.reveal(),
            Key::Private(seed) => format!("whpk_{}", STANDARD.encode(pair(seed).public_key())),
        }
    }

    /// The secret as text. No other method shows it.
    pub fn reveal(&self) -> String {
        match &self.key {
            Key::Shared(bytes) => format!("whsec_{}", STANDARD.encode(bytes)),
            Key::Private(seed) => {
                let both = [&seed[..], pair(seed).public_key().as_ref()].concat();
                format!("whsk_{}", STANDARD.encode(both))
            }
        }
    }

    /// Signs a message: one element of the `webhook-signature` header.
    pub fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let head = format!("{id}.{timestamp}.");
        match &self.key {
            Key::Shared(bytes) => {
                let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, bytes));
                context.update(head.as_bytes());
                context.update(body);
                format!("v1,{}", STANDARD.encode(context.sign()))
            }
            Key::Private(seed) => {
                let signed = pair(seed).sign(&[head.as_bytes(), body].concat());
                format!("v1a,{}", STANDARD.encode(signed))
            }
        }
    }
}

fn pair(seed: &[u8; SEED_BYTES]) -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(seed).expect("any 32 bytes are an Ed25519 seed")
}

fn fill(bytes: &mut [u8]) {
    SystemRandom::new().fill(bytes).expect("the operating system provides random bytes");
}

impl FromStr for Secret {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Self, SecretError> {
        let decode = |text: &str| STANDARD.decode(text).map_err(|_| SecretError::Encoding);
        let key = if let Some(text) = text.strip_prefix("whsec_") {
            let bytes = decode(text)?;
            if !SECRET_BYTES.contains(&bytes.len()) {
                return Err(SecretError::Length(bytes.len()));
            }
            Key::Shared(bytes)
        } else if let Some(text) = text.strip_prefix("whsk_") {
            let bytes = decode(text)?;
            let (seed, public) = bytes.split_at_checked(SEED_BYTES).ok_or(SecretError::Key)?;
            let seed = seed.try_into().map_err(|_| SecretError::Key)?;
            // Signatures of a seed with another key's public half could not be verified.
            if !public.is_empty() && public != pair(&seed).public_key().as_ref() {
                return Err(SecretError::Key);
            }
            Key::Private(seed)
        } else {
            return Err(SecretError::Prefix);
        };
        Ok(Secret { key })
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.key {
            Key::Shared(_) => "whsec_…",
            Key::Private(_) => "whsk_…",
        })
    }
}

/// The valid secrets of an endpoint, newest first. During a rotation a message carries a signature of each.
#[derive(Clone, Debug)]
pub struct Secrets {
    newest: Secret,
    older: Vec<Secret>,
}

impl Secrets {
    /// A single secret.
    pub fn new(secret: Secret) -> Self {
        Secrets { newest: secret, older: Vec::new() }
    }

    /// Adds older secrets.
    #[must_use]
    pub fn and_older(self, older: impl IntoIterator<Item = Secret>) -> Self {
        let older = self.older.into_iter().chain(older).collect();
        Secrets { older, ..self }
    }

    /// Value of the `webhook-signature` header.
    pub fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let all = std::iter::once(&self.newest).chain(&self.older);
        let signatures: Vec<_> = all.map(|secret| secret.sign(id, timestamp, body)).collect();
        signatures.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
    const ID: &str = "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk";
    const TIME: i64 = 1_649_367_553;
    const BODY: &[u8] = br#"{"email":"test@example.com","username":"test_user"}"#;
    const SIGNATURE: &str = "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=";

    fn secret(text: &str) -> Secret {
        text.parse().unwrap()
    }

    #[test]
    fn the_signature_matches_the_vector_of_the_standard() {
        assert_eq!(secret(SECRET).sign(ID, TIME, BODY), SIGNATURE);
    }

    #[test]
    fn the_public_key_verifies_signatures_of_the_private_key() {
        let private = Secret::generate_pair();
        let public = STANDARD.decode(private.for_receiver().strip_prefix("whpk_").unwrap()).unwrap();
        let signature = private.sign(ID, TIME, BODY);
        let signature = STANDARD.decode(signature.strip_prefix("v1a,").unwrap()).unwrap();
        let signed = [format!("{ID}.{TIME}.").as_bytes(), BODY].concat();
        let public = ring::signature::UnparsedPublicKey::new(&ring::signature::ED25519, public);
        public.verify(&signed, &signature).unwrap();
        assert!(public.verify(BODY, &signature).is_err());
    }

    #[test]
    fn a_revealed_secret_parses_to_the_same_secret() {
        for one in [Secret::generate(), Secret::generate_pair(), secret(SECRET)] {
            let again = secret(&one.reveal());
            assert_eq!(again.sign(ID, TIME, BODY), one.sign(ID, TIME, BODY));
        }
        assert_eq!(secret(SECRET).for_receiver(), SECRET);
        // The seed alone is enough.
        let pair = Secret::generate_pair();
        let Key::Private(seed) = &pair.key else { panic!("generate_pair makes a private key") };
        assert_eq!(secret(&format!("whsk_{}", STANDARD.encode(seed))).reveal(), pair.reveal());
    }

    #[test]
    fn a_rotation_signs_with_every_valid_secret() {
        let (old, new) = (secret(SECRET), Secret::generate());
        let header = Secrets::new(new.clone()).and_older([old]).sign(ID, TIME, BODY);
        assert_eq!(header, format!("{} {SIGNATURE}", new.sign(ID, TIME, BODY)));
    }

    #[test]
    fn invalid_secrets_are_refused_and_never_shown() {
        let of = |length: usize| format!("whsec_{}", STANDARD.encode(vec![7; length]));
        let cases = [
            ("hunter2".to_owned(), SecretError::Prefix),
            ("whsec_***".to_owned(), SecretError::Encoding),
            (of(23), SecretError::Length(23)),
            (of(65), SecretError::Length(65)),
            (format!("whsk_{}", STANDARD.encode([7; 31])), SecretError::Key),
            (format!("whsk_{}", STANDARD.encode([7; 64])), SecretError::Key),
        ];
        for (text, error) in cases {
            assert_eq!(text.parse::<Secret>().map(drop), Err(error), "{text}");
            assert!(!error.to_string().contains(&text));
        }
        assert!([24, 64].iter().all(|length| of(*length).parse::<Secret>().is_ok()));
        assert_eq!(format!("{:?}", secret(SECRET)), "whsec_…");
    }

    proptest::proptest! {
        #[test]
        fn parsing_never_panics(text in "(whsec_|whsk_)?.{0,100}") {
            let _ = text.parse::<Secret>();
        }
    }
}
