//! What was given to the broker and is not confirmed: which confirmation and which return belong to which message.
//!
//! An unroutable message is confirmed like any other; its return comes before. The client hands each return out with whichever
//! confirmation comes next, so it may come with that of another message, and several returns with several later ones. Nor are
//! confirmations seen in the order in which they came. What is known for certain: a confirmation that comes without any return means
//! that none was waiting, so each return before it came with a confirmation before it, and those are seen by whoever looks at all that
//! are there. So all that are there are taken together, and their returns are believed first; and a message that was confirmed
//! together with the return of another one is in its queue only once a message that was published later is confirmed
//! without any, or nothing is left unconfirmed.

use std::collections::BTreeMap;
use std::time::Instant;

use tokio::sync::oneshot;

use crate::transport::PublishError;

/// Answers whoever publishes.
pub(super) type Answer = oneshot::Sender<Result<(), PublishError>>;

/// What the broker has not confirmed.
#[derive(Debug, Default)]
pub(super) struct Window {
    // In the order of publishing.
    slots: BTreeMap<u64, Slot>,
    next: u64,
}

#[derive(Debug)]
struct Slot {
    id: String,
    queue: String,
    /// Taken when it was answered.
    answer: Option<Answer>,
    deadline: Instant,
    /// Set when the broker has confirmed it together with the return of another message: its own return may still come, until one
    /// that was published at this place or later is confirmed without any.
    certain_from: Option<u64>,
    /// Why it was returned.
    returned: Option<String>,
}

/// What the broker says of one message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Confirmed {
    pub(super) is_ack: bool,
    /// A return that came with it, of whichever message.
    pub(super) returned: Option<Returned>,
}

/// A message that the broker could not route.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Returned {
    /// By our own id.
    pub(super) id: String,
    pub(super) why: String,
}

impl Window {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Something is given to the broker. Returns what it is called here.
    pub(super) fn add(&mut self, id: String, queue: String, answer: Answer, deadline: Instant) -> u64 {
        let key = self.next;
        self.next += 1;
        self.slots.insert(
            key,
            Slot { id, queue, answer: Some(answer), deadline, certain_from: None, returned: None },
        );
        key
    }

