//! Insert statements of a batch, and its rows as array parameters: one array for each column.

use std::ops::Range;
use std::sync::LazyLock;

use uuid::Uuid;

use super::super::value::{Value, columns};
use super::Batch;
use crate::sql::retry_task::RetryTask;

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

/// Fast insert for events with new ids, which nearly all are. Keys are drawn from the sequences first, each table is filled
/// from its own arrays, and the answer is one row: no join, no tuplestore, no speculative insertion. One existing id fails
/// the whole statement.
///
/// Several `unnest` calls in one select list advance in step and, unlike in `FROM`, are not materialised.
macro_rules! insert_new {
    ($delivery_keys:literal, $($rest:tt)*) => {
        concat!(
            "WITH me AS (SELECT key FROM redrive.process WHERE key = $1 AND void_until < $2 FOR KEY SHARE),
             new AS MATERIALIZED (
               SELECT array_agg(nextval('redrive.event_key_seq')) AS keys, ", $delivery_keys, " AS delivery_keys,
                      EXISTS (SELECT 1 FROM me) AS is_known
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
               SELECT unnest(keys), unnest($8::text[]), unnest($9::text[]), unnest($10::text[]) FROM new)",
            $($rest)*,
            " SELECT keys, is_known, delivery_keys FROM new"
        )
    };
}

/// Inserts the deliveries of events with new keys. A delivery names its event by the position in the arrays of events.
macro_rules! owed_new {
    () => {
        ", owed AS (
             INSERT INTO redrive.delivery (key, event_key, subscription, status, due_at, ready_at, owner, token, updated_at)
             SELECT key, keys[event], subscription, CASE WHEN wanted = 1 AND NOT is_known THEN 0::smallint ELSE wanted END,
                    ($6::bigint[])[event], CASE WHEN wanted = 0 OR NOT is_known THEN greatest(($6::bigint[])[event], 0) END,
                    $1, $2, ($7::bigint[])[event]
             FROM (SELECT keys, is_known, unnest(delivery_keys) AS key, unnest($11::integer[]) AS event,
                          unnest($12::text[]) AS subscription, unnest($13::smallint[]) AS wanted FROM new) rows)"
    };
}

/// Puts tasks of the retry scheduler into the retry queue: in the order of their messages, so that two transactions do not wait for each
/// other. A message that failed before keeps its row, which then shows its last failure.
macro_rules! tasks {
    ($rows:literal) => {
        concat!(
            ", tasks AS (
             INSERT INTO redrive.retry_message AS m (event_key, message_id, original_queue, retries, next_retry_at, discarded) ",
            $rows,
            " ON CONFLICT (message_id, original_queue) DO UPDATE SET event_key = excluded.event_key, retries = excluded.retries,
               next_retry_at = excluded.next_retry_at, discarded = excluded.discarded, status = excluded.status
               WHERE excluded.retries >= m.retries)"
        )
    };
}

const INSERT_NEW: &str = insert_new!("NULL::bigint[]", "");

const INSERT_NEW_WITH_DELIVERIES: &str = insert_new!(
    "(SELECT array_agg(nextval('redrive.delivery_key_seq')) FROM generate_series(1, cardinality($11::integer[])))",
    owed_new!()
);

/// Each message occurs once in the batch, and the arrays have the order of the messages.
const INSERT_NEW_WITH_TASKS: &str = insert_new!(
    "(SELECT array_agg(nextval('redrive.delivery_key_seq')) FROM generate_series(1, cardinality($11::integer[])))",
    owed_new!(),
    tasks!(
        "SELECT keys[event], message_id, original_queue, retries, redrive.utc(($6::bigint[])[event]), discarded
         FROM (SELECT keys, unnest($14::integer[]) AS event, unnest($15::text[]) AS message_id,
                      unnest($16::text[]) AS original_queue, unnest($17::integer[]) AS retries,
                      unnest($18::boolean[]) AS discarded FROM new) rows"
    )
);

/// Inserts the deliveries to single subscriptions, and selects the stored events and deliveries.
macro_rules! owed {
    () => {
        ", owed AS (
         INSERT INTO redrive.delivery (event_key, subscription, status, due_at, ready_at, owner, token, updated_at)
         SELECT f.key, d.subscription, s.status, ($6::bigint[])[d.event],
                CASE WHEN s.status = 0 THEN greatest(($6::bigint[])[d.event], 0) END, $1, $2, ($7::bigint[])[d.event]
         FROM unnest($11::integer[], $12::text[], $13::smallint[]) WITH ORDINALITY AS d(event, subscription, wanted, place)
         JOIN fresh f ON f.id = ($3::uuid[])[d.event],
         LATERAL (SELECT CASE WHEN d.wanted = 1 AND NOT EXISTS (SELECT 1 FROM me) THEN 0::smallint
                              ELSE d.wanted END AS status) s
         ORDER BY d.place RETURNING key, event_key, subscription, status)
       SELECT key, id, status, NULL::text FROM fresh
       UNION ALL
       SELECT o.key, f.id, o.status, o.subscription FROM owed o JOIN fresh f ON f.key = o.event_key"
    };
}

