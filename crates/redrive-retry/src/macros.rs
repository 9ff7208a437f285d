//! Macros for the setters of a builder, and for types that are stored as text.

/// Defines setters, each of which assigns its argument to a field and returns the builder.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($($(#[$attribute:meta])* $name:ident($argument:ident: $kind:ty) => $($field:tt).+ = $value:expr;)*) => { $(
        $(#[$attribute])*
        pub fn $name(mut self, $argument: $kind) -> Self {
            self.$($field).+ = $value;
            self
        }
    )* };
}

/// Converts a type to and from `String` by its `Display` and `FromStr`, for serde.
macro_rules! stored_as_text {
    ($name:ident, $error:ident) => {
        impl TryFrom<String> for $name {
            type Error = $error;

            fn try_from(text: String) -> Result<Self, $error> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> String {
                value.to_string()
            }
        }
    };
}
pub(crate) use stored_as_text;
