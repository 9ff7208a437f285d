//! Insert statements of a batch, and its rows as array parameters: one array for each column.

use std::ops::Range;
use std::sync::LazyLock;

use uuid::Uuid;

use super::super::status;
use super::super::value::{Value, columns};
use super::Batch;

/// Inserts events as running only if the process is still registered, and locks its row so that it cannot be declared dead
/// before the commit. Otherwise inserts them as pending.
macro_rules! insert {
    ($($rest:tt)*) => {
        concat!(
            "WITH me AS (SELECT key FROM redrive.process WHERE key = $1 AND void_until < $2 FOR KEY SHARE),
             fresh AS (
               INSERT INTO redrive.event (id, type, status, due_at, ready_at, owner, token, created_at, updated_at)
               SELECT u.id, u.type, s.status, CASE WHEN s.status < 3 THEN u.due_at END,
                      CASE WHEN s.status = 0 THEN greatest(u.due_at, 0) END, $1, $2, u.created_at, u.created_at
               FROM unnest($3::uuid[], $4::text[], $5::smallint[], $6::bigint[], $7::bigint[])
                    AS u(id, type, wanted, due_at, created_at),
               LATERAL (SELECT CASE WHEN u.wanted = 1 AND NOT EXISTS (SELECT 1 FROM me) THEN 0::smallint
                                    ELSE u.wanted END AS status) s
               ON CONFLICT (id) DO NOTHING RETURNING key, id, status),
             bodies AS (
               INSERT INTO redrive.payload (event_key, payload, metadata, retry)
               SELECT f.key, b.payload, b.metadata, b.retry
               FROM fresh f JOIN unnest($3::uuid[], $8::text[], $9::text[], $10::text[])
                    AS b(id, payload, metadata, retry) ON b.id = f.id)",
            $($rest)*
        )
    };
}

const INSERT: &str = insert!(" SELECT key, id, status FROM fresh");

/// Fast insert for events with new ids, which nearly all are. Keys are drawn from the sequence first, each table is filled
/// from its own arrays, and the answer is one row: no join, no tuplestore, no speculative insertion. One existing id fails
/// the whole statement.
///
/// Several `unnest` calls in one select list advance in step and, unlike in `FROM`, are not materialised.
pub(super) const INSERT_NEW: &str = "
    WITH me AS (SELECT key FROM redrive.process WHERE key = $1 AND void_until < $2 FOR KEY SHARE),
    new AS MATERIALIZED (
      SELECT array_agg(nextval('redrive.event_key_seq')) AS keys, EXISTS (SELECT 1 FROM me) AS is_known
      FROM generate_series(1, cardinality($3::uuid[]))),
    events AS (
      INSERT INTO redrive.event (key, id, type, status, due_at, ready_at, owner, token, created_at, updated_at)
      SELECT key, id, type, CASE WHEN wanted = 1 AND NOT is_known THEN 0::smallint ELSE wanted END, CASE WHEN wanted < 3 THEN due_at END,
             CASE WHEN wanted = 0 OR wanted = 1 AND NOT is_known THEN greatest(due_at, 0) END,
             $1, $2, created_at, created_at
      FROM (SELECT is_known, unnest(keys) AS key, unnest($3::uuid[]) AS id, unnest($4::text[]) AS type,
                   unnest($5::smallint[]) AS wanted, unnest($6::bigint[]) AS due_at, unnest($7::bigint[]) AS created_at
            FROM new) rows),
    bodies AS (
      INSERT INTO redrive.payload (event_key, payload, metadata, retry)
      SELECT unnest(keys), unnest($8::text[]), unnest($9::text[]), unnest($10::text[]) FROM new)
    SELECT keys, is_known FROM new";

/// Inserts the deliveries to single subscriptions, and selects the stored events and deliveries.
macro_rules! owed {
    () => {
        ", owed AS (
         INSERT INTO redrive.delivery (event_key, subscription, status, due_at, ready_at, owner, token, updated_at)
         SELECT f.key, d.subscription, s.status, d.due_at, CASE WHEN s.status = 0 THEN greatest(d.due_at, 0) END,
                $1, $2, d.created_at
         FROM unnest($11::uuid[], $12::text[], $13::smallint[], $14::bigint[], $15::bigint[]) WITH ORDINALITY
              AS d(id, subscription, wanted, due_at, created_at, place) JOIN fresh f ON f.id = d.id,
         LATERAL (SELECT CASE WHEN d.wanted = 1 AND NOT EXISTS (SELECT 1 FROM me) THEN 0::smallint
                              ELSE d.wanted END AS status) s
         ORDER BY d.place RETURNING key, event_key, subscription, status)
       SELECT key, id, status, NULL::bigint, NULL::text FROM fresh
       UNION ALL
       SELECT o.key, f.id, o.status, o.event_key, o.subscription FROM owed o JOIN fresh f ON f.key = o.event_key"
    };
}

const INSERT_WITH_DELIVERIES: &str = insert!(owed!());

