//! Private servers for tests.
//!
//! Each is found (or named in the environment, or installed by [`install()`]), started on loopback on a free port, with its data
//! in a temporary folder, and gone when the process is gone, however that ends.

mod authority;
mod foreground;
mod guard;
mod install;
mod missing;
mod nats;
mod pooler;
mod port;
mod postgres;
mod program;
mod rabbitmq;
mod schema;

pub use authority::Authority;
pub use install::install;
pub use missing::Missing;
pub use nats::Nats;
pub use pooler::Pooler;
pub use postgres::Postgres;
pub use program::Program;
pub use rabbitmq::RabbitMq;
pub use schema::Schema;
