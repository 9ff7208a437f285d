//! Error rules: classify failures as permanent or retryable.
//!
//! The order is: non-retryable rules, retryable rules, the class that the error carries, and by default transient.

use std::error::Error;
use std::fmt;
use std::io;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::class::{Classify, FailureClass};
use crate::failure::Failure;
use crate::macros::stored_as_text;

/// Rules that classify the errors of a retried operation.
///
/// ```
/// use redrive_retry::{Failure, FailureClass};
/// use redrive_retry::policy::{ErrorRule, Rules};
/// let rules = Rules::new().non_retryable("status:4xx".parse()?).retryable("status:404".parse()?);
/// # let now = redrive_retry::Timestamp::EPOCH;
/// let not_found = Failure::http(404, None, now, "not found");
/// assert_eq!(rules.class_of(&not_found), FailureClass::Permanent); // non-retryable rules come first
/// # Ok::<(), redrive_retry::policy::RuleError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use = "rules have no effect until they are part of a policy"]
pub struct Rules {
    pub(crate) non_retryable: Vec<ErrorRule>,
    pub(crate) retryable: Vec<ErrorRule>,
    classifiers: Vec<TypeTest<Option<FailureClass>>>,
}

impl Rules {
    /// Creates an empty set: marked errors keep their class, all others are retried.
    pub const fn new() -> Self {
        Rules { non_retryable: Vec::new(), retryable: Vec::new(), classifiers: Vec::new() }
    }

    /// Makes matching errors permanent. Checked before the retryable rules.
    pub fn non_retryable(mut self, rule: ErrorRule) -> Self {
        self.non_retryable.push(rule);
        self
    }

    /// Retries matching errors, even if they are marked as permanent.
    pub fn retryable(mut self, rule: ErrorRule) -> Self {
        self.retryable.push(rule);
        self
    }

    /// Uses the [`Classify`] implementation of errors of type `E` anywhere in the source chain.
    pub fn classify<E: Error + Classify + 'static>(mut self) -> Self {
        self.classifiers.push(TypeTest::of::<E>(|error| error.downcast_ref::<E>().map(Classify::class)));
        self
    }

    /// Class of a failure under these rules.
    pub fn class_of(&self, failure: &Failure) -> FailureClass {
        // A mark comes first, then a registered type, then a timeout that the error's type tells.
        let registered = || {
            failure.chain().find_map(|error| self.classifiers.iter().find_map(|known| (known.test)(error)))
        };
        let own =
            failure.mark().or_else(registered).or_else(|| failure.guess()).unwrap_or(FailureClass::Transient);
        if self.non_retryable.iter().any(|rule| rule.matches_as(failure, own)) {
            return FailureClass::Permanent;
        }
        if !own.is_retryable() && self.retryable.iter().any(|rule| rule.matches_as(failure, own)) {
            return FailureClass::Transient;
        }
        own
    }

    pub(crate) fn from_lists(non_retryable: Vec<ErrorRule>, retryable: Vec<ErrorRule>) -> Self {
        Rules { non_retryable, retryable, classifiers: Vec::new() }
    }
}

/// Test of an error for one type. Tests for the same type are equal.
#[derive(Copy, Clone)]
struct TypeTest<R> {
    type_name: &'static str,
    test: fn(&(dyn Error + 'static)) -> R,
}

impl<R> TypeTest<R> {
    fn of<E>(test: fn(&(dyn Error + 'static)) -> R) -> Self {
        TypeTest { type_name: std::any::type_name::<E>(), test }
    }
}

impl<R> fmt::Debug for TypeTest<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.type_name)
    }
}

impl<R> PartialEq for TypeTest<R> {
    fn eq(&self, other: &Self) -> bool {
        self.type_name == other.type_name
    }
}

impl<R> Eq for TypeTest<R> {}

/// A rule that matches errors: `any`, `type:TimeoutError` or `TimeoutError`, `message:reset`, `status:404`, `status:5xx`,
/// `class:timeout`, `io:permanent`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ErrorRule(Matcher);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Matcher {
    Any,
    /// Any error of the chain is of this type.
    Type(TypeTest<bool>),
    /// The operation returned a type of this name (the whole path or its last part). Text names no other type.
    TypeName(String),
    Message(String),
    Status {
        from: u16,
        to: u16,
    },
    Class(&'static str),
    /// An I/O error of one of [`PERMANENT_IO`].
    PermanentIo,
}

/// Kinds of I/O errors whose cause is the request itself or the system's setup: waiting rarely helps.
const PERMANENT_IO: [io::ErrorKind; 8] = [
    io::ErrorKind::PermissionDenied,
    io::ErrorKind::InvalidInput,
    io::ErrorKind::Unsupported,
    io::ErrorKind::AlreadyExists,
    io::ErrorKind::NotADirectory,
    io::ErrorKind::IsADirectory,
    io::ErrorKind::ReadOnlyFilesystem,
    io::ErrorKind::ArgumentListTooLong,
];

impl ErrorRule {
    /// Matches every error.
    pub fn any() -> Self {
        ErrorRule(Matcher::Any)
    }