const INSERT_WITH_DELIVERIES: &str = insert!(owed!());

/// As [`INSERT_WITH_DELIVERIES`], and fills the retry queue.
const INSERT_WITH_TASKS: &str = insert!(
    tasks!(
        "SELECT DISTINCT ON (t.message_id COLLATE \"C\", t.original_queue COLLATE \"C\")
                f.key, t.message_id, t.original_queue, t.retries, redrive.utc(($6::bigint[])[t.event]), t.discarded
         FROM unnest($14::integer[], $15::text[], $16::text[], $17::integer[], $18::boolean[])
              AS t(event, message_id, original_queue, retries, discarded) JOIN fresh f ON f.id = ($3::uuid[])[t.event]
         ORDER BY t.message_id COLLATE \"C\", t.original_queue COLLATE \"C\", t.retries DESC"
    ),
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

/// The number of parameters of the inserts of events, with deliveries, and with tasks.
const PARAMETERS: [usize; 3] = [10, 13, 18];

columns! {
    /// The parameters of an insert: those of events, of deliveries, and of tasks.
    struct Columns<'a>, 18:
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
    owed_events: Vec<i32>,
    owed_names: Vec<&'a str>,
    owed_wanted: Vec<i16>,
    task_events: Vec<i32>,
    task_messages: Vec<&'a str>,
    task_queues: Vec<&'a str>,
    task_retries: Vec<i32>,
    task_discarded: Vec<bool>,
}

impl<'a> Columns<'a> {
    pub(super) fn new(batch: &'a Batch, part: &Range<usize>) -> Self {
        let indexes: Vec<usize> = batch.firsts(part.clone()).collect();
        let rows = || indexes.iter().map(|index| &batch.rows[*index]);
        // The position of a row's event in the arrays, from 1.
        let position = |index: usize| {
            i32::try_from(indexes.partition_point(|first| *first <= index)).unwrap_or(i32::MAX)
        };
        let owed = || batch.deliveries.iter().filter(|(index, ..)| part.contains(index));
        let task = |index: &usize| Some((position(*index), batch.rows[*index].task.as_ref()?));
        let mut tasks: Vec<(i32, &RetryTask)> = indexes.iter().filter_map(task).collect();
        tasks.sort_by(|(_, one), (_, next)| message(one).cmp(&message(next)));
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
            owed_events: owed().map(|(index, ..)| position(*index)).collect(),
            owed_names: owed().map(|(_, name, _)| name.as_str()).collect(),
            owed_wanted: owed().map(|(.., slot)| super::wanted(slot.as_ref())).collect(),
            task_events: tasks.iter().map(|(event, _)| *event).collect(),
            task_messages: tasks.iter().map(|(_, task)| task.message_id.as_str()).collect(),
            task_queues: tasks.iter().map(|(_, task)| task.original_queue.as_str()).collect(),
            task_retries: tasks.iter().map(|(_, task)| task.retries).collect(),
            task_discarded: tasks.iter().map(|(_, task)| task.discarded).collect(),
        }
    }

    /// Whether an event is a task of the retry scheduler.
    fn has_tasks(&self) -> bool {
        !self.task_events.is_empty()
    }

    pub(super) fn statement(&self) -> &'static str {
        [INSERT, INSERT_WITH_DELIVERIES, INSERT_WITH_TASKS][self.kind()]
    }

    /// Returns the statement that stores all events or none; see [`ALL_NEW`].
    pub(super) fn statement_of_new(&self) -> &'static str {
        &ALL_NEW[self.kind()]
    }

    /// Returns the fast statement, unless a message occurs twice: its row can change only once in a statement.
    pub(super) fn fast_statement(&self) -> Option<&'static str> {
        let mut messages = self.task_messages.iter().zip(&self.task_queues);
        let mut last = messages.next();
        let occurs_twice = messages.any(|message| last.replace(message) == Some(message));
        let statements = [INSERT_NEW, INSERT_NEW_WITH_DELIVERIES, INSERT_NEW_WITH_TASKS];
        (!occurs_twice).then_some(statements[self.kind()])
    }

    /// Which of the inserts is needed: of events, with deliveries, or with tasks.
    fn kind(&self) -> usize {
        if self.has_tasks() { 2 } else { usize::from(!self.owed_events.is_empty()) }
    }

    /// Returns the parameters of the statements.
    pub(super) fn parameters(&self) -> Vec<&dyn Value> {
        self.values()[..PARAMETERS[self.kind()]].to_vec()
    }
}

/// The key of a task's row in the retry queue.
fn message(task: &RetryTask) -> (&str, &str) {
    (&task.message_id, &task.original_queue)
}
