//! The macro for the setters of a builder.

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
