//! `Idempotency-Key`: a repeated request gets the first answer and stores nothing new.
//!
//! The ids of the events are derived from the key and the time of its first use, which the store records. When a server dies between
//! storing the events and recording the answer, the next request with the key stores the same ids, which is one event. A key is
//! recorded for a day; after that it starts anew, with another time and other ids.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use redrive::EventId;
use redrive::retry::Timestamp;
use redrive_retry::idempotency::{Begin, Fingerprint, IdempotencyError, IdempotencyKey, OwnerToken};
use sha2::{Digest, Sha256};

use super::auth::Caller;
use super::problem::{Code, Problem};
use super::{Api, reply};

const HEADER: &str = "idempotency-key";

/// Longest key.
const MAX_KEY_BYTES: usize = 200;

/// Time for which an answer is recorded.
const ANSWER_TTL: Duration = Duration::from_secs(24 * 3600);

/// Lease of a key. Short, because a request after the death of a server waits for it. A lease that is too short does no harm: the next
/// request stores the same events.
const LEASE: Duration = Duration::from_secs(5);

/// `Retry-After` while another request has the key.
const IN_PROGRESS_DELAY: Duration = Duration::from_secs(1);

/// A request to execute, or the recorded answer of an earlier one.
#[derive(Debug)]
pub(crate) enum Request {
    /// Execute it.
    New(Ticket),
    /// It was executed before, with this answer.
    Answered(Response),
}

/// A request in flight, with its key if it has one.
#[derive(Debug)]
pub(crate) struct Ticket {
    leased: Option<LeasedKey>,
}

/// A key that this request has leased.
#[derive(Debug)]
struct LeasedKey {
    key: IdempotencyKey,
    owner: OwnerToken,
    first_used: Timestamp,
    /// Another request had the key before, and may have stored events.
    is_taken_over: bool,
}

/// Leases the key of a request. The key is bound to `route` and `body`: another body under the same key is refused.
pub(crate) async fn begin(
    api: &Arc<Api>,
    caller: &Caller,
    route: &'static str,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Request, Problem> {
    let Some(key) = key_of(headers, caller)? else { return Ok(Request::New(Ticket { leased: None })) };
    let digest = Sha256::new().chain_update(route).chain_update([0]).chain_update(body).finalize();
    let (fingerprint, owner) = (Fingerprint::from_bytes(digest.into()), OwnerToken::new());
    match api.idempotency.begin(&key, fingerprint, owner, LEASE).await? {
        Begin::Acquired => {}
        Begin::InProgress { .. } => {
            let say = "a request with this key is in flight: wait, then send it again";
            return Err(Problem::new(Code::InProgress, say).after(IN_PROGRESS_DELAY));
        }
        Begin::Completed { result } => return Ok(Request::Answered(again(result))),
        Begin::OtherPayload { .. } => {
            let say =
                "this key was used for another request: use a new key, or send exactly what was sent before";
            return Err(Problem::new(Code::OtherPayload, say));
        }
    }
    let record = api.idempotency.get(&key).await?.ok_or_else(|| {
        Problem::new(
            Code::Unavailable,
            "the idempotency key expired while it was claimed: send the request again",
        )
    })?;
    let is_taken_over = record.created_at != record.updated_at;
    Ok(Request::New(Ticket {
        leased: Some(LeasedKey { key, owner, first_used: record.created_at, is_taken_over }),
    }))
}

impl Ticket {
    /// The id of the event at this index in the request.
    pub(crate) fn id(&self, index: usize) -> EventId {
        self.leased.as_ref().map_or_else(EventId::new, |leased| leased.id(index))
    }

    /// Whether the request has a key, from which its ids are derived.
    pub(crate) fn has_key(&self) -> bool {
        self.leased.is_some()
    }

