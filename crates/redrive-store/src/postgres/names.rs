//! The names of what is ours in the database: the schema and the channel.

use crate::error::StoreError;

/// Checked, so that it can stand in a statement.
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
        // Names that begin with pg_ are the server's own.
        if !begins_well || !goes_on_well || schema.len() > 40 || schema.starts_with("pg_") {
            return Err(StoreError::SchemaName { name: schema.chars().take(64).collect() });
        }
        Ok(Names { schema: schema.to_owned() })
    }

    pub(super) fn schema(&self) -> &str {
        &self.schema
    }

    /// Where it is said that there is work.
    pub(super) fn channel(&self) -> String {
        format!("redrive_{}", self.schema)
    }

    /// A statement for this schema. All of ours are written for the schema `redrive`.
    pub(super) fn statement(&self, text: &str) -> String {
        text.replace("redrive.", &format!("\"{}\".", self.schema)).replace("@channel@", &self.channel())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_quoted() {
        for bad in ["", "1st", "Orders", "a-b", "a\"; DROP SCHEMA public", "pg_catalog", &"x".repeat(41)] {
            let error = Names::new(bad).unwrap_err().to_string();
            assert!(error.contains("cannot be the name of a schema"), "{error}");
        }
        let names = Names::new("billing_2").unwrap();
        assert_eq!(names.statement("SELECT 1 FROM redrive.event"), "SELECT 1 FROM \"billing_2\".event");
        assert_eq!(names.statement("NOTIFY @channel@"), "NOTIFY redrive_billing_2");
    }
}