/// As [`INSERT_WITH_DELIVERIES`], and puts tasks of the retry scheduler into the retry queue: in the order of their messages, so that two
/// processes never wait for each other. A message that failed before keeps its row, which then shows its last failure.
const INSERT_WITH_TASKS: &str = insert!(
    ", tasks AS (
         INSERT INTO redrive.retry_message AS m (event_key, message_id, original_queue, retries, next_retry_at, discarded)
         SELECT DISTINCT ON (t.message_id, t.original_queue) f.key, t.message_id, t.original_queue, t.retries,
                redrive.utc(b.due_at), t.discarded
         FROM fresh f JOIN unnest($3::uuid[], $4::text[], $6::bigint[], $8::text[]) AS b(id, type, due_at, payload) ON b.id = f.id,
              redrive.retry_task(b.payload) t
         WHERE b.type = 'retry.task' ORDER BY t.message_id, t.original_queue, t.retries DESC
         ON CONFLICT (message_id, original_queue) DO UPDATE SET event_key = excluded.event_key, retries = excluded.retries,
           next_retry_at = excluded.next_retry_at, discarded = excluded.discarded WHERE excluded.retries >= m.retries)",
    owed!()
);

/// The inserts that fail with a division by zero where some ids are new and others exist: an event of a batch must not be stored if
/// another event has the id of its neighbour. They store nothing where all ids exist.
static ALL_NEW: LazyLock<[String; 3]> = LazyLock::new(|| {
    [INSERT, INSERT_WITH_DELIVERIES, INSERT_WITH_TASKS].map(|statement| {
        let checked = "SELECT key / CASE (SELECT count(*) FROM fresh) WHEN cardinality($3::uuid[]) THEN 1 ELSE 0 END, id, status";
        let guarded = statement.replacen("SELECT key, id, status", checked, 1);
        assert_ne!(guarded, statement, "the insert has another form");
        guarded
    })
});

/// The number of parameters of an insert without deliveries.
const EVENT_PARAMETERS: usize = 10;

columns! {
    /// The parameters of an insert: those of events, then those of deliveries.
    struct Columns<'a>, 15:
    owner: Option<i64>,
    token: i64,
    ids: Vec<Uuid>,
    types: Vec<&'a str>,
    wanted: Vec<i16>,
    due: Vec<i64>,
    created: Vec<i64>,
    payloads: Vec<&'a str>,
    metadata: Vec<Option<&'a str>>,
    retries: Vec<Option<&'a str>>,
    owed_ids: Vec<Uuid>,
    owed_names: Vec<&'a str>,
    owed_wanted: Vec<i16>,
    owed_due: Vec<i64>,
    owed_created: Vec<i64>,
}

impl<'a> Columns<'a> {
    pub(super) fn new(batch: &'a Batch, part: &Range<usize>) -> Self {
        let indexes: Vec<usize> = batch.firsts(part.clone()).collect();
        let rows = || indexes.iter().map(|index| &batch.rows[*index]);
        let owed = || batch.deliveries.iter().filter(|(index, ..)| part.contains(index));
        let owed_rows = || owed().map(|(index, ..)| &batch.rows[*index]);
        Columns {
            owner: batch.is_registered.then_some(batch.fence.owner),
            token: batch.fence.token,
            ids: rows().map(|row| *row.event.id.as_uuid()).collect(),
            types: rows().map(|row| row.event.event_type.as_str()).collect(),
            wanted: indexes.iter().map(|index| batch.wanted(*index)).collect(),
            due: rows().map(|row| row.due_at.as_millis()).collect(),
            created: rows().map(|row| row.event.created_at.as_millis()).collect(),
            payloads: rows().map(|row| &*row.event.payload).collect(),
            metadata: rows().map(|row| row.metadata.as_deref()).collect(),
            retries: rows().map(|row| row.retry.as_deref()).collect(),
            owed_ids: owed_rows().map(|row| *row.event.id.as_uuid()).collect(),
            owed_names: owed().map(|(_, name, _)| name.as_str()).collect(),
            owed_wanted: owed()
                .map(|(.., slot)| if slot.is_some() { status::RUNNING } else { status::PENDING })
                .collect(),
            owed_due: owed_rows().map(|row| row.due_at.as_millis()).collect(),
            owed_created: owed_rows().map(|row| row.event.created_at.as_millis()).collect(),
        }
    }

    /// Whether an event is a task of the retry scheduler.
    pub(super) fn has_tasks(&self) -> bool {
        self.types.contains(&"retry.task")
    }

    pub(super) fn statement(&self) -> &'static str {
        match (self.has_tasks(), self.owed_ids.is_empty()) {
            (true, _) => INSERT_WITH_TASKS,
            (false, true) => INSERT,
            (false, false) => INSERT_WITH_DELIVERIES,
        }
    }

    /// Returns the statement that stores all events or none; see [`ALL_NEW`].
    pub(super) fn statement_of_new(&self) -> &'static str {
        let [events, deliveries, tasks] = &*ALL_NEW;
        match (self.has_tasks(), self.owed_ids.is_empty()) {
            (true, _) => tasks,
            (false, true) => events,
            (false, false) => deliveries,
        }
    }

    /// Returns the parameters of [`statement`](Self::statement).
    pub(super) fn parameters(&self) -> Vec<&dyn Value> {
        let count = if self.owed_ids.is_empty() && !self.has_tasks() { EVENT_PARAMETERS } else { 15 };
        self.values()[..count].to_vec()
    }
}
