//! Formats numbers and foreign text for people. JSON has them exactly.

pub(crate) use redrive_server::terminal_text::one_line;

/// A length of time, short: `900ms`, `1.1s`, `4m 16s`, `1h 8m`, `2d 3h`. At most three parts; from a minute on whole
/// seconds, from a day on whole minutes.
pub(crate) fn duration(millis: u64) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    if millis == 0 {
        return "0s".to_owned();
    }
    if millis < 1000 {
        return format!("{millis}ms");
    }
    if millis < 60_000 {
        return format!("{}s", decimal(millis));
    }
    let seconds = millis.saturating_add(500) / 1000;
    let (days, hours) = (seconds / DAY, seconds % DAY / HOUR);
    let (minutes, rest) = (seconds % HOUR / MINUTE, seconds % MINUTE);
    let parts = [(days, "d"), (hours, "h"), (minutes, "m"), (if days == 0 { rest } else { 0 }, "s")];
    let written: Vec<String> = parts
        .into_iter()
        .filter(|(amount, _)| *amount > 0)
        .map(|(amount, unit)| format!("{amount}{unit}"))
        .collect();
    written.join(" ")
}

/// A length of time, shorter still, for sentences and pictures: about three digits, or the two largest parts.
pub(crate) fn short_duration(millis: u64) -> String {
    let unit = match millis {
        0..1000 => 1,
        1000..10_000 => 10,
        _ => 100,
    };
    let full = duration(millis.saturating_add(unit / 2) / unit * unit);
    match full.match_indices(' ').nth(1) {
        Some((end, _)) => full[..end].to_owned(),
        None => full,
    }
}

/// Thousandths as a decimal number without trailing zeros.
fn decimal(thousandths: u64) -> String {
    let text = format!("{}.{:03}", thousandths / 1000, thousandths % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Two lengths of time as a range, or one if they are the same.
pub(crate) fn range(min_ms: u64, max_ms: u64) -> String {
    if min_ms == max_ms { duration(min_ms) } else { format!("{}–{}", duration(min_ms), duration(max_ms)) }
}

/// A count: `9999`, `10,000`, `1,000,000`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    if digits.len() < 5 {
        return digits;
    }
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count with its noun: `1 event`, `2 events`.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", count(number))
}

/// Bytes: `900 B`, `1.5 MiB`, `72 GiB`.
pub(crate) fn bytes(number: u64) -> String {
    let mut unit = 1;
    for name in ["B", "KiB", "MiB", "GiB", "TiB"] {
        if number / unit < 1024 || name == "TiB" {
            let tenths = u128::from(number) * 10 / u128::from(unit);
            let decimal = if tenths < 100 && !tenths.is_multiple_of(10) {
                format!(".{}", tenths % 10)
            } else {
                String::new()
            };
            return format!("{}{decimal} {name}", tenths / 10);
        }
        unit *= 1024;
    }
    unreachable!("the last unit takes everything")
}

/// At most `width` characters, with a sign that there was more.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// The text as the beginning of a sentence.
pub(crate) fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short_and_right() {
        for (millis, text) in [
            (0, "0s"),
            (7, "7ms"),
            (900, "900ms"),
            (1000, "1s"),
            (1100, "1.1s"),
            (1234, "1.234s"),
            (59_999, "59.999s"),
            (60_000, "1m"),
            (256_400, "4m 16s"),
            (3_600_000, "1h"),
            (4_111_000, "1h 8m 31s"),
            (3_605_000, "1h 5s"),
            (86_399_900, "1d"),
            (183_600_000, "2d 3h"),
        ] {
            assert_eq!(duration(millis), text);
        }
        assert!(duration(u64::MAX).ends_with('m'), "no overflow: {}", duration(u64::MAX));
    }

    #[test]
    fn short_durations_have_three_digits_or_two_parts() {
        for (millis, text) in [
            (999, "999ms"),
            (1234, "1.23s"),
            (56_187, "56.2s"),
            (59_960, "1m"),
            (256_400, "4m 16s"),
            (4_111_000, "1h 8m"),
        ] {
            assert_eq!(short_duration(millis), text);
        }
    }

    #[test]
    fn sizes_are_short() {
        for (number, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (10 << 20, "10 MiB"),
            (u64::MAX, "16777215 TiB"),
        ] {
            assert_eq!(bytes(number), text);
        }
    }

    #[test]
    fn a_long_text_is_cut_with_a_sign() {
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("абв", 3), "абв");
    }

    #[test]
    fn counts_are_grouped_from_five_digits_on() {
        for (number, text) in [(0, "0"), (9999, "9999"), (10_000, "10,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), text);
        }
        assert_eq!(counted(1, "event"), "1 event");
        assert_eq!(counted(12_000, "event"), "12,000 events");
    }
}
