//! What can be set, with the defaults of the specification.

use std::collections::BTreeMap;
use std::time::Duration;

use redrive_retry::{Identity, Jitter, PolicyError, RetryPolicy, Timestamp};
use redrive_store::EventId;

/// What can be set. [`Settings::default`] is as specified.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How the service is called, by the broker and in logs: `SERVICE_NAME`.
    pub service_name: String,
    /// Where failed messages come from: `RETRY_QUEUE`.
    pub retry_queue: String,
    /// Where those go that a person must look at: `MANUAL_REVIEW_QUEUE`.
    pub review_queue: String,
    /// How often a message is retried that does not say so itself: `DEFAULT_MAX_RETRIES`.
    pub default_max_retries: u32,
    /// The wait before the first retry; each further one is twice as long: `BASE_DELAY_MS`.
    pub base_delay: Duration,
    /// No wait is longer, before the random part: `MAX_DELAY_MS`.
    pub max_delay: Duration,
    /// The random part: from nothing to this, added to every wait.
    pub jitter: Duration,
    /// What single queues have otherwise.
    pub queues: BTreeMap<String, QueueSettings>,
    /// What a message asks to wait beyond this is not meant; it waits as if it had not asked.
    pub longest_wait: Duration,
    /// How often the store is looked at although nothing says that something is due: `RETRY_POLL_INTERVAL_MS`. A safety net; tasks
    /// are on time without it.
    pub poll_interval: Duration,
    /// How many deliveries the broker may send before the first of them is accepted.
    pub prefetch: u16,
    /// How many tasks may be under way at once; the rest waits on disk.
    pub in_flight: usize,
    /// The largest task in bytes, as it is stored: somewhat more than the message, and a third more if that is no text.
    pub max_payload: usize,
    /// At which attempt a queue that does not exist is given up.
    pub unroutable_attempts: u32,
    /// The wait after the first attempt to republish that failed; each further one is twice as long, up to a minute.
    pub republish_delay: Duration,
    /// How long what was republished is kept; `None` for ever. As long as it is there, a message that comes back is known.
    pub retention: Option<Duration>,
    /// How long a shutdown waits for what is under way.
    pub shutdown_timeout: Duration,
}

/// What one queue has otherwise. What is not set is as for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSettings {
    /// The wait before the first retry.
    pub base_delay: Option<Duration>,
    /// The longest wait.
    pub max_delay: Option<Duration>,
    /// How often a message is retried. Holds over what the message says.
    pub max_retries: Option<u32>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            service_name: "retry-scheduler".to_owned(),
            retry_queue: "retry.scheduled".to_owned(),
            review_queue: "manual-review.pending".to_owned(),
            default_max_retries: 3,
            base_delay: Duration::from_millis(2000),
            max_delay: Duration::from_millis(60_000),
            jitter: Duration::from_secs(1),
            queues: BTreeMap::new(),
            longest_wait: Duration::from_secs(30 * 24 * 3600),
            poll_interval: Duration::from_millis(10_000),
            prefetch: 200,
            in_flight: 512,
            max_payload: 16 << 20,
            unroutable_attempts: 5,
            republish_delay: Duration::from_secs(1),
            retention: Some(Duration::from_secs(7 * 24 * 3600)),
            shutdown_timeout: Duration::from_secs(30),
        }
    }
}

/// What republishing waits for at most between two attempts, and how often it is attempted: for about a week.
const LONGEST_REPUBLISH_DELAY: Duration = Duration::from_secs(60);
const REPUBLISH_ATTEMPTS: u32 = 10_000;

impl Settings {
    /// Checks them, and makes of them what is asked for every task.
    pub(crate) fn schedule(&self) -> Result<Schedule, PolicyError> {
        let policy = |queue: &QueueSettings| {
            RetryPolicy::scheduler()
                .to_builder()
                .base_delay(queue.base_delay.unwrap_or(self.base_delay))
                .max_delay(queue.max_delay.unwrap_or(self.max_delay))
                .jitter(Jitter::Additive(self.jitter))
                .build()
        };
        let of_queues = self.queues.iter().map(|(name, queue)| {
            Ok((name.clone(), QueueSchedule { policy: policy(queue)?, max_retries: queue.max_retries }))
        });
        Ok(Schedule {
            policy: policy(&QueueSettings::default())?,
            max_retries: self.default_max_retries,
            longest_wait: self.longest_wait,
            of_queues: of_queues.collect::<Result<_, PolicyError>>()?,
        })
    }

