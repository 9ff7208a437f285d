//! Patterns of event types, in which `*` stands for one or more characters.

use std::fmt;
use std::str::FromStr;

/// `user.created`, `user.*`, `order.*.shipped`, `*`. Every character but `*` matches itself.
///
/// ```
/// use redrive::subscription::Pattern;
/// let pattern: Pattern = "order.*.shipped".parse()?;
/// assert!(pattern.matches("order.123.shipped"));
/// assert!(!pattern.matches("order.shipped"));
/// # Ok::<(), redrive::subscription::PatternError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern(Box<str>);

impl Pattern {
    /// The text of the pattern.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether an event type matches. Takes time in proportion to its length, whatever the pattern.
    pub fn matches(&self, event_type: &str) -> bool {
        let mut literals = self.0.split('*');
        // Splitting yields at least one part.
        let Some(rest) = literals.next().and_then(|first| event_type.strip_prefix(first)) else {
            return false;
        };
        let Some(last) = literals.next_back() else { return rest.is_empty() };
        // The last literal is a suffix; each other one matches at the leftmost position, which leaves most to the rest.
        let Some(mut rest) = rest.strip_suffix(last) else { return false };
        for literal in literals {
            let Some(after_star) = skip_one(rest) else { return false };
            let Some(at) = after_star.find(literal) else { return false };
            rest = &after_star[at + literal.len()..];
        }
        !rest.is_empty()
    }
}

/// The text without its first character.
fn skip_one(text: &str) -> Option<&str> {
    let mut chars = text.chars();
    chars.next().map(|_| chars.as_str())
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let readable = |c: char| !c.is_whitespace() && !c.is_control();
        if text.is_empty() || text.len() > 255 || !text.chars().all(readable) {
            return Err(PatternError { text: text.chars().take(64).collect() });
        }
        Ok(Pattern(text.into()))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One pattern or several, separated by white space. An event type matches if one of them matches.
///
/// ```
/// use redrive::subscription::Patterns;
/// let patterns: Patterns = "order.* invoice.paid".parse()?;
/// assert!(patterns.matches("order.created") && patterns.matches("invoice.paid"));
/// assert!(!patterns.matches("invoice.sent"));
/// # Ok::<(), redrive::subscription::PatternError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Patterns(Box<[Pattern]>);

impl Patterns {
    /// The largest number of patterns of one subscription.
    pub const MAX_PATTERNS: usize = 100;

    /// Matches nothing.
    pub(crate) fn none() -> Self {
        Patterns(Box::default())
    }

    /// Whether an event type matches one of the patterns.
    pub fn matches(&self, event_type: &str) -> bool {
        self.0.iter().any(|pattern| pattern.matches(event_type))
    }

    /// Whether an event type matches one of the patterns in a text from the store. A text that is not readable matches nothing.
    pub(crate) fn text_matches(text: &str, event_type: &str) -> bool {
        text.parse::<Patterns>().is_ok_and(|patterns| patterns.matches(event_type))
    }

    /// The single patterns.
    pub fn iter(&self) -> impl Iterator<Item = &Pattern> {
        self.0.iter()
    }
}

impl FromStr for Patterns {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let patterns: Box<[Pattern]> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        if patterns.is_empty() || patterns.len() > Self::MAX_PATTERNS {
            return Err(PatternError { text: text.chars().take(64).collect() });
        }
        Ok(Patterns(patterns))
    }
}

impl fmt::Display for Patterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, pattern) in self.0.iter().enumerate() {
            if place > 0 {
                f.write_str(" ")?;
            }
            pattern.fmt(f)?;
        }
        Ok(())
    }
}

/// The error for a text that is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a pattern: use 1 to 255 bytes without white space, such as order.created, order.* or *; up to 100 with white \
     space between them"
)]
pub struct PatternError {
    text: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, event_type: &str) -> bool {
        pattern.parse::<Pattern>().unwrap().matches(event_type)
    }

    #[test]
    fn patterns_match_as_specified() {
        assert!(matches("user.created", "user.created") && !matches("user.created", "user.updated"));
        assert!(matches("user.*", "user.created") && matches("user.*", "user.updated"));
        assert!(!matches("user.*", "order.created"));
        assert!(matches("*", "order.created") && matches("*", "x"));
        assert!(
            matches("order.*.shipped", "order.123.shipped") && !matches("order.*.shipped", "order.shipped")
        );
    }

    #[test]
    fn a_star_takes_one_or_more_characters_dots_included() {
        assert!(matches("user.*", "user.profile.updated"));
        assert!(!matches("user.*", "user."), "at least one");
        assert!(!matches("a*b", "ab") && matches("a*b", "axb") && matches("a*b", "axbxb"));
        assert!(!matches("*.*", ".x") && matches("*.*", "a.x"));
        assert!(matches("**", "ab") && !matches("**", "a"), "two stars are two characters or more");
        assert!(matches("*é*", "aéb") && matches("é*", "éа"));
        assert!(!matches("user[.]created", "user.created"), "nothing else is special");
    }

    #[test]
    fn bad_patterns_say_what_to_write() {
        for text in ["", "a b", "a\n", &"x".repeat(256)] {
            assert!(text.parse::<Pattern>().unwrap_err().to_string().contains("order.* or *"));
        }
    }

    #[test]
    fn several_patterns_match_if_one_does() {
        let patterns: Patterns = " order.*\tinvoice.paid ".parse().unwrap();
        assert_eq!(patterns.to_string(), "order.* invoice.paid");
        assert!(patterns.matches("order.created") && patterns.matches("invoice.paid"));
        assert!(!patterns.matches("invoice.sent") && !Patterns::none().matches("order.created"));
        for text in ["", "  ", &"a ".repeat(101), &"x".repeat(256)] {
            assert!(text.parse::<Patterns>().unwrap_err().to_string().contains("order.* or *"));
        }
    }

    /// The definition itself, slow and obvious.
    fn by_definition(pattern: &[char], text: &[char]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some(('*', rest)) => (1..=text.len()).any(|taken| by_definition(rest, &text[taken..])),
            Some((c, rest)) => {
                text.split_first().is_some_and(|(first, others)| first == c && by_definition(rest, others))
            }
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(pattern in "[ab.*]{1,8}", text in "[ab.]{1,10}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(matches(&pattern, &text), by_definition(&chars(&pattern), &chars(&text)));
        }
    }

    #[test]
    fn a_hostile_pattern_matches_in_linear_time() {
        let pattern = format!("{}b", "a*".repeat(100));
        assert!(!matches(&pattern, &"a".repeat(255)));
    }
}
