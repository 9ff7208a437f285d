//! Tracks unconfirmed publications, and matches publisher confirms and returns to them.
//!
//! The broker confirms an unroutable message like any other, after returning it. The client library attaches each return to whichever
//! confirm it reads next, which may be that of another message, and yields confirms out of order. These rules keep the outcomes
//! correct:
//!
//! - All confirms that have arrived are processed as one batch, and their returns are applied first.
//! - A confirm without a return proves that no return was waiting when it was read.
//! - A message confirmed together with another message's return is reported as delivered only when a message published later is
//!   confirmed without a return, or when no publication is left unconfirmed.

use std::collections::BTreeMap;
use std::time::Instant;

use tokio::sync::oneshot;

use crate::transport::PublishError;

/// Channel for the outcome of a publication.
pub(super) type Reply = oneshot::Sender<Result<(), PublishError>>;

/// Unconfirmed publications of one channel, in order of publishing.
#[derive(Debug, Default)]
pub(super) struct PublisherConfirms {
    slots: BTreeMap<u64, Slot>,
    next: u64,
}

#[derive(Debug)]
struct Slot {
    id: String,
    queue: String,
    /// `None` once the outcome was reported.
    reply: Option<Reply>,
    deadline: Instant,
    /// Set when it was confirmed together with another message's return. Its own return may still arrive, until a publication with this
    /// number or a later one is confirmed without a return.
    certain_from: Option<u64>,
    /// Reason of its return.
    returned: Option<String>,
}

/// Publisher confirm of one message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Confirmed {
    pub(super) is_ack: bool,
    /// Return attached to it, of any message.
    pub(super) returned: Option<Returned>,
}

/// A message returned as unroutable.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Returned {
    /// Id of its task.
    pub(super) id: String,
    pub(super) why: String,
}

impl PublisherConfirms {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Adds a publication and returns its number.
    pub(super) fn add(&mut self, id: String, queue: String, reply: Reply, deadline: Instant) -> u64 {
        let key = self.next;
        self.next += 1;
        self.slots.insert(
            key,
            Slot { id, queue, reply: Some(reply), deadline, certain_from: None, returned: None },
        );
        key
    }

    /// Processes a batch of all confirms that have arrived. Returns the queues of returned messages.
    pub(super) fn confirmed(&mut self, all: Vec<(u64, Confirmed)>) -> Vec<String> {
        let mut queues = Vec::new();
        let mut own = Vec::new();
        for (key, Confirmed { returned, .. }) in &all {
            let Some(Returned { id, why }) = returned else { continue };
            for (other, slot) in self.slots.iter_mut().filter(|(_, slot)| slot.id == *id) {
                if other == key {
                    own.push(*key);
                }
                slot.returned = Some(why.clone());
                queues.push(slot.queue.clone());
            }
        }
        let last_without = all.iter().filter(|(_, one)| one.returned.is_none()).map(|(key, _)| *key).max();
        for (key, Confirmed { is_ack, returned }) in all {
            if !is_ack {
                self.finish(key, Err(PublishError::Unknown { why: "the broker sent a nack".to_owned() }));
            } else if returned.is_none() || own.contains(&key) {
                self.settle(key);
            } else if let Some(slot) = self.slots.get_mut(&key) {
                slot.certain_from = Some(self.next);
            }
        }
        let is_certain = |slot: &Slot| match slot.certain_from {
            Some(from) => slot.returned.is_some() || last_without.is_some_and(|last| last >= from),
            None => false,
        };
        let certain: Vec<u64> =
            self.slots.iter().filter(|(_, slot)| is_certain(slot)).map(|(key, _)| *key).collect();
        for key in certain {
            self.settle(key);
        }
        if self.slots.values().all(|slot| slot.certain_from.is_some()) {
            // Nothing is unconfirmed, so every return has arrived.
            while let Some(key) = self.slots.first_key_value().map(|(key, _)| *key) {
                self.settle(key);
            }
        }
        queues
    }

    /// Reports the outcome of a confirmed publication.
    fn settle(&mut self, key: u64) {
        let Some(slot) = self.slots.get(&key) else { return };
        let outcome = match &slot.returned {
            Some(why) => Err(PublishError::Unroutable { queue: slot.queue.clone(), why: why.clone() }),
            None => Ok(()),
        };
        self.finish(key, outcome);
    }

    fn finish(&mut self, key: u64, outcome: Result<(), PublishError>) {
        if let Some(reply) = self.slots.remove(&key).and_then(|slot| slot.reply) {
            let _ = reply.send(outcome); // the caller may be gone
        }
    }

    /// Reports publications past their deadline as unknown. They stay tracked, because their confirm may carry another message's return.
    pub(super) fn expire(&mut self, now: Instant) {
        for slot in self.slots.values_mut().filter(|slot| slot.deadline <= now) {
            if let Some(reply) = slot.reply.take() {
                let _ =
                    reply.send(Err(PublishError::Unknown { why: "no publisher confirm in time".to_owned() }));
            }
        }
    }

    /// Number of expired publications that are still tracked.
    pub(super) fn timed_out(&self) -> usize {
        self.slots.values().filter(|slot| slot.reply.is_none()).count()
    }

    /// Extends all deadlines while the broker blocks publishers.
    pub(super) fn extend(&mut self, deadline: Instant) {
        for slot in self.slots.values_mut() {
            slot.deadline = slot.deadline.max(deadline);
        }
    }

