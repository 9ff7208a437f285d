//! Target of a transfer: the schema on the server.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::types::Value as Cell;
use tokio_postgres::error::SqlState;

use super::super::address::Address;
use super::super::connector::Connector;
use super::super::names::Names;
use super::super::session::Session;
use super::super::value::Value;
use super::super::{PostgresOptions, schema};
use super::source::Rows;
use super::table::Table;
use crate::error::StoreError;

/// This table marks an unfinished transfer: the schema cannot be opened while it exists.
const MARK_UNFINISHED: &str = "CREATE TABLE redrive.transfer (at timestamptz NOT NULL DEFAULT now())";
const MARK_FINISHED: &str = "DROP TABLE redrive.transfer";

const LIVE_PROCESS: &str = "
    SELECT instance FROM redrive.process WHERE beats_at + lease_ms > redrive.now_ms() ORDER BY key LIMIT 1";

/// Registers a dead process that owns the events that were running in the file when its process died. The next process to
/// start takes them over and charges their attempts. Inserts nothing if no event was running.
const INSERT_DEAD_PROCESS: &str = "
    WITH running AS (
      SELECT (SELECT min(key) FROM redrive.event WHERE status = 1) AS event,
             (SELECT min(key) FROM redrive.delivery WHERE status = 1) AS delivery)
    INSERT INTO redrive.process (boot, instance, pid, has_lock, started_at, beats_at, lease_ms, void_until,
                                 oldest_event, oldest_delivery)
    SELECT gen_random_uuid(), 'before the transfer', 0, false, 0, 0, 0, 0,
           coalesce(event, 9223372036854775807), coalesce(delivery, 9223372036854775807)
    FROM running WHERE event IS NOT NULL OR delivery IS NOT NULL
    RETURNING key";
const ASSIGN: &str = "UPDATE redrive.@table SET owner = $1 WHERE status = 1";

/// Makes waiting rows claimable. A crash suspect in the backlog is claimed from there.
const RELEASE: &str = "
    UPDATE redrive.@table
    SET ready_at = CASE WHEN status = -1 AND due_at < 9000000000000000 THEN -1 ELSE greatest(due_at, 0) END
    WHERE status IN (-2, -1, 0, 2)";

pub(super) struct Target {
    session: Session,
    names: Arc<Names>,
    outage_timeout: Duration,
}

impl Target {
    /// Connects and checks the server. Changes nothing.
    pub(super) async fn connect(address: &str, options: PostgresOptions) -> Result<Self, StoreError> {
        let (config, options) = address.parse::<Address>()?.with(options);
        let timeout = options.statement_timeout.as_millis();
        let settings = format!("-c idle_in_transaction_session_timeout={timeout} -c jit=off");
        let (connector, session) = Connector::open(config, &options, settings, None).await?;
        Ok(Target { session, names: connector.names, outage_timeout: options.outage_timeout })
    }

    pub(super) fn schema(&self) -> &str {
        self.names.schema()
    }

    /// Whether the schema exists, and whether it has an unfinished transfer.
    pub(super) async fn state(&self) -> Result<(bool, bool), StoreError> {
        let exists = schema::exists(&self.session, &self.names).await?;
        Ok((exists, exists && schema::is_unfinished(&self.session, &self.names).await?))
    }

    /// Creates or migrates the schema.
    pub(super) async fn migrate(&self) -> Result<(), StoreError> {
        schema::migrate(&self.session, &self.names, self.outage_timeout).await
    }

    /// The instance name of a live process that dispatches from the schema.
    pub(super) async fn live_process(&self) -> Result<Option<String>, StoreError> {
        let found = self.query(LIVE_PROCESS, &[]).await?;
        Ok(found.first().map(|row| row.get(0)))
    }

    async fn query(&self, text: &str, values: &[&dyn Value]) -> Result<Vec<tokio_postgres::Row>, StoreError> {
        self.session.query_once(text, values).await.map_err(StoreError::from)
    }

    /// Marks the schema as unfinished, and moves the sequences past the largest keys.
    pub(super) async fn begin(&self, largest: &[(&'static Table, i64)]) -> Result<(), StoreError> {
        let work = async {
            self.session.batch(MARK_UNFINISHED).await?;
            for (table, key) in largest {
                let sequence = format!("redrive.{}_{}_seq", table.name, table.key());
                let set = format!("SELECT setval('{sequence}', greatest(last_value, $1)) FROM {sequence}");
                self.query(&set, &[key]).await?;
            }
            Ok(())
        };
        self.session.transaction(work).await
    }

    /// Releases the schema: waiting rows can be claimed, and the schema can be opened.
    pub(super) async fn finish(&self) -> Result<(), StoreError> {
        let work = async {
            // The transaction may be long: it must not be split.
            self.session.batch("SET LOCAL statement_timeout = 0").await?;
            let found = self.query(INSERT_DEAD_PROCESS, &[]).await?;
            let dead: Option<i64> = found.first().map(|row| row.get(0));
            for table in ["event", "delivery"] {
                if dead.is_some() {
                    self.query(&ASSIGN.replace("@table", table), &[&dead]).await?;
                }
                self.query(&RELEASE.replace("@table", table), &[]).await?;
            }
            self.query("SELECT redrive.fill_retry_messages()", &[]).await?;
            self.session.batch(MARK_FINISHED).await.map_err(StoreError::from)
        };
        self.session.transaction(work).await?;
        // So that the plans of the first claims use the indexes.
        self.session.batch("ANALYZE redrive.event; ANALYZE redrive.delivery").await.map_err(StoreError::from)
    }

    /// Counts the rows of a table. A table that an older schema does not have counts as empty.
    pub(super) async fn count(&self, table: &Table) -> Result<u64, StoreError> {
        match self.query(&table.count_target(), &[]).await {
            Err(StoreError::Server { source, .. }) if source.code() == Some(&SqlState::UNDEFINED_TABLE) => {
                Ok(0)
            }
            found => Ok(found?.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs())),
        }
    }

    /// Reads the rows with the keys of `rows`, in any order.
    pub(super) async fn rows_like(&self, table: &Table, rows: &[Vec<Cell>]) -> Result<Rows, StoreError> {
        let keys = table.columns[0].kind.values(rows.iter().map(|row| &row[0]));
        let found = self.query(&table.select_target(), &[&*keys]).await?;
        let cells = |row: &tokio_postgres::Row| {
            table.columns.iter().enumerate().map(|(index, column)| column.kind.read(row, index)).collect()
        };
        Ok(found.iter().map(cells).collect())
    }

    /// Inserts a page. Fails if a key exists already.
    pub(super) async fn insert(&self, table: &Table, rows: &[Vec<Cell>]) -> Result<(), StoreError> {
        let values: Vec<Box<dyn Value>> = table
            .columns
            .iter()
            .enumerate()
            .map(|(index, column)| column.kind.values(rows.iter().map(|row| &row[index])))
            .collect();
        let values: Vec<&dyn Value> = values.iter().map(|value| &**value).collect();
        self.query(&table.insert(), &values).await.map(drop)
    }
}
