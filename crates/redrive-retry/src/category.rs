//! Categories of guarded calls: a category selects the policy and is named in every audit event.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

macro_rules! categories {
    ($($variant:ident = $code:literal, $doc:literal;)+) => {
        /// A predefined or custom category of guarded calls.
        #[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub enum Category {
            $(#[doc = $doc] $variant,)+
            /// A custom category, created by [`Category::custom`].
            Custom(CustomCategory),
        }

        impl Category {
            /// The seventeen predefined categories.
            pub const ALL: [Category; 17] = [$(Category::$variant),+];

            /// Code in audit events.
            pub fn code(&self) -> &str {
                match self {
                    $(Category::$variant => $code,)+
                    Category::Custom(custom) => &custom.0,
                }
            }

            /// Index in [`Category::ALL`]; `None` for a custom category.
            #[inline]
            pub(crate) fn index(&self) -> Option<usize> {
                let mut index = 0;
                $(
                    if matches!(self, Category::$variant) {
                        return Some(index);
                    }
                    index += 1;
                )+
                let _ = index;
                None
            }
        }
    };
}

categories! {
    NatsConnect = "RETRY_NATS_CONNECT", "Connection establishment.";
    NatsPublish = "RETRY_NATS_PUBLISH", "Message publishing.";
    NatsSubscribe = "RETRY_NATS_SUBSCRIBE", "Subject subscription.";
    NatsStreamCreate = "RETRY_NATS_STREAM_CREATE", "Stream setup.";
    KvCreate = "RETRY_KV_CREATE", "KV bucket creation.";
    KvGet = "RETRY_KV_GET", "KV value retrieval.";
    KvPut = "RETRY_KV_PUT", "KV value storage.";
    KvDelete = "RETRY_KV_DELETE", "KV value deletion.";
    ExecutionIntent = "RETRY_EXECUTION_INTENT", "Intent execution.";
    ExecutionContainment = "RETRY_EXECUTION_CONTAINMENT", "Containment operations.";
    ExecutionExpiration = "RETRY_EXECUTION_EXPIRATION", "Batch processing.";
    ApprovalCheck = "RETRY_APPROVAL_CHECK", "Approval verification.";
    ApprovalGrant = "RETRY_APPROVAL_GRANT", "Approval operations.";
    ReplayProcessing = "REPLAY_REPLAY_PROCESSING", "Large replays.";
    ReplayValidation = "REPLAY_REPLAY_VALIDATION", "Replay validation.";
    ApiRequest = "RETRY_API_REQUEST", "API calls.";
    ApiValidation = "RETRY_API_VALIDATION", "Input validation.";
}

/// Checked code of a custom category.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CustomCategory(Cow<'static, str>);

impl Category {
    /// Category of a call through [`RetryExt`](crate::RetryExt) that names no other.
    pub const CALL: Category = Category::Custom(CustomCategory(Cow::Borrowed("RETRY_CALL")));

    /// Creates a custom category from a code of 1 to 64 upper-case letters, digits and underscores, such as `RETRY_PAYMENT`.
    ///
    /// ```
    /// # use redrive_retry::Category;
    /// assert_eq!(Category::custom("RETRY_PAYMENT")?.code(), "RETRY_PAYMENT");
    /// assert!(Category::custom("payment!").is_err());
    /// # Ok::<(), redrive_retry::category::CategoryError>(())
    /// ```
    pub fn custom(code: impl Into<Cow<'static, str>>) -> Result<Self, CategoryError> {
        let code = code.into();
        let readable = code.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
        if !readable || code.is_empty() || code.len() > 64 {
            return Err(CategoryError::Code { code: code.chars().take(80).collect() });
        }
        Ok(Category::known(&code).unwrap_or(Category::Custom(CustomCategory(code))))
    }

    /// Name without the first word of the code: `API_REQUEST` of `RETRY_API_REQUEST`. A custom category keeps its code.
    pub fn name(&self) -> &str {
        match self {
            Category::Custom(custom) => &custom.0,
            predefined => predefined.code().split_once('_').map_or("", |(_, name)| name),
        }
    }

