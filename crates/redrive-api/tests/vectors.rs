//! The vectors that the clients in every language share: repetition of requests and iteration over pages.
#![allow(clippy::unwrap_used)] // a panic is a failed test

mod script;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use http::Method;
use redrive_api::client::{Client, Error, Jitter, Paged, Retries, RetryPolicy};
use redrive_api::dlq::DlqFilter;
use redrive_api::events::{EventFilter, EventStatus, EventSummary, PublishEvent};
use redrive_api::subscriptions::{Ack, Pull, PutSubscription};
use redrive_api::tokens::{CreateToken, Scope};
use redrive_retry::VirtualTime;
use script::{Answer, Script};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

const RETRIES: &str = include_str!("../../../clients/vectors/client_retries.json");
const PAGES: &str = include_str!("../../../clients/vectors/pages.json");

#[derive(Deserialize)]
struct RetryVectors {
    now: redrive_api::time::Time,
    policy: Policy,
    problems: HashMap<String, Value>,
    cases: Vec<RetryCase>,
}

#[derive(Deserialize)]
struct Policy {
    max_attempts: u32,
    base_delay_ms: u64,
    max_delay_ms: u64,
    multiplier: f64,
    jitter: Jitter,
    max_retry_after_ms: u64,
    deadline_ms: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RetryCase {
    name: String,
    request: String,
    #[serde(default)]
    policy: HashMap<String, u64>,
    script: Vec<Step>,
    requests: usize,
    waits_ms: Vec<u64>,
    #[serde(default)]
    same_idempotency_key: bool,
    result: Option<Value>,
    error: Option<Expected>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    #[serde(default)]
    network_error: bool,
    status: Option<u16>,
    problem: Option<String>,
    body: Option<Value>,
    text: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    code: String,
    status: Option<u16>,
    outcome_unknown: Option<bool>,
    retry_after_ms: Option<u64>,
}

impl Policy {
    fn retries(&self, changes: &HashMap<String, u64>) -> Retries {
        let field = |name: &str, default| *changes.get(name).unwrap_or(&default);
        let ms = |name: &str, default| Duration::from_millis(field(name, default));
        let policy = RetryPolicy::builder()
            .max_attempts(field("max_attempts", self.max_attempts.into()).try_into().unwrap())
            .base_delay(ms("base_delay_ms", self.base_delay_ms))
            .max_delay(ms("max_delay_ms", self.max_delay_ms))
            .multiplier(self.multiplier)
            .jitter(self.jitter)
            .deadline(ms("deadline_ms", self.deadline_ms))
            .build()
            .unwrap();
        Retries::from(policy).max_retry_after(ms("max_retry_after_ms", self.max_retry_after_ms))
    }
}

impl Step {
    /// The answer of the server. `{"ok": true}` stands for any response that the typed request accepts.
    fn answer(&self, request: &str, problems: &HashMap<String, Value>) -> Answer {
        if self.network_error {
            return Answer::NetworkError;
        }
        let body = match (&self.problem, &self.body, &self.text) {
            (Some(problem), ..) => problems[problem].to_string(),
            (_, Some(body), _) => accepted(request, body).to_string(),
            (.., text) => text.clone().unwrap_or_default(),
        };
        Answer::Response { status: self.status.unwrap_or(200), headers: self.headers.clone(), body }
    }
}

/// The subscription or token in place of `{"ok": true}`; any other body as it is.
fn accepted(request: &str, body: &Value) -> Value {
    let at = "2026-01-31T12:00:00Z";
    if *body != json!({"ok": true}) {
        return body.clone();
    }
    match request {
        "post" => json!({
            "token": "rdt_x", "id": "tok_1", "name": "shop", "scopes": ["publish"], "created_at": at, "expires_at": null,
            "last_used_at": null
        }),
        _ => json!({
            "name": "billing", "patterns": ["order.*"], "lease_ms": 30_000, "retry": null, "created_at": at, "updated_at": at
        }),
    }
}

/// Sends a request of one kind; returns the response as JSON.
async fn send(client: &Client, kind: &str) -> Result<Value, Error> {
    let (events, billing) = (client.events(), client.subscriptions());
    let event = PublishEvent::json("order.created", &json!({ "order": 7 })).unwrap();
    let value = |response: &dyn erased::Json| response.json();
    Ok(match kind {
        "publish" => value(&events.publish(&event).await?),
        "publish_many" => value(&events.publish_batch(&[event]).await?.data),
        "get" => value(&billing.get("billing").await?),
        "put" => {
            let patterns = vec!["order.*".to_owned()];
            let how = PutSubscription { patterns, lease_ms: None, retry: None };
            value(&billing.put("billing", &how).await?)
        }
        "delete" => value(&billing.remove("billing").await?),
        "ack" => value(&billing.ack("billing", &Ack { leases: vec!["a.b".to_owned()] }).await?),
        "purge" => value(&client.dlq().purge(Duration::from_secs(1)).await?),
        "pull" => value(&billing.pull("billing", &Pull::default()).await?.data),
        "post" => {
            let token =
                CreateToken { name: "shop".to_owned(), scopes: vec![Scope::Publish], expires_in_s: None };
            value(&client.tokens().create(&token).await?)
        }
        other => panic!("unknown kind {other}"),
    })
}

/// Any response as JSON.
mod erased {
    pub(crate) trait Json {
        fn json(&self) -> serde_json::Value;
    }

