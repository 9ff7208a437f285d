//! `fault!("name")` marks a line where the fault harness plants a bug, to prove that its tests find it.
//!
//! Without the feature `planted` the macro expands to `false` or to nothing. With it, the environment variable
//! `REDRIVE_PLANTED` names the one bug that is active in this process. `redrive-torture` lists the names.

/// Environment variable that names the active bug.
pub const VARIABLE: &str = "REDRIVE_PLANTED";

/// Whether the bug of this name is active in this process.
#[cfg(feature = "planted")]
pub fn is_active(name: &str) -> bool {
    static ACTIVE: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var(VARIABLE).ok());
    ACTIVE.as_deref() == Some(name)
}

/// Whether a bug is planted here; `fault!("name" => code)` runs `code` if it is.
#[cfg(feature = "planted")]
#[macro_export]
#[doc(hidden)]
macro_rules! fault {
    ($name:literal) => {
        $crate::fault::is_active($name)
    };
    ($name:literal => $code:expr) => {
        if $crate::fault::is_active($name) {
            $code;
        }
    };
}

/// Expands to `false` or to nothing: bugs exist only in the fault harness's own build.
#[cfg(not(feature = "planted"))]
#[macro_export]
#[doc(hidden)]
macro_rules! fault {
    ($name:literal) => {
        false
    };
    ($name:literal => $code:expr) => {};
}
