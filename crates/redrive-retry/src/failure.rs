//! [`Failure`]: an error with its class.
//!
//! Any error converts into a [`Failure`]: enums, `anyhow`, boxed errors, strings. A mark (`.permanent()`,
//! `.retry_after(..)`) is found anywhere in the source chain.

use std::any::{Any, type_name};
use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use crate::class::{Classify, FailureClass};
use crate::http;
use crate::manager::RetryError;
use crate::timestamp::Timestamp;

/// Boxed error of any type.
pub type BoxError = Box<dyn Error + Send + Sync + 'static>;

/// An error with its class, if it has one. Display and source are those of the wrapped error.
pub struct Failure {
    error: BoxError,
    /// Class set by a mark on this error or on one of its sources.
    mark: Option<FailureClass>,
    status: Option<u16>,
    type_name: &'static str,
}

impl Failure {
    /// Wraps any error. The class comes from its mark or its HTTP status, or is a timeout if its type says so.
    #[cold] // off the path of calls that succeed
    pub fn new<E: Into<BoxError> + 'static>(error: E) -> Self {
        let type_name = type_name::<E>();
        // Tried as each known type without unsafe code; optimised away after inlining.
        let mut slot = Some(error);
        if let Some(failure) = take::<E, Failure>(&mut slot) {
            return failure;
        }
        #[cfg(feature = "anyhow")]
        if let Some(error) = take::<E, anyhow::Error>(&mut slot) {
            // The only conversion that keeps the wrapped error's type.
            return Self::of_box(error.reallocate_into_boxed_dyn_error_without_backtrace(), type_name);
        }
        match slot {
            Some(error) => Self::of_box(error.into(), type_name),
            None => unreachable!("the slot is emptied only by a branch that returns"),
        }
    }

    fn of_box(error: BoxError, type_name: &'static str) -> Self {
        match error.downcast::<Failure>() {
            Ok(failure) => *failure,
            Err(error) => {
                let marked = || chain(error.as_ref()).filter_map(|error| error.downcast_ref::<Failure>());
                let (mark, status) = (marked().find_map(|f| f.mark), marked().find_map(|f| f.status));
                Failure { error, mark, status, type_name }
            }
        }
    }

    /// Creates the failure of an attempt that exceeded its time limit.
    pub fn timeout(limit: Duration) -> Self {
        let text = format!("no result within {}", crate::duration::format_duration(limit));
        Failure { type_name: "TimeoutError", ..Self::new(text).with_class(FailureClass::Timeout) }
    }

    /// Creates the failure of an attempt that panicked.
    pub fn panic(payload: &(dyn Any + Send)) -> Self {
        let message = payload
            .downcast_ref::<&str>()
            .map(ToString::to_string)
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a value that is not text".into());
        Failure {
            type_name: "Panic",
            ..Self::new(format!("panicked: {message}")).with_class(FailureClass::Transient)
        }
    }

    /// Creates the failure of an HTTP response, classified by [`http::classify`].
    pub fn http(
        status: u16,
        retry_after: Option<&str>,
        now: Timestamp,
        error: impl Into<BoxError> + 'static,
    ) -> Self {
        let class = http::classify(status, retry_after, now).unwrap_or(FailureClass::Transient);
        Failure { status: Some(status), ..Self::new(error).with_class(class) }
    }

    /// Sets the class.
    #[must_use]
    pub fn with_class(mut self, class: FailureClass) -> Self {
        self.mark = Some(class);
        self
    }

    /// Class of the error before a policy's [`Rules`](crate::policy::Rules) apply.
    pub fn class(&self) -> Option<FailureClass> {
        self.mark.or_else(|| self.guess())
    }

    /// Class set by a mark.
    pub(crate) fn mark(&self) -> Option<FailureClass> {
        self.mark
    }

    /// Class of an I/O error (timeout or transient) or elapsed timer (timeout) in the source chain.
    pub(crate) fn guess(&self) -> Option<FailureClass> {
        self.chain().find_map(|error| {
            if error.is::<tokio::time::error::Elapsed>() {
                return Some(FailureClass::Timeout);
            }
            error.downcast_ref::<io::Error>().map(FailureClass::of_io)
        })
    }

    /// HTTP status, if there is one.
    pub fn status(&self) -> Option<u16> {
        self.status
    }

    /// Type name of the error that the operation returned.
    pub fn type_name(&self) -> &'static str {
        self.type_name
    }

    /// The wrapped error.
    pub fn get_ref(&self) -> &(dyn Error + Send + Sync + 'static) {
        self.error.as_ref()
    }

    /// Returns the wrapped error by value.
    pub fn into_inner(self) -> BoxError {
        self.error
    }

    /// Finds the first error of type `E` in the source chain.
    pub fn find<E: Error + 'static>(&self) -> Option<&E> {
        self.chain().find_map(|error| error.downcast_ref())
    }

    /// Iterates over the wrapped error and its sources.
    pub fn chain(&self) -> impl Iterator<Item = &(dyn Error + 'static)> {
        chain(self.error.as_ref())
    }
}