    /// Matches errors of this type anywhere in the source chain.
    pub fn of<E: Error + 'static>() -> Self {
        ErrorRule(Matcher::Type(TypeTest::of::<E>(|error| error.is::<E>())))
    }

    /// Matches I/O errors whose kind blames the request or the permissions: `PermissionDenied`, `InvalidInput`, `Unsupported`,
    /// `AlreadyExists`, `NotADirectory`, `IsADirectory`, `ReadOnlyFilesystem` and `ArgumentListTooLong`. As text: `io:permanent`.
    ///
    /// Without this rule they are retried, like every other error.
    ///
    /// ```
    /// use redrive_retry::policy::{ErrorRule, Rules};
    /// use redrive_retry::{Failure, FailureClass};
    ///
    /// let denied = || Failure::new(std::io::Error::from(std::io::ErrorKind::PermissionDenied));
    /// assert_eq!(Rules::new().class_of(&denied()), FailureClass::Transient);
    /// let strict = Rules::new().non_retryable(ErrorRule::permanent_io());
    /// assert_eq!(strict.class_of(&denied()), FailureClass::Permanent);
    /// ```
    pub fn permanent_io() -> Self {
        ErrorRule(Matcher::PermanentIo)
    }

    /// Whether the rule matches this failure.
    pub fn matches(&self, failure: &Failure) -> bool {
        self.matches_as(failure, failure.class().unwrap_or(FailureClass::Transient))
    }

    fn matches_as(&self, failure: &Failure, own: FailureClass) -> bool {
        match &self.0 {
            Matcher::Any => true,
            Matcher::Type(known) => failure.chain().any(known.test),
            Matcher::TypeName(name) => {
                let full = failure.type_name();
                full == name || full.rsplit("::").next() == Some(name)
            }
            Matcher::Message(part) => failure.chain().any(|error| error.to_string().contains(part)),
            Matcher::Status { from, to } => {
                failure.status().is_some_and(|status| (*from..=*to).contains(&status))
            }
            Matcher::Class(name) => own.name() == *name,
            Matcher::PermanentIo => {
                failure.find::<io::Error>().is_some_and(|error| PERMANENT_IO.contains(&error.kind()))
            }
        }
    }
}

impl fmt::Display for ErrorRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Matcher::Any => f.write_str("any"),
            Matcher::Type(known) => write!(f, "type:{}", known.type_name),
            Matcher::TypeName(name) => write!(f, "type:{name}"),
            Matcher::Message(part) => write!(f, "message:{part}"),
            Matcher::Status { from, to } if from == to => write!(f, "status:{from}"),
            Matcher::Status { from, .. } => write!(f, "status:{}xx", from / 100),
            Matcher::Class(name) => write!(f, "class:{name}"),
            Matcher::PermanentIo => f.write_str("io:permanent"),
        }
    }
}

