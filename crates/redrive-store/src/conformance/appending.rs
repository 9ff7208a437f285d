//! Promises about appends: complete, once per id, all or none.

use std::collections::HashSet;
use std::sync::Arc;

use redrive_retry::RetryOverride;
use tokio::task::JoinSet;

use super::MAX_PAYLOAD;
use super::scene::{Worker, append, at, detail, event, event_type, stats, to_each};
use crate::error::StoreError;
use crate::event::{EventContent, EventId, EventStatus, Metadata, NewEvent, Routing, StoredEvent};
use crate::query::{EventFilter, EventPage, Stats};
use crate::store::{Appended, Store};

pub(super) async fn an_event_is_stored_and_read_back(store: &Arc<dyn Store>) {
    let new = NewEvent {
        id: EventId::random(),
        event_type: event_type("заказ.создан"),
        // Stored verbatim: order, spaces, numbers of any length, and characters that some databases refuse in JSON.
        payload: Arc::from(
            r#"{"z":1, "a":[1.0,1e2,123456789012345678901234567890],"text":"é漢🙂 \u0000 \"q\" \\ ","a":null}"#,
        ),
        metadata: Metadata::from([
            ("tenant".to_owned(), "t-1".to_owned()),
            ("quote \" and \\".to_owned(), "line\nbreak\0".to_owned()),
            (String::new(), String::new()),
        ]),
        created_at: at(1),
        due_at: at(7),
        is_scheduled: false,
        retry: Some(RetryOverride::new().max_retries(7).base_delay_ms(123)),
        to: Routing::Matching,
    };
    let plain = event(2);
    append(store.as_ref(), vec![new.clone(), plain.clone()]).await;

    let shown = detail(store.as_ref(), new.id).await;
    assert_eq!((shown.id, &shown.event_type), (new.id, &new.event_type));
    assert_eq!(shown.payload.get(), &*new.payload, "the payload is stored verbatim");
    assert_eq!(shown.metadata, new.metadata);
    assert_eq!((shown.status, shown.retry_count), (EventStatus::Pending, 0));
    assert_eq!((shown.created_at, shown.updated_at, shown.due_at), (at(1), at(1), Some(at(7))));
    assert_eq!((shown.errors.len(), shown.deliveries.len(), shown.attempts.len()), (0, 0, 0));
    assert_eq!(detail(store.as_ref(), plain.id).await.metadata, Metadata::new());

    let mut worker = Worker::attach(store.as_ref(), 10);
    let claims = worker.claim(store.as_ref(), 7).await;
    let claimed = claims.iter().find(|claimed| claimed.event.id == new.id).unwrap();
    let stored = StoredEvent {
        id: new.id,
        event_type: new.event_type,
        payload: new.payload,
        metadata: new.metadata,
        created_at: new.created_at,
        retry: new.retry,
    };
    assert_eq!(*claimed.event, stored, "the handler gets the same event");
    assert_eq!((claimed.attempt, &claimed.subscription), (1, &None));
    let claimed = claims.iter().find(|claimed| claimed.event.id == plain.id).unwrap();
    assert_eq!((&claimed.event.metadata, &claimed.event.retry), (&Metadata::new(), &None));
}

pub(super) async fn the_same_id_is_stored_once(store: &Arc<dyn Store>) {
    let first = event(1);
    let again = NewEvent { id: first.id, payload: Arc::from("\"another\""), ..event(2) };
    assert_eq!(store.append(vec![first.clone()]).await.unwrap(), [Appended::New]);
    assert_eq!(store.append(vec![again.clone()]).await.unwrap(), [Appended::Duplicate]);
    let shown = detail(store.as_ref(), first.id).await;
    assert_eq!(
        (shown.payload.get(), shown.created_at),
        (&*first.payload, at(1)),
        "the first one stays as it was"
    );

    let to_each = NewEvent { to: to_each(2, &["billing"]).to, ..again.clone() };
    assert_eq!(store.append(vec![to_each]).await.unwrap(), [Appended::Duplicate]);
    assert!(detail(store.as_ref(), first.id).await.deliveries.is_empty(), "and has no further delivery");

    let mut worker = Worker::attach(store.as_ref(), 10);
    let claimed = worker.claim_only(store.as_ref(), 5).await;
    store.settle(claimed, super::scene::done(6)).await.unwrap();
    assert_eq!(store.append(vec![again]).await.unwrap(), [Appended::Duplicate]);
    assert_eq!(detail(store.as_ref(), first.id).await.status, EventStatus::Done, "also when it is done");
}

