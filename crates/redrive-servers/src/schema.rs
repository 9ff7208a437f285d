//! Schema for one test on a PostgreSQL server that all tests share.

use std::time::Duration;

use tokio_postgres::NoTls;
use uuid::Uuid;

use crate::missing::Missing;
use crate::postgres::Postgres;

/// Limits the wait of a finished test for the server.
const DROP_TIMEOUT: Duration = Duration::from_secs(20);

/// A schema with a unique name. Dropping it drops the schema on the server, unless another process owns it.
#[derive(Debug)]
pub struct Schema {
    url: String,
    name: String,
    is_own: bool,
}

impl Schema {
    /// Names a new schema on the server of [`Postgres::shared_url`]. The first store that opens it creates it.
    pub fn new() -> Result<Self, Missing> {
        let name = format!("t{}", Uuid::new_v4().simple());
        Ok(Schema { url: Postgres::shared_url()?, name, is_own: true })
    }

    /// Refers to a schema of another process, which drops it.
    pub fn of_another(url: String, name: String) -> Self {
        Schema { url, name, is_own: false }
    }

    /// The server's address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The server's address with the schema in it.
    pub fn address(&self) -> String {
        let separator = if self.url.contains('?') { '&' } else { '?' };
        format!("{}{separator}schema={}", self.url, self.name)
    }

    /// The name of the schema.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        if !self.is_own {
            return;
        }
        let (url, name) = (self.url.clone(), self.name.clone());
        // On a thread with its own runtime: that of the test may have ended.
        let removed = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
            runtime.block_on(async {
                let (client, connection) = tokio_postgres::connect(&url, NoTls).await.ok()?;
                tokio::spawn(async move { drop(connection.await) });
                let timeout = DROP_TIMEOUT.as_millis();
                let remove =
                    format!("SET statement_timeout = {timeout}; DROP SCHEMA IF EXISTS \"{name}\" CASCADE");
                client.batch_execute(&remove).await.ok()
            })
        });
        // A schema that is not dropped does no harm.
        drop(removed.join());
    }
}
