//! Names of the schema and of the notification channel, and their substitution into statements.

use crate::error::StoreError;

/// A schema name that is safe to put into a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names {
    schema: String,
}

impl Names {
    pub(super) fn new(schema: &str) -> Result<Self, StoreError> {
        let mut bytes = schema.bytes();
        let begins_well = bytes.next().is_some_and(|first| first.is_ascii_lowercase());
        let goes_on_well =
            bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        // PostgreSQL reserves names that begin with pg_.
        if !begins_well || !goes_on_well || schema.len() > 40 || schema.starts_with("pg_") {
            return Err(StoreError::SchemaName { name: schema.chars().take(64).collect() });
        }
        Ok(Names { schema: schema.to_owned() })
    }

    pub(super) fn schema(&self) -> &str {
        &self.schema
    }

    /// The channel of notifications of due work.
    pub(super) fn channel(&self) -> String {
        format!("redrive_{}", self.schema)
    }

    /// Rewrites a statement, which is written for the schema `redrive`, for this schema.
    pub(super) fn statement(&self, text: &str) -> String {
        text.replace("redrive.", &format!("\"{}\".", self.schema)).replace("@channel@", &self.channel())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schema_names_are_checked_and_quoted() {
        for bad in ["", "1st", "Orders", "a-b", "a\"; DROP SCHEMA public", "pg_catalog", &"x".repeat(41)] {
            let error = Names::new(bad).unwrap_err().to_string();
            assert!(error.contains("cannot be the name of a schema"), "{error}");
        }
        let names = Names::new("billing_2").unwrap();
        assert_eq!(names.statement("SELECT 1 FROM redrive.event"), "SELECT 1 FROM \"billing_2\".event");
        assert_eq!(names.statement("NOTIFY @channel@"), "NOTIFY redrive_billing_2");
    }
}