/// Moves the value out if `E` is `T`.
fn take<E: 'static, T: 'static>(slot: &mut Option<E>) -> Option<T> {
    (slot as &mut dyn Any).downcast_mut::<Option<T>>().and_then(Option::take)
}

pub(crate) fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn Error + 'static)| {
        let error: &'a (dyn Error + 'static) = *error;
        // The source of these errors skips the error that they wrap, so visit it explicitly.
        if let Some(failure) = error.downcast_ref::<Failure>() {
            return Some(failure.error.as_ref());
        }
        if let Some(cause) = error.downcast_ref::<RetryError>().and_then(RetryError::cause) {
            return Some(cause);
        }
        if let Some(inner) = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            return Some(inner);
        }
        error.source()
    })
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failure")
            .field("class", &self.class())
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

/// Marks an error with its class.
///
/// ```
/// use redrive_retry::{BoxError, ClassifyError, ClassifyResult};
/// use std::time::Duration;
///
/// fn charge(cents: i64) -> Result<(), BoxError> {
///     if cents <= 0 {
///         return Err("the amount must be positive".permanent().into());
///     }
///     let answer: Result<(), std::io::Error> = Ok(());
///     answer.retry_after(Duration::from_secs(5))?;
///     Ok(())
/// }
/// # assert!(charge(0).is_err()); assert!(charge(1).is_ok());
/// ```
pub trait ClassifyError: Into<BoxError> + Sized + 'static {
    /// Marks the error with this class.
    fn with_class(self, class: FailureClass) -> Failure {
        Failure::new(self).with_class(class)
    }

    /// Marks the error as permanent: no retry.
    fn permanent(self) -> Failure {
        self.with_class(FailureClass::Permanent)
    }

    /// Marks the error as transient: retried even if its type is permanent.
    fn transient(self) -> Failure {
        self.with_class(FailureClass::Transient)
    }

    /// Marks the error as a timeout.
    fn timed_out(self) -> Failure {
        self.with_class(FailureClass::Timeout)
    }

    /// Marks the error as throttled: retried after at least this delay.
    fn retry_after(self, wait: Duration) -> Failure {
        self.with_class(FailureClass::retry_after(wait))
    }

    /// Marks the error with the class from its [`Classify`] implementation.
    fn classified(self) -> Failure
    where
        Self: Classify,
    {
        let class = self.class();
        self.with_class(class)
    }
}

impl<E: Into<BoxError> + 'static> ClassifyError for E {}

/// Marks the error of a `Result` with its class. Separate from [`ClassifyError`], whose blanket implementation excludes `Result`.
pub trait ClassifyResult<T, E: ClassifyError>: Sized {
    /// Applies `mark` to the error.
    fn mark(self, mark: impl FnOnce(E) -> Failure) -> Result<T, Failure>;

    /// Marks the error as permanent: no retry.
    fn permanent(self) -> Result<T, Failure> {
        self.mark(E::permanent)
    }

    /// Marks the error as transient: retried even if its type is permanent.
    fn transient(self) -> Result<T, Failure> {
        self.mark(E::transient)
    }

    /// Marks the error as a timeout.
    fn timed_out(self) -> Result<T, Failure> {
        self.mark(E::timed_out)
    }

    /// Marks the error as throttled: retried after at least this delay.
    fn retry_after(self, wait: Duration) -> Result<T, Failure> {
        self.mark(|error| error.retry_after(wait))
    }

    /// Marks the error with the class from its [`Classify`] implementation.
    fn classified(self) -> Result<T, Failure>
    where
        E: Classify,
    {
        self.mark(E::classified)
    }
}

