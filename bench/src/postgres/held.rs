//! A transaction that somebody forgot: as long as it is open, no row that died after its beginning can be cleaned up.

use redrive::BoxError;
use tokio_postgres::Client;

pub(super) struct Held {
    client: Client,
}

impl Held {
    /// With an id of its own and a snapshot: both hold the oldest visible transaction back.
    pub(super) async fn begin(url: &str) -> Result<Self, BoxError> {
        let client = super::connect(url).await?;
        client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT txid_current()").await?;
        Ok(Held { client })
    }

    /// Fails if it was ended meanwhile, as what was measured beside it was then not.
    pub(super) async fn end(self) -> Result<(), BoxError> {
        Ok(self.client.batch_execute("SELECT txid_current(); ROLLBACK").await?)
    }
}
