//! Settlements as array parameters: one array for each column of the settle statements.

use std::collections::HashMap;

use super::super::value::{Value, columns};
use super::super::{nul_escape, status};
use super::Ended;
use crate::dead_letter::fingerprint;
use crate::due::Due;
use crate::work::{ClaimKey, Claimed, Settlement, Verdict};

/// The last stored error of each claim that is dead-lettered without an error of its own.
/// The key says whether the claim is of an event, and has the key of its row and its token.
pub(super) type LastErrors = HashMap<(bool, i64, i64), String>;

columns! {
    /// The parameters of bare successes.
    struct BareSuccesses, 4:
    keys: Vec<i64>,
    owners: Vec<i64>,
    tokens: Vec<i64>,
    at: Vec<i64>,
}

impl BareSuccesses {
    pub(super) fn new(ends: &[Ended<'_>]) -> Self {
        BareSuccesses {
            keys: ends.iter().map(|(claimed, _)| claimed.key.row()).collect(),
            owners: ends.iter().map(|(claimed, _)| claimed.fence.owner).collect(),
            tokens: ends.iter().map(|(claimed, _)| claimed.fence.token).collect(),
            at: ends.iter().map(|(_, settlement)| settlement.at.as_millis()).collect(),
        }
    }
}

columns! {
    /// The parameters of all other settlements.
    #[derive(Default)]
    struct Columns, 37:
    keys: Vec<i64>,
    owners: Vec<i64>,
    tokens: Vec<i64>,
    status: Vec<i16>,
    due_at: Vec<Option<i64>>,
    at: Vec<i64>,
    attempt: Vec<i32>,
    error_json: Vec<Option<String>>,
    error: Vec<Option<String>>,
    failed: Vec<Option<String>>,
    started_at: Vec<Option<i64>>,
    duration_ms: Vec<Option<i64>>,
    class: Vec<Option<String>>,
    delay_ms: Vec<Option<i64>>,
    record: Vec<Option<String>>,
    reason: Vec<Option<String>>,
    fingerprint: Vec<Option<String>>,
    last_error: Vec<Option<String>>,
    subscription: Vec<Option<String>>,
    event_type: Vec<String>,
    created_at: Vec<i64>,
    split_off_keys: Vec<i64>,
    split_off_tokens: Vec<i64>,
    split_off_for: Vec<String>,
    split_off_until: Vec<i64>,
    split_off_at: Vec<i64>,
    handled: Vec<Option<String>>,
    detail: Vec<Option<String>>,
    succeeded_keys: Vec<i64>,
    succeeded_tokens: Vec<i64>,
    succeeded_for: Vec<String>,
    succeeded_attempt: Vec<i32>,
    succeeded_started_at: Vec<i64>,
    succeeded_duration_ms: Vec<i64>,
    succeeded_detail: Vec<String>,
    deferred: Vec<bool>,
    lease: Vec<Option<String>>,
}

impl Columns {
    pub(super) fn new(ends: &[Ended<'_>], last_errors: &LastErrors) -> Self {
        let mut columns = Columns::default();
        for (claimed, settlement) in ends {
            columns.add(claimed, settlement, last_errors);
        }
        columns
    }

    fn add(&mut self, claimed: &Claimed, settlement: &Settlement, last_errors: &LastErrors) {
        let attempt = i32::try_from(claimed.attempt).unwrap_or(i32::MAX);
        let millis = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let (key, token) = (claimed.key.row(), claimed.fence.token);
        self.keys.push(key);
        self.owners.push(claimed.fence.owner);
        self.tokens.push(token);
        self.status.push(status::after(claimed, settlement));
        self.due_at.push(settlement.verdict.due_again().map(Due::to_sql_millis));
        self.at.push(settlement.at.as_millis());
        self.attempt.push(attempt);
        self.deferred.push(matches!(settlement.verdict, Verdict::Defer(_)));
        self.lease.push(match &settlement.verdict {
            Verdict::Lease { token, .. } => Some(token.secret()),
            _ => None,
        });

        let failure = settlement.failure.as_ref();
        self.error_json.push(failure.map(|failure| nul_escape::json_string(&failure.error)));
        self.error.push(failure.map(|failure| escaped(&failure.error)));
        self.failed.push(failure.map(|failure| failure.subscription.as_str().to_owned()));
        self.started_at.push(failure.map(|failure| failure.started_at.as_millis()));
        self.duration_ms.push(failure.map(|failure| millis(failure.duration_ms)));
        self.class.push(failure.map(|failure| {
            serde_json::to_string(&failure.class).expect("a failure class always serialises")
        }));
        self.delay_ms.push(failure.map(|failure| millis(failure.delay_ms)));
        self.record.push(failure.and_then(|failure| failure.record.clone()));
        self.detail.push(failure.and_then(|failure| failure.detail.as_deref()).map(escaped));

        let (mut reason, mut last) = (None, None);
        if let Verdict::Dead(why) = settlement.verdict {
            let name = serde_json::to_value(why).ok().and_then(|value| value.as_str().map(str::to_owned));
            reason = Some(name.unwrap_or_default());
            let own = failure.map(|failure| failure.error.clone());
            let is_event = matches!(claimed.key, ClaimKey::Event(_));
            let stored = || last_errors.get(&(is_event, key, token)).cloned();
            last = own.or_else(stored).or_else(|| Some(String::new()));
        }
        self.reason.push(reason);
        self.fingerprint.push(last.as_deref().map(|last| escaped(&fingerprint(last))));
        self.last_error.push(last.as_deref().map(escaped));
        self.subscription.push(claimed.subscription.as_ref().map(|name| name.as_str().to_owned()));
        self.event_type.push(claimed.event.event_type.as_str().to_owned());
        self.created_at.push(claimed.event.created_at.as_millis());
        self.handled.push(claimed.handled_by_now(settlement));

        // One delivery for each subscription, with the earliest time. Insertion order is claim order among equal due times.
        let mut split_off: Vec<(&str, i64)> = Vec::with_capacity(settlement.split_off.len());
        for (name, until) in &settlement.split_off {
            let until = until.to_sql_millis();
            match split_off.iter_mut().find(|(named, _)| *named == name.as_str()) {
                Some((_, earliest)) => *earliest = until.min(*earliest),
                None => split_off.push((name.as_str(), until)),
            }
        }
        for (name, until) in split_off {
            self.split_off_keys.push(key);
            self.split_off_tokens.push(token);
            self.split_off_for.push(name.to_owned());
            self.split_off_until.push(until);
            self.split_off_at.push(settlement.at.as_millis());
        }
        for succeeded in &settlement.succeeded {
            self.succeeded_keys.push(key);
            self.succeeded_tokens.push(token);
            self.succeeded_for.push(succeeded.subscription.as_str().to_owned());
            self.succeeded_attempt.push(attempt);
            self.succeeded_started_at.push(succeeded.started_at.as_millis());
            self.succeeded_duration_ms.push(millis(succeeded.duration_ms));
            self.succeeded_detail.push(escaped(&succeeded.detail));
        }
    }
}

fn escaped(text: &str) -> String {
    nul_escape::escape(text).into_owned()
}
