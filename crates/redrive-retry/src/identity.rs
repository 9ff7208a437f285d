//! [`Identity`]: the key of replayable jitter, a keyed hash of seed, operation and attempt.
//!
//! SipHash-2-4 is a published algorithm, so a recorded decision can be recomputed at any time and in any language. Test vectors
//! pin it.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;

/// Second half of the SipHash key; the first is the seed. ASCII "redrive1"; a new scheme would use another value.
const DOMAIN: u64 = u64::from_be_bytes(*b"redrive1");

/// Identity of a delivery or call; seeds its jitter.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Identity<'a> {
    /// Seed of an installation or run; equal seeds give equal delays.
    pub seed: u64,
    /// Event id, or id of a call.
    pub event: &'a str,
    /// Subscription name, or operation of a call.
    pub subscription: &'a str,
}

impl<'a> Identity<'a> {
    /// Creates an identity.
    pub const fn new(seed: u64, event: &'a str, subscription: &'a str) -> Self {
        Identity { seed, event, subscription }
    }

    /// Hashes the identity and the attempt to 64 bits.
    pub fn hash(self, attempt: u32) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(self.seed, DOMAIN);
        // Lengths first, so that ("ab", "c") and ("a", "bc") differ.
        for text in [self.event, self.subscription] {
            hasher.write(&(text.len() as u64).to_le_bytes());
            hasher.write(text.as_bytes());
        }
        hasher.write(&attempt.to_le_bytes());
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19";

    /// Computed once by an independent implementation of SipHash-2-4 (see `docs/decisions/0002-replayable-jitter.md`).
    #[test]
    fn the_hash_is_pinned_by_vectors() {
        for (identity, attempt, expected) in [
            (Identity::new(0, "", ""), 0, 0x01ec_9852_062a_07eb),
            (Identity::new(0, ID, "shipping"), 2, 0x8a0a_cff5_a1ab_1df1),
            (Identity::new(0, ID, "shipping"), 3, 0xa868_5106_2eaa_34b3),
            (Identity::new(0, ID, "billing"), 2, 0xe103_dc73_024a_3402),
            (Identity::new(42, ID, "shipping"), 2, 0x60ee_1e81_e0bb_3db2),
            (Identity::new(u64::MAX, "évènement", "абонент"), u32::MAX, 0x01ee_90f0_733c_a3bf),
        ] {
            assert_eq!(identity.hash(attempt), expected, "{identity:?} {attempt}");
        }
    }

    #[test]
    fn the_boundary_between_the_parts_matters() {
        assert_ne!(Identity::new(1, "ab", "c").hash(2), Identity::new(1, "a", "bc").hash(2));
    }
}
