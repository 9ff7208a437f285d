//! `Idempotency-Key`: a request that is sent again is answered as it was, and stores nothing new, whatever happened in between.
//!
//! The ids of the events are made of the key and of the time at which it was first taken, which the store remembers. So when
//! a server dies between storing the events and remembering the answer, whoever comes next with the same key stores the same ids,
//! and that is one event. A key is remembered for a day; after that a new one is taken, at another time, for other events.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use redrive::{EventId, Timestamp};
use redrive_retry::idempotency::{Begin, Fingerprint, IdempotencyError, IdempotencyKey, OwnerToken};
use sha2::{Digest, Sha256};

use super::auth::Caller;
use super::problem::{Code, Problem};
use super::{Api, reply};

const HEADER: &str = "idempotency-key";

/// The longest key of a client.
const LONGEST: usize = 200;

/// How long an answer is remembered.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);

/// How long a request has a key for itself. Short, because whoever comes after a server that died waits for it; and it does no
/// harm if it is too short, because whoever takes over stores the same events.
const LEASE: Duration = Duration::from_secs(5);

/// When to ask again while somebody else has the key: most are done at once, and the dead are given up after a few times.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What becomes of a request.
#[derive(Debug)]
pub(crate) enum Request {
    /// It is to be carried out.
    New(Ticket),
    /// It was; this is what was answered.
    Answered(Response),
}

/// A request that is carried out now.
#[derive(Debug)]
pub(crate) struct Ticket {
    held: Option<Held>,
}

/// A key that this request holds.
#[derive(Debug)]
struct Held {
    key: IdempotencyKey,
    owner: OwnerToken,
    first_taken: Timestamp,
    /// Somebody had it before, and may have stored something.
    is_taken_over: bool,
}

/// What the header of a request means. `body` is what the key stands for.
pub(crate) async fn begin(
    api: &Arc<Api>,
    caller: &Caller,
    route: &'static str,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Request, Problem> {
    let Some(key) = key_of(headers, caller)? else { return Ok(Request::New(Ticket { held: None })) };
    let digest = Sha256::new().chain_update(route).chain_update([0]).chain_update(body).finalize();
    let (fingerprint, owner) = (Fingerprint::from_bytes(digest.into()), OwnerToken::new());
    match api.keys.begin(&key, fingerprint, owner, LEASE).await? {
        Begin::Acquired => {}
        Begin::InProgress { .. } => {
            let say = "a request with this key is being carried out: wait, then send it again";
            return Err(Problem::new(Code::InProgress, say).after(ASK_AGAIN));
        }
        Begin::Completed { result } => return Ok(Request::Answered(again(result))),
        Begin::OtherPayload { .. } => {
            let say =
                "this key was used for another request: use a new key, or send exactly what was sent before";
            return Err(Problem::new(Code::OtherPayload, say));
        }
    }
    let record = api.keys.get(&key).await?.ok_or_else(|| {
        Problem::new(
            Code::Unavailable,
            "the key was forgotten as soon as it was taken: send the request again",
        )
    })?;
    let is_taken_over = record.created_at != record.updated_at;
    Ok(Request::New(Ticket {
        held: Some(Held { key, owner, first_taken: record.created_at, is_taken_over }),
    }))
}

impl Ticket {
    /// The id of the event at this place in the request.
    pub(crate) fn id(&self, index: usize) -> EventId {
        self.held.as_ref().map_or_else(EventId::new, |held| held.id(index))
    }

    /// Remembers what is answered.
    pub(crate) async fn done(self, api: &Api, body: String) -> Response {
        if let Some(Held { key, owner, .. }) = self.held
            && let Err(error) = api.keys.complete(&key, owner, &body, None, REMEMBERED).await
        {
            // Whoever sends it again stores the same events under the same ids.
            tracing::warn!(target: "redrive::http", %error, "an answer was not remembered");
        }
        reply::text(StatusCode::ACCEPTED, body)
    }

    /// Gives the key free if nothing can have been stored under it.
    pub(crate) async fn failed(self, api: &Api, problem: Problem) -> Problem {
        if let Some(Held { key, owner, is_taken_over: false, .. }) = self.held
            && !problem.is_unknown()
        {
            // If that fails, the key is free when its time is up.
            let _ = api.keys.release(&key, owner, None, Duration::ZERO).await;
        }
        problem
    }
}

impl Held {
    /// A UUID of version 7 whose time is when the key was first taken, and whose other bits are a hash of the key.
    fn id(&self, index: usize) -> EventId {
        let hash = Sha256::new()
            .chain_update(b"redrive event of an idempotency key\0")
            .chain_update(self.key.as_str())
            .chain_update([0])
            .chain_update((index as u64).to_be_bytes())
            .finalize();
        let mut bits = [0; 10];
        bits.copy_from_slice(&hash[..10]);
        let millis = u64::try_from(self.first_taken.as_millis()).unwrap_or(0);
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
    let key = value.to_str().ok().filter(|key| (1..=LONGEST).contains(&key.len()));
    let key = key.and_then(|key| IdempotencyKey::new(format!("http/{}/{key}", caller.name())).ok());
    key.map(Some).ok_or_else(|| {
        Problem::invalid(format!(
            "the header Idempotency-Key must be 1 to {LONGEST} printable ASCII characters"
        ))
    })
}

impl From<IdempotencyError> for Problem {
    fn from(error: IdempotencyError) -> Self {
        match error {
            IdempotencyError::Unavailable(error) => match error.downcast::<redrive::StoreError>() {
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

    fn held(key: &str, at: i64) -> Held {
        Held {
            key: IdempotencyKey::new(key).unwrap(),
            owner: OwnerToken::new(),
            first_taken: Timestamp::from_millis(at),
            is_taken_over: false,
        }
    }

    #[test]
    fn the_id_of_an_event_depends_on_the_key_its_time_and_the_place_alone() {
        let at = 1_767_225_600_000;
        let id = held("http/local/a", at).id(0);
        assert_eq!(id, held("http/local/a", at).id(0), "whoever asks");
        for other in [
            held("http/local/b", at).id(0),
            held("http/local/a", at + 1).id(0),
            held("http/local/a", at).id(1),
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
