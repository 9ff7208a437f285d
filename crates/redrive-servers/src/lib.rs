//! Private PostgreSQL, RabbitMQ and NATS servers for tests.
//!
//! Each server's program is found on the machine, named by an environment variable, or installed by [`install()`]. The server
//! listens on a free loopback port, keeps its data in a temporary folder, and ends with the process that started it, however
//! that process ends.

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