pub(super) async fn the_same_id_twice_in_a_batch_is_stored_once(store: &Arc<dyn Store>) {
    let (one, two) = (event(1), event(2));
    let answers = store.append(vec![one.clone(), two, one.clone()]).await.unwrap();
    assert_eq!(answers, [Appended::New, Appended::New, Appended::Duplicate]);
    assert_eq!(detail(store.as_ref(), one.id).await.payload.get(), &*one.payload);
    assert_eq!(stats(store.as_ref()).await.pending, 2);
}

pub(super) async fn the_same_id_from_many_tasks_is_stored_once(store: &Arc<dyn Store>) {
    let mut tasks = JoinSet::new();
    for new in (0..50).map(event) {
        for _ in 0..4 {
            let (store, new) = (Arc::clone(store), new.clone());
            tasks.spawn(async move { (new.id, store.append(vec![new]).await.unwrap()) });
        }
    }
    let mut stored = HashSet::new();
    for (id, answers) in tasks.join_all().await {
        assert_eq!(answers.len(), 1);
        if answers == [Appended::New] {
            assert!(stored.insert(id), "{id} is new to one task only");
        }
    }
    assert_eq!(stored.len(), 50, "each is new to one task");
    assert_eq!(stats(store.as_ref()).await, Stats { pending: 50, ..Stats::default() });
}

pub(super) async fn many_tasks_append_at_once(store: &Arc<dyn Store>) {
    let mut tasks = JoinSet::new();
    let events: Vec<_> = (0..300).map(event).collect();
    for new in events.clone() {
        let store = Arc::clone(store);
        tasks.spawn(async move { store.append(vec![new]).await.unwrap() });
    }
    assert!(tasks.join_all().await.iter().all(|answers| *answers == [Appended::New]));
    for new in events {
        assert_eq!(
            detail(store.as_ref(), new.id).await.payload.get(),
            &*new.payload,
            "none is mixed up with another"
        );
    }
}

pub(super) async fn a_large_batch_is_answered_in_order(store: &Arc<dyn Store>) {
    let known: Vec<_> = (0..10).map(event).collect();
    append(store.as_ref(), known.clone()).await;
    let mut batch: Vec<_> = (10..1000).map(event).collect();
    for (place, known) in known.into_iter().enumerate() {
        batch[place * 97] = known;
    }
    let answers = store.append(batch.clone()).await.unwrap();
    let duplicates: Vec<_> =
        (0..batch.len()).filter(|place| answers[*place] == Appended::Duplicate).collect();
    assert_eq!(duplicates, (0..10).map(|place| place * 97).collect::<Vec<_>>());
    assert_eq!(stats(store.as_ref()).await.pending, 990);
}

pub(super) async fn a_batch_is_all_or_none(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    // Naming a subscription twice is refused or counts once, but never stores half of the batch.
    let odd = to_each(2, &["billing", "billing"]);
    match store.append(vec![event(1), odd.clone(), event(3)]).await {
        Ok(answers) => {
            assert_eq!(answers, [Appended::New; 3]);
            assert_eq!(detail(store.as_ref(), odd.id).await.deliveries.len(), 1);
            assert_eq!(worker.handed_over().len(), 3);
        }
        Err(error) => {
            assert_eq!(stats(store.as_ref()).await, Stats::default(), "nothing is stored after {error}");
            assert!(worker.handed_over().is_empty(), "nothing is handed over after {error}");
            assert_eq!(worker.sink.free_slots(), 10, "every slot is free after {error}");
        }
    }
    append(store.as_ref(), vec![event(4)]).await;
    drop(worker.only());
}