    /// Reports all outcomes as unknown, except returns already seen, because the connection was lost.
    pub(super) fn abandon(&mut self, why: &str) {
        for (_, slot) in std::mem::take(&mut self.slots) {
            if let Some(reply) = slot.reply {
                let outcome = match slot.returned {
                    Some(why) => PublishError::Unroutable { queue: slot.queue, why },
                    None => PublishError::Unknown { why: why.to_owned() },
                };
                let _ = reply.send(Err(outcome));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct Harness {
        confirms: PublisherConfirms,
        replies: Vec<oneshot::Receiver<Result<(), PublishError>>>,
    }

    impl Harness {
        fn with(count: usize) -> Self {
            let mut harness = Harness { confirms: PublisherConfirms::default(), replies: Vec::new() };
            for _ in 0..count {
                harness.add();
            }
            harness
        }

        fn add(&mut self) {
            let n = self.replies.len();
            let (reply, replied) = oneshot::channel();
            let deadline = Instant::now() + Duration::from_secs(60);
            self.confirms.add(n.to_string(), format!("q{n}"), reply, deadline);
            self.replies.push(replied);
        }

        /// Confirms a message, with a return attached.
        fn ack(&mut self, key: u64, returned: Option<u64>) {
            let returned = returned.map(|id| Returned { id: id.to_string(), why: "NO_ROUTE".into() });
            self.confirms.confirmed(vec![(key, Confirmed { is_ack: true, returned })]);
        }

        /// `.` open, `+` confirmed, `-` unroutable, `?` unknown.
        fn replies(&mut self, before: &str) -> String {
            let sign = |(reply, before): (&mut oneshot::Receiver<_>, char)| match reply.try_recv() {
                Ok(Ok(())) => '+',
                Ok(Err(PublishError::Unroutable { .. })) => '-',
                Ok(Err(_)) => '?',
                Err(_) => before,
            };
            self.replies.iter_mut().zip(before.chars()).map(sign).collect()
        }
    }

    #[test]
    fn a_return_attached_to_its_own_confirm() {
        let mut harness = Harness::with(2);
        harness.ack(0, Some(0));
        assert_eq!(harness.replies(".."), "-.");
        harness.ack(1, None);
        assert_eq!(harness.replies("-."), "-+");
    }

    #[test]
    fn a_return_attached_to_the_confirm_of_another_message() {
        let mut harness = Harness::with(3);
        harness.ack(0, Some(1));
        assert_eq!(harness.replies("..."), "...", "the return of 0 may be outstanding");
        harness.ack(1, None);
        assert_eq!(harness.replies("..."), ".-.", "its confirm may have arrived before that of 0");
        harness.ack(2, None);
        assert_eq!(harness.replies(".-."), "+-+", "nothing is unconfirmed");
    }

    #[test]
    fn a_later_confirm_without_a_return_settles_earlier_messages() {
        let mut harness = Harness::with(3);
        harness.ack(0, Some(1));
        harness.add();
        harness.ack(3, None);
        assert_eq!(harness.replies("...."), "+..+");
    }

    /// The return of 1 is attached to the confirm of 0, which is read after that of 1.
    #[test]
    fn returns_are_applied_before_confirms() {
        let mut harness = Harness::with(3);
        let returned = Some(Returned { id: "1".into(), why: "NO_ROUTE".into() });
        harness.confirms.confirmed(vec![
            (1, Confirmed { is_ack: true, returned: None }),
            (0, Confirmed { is_ack: true, returned }),
        ]);
        assert_eq!(harness.replies("..."), ".-.");
    }

    #[test]
    fn returns_attached_to_each_others_confirms() {
        let mut harness = Harness::with(3);
        harness.ack(0, Some(1));
        harness.ack(1, Some(0));
        assert_eq!(harness.replies("..."), "--.");
    }

    #[test]
    fn the_last_confirm_settles_everything() {
        let mut harness = Harness::with(2);
        harness.ack(0, Some(1));
        harness.ack(1, Some(7)); // of an untracked message
        assert_eq!(harness.replies(".."), "+-");
        assert_eq!(harness.confirms.len(), 0);
    }

    #[test]
    fn nacks_timeouts_and_lost_connections_are_unknown() {
        let mut harness = Harness::with(3);
        harness.confirms.confirmed(vec![(0, Confirmed { is_ack: false, returned: None })]);
        harness.confirms.expire(Instant::now());
        assert_eq!(harness.replies("..."), "?..");
        harness.confirms.expire(Instant::now() + Duration::from_secs(61));
        assert_eq!(
            (harness.replies("?.."), harness.confirms.len(), harness.confirms.timed_out()),
            ("???".to_owned(), 2, 2)
        );
        let mut harness = Harness::with(2);
        harness.ack(0, Some(1));
        harness.confirms.abandon("lost");
        assert_eq!(harness.replies(".."), "?-", "the return of 1 was seen");
    }

    #[test]
    fn deadlines_are_extended_while_the_broker_blocks_publishers() {
        let mut harness = Harness::with(1);
        let later = Instant::now() + Duration::from_secs(90);
        harness.confirms.extend(later + Duration::from_secs(1));
        harness.confirms.expire(later);
        assert_eq!(harness.replies("."), ".");
    }
}