    /// How often, and how far apart, it is tried to bring a task to the broker.
    pub(crate) fn republishing(&self) -> Result<RetryPolicy, PolicyError> {
        RetryPolicy::scheduler()
            .to_builder()
            .max_attempts(REPUBLISH_ATTEMPTS)
            .base_delay(self.republish_delay)
            .max_delay(LONGEST_REPUBLISH_DELAY.max(self.republish_delay))
            .jitter(Jitter::Additive(self.republish_delay.min(Duration::from_secs(1))))
            .build()
    }
}

/// When a task is due, and how often a message is retried.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    policy: RetryPolicy,
    max_retries: u32,
    longest_wait: Duration,
    of_queues: BTreeMap<String, QueueSchedule>,
}

#[derive(Clone, Debug)]
struct QueueSchedule {
    policy: RetryPolicy,
    max_retries: Option<u32>,
}

impl Schedule {
    /// How often a message of this queue is retried, if it asks for so many; 0 is as good as nothing said.
    pub(crate) fn max_retries(&self, queue: &str, asked: u32) -> u32 {
        let of_queue = self.of_queues.get(queue).and_then(|queue| queue.max_retries);
        of_queue.unwrap_or(if asked == 0 { self.max_retries } else { asked })
    }

    /// When a task goes back: when it asks to, if that can be meant, or by the backoff of its queue.
    pub(crate) fn due(
        &self,
        id: EventId,
        queue: &str,
        retry_count: u32,
        asked_ms: i64,
        now: Timestamp,
    ) -> Timestamp {
        let asked = Timestamp::from_millis(asked_ms);
        // Neither far ahead nor long ago: seconds in place of milliseconds, for one, are in 1970.
        if asked_ms > 0 && asked <= now + self.longest_wait && now <= asked + self.longest_wait {
            return asked;
        }
        let policy = self.of_queues.get(queue).map_or(&self.policy, |queue| &queue.policy);
        let id = id.to_string();
        // The wait before the first retry is that before the second attempt.
        let attempt = retry_count.saturating_add(2);
        now + policy.backoff().delay(attempt, None, Identity::new(0, &id, queue))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::task_id;

    const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

    fn waits(schedule: &Schedule, queue: &str, retry_count: u32) -> (u128, u128) {
        let wait = |n: u32| {
            let id = task_id(&format!("m-{n}"), queue, retry_count);
            schedule.due(id, queue, retry_count, 0, NOW).since(NOW).as_millis()
        };
        let all: Vec<_> = (0..2000).map(wait).collect();
        (*all.iter().min().unwrap(), *all.iter().max().unwrap())
    }

    #[test]
    fn the_delays_are_the_specified_ones() {
        let schedule = Settings::default().schedule().unwrap();
        for (count, nominal) in
            [(0, 2000), (1, 4000), (2, 8000), (3, 16_000), (4, 32_000), (5, 60_000), (9_999, 60_000)]
        {
            let (shortest, longest) = waits(&schedule, "orders", count);
            assert!((nominal..nominal + 50).contains(&shortest), "{count}: {shortest}");
            assert!((nominal + 950..=nominal + 1000).contains(&longest), "{count}: {longest}");
        }
    }

    #[test]
    fn a_queue_may_have_its_own() {
        let queue = QueueSettings {
            base_delay: Some(Duration::from_millis(100)),
            max_delay: None,
            max_retries: Some(7),
        };
        let settings = Settings {
            queues: [("fast".to_owned(), queue)].into(),
            jitter: Duration::ZERO,
            ..Settings::default()
        };
        let schedule = settings.schedule().unwrap();
        assert_eq!((waits(&schedule, "fast", 0), waits(&schedule, "orders", 0)), ((100, 100), (2000, 2000)));
        assert_eq!((schedule.max_retries("fast", 2), schedule.max_retries("orders", 2)), (7, 2));
        assert_eq!(schedule.max_retries("orders", 0), 3, "nothing said");
    }

    #[test]
    fn a_message_may_say_when_if_it_can_be_meant() {
        let schedule = Settings { jitter: Duration::ZERO, ..Settings::default() }.schedule().unwrap();
        let due =
            |asked: i64| schedule.due(task_id("m", "q", 0), "q", 0, asked, NOW).as_millis() - NOW.as_millis();
        let now = NOW.as_millis();
        assert_eq!(due(now + 7), 7);
        assert_eq!(due(now - 7), -7, "it has passed: at once");
        assert_eq!(
            [due(0), due(-5), due(i64::MIN), due(i64::MAX), due(now + 31 * 24 * 3_600_000)],
            [2000; 5]
        );
    }

    #[test]
    fn settings_that_cannot_be_are_refused() {
        let settings = Settings { base_delay: Duration::from_secs(90), ..Settings::default() };
        assert!(settings.schedule().is_err(), "the base is above the cap");
        assert!(Settings::default().republishing().is_ok());
    }
}