    impl<T: serde::Serialize> Json for T {
        fn json(&self) -> serde_json::Value {
            serde_json::to_value(self).unwrap()
        }
    }
}

#[tokio::test]
async fn requests_are_repeated_as_the_vectors_say() {
    let vectors: RetryVectors = serde_json::from_str(RETRIES).unwrap();
    assert!(vectors.cases.len() > 30);
    for case in &vectors.cases {
        let name = &case.name;
        let time = VirtualTime::starting_at(vectors.now.0);
        let answers = case.script.iter().map(|step| step.answer(&case.request, &vectors.problems));
        let script = Script::new(time.clock(), answers);
        let client = Client::new(script.clone())
            .with_retries(vectors.policy.retries(&case.policy))
            .with_clock(time.clock());
        let ended = time.drive(send(&client, &case.request)).await;

        let sent = script.sent();
        assert_eq!(sent.len(), case.requests, "{name}");
        let waits: Vec<u128> = sent.windows(2).map(|two| two[1].at.since(two[0].at).as_millis()).collect();
        assert_eq!(waits, case.waits_ms.iter().map(|ms| u128::from(*ms)).collect::<Vec<_>>(), "{name}");
        let key = |n: usize| sent[n].headers.get("idempotency-key").map(|key| key.to_str().unwrap());
        if case.request.starts_with("publish") {
            assert!(key(0).is_some_and(|key| key.len() >= 16), "{name}");
        }
        assert!(!case.same_idempotency_key || key(0).is_some(), "{name}");
        let same =
            |n: usize| key(n) == key(0) && sent[n].body == sent[0].body && sent[n].path == sent[0].path;
        assert!((0..sent.len()).all(same), "{name}: a repetition has the same bytes");

        match (&case.error, ended) {
            (None, Ok(result)) => {
                assert_eq!(result, accepted(&case.request, case.result.as_ref().unwrap()), "{name}");
            }
            (Some(expected), Err(error)) => check_error(name, expected, &error),
            (_, ended) => panic!("{name}: {ended:?}"),
        }
    }
}

fn check_error(name: &str, expected: &Expected, error: &Error) {
    assert_eq!(error.code().as_str(), expected.code, "{name}");
    if let Some(status) = expected.status {
        assert_eq!(error.status().unwrap_or(0), status, "{name}");
    }
    if let Some(outcome_unknown) = expected.outcome_unknown {
        assert_eq!(error.outcome_unknown(), outcome_unknown, "{name}");
    }
    if let Some(ms) = expected.retry_after_ms {
        assert_eq!(error.retry_after(), Some(Duration::from_millis(ms)), "{name}");
    }
}

#[derive(Deserialize)]
struct PageVectors {
    path: String,
    cases: Vec<PageCase>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PageCase {
    name: String,
    query: PageCaseQuery,
    pages: Vec<ScriptedPage>,
    requests: Vec<BTreeMap<String, String>>,
    items: Vec<String>,
    take: Option<usize>,
    error: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PageCaseQuery {
    status: Option<EventStatus>,
    #[serde(rename = "type")]
    event_type: Option<String>,
    limit: Option<u32>,
    after: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptedPage {
    #[serde(default)]
    ids: Vec<String>,
    next: Option<String>,
    status: Option<u16>,
    code: Option<String>,
}

/// The id of an entry that the vectors call by a letter.
fn id_of(letter: &str) -> Uuid {
    Uuid::from_u128(u32::from(letter.chars().next().unwrap()).into())
}

impl ScriptedPage {
    fn answer(&self) -> Answer {
        if let (Some(status), Some(code)) = (self.status, &self.code) {
            let problem =
                json!({"type": "urn:x", "title": "x", "status": status, "code": code, "detail": "x"});
            return Answer::json(status, &problem);
        }
        let at = "2026-01-31T12:00:00Z";
        let entry = |letter: &String| {
            json!({
                "id": id_of(letter), "type": "order.created", "status": "dlq", "metadata": {}, "retry_count": 0, "created_at": at,
                "updated_at": at, "due_at": null, "errors": []
            })
        };
        let entries: Vec<Value> = self.ids.iter().map(entry).collect();
        Answer::json(200, &json!({ "data": entries, "next": self.next }))
    }
}

/// Takes entries until the end, an error or as many as wanted.
async fn iterate(mut list: Paged<EventSummary>, most: usize) -> (Vec<Uuid>, Option<Error>) {
    let mut ids = Vec::new();
    while ids.len() < most {
        match list.next().await {
            Ok(Some(entry)) => ids.push(entry.id),
            Ok(None) => return (ids, None),
            Err(error) => return (ids, Some(error)),
        }
    }
    (ids, None)
}

#[tokio::test]
async fn lists_are_iterated_as_the_vectors_say() {
    let vectors: PageVectors = serde_json::from_str(PAGES).unwrap();
    assert!(vectors.cases.len() > 10);
    for case in vectors.cases {
        let name = &case.name;
        let time = VirtualTime::new();
        let script = Script::new(time.clock(), case.pages.iter().map(ScriptedPage::answer));
        let client = Client::new(script.clone()).with_retries(Retries::default()).with_clock(time.clock());
        let PageCaseQuery { status, event_type, limit, after } = case.query;
        let mut list = client.events().all(&EventFilter { status, event_type });
        if let Some(limit) = limit {
            list = list.page_size(limit);
        }
        if let Some(after) = after {
            list = list.after(after);
        }
        let (ids, error) = time.drive(iterate(list, case.take.unwrap_or(usize::MAX))).await;
        assert_eq!(ids, case.items.iter().map(|letter| id_of(letter)).collect::<Vec<_>>(), "{name}");
        assert_eq!(error.map(|error| error.code().to_string()), case.error, "{name}");
        let queries: Vec<BTreeMap<String, String>> =
            script.sent().iter().map(|request| request.query(&vectors.path)).collect();
        assert_eq!(queries, case.requests, "{name}");
    }
}

#[tokio::test]
async fn a_list_goes_on_after_an_error_and_ends_once() {
    let time = VirtualTime::new();
    let page = |ids: &[&str], next: Option<&str>| {
        let ids = ids.iter().map(ToString::to_string).collect();
        ScriptedPage { ids, next: next.map(str::to_owned), status: None, code: None }.answer()
    };
    let answers = [page(&["a"], Some("17")), Answer::NetworkError, page(&["b", "c"], None)];
    let client = Client::new(Script::new(time.clock(), answers));
    let mut list = client.events().all(&EventFilter::default());
    assert_eq!(list.next().await.unwrap().unwrap().id, id_of("a"));
    assert_eq!(list.next().await.unwrap_err().code().as_str(), "network_error");
    assert_eq!(list.next().await.unwrap().unwrap().id, id_of("b"));
    assert_eq!(list.next_page().await.unwrap().unwrap().len(), 1, "the rest of the page");
    assert!(list.next().await.unwrap().is_none());
    assert!(list.next_page().await.unwrap().is_none());
}

#[tokio::test]
async fn every_listing_has_an_iterator() {
    let time = VirtualTime::new();
    let empty = || Answer::json(200, &json!({ "data": [], "next": null }));
    let script = Script::new(time.clock(), std::iter::repeat_with(empty).take(8));
    let client = Client::new(script.clone());
    assert!(client.events().all(&EventFilter::default()).next().await.unwrap().is_none());
    assert!(client.dlq().all(&DlqFilter::default()).next().await.unwrap().is_none());
    assert!(client.endpoints().all().next().await.unwrap().is_none());
    assert!(client.endpoints().all_attempts("ep_1", &Default::default()).next().await.unwrap().is_none());
    assert!(client.subscriptions().all().next().await.unwrap().is_none());
    assert!(client.replays().all().next().await.unwrap().is_none());
    assert!(client.tokens().all().next().await.unwrap().is_none());
    assert!(client.review().all(&Default::default()).next().await.unwrap().is_none());
    assert!(script.sent().iter().all(|request| request.method == Method::GET));
}

#[tokio::test]
async fn a_request_that_hangs_is_repeated_after_its_time_limit() {
    let time = VirtualTime::new();
    let answers = [Answer::Hang, Answer::json(202, &json!({"id": id_of("a"), "duplicate": false}))];
    let script = Script::new(time.clock(), answers);
    let client = Client::new(script.clone()).with_retries(Retries::default()).with_clock(time.clock());
    let event = PublishEvent::json("order.created", &7).unwrap();
    time.drive(client.events().publish(&event)).await.unwrap();
    let sent = script.sent();
    assert!(sent[1].at.since(sent[0].at) >= Duration::from_secs(30));
}

#[tokio::test]
async fn a_client_without_retries_sends_each_request_once_and_without_a_key() {
    let script = Script::new(VirtualTime::new().clock(), [Answer::NetworkError]);
    let client = Client::new(script.clone());
    let event = PublishEvent::json("order.created", &7).unwrap();
    let error = client.events().publish(&event).await.unwrap_err();
    assert!(error.outcome_unknown());
    assert_eq!(script.sent().len(), 1);
    assert!(!script.sent()[0].headers.contains_key("idempotency-key"));
}