pub(super) async fn a_batch_with_a_payload_that_is_too_large_stores_nothing(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let large = NewEvent { payload: Arc::from(format!("\"{}\"", "x".repeat(MAX_PAYLOAD - 1))), ..event(2) };
    for batch in [vec![large.clone()], vec![event(1), large.clone(), event(3)]] {
        let error = store.append(batch).await.unwrap_err();
        assert!(
            matches!(error, StoreError::PayloadTooLarge { bytes, limit } if bytes == MAX_PAYLOAD + 1 && limit == MAX_PAYLOAD),
            "{error}"
        );
    }
    assert_eq!(stats(store.as_ref()).await, Stats::default());
    assert!(worker.handed_over().is_empty());
    assert_eq!(worker.sink.free_slots(), 10);
}

pub(super) async fn metadata_and_batches_have_limits(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let with = |bytes: usize| NewEvent {
        metadata: Metadata::from([("name".to_owned(), "x".repeat(bytes - 4))]),
        ..event(1)
    };
    for batch in
        [vec![with(NewEvent::MAX_METADATA_BYTES + 1)], vec![event(1), with(NewEvent::MAX_METADATA_BYTES + 1)]]
    {
        let error = store.append(batch).await.unwrap_err();
        assert!(matches!(error, StoreError::MetadataTooLarge { .. }), "{error}");
    }
    let error = store.append(vec![event(1); NewEvent::MAX_BATCH_EVENTS + 1]).await.unwrap_err();
    assert!(matches!(error, StoreError::BatchTooLarge { .. }), "{error}");
    assert_eq!(stats(store.as_ref()).await, Stats::default());
    assert!(worker.handed_over().is_empty());

    let largest = with(NewEvent::MAX_METADATA_BYTES);
    append(store.as_ref(), vec![largest.clone()]).await;
    assert_eq!(detail(store.as_ref(), largest.id).await.metadata, largest.metadata);
}

pub(super) async fn the_largest_payload_is_stored(store: &Arc<dyn Store>) {
    let large = NewEvent { payload: Arc::from(format!("\"{}\"", "x".repeat(MAX_PAYLOAD - 2))), ..event(2) };
    append(store.as_ref(), vec![large.clone()]).await;
    assert_eq!(detail(store.as_ref(), large.id).await.payload.get(), &*large.payload);
}

pub(super) async fn an_empty_batch_stores_nothing(store: &Arc<dyn Store>) {
    assert_eq!(store.append(Vec::new()).await.unwrap(), []);
    assert!(store.events(EventFilter::default(), EventPage::default()).await.unwrap().is_empty());
}

pub(super) async fn an_event_without_subscriptions_is_done_once_it_is_stored(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let unwanted = |created| NewEvent { to: Routing::None, ..event(created) };
    let (one, other) = (unwanted(1), event(2));
    let ids = [one.id, other.id];
    assert_eq!(store.append(vec![one.clone(), other]).await.unwrap(), [Appended::New; 2]);
    assert_eq!(worker.only().event.id, ids[1], "it is not claimed");
    let kept = detail(store.as_ref(), ids[0]).await;
    assert_eq!((kept.status, kept.due_at, kept.updated_at), (EventStatus::Done, None, at(1)));
    assert_eq!(store.append(vec![one]).await.unwrap(), [Appended::Duplicate]);
    assert_eq!(store.append(vec![unwanted(3)]).await.unwrap(), [Appended::New], "also outside of a batch");
    assert!(worker.claim(store.as_ref(), 1_000).await.is_empty());
    assert_eq!(store.purge_done(at(2), 10).await.unwrap(), 1, "its retention is that of other events");
}

pub(super) async fn taken_ids_are_those_of_events_with_another_type_or_payload(store: &Arc<dyn Store>) {
    let (stored, unknown) = (event(1), event(2));
    append(store.as_ref(), vec![stored.clone()]).await;
    let same = EventContent::of(&stored);
    let other_payload = EventContent { payload: "{}".into(), ..same.clone() };
    let other_type = EventContent { event_type: event_type("order.paid"), ..same.clone() };
    for (wanted, expected) in [
        (vec![], vec![]),
        (vec![same.clone(), EventContent::of(&unknown)], vec![]),
        (vec![other_payload], vec![stored.id]),
        (vec![EventContent::of(&unknown), other_type], vec![stored.id]),
    ] {
        assert_eq!(store.taken_ids(wanted).await.unwrap(), expected);
    }
}