impl FromStr for ErrorRule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        const MAX_BYTES: usize = 256;
        let unreadable = || RuleError { text: text.chars().take(64).collect() };
        // The specification writes `Exception` and bare type names.
        if matches!(text, "any" | "Exception") {
            return Ok(ErrorRule::any());
        }
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        if text.starts_with(char::is_uppercase) && text.len() <= MAX_BYTES && text.chars().all(is_name) {
            return Ok(ErrorRule(Matcher::TypeName(text.into())));
        }
        let (kind, value) = text.split_once(':').ok_or_else(unreadable)?;
        if value.is_empty() || value.len() > MAX_BYTES {
            return Err(unreadable());
        }
        let matcher = match kind {
            "type" => Matcher::TypeName(value.into()),
            "io" if value == "permanent" => Matcher::PermanentIo,
            "message" => Matcher::Message(value.into()),
            "class" => ["transient", "throttled", "timeout", "permanent", "crashed"]
                .into_iter()
                .find(|name| *name == value)
                .map(Matcher::Class)
                .ok_or_else(unreadable)?,
            "status" => {
                let (digits, codes) = value.strip_suffix("xx").map_or((value, 1), |hundreds| (hundreds, 100));
                let from = digits.parse::<u16>().map_err(|_| unreadable())?.saturating_mul(codes);
                if !(100..=599).contains(&from) {
                    return Err(unreadable());
                }
                Matcher::Status { from, to: from + codes - 1 }
            }
            _ => return Err(unreadable()),
        };
        Ok(ErrorRule(matcher))
    }
}

stored_as_text!(ErrorRule, RuleError);

/// Text that is not an error rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not an error rule: write any, type:NAME, message:PART, status:404, status:5xx, io:permanent, or \
     class:NAME (transient, throttled, timeout, permanent, crashed)"
)]
pub struct RuleError {
    text: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::ClassifyError;
    use crate::timestamp::Timestamp;

    #[derive(Debug, thiserror::Error)]
    #[error("value")]
    struct ValueError;

    #[derive(Debug, thiserror::Error)]
    #[error("network")]
    struct NetworkError;

    impl Classify for ValueError {
        fn class(&self) -> FailureClass {
            FailureClass::Permanent
        }
    }

    #[test]
    fn without_rules_every_error_is_retried() {
        assert_eq!(Rules::new().class_of(&Failure::new(ValueError)), FailureClass::Transient);
        assert_eq!(Rules::new().class_of(&Failure::new("text")), FailureClass::Transient);
    }

    #[test]
    fn a_non_retryable_rule_makes_an_error_permanent() {
        let strict = Rules::new().non_retryable(ErrorRule::of::<ValueError>());
        assert_eq!(strict.class_of(&Failure::new(ValueError)), FailureClass::Permanent);
        assert_eq!(strict.class_of(&Failure::new(NetworkError)), FailureClass::Transient);
    }

    #[test]
    fn the_non_retryable_list_is_checked_before_the_retryable_one() {
        let both = Rules::new()
            .retryable(ErrorRule::of::<ValueError>())
            .retryable(ErrorRule::of::<NetworkError>())
            .non_retryable(ErrorRule::of::<ValueError>());
        assert_eq!(both.class_of(&Failure::new(ValueError)), FailureClass::Permanent);
        assert_eq!(both.class_of(&Failure::new(NetworkError)), FailureClass::Transient);
    }

    #[test]
    fn a_retryable_rule_overrides_a_permanent_mark() {
        let lenient = Rules::new().retryable(ErrorRule::any());
        assert_eq!(lenient.class_of(&"x".permanent()), FailureClass::Transient);
        let throttled = "x".retry_after(std::time::Duration::from_secs(1));
        assert_eq!(Some(lenient.class_of(&throttled)), throttled.class(), "a retryable class is kept");
    }

    #[test]
    fn an_error_that_matches_neither_list_is_retried() {
        let rules = Rules::new().retryable(ErrorRule::of::<NetworkError>());
        assert_eq!(rules.class_of(&Failure::new("other")), FailureClass::Transient);
    }

