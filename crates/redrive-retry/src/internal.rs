//! For the crates of Redrive; not covered by the stability promise.
//!
//! The bus counts calls for a circuit that many processes share, and follows the wall clock of its machine. A caller of a fallible
//! function needs neither.

pub use crate::breaker::window::{CallCounts, CallWindow};
pub use crate::clock::wall_watch::WallWatch;