pub(super) async fn a_batch_with_the_id_of_another_event_stores_nothing(store: &Arc<dyn Store>) {
    let taken = event(1);
    append(store.as_ref(), vec![taken.clone()]).await;
    let other = NewEvent { payload: "\"other\"".into(), ..taken.clone() };
    for twice in [false, true] {
        // A repeat of the refusal has the same end, also where ids are expected to exist.
        let batch = vec![event(2), other.clone(), event(3)];
        let fresh = [batch[0].id, batch[2].id];
        let batch = if twice { batch.into_iter().rev().collect() } else { batch };
        let refused = store.append(batch).await.unwrap_err();
        assert!(matches!(refused, StoreError::IdTaken { id } if id == taken.id), "{refused}");
        for id in fresh {
            let found = store.event(id).await.unwrap_err();
            assert!(matches!(found, StoreError::NoSuchEvent { .. }), "{found}");
        }
    }
    let task = r#"{"message_id":"m","original_queue":"orders","retry_count":0,"next_retry_at_ms":3}"#;
    let task = NewEvent {
        event_type: event_type("retry.task"),
        payload: task.into(),
        ..to_each(3, &["republisher"])
    };
    for fresh in [to_each(3, &["billing", "mail"]), task] {
        let id = fresh.id;
        let refused = store.append(vec![fresh, other.clone()]).await.unwrap_err();
        assert!(matches!(refused, StoreError::IdTaken { id } if id == taken.id), "{refused}");
        assert!(store.event(id).await.is_err());
    }
    let fresh = event(4);
    let again = store.append(vec![fresh.clone(), taken.clone()]).await.unwrap();
    assert_eq!(again, [Appended::New, Appended::Duplicate], "the same event again");
    assert_eq!(store.append(vec![fresh, taken.clone()]).await.unwrap(), [Appended::Duplicate; 2]);

    let twice = event(5);
    let changed = NewEvent { payload: "\"changed\"".into(), ..twice.clone() };
    let refused = store.append(vec![twice.clone(), changed]).await.unwrap_err();
    assert!(matches!(refused, StoreError::IdTaken { id } if id == twice.id), "{refused}");
    assert!(store.event(twice.id).await.is_err());
}

pub(super) async fn a_batch_races_with_another_event_of_its_id(store: &Arc<dyn Store>) {
    for created in 0..50 {
        let single = event(created);
        let batch = vec![event(created), NewEvent { payload: "\"other\"".into(), ..single.clone() }];
        let first = batch[0].id;
        let (stored, batched) = tokio::join!(store.append(vec![single.clone()]), store.append(batch));
        let is_batched = match batched {
            Ok(appended) => {
                assert_eq!(appended, [Appended::New; 2]);
                true
            }
            Err(error) => {
                assert!(matches!(error, StoreError::IdTaken { id } if id == single.id), "{error}");
                false
            }
        };
        assert_eq!(stored.unwrap() == [Appended::Duplicate], is_batched);
        assert_eq!(
            store.event(first).await.is_ok(),
            is_batched,
            "a batch is stored as a whole or not at all"
        );
        // A publish of the same event beside it, in one statement perhaps, does not hide that another event has the id.
        let (taken, fresh) = (NewEvent { payload: "\"third\"".into(), ..single }, event(created));
        let batch = vec![fresh.clone(), taken.clone()];
        let (repeated, batched) = tokio::join!(store.append(vec![taken.clone()]), store.append(batch));
        assert_eq!(repeated.unwrap(), [Appended::Duplicate]);
        assert!(matches!(batched, Err(StoreError::IdTaken { id }) if id == taken.id), "{batched:?}");
        assert!(store.event(fresh.id).await.is_err());
    }
}