impl<T, E: ClassifyError> ClassifyResult<T, E> for Result<T, E> {
    fn mark(self, mark: impl FnOnce(E) -> Failure) -> Result<T, Failure> {
        self.map_err(mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum ShipError {
        #[error("no such address")]
        Address,
        #[error("the carrier did not answer")]
        Carrier(#[source] io::Error),
    }

    impl Classify for ShipError {
        fn class(&self) -> FailureClass {
            match self {
                ShipError::Address => FailureClass::Permanent,
                ShipError::Carrier(_) => FailureClass::Transient,
            }
        }
    }

    fn refused() -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, "carrier.example timed out")
    }

    #[test]
    fn common_error_types_are_wrapped_with_their_source_chain() {
        let own = Failure::new(ShipError::Carrier(refused()));
        assert_eq!(own.to_string(), "the carrier did not answer");
        assert_eq!(own.source().unwrap().to_string(), "carrier.example timed out");
        assert!(own.type_name().ends_with("ShipError"));

        let boxed: BoxError = ShipError::Carrier(refused()).into();
        assert!(Failure::new(boxed).find::<ShipError>().is_some());
        assert_eq!(Failure::new("just text").to_string(), "just text");
        assert_eq!(Failure::new(String::from("owned text")).to_string(), "owned text");

        let any = anyhow::Error::new(ShipError::Carrier(refused())).context("shipping order 7");
        let any = Failure::new(any);
        assert_eq!(any.to_string(), "shipping order 7");
        assert_eq!(any.chain().count(), 4, "context, own error, I/O error, and its payload");
        assert!(any.find::<io::Error>().is_some());
    }

    #[test]
    fn the_outermost_error_of_anyhow_is_found() {
        let failure = Failure::new(anyhow::Error::new(ShipError::Address));
        assert!(failure.find::<ShipError>().is_some());
        assert_eq!(Failure::new(anyhow::Error::new(refused())).class(), Some(FailureClass::Timeout));
    }

    #[test]
    fn marks_survive_every_wrapper() {
        let permanent = Some(FailureClass::Permanent);
        assert_eq!(Failure::new("bad".permanent()).class(), permanent);
        let boxed: BoxError = ShipError::Address.permanent().into();
        assert_eq!(Failure::new(boxed).class(), permanent);
        let any = anyhow::Error::new(ShipError::Address.permanent()).context("outer");
        assert_eq!(Failure::new(any).class(), permanent);
        let result: Result<(), _> = Err::<(), _>(refused()).permanent();
        assert_eq!(result.unwrap_err().class(), permanent, "the mark beats the kind of I/O error");
        assert!(Err::<(), _>(anyhow::anyhow!("x")).permanent().is_err());
        assert!(Ok::<_, io::Error>(7).permanent().is_ok());
    }

    #[test]
    fn marks_and_types_inside_an_io_error_are_found() {
        let inside = Failure::new(io::Error::other("bad".permanent()));
        assert_eq!(inside.class(), Some(FailureClass::Permanent), "the mark beats the kind");
        assert!(Failure::new(io::Error::other(ShipError::Address)).find::<ShipError>().is_some());
    }

    #[test]
    fn combinators_set_each_class() {
        let wait = Duration::from_secs(9);
        assert_eq!("x".transient().class(), Some(FailureClass::Transient));
        assert_eq!("x".timed_out().class(), Some(FailureClass::Timeout));
        assert_eq!("x".retry_after(wait).class().unwrap().requested_wait(), Some(wait));
        assert_eq!(ShipError::Address.classified().class(), Some(FailureClass::Permanent));
    }

    #[test]
    fn an_unmarked_error_has_no_class() {
        assert_eq!(Failure::new("text").class(), None);
        assert_eq!(Failure::new(ShipError::Address).class(), None, "the trait counts once it is registered");
        assert_eq!(Failure::new(ShipError::Carrier(refused())).class(), Some(FailureClass::Timeout));
    }

    #[test]
    fn panics_and_timeouts_become_failures() {
        let payload = std::panic::catch_unwind(|| panic!("order {} is odd", 7)).unwrap_err();
        assert_eq!(Failure::panic(payload.as_ref()).to_string(), "panicked: order 7 is odd");
        let payload = std::panic::catch_unwind(|| std::panic::panic_any(7)).unwrap_err();
        assert_eq!(Failure::panic(payload.as_ref()).to_string(), "panicked: a value that is not text");
        let timeout = Failure::timeout(Duration::from_secs(30));
        assert_eq!(
            (timeout.to_string().as_str(), timeout.type_name()),
            ("no result within 30s", "TimeoutError")
        );
    }
}
