//! A place of its own for each test on a server that all of them share.

use std::time::Duration;

use tokio_postgres::NoTls;
use uuid::Uuid;

use crate::missing::Missing;
use crate::postgres::Postgres;

/// A server must not keep a test waiting that has nothing more to say.
const LONGEST: Duration = Duration::from_secs(20);

/// A schema with a name that nobody else has. Removed with everything in it when it is dropped, unless it is somebody else's.
#[derive(Debug)]
pub struct Schema {
    url: String,
    name: String,
    is_own: bool,
}

impl Schema {
    /// On the server of [`Postgres::shared_url`]. Whoever opens it makes it.
    pub fn new() -> Result<Self, Missing> {
        let name = format!("t{}", Uuid::new_v4().simple());
        Ok(Schema { url: Postgres::shared_url()?, name, is_own: true })
    }

    /// One that another process has made, and will remove.
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
        // On a thread with a runtime of its own: the test's may be over.
        let removed = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
            runtime.block_on(async {
                let (client, connection) = tokio_postgres::connect(&url, NoTls).await.ok()?;
                tokio::spawn(async move { drop(connection.await) });
                let timeout = LONGEST.as_millis();
                let remove =
                    format!("SET statement_timeout = {timeout}; DROP SCHEMA IF EXISTS \"{name}\" CASCADE");
                client.batch_execute(&remove).await.ok()
            })
        });
        // What stays is in nobody's way.
        drop(removed.join());
    }
}
