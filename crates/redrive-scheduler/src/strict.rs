//! Check of protobuf before decoding: refuses numbers out of range, which the decoder would cut, and counts unknown fields.

/// Protobuf wire types.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;
const GROUP_BEGIN: u64 = 3;
const GROUP_END: u64 = 4;
const FIXED32: u64 = 5;

/// Walks over the fields of a `RetryMessage`. Returns the number of unknown fields, or the first violation of the contract.
pub(crate) fn check(mut bytes: &[u8]) -> Result<usize, String> {
    // The unknown groups around the current field. Everything within a group is part of it.
    let (mut groups, mut unknown) = (Vec::new(), 0);
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let (field, wire) = (key >> 3, key & 7);
        if field == 0 {
            return Err("there is no field 0".to_owned());
        }
        let expected = match field {
            1..=4 => Some(BYTES),
            5..=7 => Some(VARINT),
            _ => None,
        };
        let expected = expected.filter(|_| groups.is_empty());
        if let Some(expected) = expected.filter(|expected| wire != *expected) {
            return Err(format!("field {field} has wire type {wire} instead of {expected}"));
        }
        if expected.is_none() && groups.is_empty() {
            unknown += 1;
        }
        let length = match wire {
            VARINT => {
                let value = varint(&mut bytes)?;
                if matches!(expected, Some(VARINT))
                    && field != 7
                    && i32::try_from(value.cast_signed()).is_err()
                {
                    return Err(format!("field {field} does not fit into 32 bits"));
                }
                0
            }
            BYTES => varint(&mut bytes)?,
            FIXED64 => 8,
            FIXED32 => 4,
            GROUP_BEGIN => {
                groups.push(field);
                0
            }
            GROUP_END if groups.pop() == Some(field) => 0,
            _ => return Err(format!("field {field} has wire type {wire}")),
        };
        let length = usize::try_from(length).ok().filter(|length| *length <= bytes.len());
        bytes = &bytes[length.ok_or_else(|| format!("field {field} ends after the message"))?..];
    }
    if groups.is_empty() { Ok(unknown) } else { Err("a group is not closed".to_owned()) }
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
    fn every_violation_of_the_contract_is_named() {
        for (bytes, why) in [
            (&[0x08, 1][..], "field 1 has wire type 0"),
            (&[0x2a, 0], "field 5 has wire type 2"),
            (&[0x0a, 5, 1], "ends after"),
            (&[0x0a], "truncated"),
            (&[0x41, 1, 2, 3], "field 8 ends after"),
            (&[0x45, 1], "field 8 ends after"),
            (&[0x46], "field 8 has wire type 6"),
            (&[0x28, 0xff, 0xff, 0xff, 0xff, 0x7f], "32 bits"),
            (&[0xff; 11], "too long"),
            (&[0x03], "no field 0"),
            (&[0x43, 0x0a, 0], "not closed"),
            (&[0x43, 0x4c], "field 9 has wire type 4"),
            (&[0x44], "field 8 has wire type 4"),
        ] {
            let error = check(bytes).unwrap_err();
            assert!(error.contains(why), "{bytes:?}: {error}");
        }
        assert_eq!(check(&[]), Ok(0));
        let minus_one = [0x28, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(check(&minus_one), Ok(0), "negative numbers are written with ten bytes");
    }

    #[test]
    fn unknown_fields_of_every_wire_type_are_counted() {
        for (bytes, count) in [
            (&[0x40, 1][..], 1),
            (&[0x40, 1, 0x0a, 1, b'm', 0x40, 2], 2),
            (&[0x41, 1, 2, 3, 4, 5, 6, 7, 8], 1),
            (&[0x42, 2, 1, 2], 1),
            (&[0x45, 1, 2, 3, 4], 1),
            // A group with fields that are known outside of it, and another group.
            (&[0x43, 0x08, 1, 0x2a, 0, 0x4b, 0x4c, 0x44], 1),
            (&[0x40, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], 1),
        ] {
            assert_eq!(check(bytes), Ok(count), "{bytes:?}");
        }
    }
}
