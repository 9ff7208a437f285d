//! Strict check of protobuf: refuses unknown fields and numbers out of range, which a lenient decoder accepts.

/// Protobuf wire types.
const VARINT: u64 = 0;
const BYTES: u64 = 2;

/// Walks over the fields of a `RetryMessage` and returns the first departure from the contract.
pub(crate) fn check(mut bytes: &[u8]) -> Result<(), String> {
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let (field, wire) = (key >> 3, key & 7);
        let expected = match field {
            1..=4 => BYTES,
            5..=7 => VARINT,
            _ => return Err(format!("there is no field {field}")),
        };
        if wire != expected {
            return Err(format!("field {field} has wire type {wire} instead of {expected}"));
        }
        let value = varint(&mut bytes)?;
        if wire == BYTES {
            let length = usize::try_from(value).ok().filter(|length| *length <= bytes.len());
            let length = length.ok_or_else(|| format!("field {field} ends after the message"))?;
            bytes = &bytes[length..];
        } else if field != 7 && i32::try_from(value.cast_signed()).is_err() {
            return Err(format!("field {field} does not fit into 32 bits"));
        }
    }
    Ok(())
}

/// Removes a varint from the front.
fn varint(bytes: &mut &[u8]) -> Result<u64, String> {
    let mut value = 0_u64;
    for index in 0..10 {
        let Some((byte, rest)) = bytes.split_first() else { return Err("it is truncated".to_owned()) };
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            // The tenth byte holds one bit.
            return if index == 9 && *byte > 1 { Err("a number is too long".to_owned()) } else { Ok(value) };
        }
    }
    Err("a number is too long".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_departure_from_the_contract_is_named() {
        for (bytes, why) in [
            (&[0x40, 1][..], "there is no field 8"),
            (&[0x08, 1], "field 1 has wire type 0"),
            (&[0x2a, 0], "field 5 has wire type 2"),
            (&[0x0a, 5, 1], "ends after"),
            (&[0x0a], "truncated"),
            (&[0x28, 0xff, 0xff, 0xff, 0xff, 0x7f], "32 bits"),
            (&[0xff; 11], "too long"),
            (&[0x03], "no field 0"),
        ] {
            let error = check(bytes).unwrap_err();
            assert!(error.contains(why), "{bytes:?}: {error}");
        }
        assert_eq!(check(&[]), Ok(()));
        let minus_one = [0x28, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(check(&minus_one), Ok(()), "negative numbers are written with ten bytes");
    }
}
