//! Private servers for tests.
//!
//! Each is found (or named in the environment, or installed by [`install`]), started on loopback on a free port, with its data
//! in a temporary folder, and gone when the process is gone, however that ends.

mod authority;
mod guard;
mod missing;
mod pooler;
mod postgres;
mod program;
mod schema;

pub use authority::Authority;
pub use missing::Missing;
pub use pooler::Pooler;
pub use postgres::Postgres;
pub use program::{Program, install};
pub use schema::Schema;
