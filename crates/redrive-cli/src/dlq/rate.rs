//! The rate of a redrive, in dead letters per second.

use std::str::FromStr;

/// Dead letters per second, from 1 to 1000.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rate(pub(crate) u32);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix("/s").unwrap_or(text);
        match number.parse() {
            // Due times are kept in milliseconds.
            Ok(rate @ 1..=1000) => Ok(Rate(rate)),
            _ => Err("use a whole number from 1/s to 1000/s, such as 50/s".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_by_the_second() {
        assert_eq!("50/s".parse(), Ok(Rate(50)));
        assert_eq!("50".parse(), Ok(Rate(50)));
        for bad in ["", "0", "0/s", "-1", "5/m", "1001/s", "many"] {
            assert!(bad.parse::<Rate>().is_err(), "{bad}");
        }
    }
}
