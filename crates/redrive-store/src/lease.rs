//! The token of a lease: a pull consumer's proof that it holds a delivery.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

/// Identifies one lease of one delivery, in every process and across restarts. Random, so that it cannot be guessed.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseToken {
    pub(crate) delivery: i64,
    secret: Uuid,
}

impl LeaseToken {
    pub(crate) fn new(delivery: i64) -> Self {
        LeaseToken { delivery, secret: Uuid::new_v4() }
    }

    /// The text in the column `lease`.
    pub(crate) fn secret(&self) -> String {
        self.secret.simple().to_string()
    }
}

impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}.{}", self.delivery, self.secret.simple())
    }
}

/// The text is no lease token.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not a lease token: pass on the token of the leased event unchanged")]
pub struct NotALeaseToken;

impl FromStr for LeaseToken {
    type Err = NotALeaseToken;

    fn from_str(text: &str) -> Result<Self, NotALeaseToken> {
        let read = || {
            let (delivery, secret) = text.split_once('.')?;
            let token = LeaseToken {
                delivery: i64::from_str_radix(delivery, 16).ok()?,
                secret: Uuid::try_parse(secret).ok()?,
            };
            // One text for each token: no signs, leading zeros or capitals.
            (token.to_string() == text).then_some(token)
        };
        read().ok_or(NotALeaseToken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_from_its_text_only() {
        let token = LeaseToken::new(77);
        let text = token.to_string();
        assert_eq!(text.parse(), Ok(token));
        for other in
            ["", ".", "4d", &text[2..], &text[..text.len() - 1], &text.replace('d', "D"), &format!("+{text}")]
        {
            assert_eq!(other.parse::<LeaseToken>(), Err(NotALeaseToken), "{other}");
        }
    }
}