    #[test]
    fn a_registered_error_type_is_classified_inside_anyhow() {
        let rules = Rules::new().classify::<ValueError>();
        assert_eq!(rules.class_of(&Failure::new(ValueError)), FailureClass::Permanent);
        let wrapped = anyhow::Error::new(ValueError).context("while parsing");
        assert_eq!(rules.class_of(&Failure::new(wrapped)), FailureClass::Permanent);
        assert_eq!(rules.class_of(&ValueError.transient()), FailureClass::Transient, "a mark comes first");
    }

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] io::Error);

    impl Classify for Outer {
        fn class(&self) -> FailureClass {
            FailureClass::Permanent
        }
    }

    #[test]
    fn a_registered_error_type_comes_before_its_source() {
        let rules = Rules::new().classify::<Outer>();
        let failure = Failure::new(Outer(io::ErrorKind::TimedOut.into()));
        assert_eq!(rules.class_of(&failure), FailureClass::Permanent);
    }

    #[test]
    fn class_rules_match_the_effective_class() {
        let rules = Rules::new().non_retryable("class:transient".parse().unwrap());
        assert_eq!(rules.class_of(&Failure::new("plain")), FailureClass::Permanent);
        let rules = Rules::new().classify::<Outer>().retryable("class:permanent".parse().unwrap());
        assert_eq!(
            rules.class_of(&Failure::new(Outer(io::ErrorKind::TimedOut.into()))),
            FailureClass::Transient
        );
    }

    #[test]
    fn a_status_is_found_through_containers() {
        let rule: ErrorRule = "status:404".parse().unwrap();
        let wrapped =
            anyhow::Error::new(Failure::http(404, None, Timestamp::EPOCH, "gone")).context("fetching");
        assert!(rule.matches(&Failure::new(wrapped)));
    }

    #[test]
    fn the_rule_names_of_the_specification_are_parsed() {
        assert_eq!("Exception".parse(), Ok(ErrorRule::any()));
        assert!("ValueError".parse::<ErrorRule>().unwrap().matches(&Failure::new(ValueError)));
        assert_ne!(ErrorRule::of::<ValueError>(), ErrorRule::of::<ValueError>().to_string().parse().unwrap());
    }

    #[test]
    fn rules_from_text_match_by_type_message_status_and_class() {
        let failure = Failure::http(503, None, Timestamp::EPOCH, "connection reset by peer");
        let io = Failure::new(io::Error::from(io::ErrorKind::TimedOut));
        let matches = |rule: &str, failure: &Failure| rule.parse::<ErrorRule>().unwrap().matches(failure);
        assert!(matches("any", &failure) && matches("message:connection reset", &failure));
        assert!(matches("status:503", &failure) && matches("status:5xx", &failure));
        assert!(
            !matches("status:500", &failure)
                && !matches("status:4xx", &failure)
                && !matches("status:503", &io)
        );
        assert!(matches("class:timeout", &io) && !matches("class:permanent", &io));
        assert!(matches("type:ValueError", &Failure::new(ValueError)));
        assert!(!matches("type:Value", &Failure::new(ValueError)));
    }

    #[test]
    fn io_errors_that_blame_the_request_are_permanent_only_by_rule() {
        let kinds = [
            io::ErrorKind::PermissionDenied,
            io::ErrorKind::InvalidInput,
            io::ErrorKind::Unsupported,
            io::ErrorKind::AlreadyExists,
        ];
        let by_name: ErrorRule = "io:permanent".parse().unwrap();
        assert_eq!((&by_name, by_name.to_string().as_str()), (&ErrorRule::permanent_io(), "io:permanent"));
        let strict = Rules::new().non_retryable(by_name);
        for kind in kinds {
            assert_eq!(Rules::new().class_of(&Failure::new(io::Error::from(kind))), FailureClass::Transient);
            let wrapped = || anyhow::Error::new(io::Error::new(kind, "no")).context("writing");
            assert_eq!(strict.class_of(&Failure::new(wrapped())), FailureClass::Permanent, "{kind:?}");
        }
        let refused = Failure::new(io::Error::from(io::ErrorKind::ConnectionRefused));
        assert_eq!(strict.class_of(&refused), FailureClass::Transient);
    }

    #[test]
    fn an_invalid_rule_gets_an_error_with_the_valid_forms() {
        for text in [
            "",
            "type:",
            "status:600",
            "status:9xx",
            "status:abc",
            "class:odd",
            "kind:x",
            "type",
            "lower",
            "io:odd",
        ] {
            let error = text.parse::<ErrorRule>().unwrap_err().to_string();
            assert!(error.contains("write any, type:NAME"), "{text}: {error}");
        }
        assert!(format!("message:{}", "x".repeat(300)).parse::<ErrorRule>().is_err());
    }
}
