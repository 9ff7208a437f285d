//! The servers that all troubles of a run share.

use redrive_servers::{Missing, Postgres, RabbitMq};

#[derive(Debug)]
pub(super) struct Servers {
    pub(super) rabbit: RabbitMq,
    pub(super) postgres: Postgres,
}

impl Servers {
    pub(super) fn start() -> Result<Self, Missing> {
        Ok(Servers { rabbit: RabbitMq::start()?, postgres: Postgres::start()? })
    }
}