    fn known(text: &str) -> Option<Self> {
        Category::ALL.into_iter().find(|category| category.code() == text || category.name() == text)
    }
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// Finds a predefined category by code or name. A custom category is found by [`RetryManager::category`](crate::RetryManager::category).
impl FromStr for Category {
    type Err = CategoryError;

    fn from_str(text: &str) -> Result<Self, CategoryError> {
        Category::known(text).ok_or_else(|| CategoryError::Unknown { text: text.chars().take(80).collect() })
    }
}

/// Reads the code of an audit event, which may be custom.
impl TryFrom<String> for Category {
    type Error = CategoryError;

    fn try_from(code: String) -> Result<Self, CategoryError> {
        Category::custom(code)
    }
}

impl From<Category> for String {
    fn from(category: Category) -> String {
        category.code().to_owned()
    }
}

/// Text that is not a category.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CategoryError {
    /// The code of a custom category has characters that are not allowed.
    #[error(
        "{code:?} is not a category code: use 1 to 64 upper-case letters, digits and underscores, such as RETRY_PAYMENT"
    )]
    Code {
        /// The code.
        code: String,
    },
    /// No category has this code or name.
    #[error(
        "there is no category {text:?}: use one of the seventeen predefined ones, such as API_REQUEST, or register a custom \
         one with RetryManager::builder().policy(Category::custom(..)?, ..)"
    )]
    Unknown {
        /// The text.
        text: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seventeen_codes_are_exactly_the_specified_ones() {
        let codes: Vec<_> = Category::ALL.iter().map(|c| c.code().to_owned()).collect();
        assert_eq!(
            codes,
            [
                "RETRY_NATS_CONNECT",
                "RETRY_NATS_PUBLISH",
                "RETRY_NATS_SUBSCRIBE",
                "RETRY_NATS_STREAM_CREATE",
                "RETRY_KV_CREATE",
                "RETRY_KV_GET",
                "RETRY_KV_PUT",
                "RETRY_KV_DELETE",
                "RETRY_EXECUTION_INTENT",
                "RETRY_EXECUTION_CONTAINMENT",
                "RETRY_EXECUTION_EXPIRATION",
                "RETRY_APPROVAL_CHECK",
                "RETRY_APPROVAL_GRANT",
                "REPLAY_REPLAY_PROCESSING",
                "REPLAY_REPLAY_VALIDATION",
                "RETRY_API_REQUEST",
                "RETRY_API_VALIDATION",
            ]
        );
    }

    #[test]
    fn a_category_is_found_by_code_and_by_name() {
        for (index, category) in Category::ALL.into_iter().enumerate() {
            assert_eq!(category.code().parse(), Ok(category.clone()));
            assert_eq!(category.name().parse(), Ok(category.clone()));
            assert_eq!(category.index(), Some(index));
        }
        assert_eq!(Category::custom("RETRY_PAYMENT").unwrap().index(), None);
    }

    #[test]
    fn unknown_text_is_no_category_but_a_recorded_custom_code_is_read() {
        for text in ["RETRY_PAYMENT", "RETRY_KV_GTE", "kv_get", ""] {
            let error = text.parse::<Category>().unwrap_err().to_string();
            assert!(
                error.contains("there is no category") && error.contains("register a custom one"),
                "{error}"
            );
        }
        let payment = Category::custom("RETRY_PAYMENT").unwrap();
        let stored = serde_json::to_string(&payment).unwrap();
        assert_eq!(serde_json::from_str::<Category>(&stored).unwrap(), payment);
    }

    #[test]
    fn a_custom_code_is_checked() {
        for code in ["", "lower", "WITH SPACE", "Ü", &"X".repeat(65)] {
            let error = Category::custom(code.to_owned()).unwrap_err().to_string();
            assert!(error.contains("such as RETRY_PAYMENT"), "{error}");
        }
    }
}