    /// The broker has said something: all that it has said by now. Returns the queues of messages that were returned.
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
                self.finish(key, Err(PublishError::Unknown { why: "the broker has refused it".to_owned() }));
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
            // Every return has come with some confirmation, and all of these were seen.
            while let Some(key) = self.slots.first_key_value().map(|(key, _)| *key) {
                self.settle(key);
            }
        }
        queues
    }

    /// It was confirmed, and whether it was returned is known.
    fn settle(&mut self, key: u64) {
        let Some(slot) = self.slots.get(&key) else { return };
        let outcome = match &slot.returned {
            Some(why) => Err(PublishError::Unroutable { queue: slot.queue.clone(), why: why.clone() }),
            None => Ok(()),
        };
        self.finish(key, outcome);
    }

    fn finish(&mut self, key: u64, outcome: Result<(), PublishError>) {
        if let Some(answer) = self.slots.remove(&key).and_then(|slot| slot.answer) {
            let _ = answer.send(outcome); // whoever has gone away does not mind
        }
    }

    /// Whoever has waited too long hears so. The message stays known, because its confirmation may bring the return of another one.
    pub(super) fn give_up(&mut self, now: Instant) {
        for slot in self.slots.values_mut().filter(|slot| slot.deadline <= now) {
            if let Some(answer) = slot.answer.take() {
                let _ = answer.send(Err(PublishError::Unknown { why: "no confirmation in time".to_owned() }));
            }
        }
    }

    /// How many nobody waits for any more.
    pub(super) fn given_up(&self) -> usize {
        self.slots.values().filter(|slot| slot.answer.is_none()).count()
    }

    /// While the broker takes nothing, nobody's time runs out.
    pub(super) fn extend(&mut self, deadline: Instant) {
        for slot in self.slots.values_mut() {
            slot.deadline = slot.deadline.max(deadline);
        }
    }

    /// The connection is gone: of what is left, nothing is known.
    pub(super) fn abandon(&mut self, why: &str) {
        for (_, slot) in std::mem::take(&mut self.slots) {
            if let Some(answer) = slot.answer {
                let outcome = match slot.returned {
                    Some(why) => PublishError::Unroutable { queue: slot.queue, why },
                    None => PublishError::Unknown { why: why.to_owned() },
                };
                let _ = answer.send(Err(outcome));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct Desk {
        window: Window,
        answers: Vec<oneshot::Receiver<Result<(), PublishError>>>,
    }

    impl Desk {
        fn with(count: usize) -> Self {
            let mut desk = Desk { window: Window::default(), answers: Vec::new() };
            for _ in 0..count {
                desk.add();
            }
            desk
        }

        fn add(&mut self) {
            let n = self.answers.len();
            let (answer, answered) = oneshot::channel();
            let deadline = Instant::now() + Duration::from_secs(60);
            self.window.add(n.to_string(), format!("q{n}"), answer, deadline);
            self.answers.push(answered);
        }

        /// The message with this number is confirmed, together with the return of another one.
        fn ack(&mut self, key: u64, returned: Option<u64>) {
            let returned = returned.map(|id| Returned { id: id.to_string(), why: "NO_ROUTE".into() });
            self.window.confirmed(vec![(key, Confirmed { is_ack: true, returned })]);
        }

        /// `.` not answered, `+` in its queue, `-` unroutable, `?` unknown.
        fn answers(&mut self, before: &str) -> String {
            let sign = |(answer, before): (&mut oneshot::Receiver<_>, char)| match answer.try_recv() {
                Ok(Ok(())) => '+',
                Ok(Err(PublishError::Unroutable { .. })) => '-',
                Ok(Err(_)) => '?',
                Err(_) => before,
            };
            self.answers.iter_mut().zip(before.chars()).map(sign).collect()
        }
    }

    #[test]
    fn a_return_that_comes_with_its_own_confirmation() {
        let mut desk = Desk::with(2);
        desk.ack(0, Some(0));
        assert_eq!(desk.answers(".."), "-.");
        desk.ack(1, None);
        assert_eq!(desk.answers("-."), "-+");
    }

    #[test]
    fn a_return_that_comes_with_the_confirmation_of_another_message() {
        let mut desk = Desk::with(3);
        desk.ack(0, Some(1));
        assert_eq!(desk.answers("..."), "...", "the return of 0 may be waiting");
        desk.ack(1, None);
        assert_eq!(desk.answers("..."), ".-.", "its confirmation may have come before that of 0");
        desk.ack(2, None);
        assert_eq!(desk.answers(".-."), "+-+", "nothing is left");
    }

    #[test]
    fn a_message_that_was_published_later_and_is_confirmed_without_a_return_makes_it_certain() {
        let mut desk = Desk::with(3);
        desk.ack(0, Some(1));
        desk.add();
        desk.ack(3, None);
        assert_eq!(desk.answers("...."), "+..+");
    }

    /// The return of 1 came with the confirmation of 0, which is seen after that of 1.
    #[test]
    fn returns_are_believed_before_confirmations() {
        let mut desk = Desk::with(3);
        let returned = Some(Returned { id: "1".into(), why: "NO_ROUTE".into() });
        desk.window.confirmed(vec![
            (1, Confirmed { is_ack: true, returned: None }),
            (0, Confirmed { is_ack: true, returned }),
        ]);
        assert_eq!(desk.answers("..."), ".-.");
    }

    #[test]
    fn returns_that_are_exchanged() {
        let mut desk = Desk::with(3);
        desk.ack(0, Some(1));
        desk.ack(1, Some(0));
        assert_eq!(desk.answers("..."), "--.");
    }

    #[test]
    fn the_last_confirmation_makes_everything_certain() {
        let mut desk = Desk::with(2);
        desk.ack(0, Some(1));
        desk.ack(1, Some(7)); // of a message that nobody waits for
        assert_eq!(desk.answers(".."), "+-");
        assert_eq!(desk.window.len(), 0);
    }

    #[test]
    fn what_is_refused_or_lost_is_unknown() {
        let mut desk = Desk::with(3);
        desk.window.confirmed(vec![(0, Confirmed { is_ack: false, returned: None })]);
        desk.window.give_up(Instant::now());
        assert_eq!(desk.answers("..."), "?..");
        desk.window.give_up(Instant::now() + Duration::from_secs(61));
        assert_eq!(
            (desk.answers("?.."), desk.window.len(), desk.window.given_up()),
            ("???".to_owned(), 2, 2)
        );
        let mut desk = Desk::with(2);
        desk.ack(0, Some(1));
        desk.window.abandon("lost");
        assert_eq!(desk.answers(".."), "?-", "that 1 was returned is known");
    }

    #[test]
    fn nobody_runs_out_of_time_while_the_broker_takes_nothing() {
        let mut desk = Desk::with(1);
        let later = Instant::now() + Duration::from_secs(90);
        desk.window.extend(later + Duration::from_secs(1));
        desk.window.give_up(later);
        assert_eq!(desk.answers("."), ".");
    }
}
