//! Statement parameters that know their SQL type, so that preparing a statement needs no round trip for the types.

use std::time::Duration;

use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

/// A parameter of a statement.
pub(super) trait Value: ToSql + Sync + Send {
    /// The SQL type.
    fn kind(&self) -> Type;
    /// The parameter as the client library takes it.
    fn as_sql(&self) -> &(dyn ToSql + Sync);
}

/// Defines the parameters of a statement as a struct of columns, and `values`, which returns them in the order of the fields:
/// that of `$1`, `$2`, …
macro_rules! columns {
    ($(#[$attribute:meta])* struct $name:ident $(<$life:lifetime>)?, $count:literal: $($column:ident: $rust:ty,)*) => {
        $(#[$attribute])*
        pub(super) struct $name $(<$life>)? {
            $($column: $rust,)*
        }

        impl $(<$life>)? $name $(<$life>)? {
            pub(super) fn values(&self) -> [&dyn Value; $count] {
                [$(&self.$column),*]
            }
        }
    };
}
pub(super) use columns;

macro_rules! values {
    ($($rust:ty => $one:ident, $many:ident;)*) => { $(
        values!(@ $rust, $one);
        values!(@ Option<$rust>, $one);
        values!(@ Vec<$rust>, $many);
        values!(@ Vec<Option<$rust>>, $many);
    )* };
    (@ $rust:ty, $kind:ident) => {
        impl Value for $rust {
            fn kind(&self) -> Type {
                Type::$kind
            }

            fn as_sql(&self) -> &(dyn ToSql + Sync) {
                self
            }
        }
    };
}

values! {
    i16 => INT2, INT2_ARRAY;
    i32 => INT4, INT4_ARRAY;
    i64 => INT8, INT8_ARRAY;
    bool => BOOL, BOOL_ARRAY;
    Uuid => UUID, UUID_ARRAY;
    String => TEXT, TEXT_ARRAY;
    &str => TEXT, TEXT_ARRAY;
    &[u8] => BYTEA, BYTEA_ARRAY;
    Vec<u8> => BYTEA, BYTEA_ARRAY;
}

/// Milliseconds, capped so that they can be added to a time without overflow.
pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX).min(i64::MAX / 4)
}