    /// Records the response under the key, and returns it.
    pub(crate) async fn record_response(self, api: &Api, body: String) -> Response {
        if let Some(LeasedKey { key, owner, .. }) = self.leased
            && let Err(error) = api.idempotency.complete(&key, owner, &body, None, ANSWER_TTL).await
        {
            // A repeated request stores the same events under the same ids.
            tracing::warn!(target: "redrive::http", %error, "an answer was not recorded");
        }
        reply::text(StatusCode::ACCEPTED, body)
    }

    /// Releases the key if no event can have been stored under it.
    pub(crate) async fn release(self, api: &Api, problem: Problem) -> Problem {
        if let Some(LeasedKey { key, owner, is_taken_over: false, .. }) = self.leased
            && !problem.is_unknown()
        {
            // If that fails, the lease of the key ends.
            let _ = api.idempotency.release(&key, owner, None, Duration::ZERO).await;
        }
        problem
    }
}

impl LeasedKey {
    /// A UUID of version 7 with the time of the first use of the key, and a hash of the key as its other bits.
    fn id(&self, index: usize) -> EventId {
        let hash = Sha256::new()
            .chain_update(b"redrive event of an idempotency key\0")
            .chain_update(self.key.as_str())
            .chain_update([0])
            .chain_update((index as u64).to_be_bytes())
            .finalize();
        let mut bits = [0; 10];
        bits.copy_from_slice(&hash[..10]);
        let millis = u64::try_from(self.first_used.as_millis()).unwrap_or(0);
        EventId::from_uuid(uuid::Builder::from_unix_timestamp_millis(millis, &bits).into_uuid())
    }
}

fn again(body: String) -> Response {
    let mut response = reply::text(StatusCode::ACCEPTED, body);
    response
        .headers_mut()
        .insert(HeaderName::from_static("idempotency-replayed"), HeaderValue::from_static("true"));
    response
}

/// The key in the header. Each caller has keys of its own.
fn key_of(headers: &HeaderMap, caller: &Caller) -> Result<Option<IdempotencyKey>, Problem> {
    let Some(value) = headers.get(HEADER) else { return Ok(None) };
    let key = value.to_str().ok().filter(|key| (1..=MAX_KEY_BYTES).contains(&key.len()));
    let key = key.and_then(|key| IdempotencyKey::new(format!("http/{}/{key}", caller.name())).ok());
    key.map(Some).ok_or_else(|| {
        Problem::invalid(format!(
            "the header Idempotency-Key must be 1 to {MAX_KEY_BYTES} printable ASCII characters"
        ))
    })
}

impl From<IdempotencyError> for Problem {
    fn from(error: IdempotencyError) -> Self {
        match error {
            IdempotencyError::Unavailable(error) => match error.downcast::<redrive::store::StoreError>() {
                Ok(error) => (*error).into(),
                Err(error) => {
                    Problem::new(Code::Unavailable, error.to_string()).after(Duration::from_secs(5))
                }
            },
            error => Problem::new(Code::Unavailable, error.to_string()).after(Duration::from_secs(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leased(key: &str, at: i64) -> LeasedKey {
        LeasedKey {
            key: IdempotencyKey::new(key).unwrap(),
            owner: OwnerToken::new(),
            first_used: Timestamp::from_millis(at),
            is_taken_over: false,
        }
    }

    #[test]
    fn event_ids_depend_on_key_time_and_index_alone() {
        let at = 1_767_225_600_000;
        let id = leased("http/local/a", at).id(0);
        assert_eq!(id, leased("http/local/a", at).id(0), "for every request");
        for other in [
            leased("http/local/b", at).id(0),
            leased("http/local/a", at + 1).id(0),
            leased("http/local/a", at).id(1),
        ] {
            assert_ne!(id, other);
        }
        assert_eq!(id.as_uuid().get_version_num(), 7);
        let (seconds, nanos) = id.as_uuid().get_timestamp().unwrap().to_unix();
        assert_eq!((seconds, nanos), (1_767_225_600, 0));
        // For ever: a server of a newer release must find the events of an older one.
        assert_eq!(id.to_string(), "019b76da-a800-7e3d-8262-44a4a802b203");
    }
}
