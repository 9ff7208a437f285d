//! A forgotten transaction: while it is open, no row that died after its start can be vacuumed.

use redrive::retry::BoxError;
use tokio_postgres::Client;

pub(super) struct OpenTransaction {
    client: Client,
}

impl OpenTransaction {
    /// Opens it with a transaction id and a snapshot: both hold the oldest visible transaction back.
    pub(super) async fn begin(url: &str) -> Result<Self, BoxError> {
        let client = super::connect(url).await?;
        client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT txid_current()").await?;
        Ok(OpenTransaction { client })
    }

    /// Ends it; fails if it was not open all the time, as the measurements are invalid then.
    pub(super) async fn end(self) -> Result<(), BoxError> {
        Ok(self.client.batch_execute("SELECT txid_current(); ROLLBACK").await?)
    }
}
