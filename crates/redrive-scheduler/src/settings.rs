//! Settings of the scheduler with the specified defaults, and the backoff schedule that follows from them.

use std::collections::BTreeMap;
use std::time::Duration;

use redrive_retry::decision::Identity;
use redrive_retry::policy::PolicyError;
use redrive_retry::{Jitter, RetryPolicy, Timestamp};
use redrive_store::EventId;

use crate::error::SchedulerError;
use crate::retry_message::check_name;

/// Settings of the scheduler. [`Settings::default`] has the specified defaults.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of the service in broker connections and logs: `SERVICE_NAME`.
    pub service_name: String,
    /// Queue of failed messages: `RETRY_QUEUE`.
    pub retry_queue: String,
    /// Queue for manual review: `MANUAL_REVIEW_QUEUE`.
    pub review_queue: String,
    /// Maximum retries of a message that does not set its own: `DEFAULT_MAX_RETRIES`.
    pub default_max_retries: u32,
    /// Delay before the first retry; it doubles with each further one: `BASE_DELAY_MS`.
    pub base_delay: Duration,
    /// Cap of the delay, before jitter: `MAX_DELAY_MS`.
    pub max_delay: Duration,
    /// Additive jitter: 0 to this value is added to every delay.
    pub jitter: Duration,
    /// Overrides for single queues.
    pub queues: BTreeMap<String, QueueSettings>,
    /// Maximum distance of a message's own `next_retry_at_ms` from now. A time further away is ignored, and the backoff applies.
    pub max_requested_delay: Duration,
    /// Poll interval for due tasks: `RETRY_POLL_INTERVAL_MS`. A safety net; notifications make tasks run on time without it.
    pub poll_interval: Duration,
    /// Prefetch: maximum number of unacked deliveries.
    pub prefetch: u16,
    /// Maximum number of tasks in flight; the rest waits on disk.
    pub in_flight: usize,
    /// Maximum size of a stored task in bytes: slightly more than the message, a third more if it is binary.
    pub max_payload: usize,
    /// Attempts to publish to a missing queue before the message goes to review.
    pub unroutable_attempts: u32,
    /// Delay after the first failed attempt to republish; it doubles up to a minute.
    pub republish_delay: Duration,
    /// Retention of republished tasks; `None` keeps them. While a task is kept, a redelivery of its message is recognised.
    pub retention: Option<Duration>,
    /// Maximum time that a shutdown waits for messages in flight.
    pub shutdown_timeout: Duration,
}

/// Overrides for one queue. A field that is `None` has the general value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSettings {
    /// Delay before the first retry.
    pub base_delay: Option<Duration>,
    /// Cap of the delay.
    pub max_delay: Option<Duration>,
    /// Maximum retries; overrides the message's own.
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
            max_requested_delay: Duration::from_secs(30 * 24 * 3600),
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

/// Cap of the delay between two attempts to republish, and their number: about a week in total.
const MAX_REPUBLISH_DELAY: Duration = Duration::from_secs(60);
const REPUBLISH_ATTEMPTS: u32 = 10_000;

impl Settings {
    /// Checks that the settings are consistent. [`Scheduler::start`](crate::Scheduler::start) does so as well.
    pub fn check(&self) -> Result<(), SchedulerError> {
        self.schedule().map(drop)
    }

    /// Validates queue names and delays, and builds the schedule.
    pub(crate) fn schedule(&self) -> Result<Schedule, SchedulerError> {
        for (setting, name) in
            [("RETRY_QUEUE", &self.retry_queue), ("MANUAL_REVIEW_QUEUE", &self.review_queue)]
        {
            if check_name("name", name).is_err() || self.retry_queue == self.review_queue {
                return Err(SchedulerError::QueueName { setting, name: name.clone() });
            }
        }
        let policy = |queue: &QueueSettings| {
            RetryPolicy::scheduler()
                .to_builder()
                .base_delay(queue.base_delay.unwrap_or(self.base_delay))
                .max_delay(queue.max_delay.unwrap_or(self.max_delay))
                .jitter(Jitter::Additive(self.jitter))
                .build()
        };
        let policies = self.queues.iter().map(|(name, queue)| Ok((name.clone(), policy(queue)?)));
        Ok(Schedule {
            policy: policy(&QueueSettings::default())?,
            policies: policies.collect::<Result<_, PolicyError>>()?,
            settings: self.clone(),
        })
    }

    /// Retry policy of publishing a task to the broker.
    pub(crate) fn republishing(&self) -> Result<RetryPolicy, PolicyError> {
        RetryPolicy::scheduler()
            .to_builder()
            .max_attempts(REPUBLISH_ATTEMPTS)
            .base_delay(self.republish_delay)
            .max_delay(MAX_REPUBLISH_DELAY.max(self.republish_delay))
            .jitter(Jitter::Additive(self.republish_delay.min(Duration::from_secs(1))))
            .build()
    }
}

/// Due times and maximum retries, by queue.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    pub(crate) settings: Settings,
    policy: RetryPolicy,
    /// Policies of the queues with overrides.
    policies: BTreeMap<String, RetryPolicy>,
}

impl Schedule {
    /// Maximum retries of a message of this queue that asks for `asked`; 0 means unset.
    pub(crate) fn max_retries(&self, queue: &str, asked: u32) -> u32 {
        let of_queue = self.settings.queues.get(queue).and_then(|queue| queue.max_retries);
        of_queue.unwrap_or(if asked == 0 { self.settings.default_max_retries } else { asked })
    }

    /// Due time of a task: the time that the message asks for if it is plausible, otherwise the backoff of its queue.
    pub(crate) fn due(
        &self,
        id: EventId,
        queue: &str,
        retry_count: u32,
        asked_ms: i64,
        now: Timestamp,
    ) -> Timestamp {
        let asked = Timestamp::from_millis(asked_ms);
        // Refuses implausible times: seconds in place of milliseconds, for one, are in 1970.
        let max_delay = self.settings.max_requested_delay;
        if asked_ms > 0 && asked <= now + max_delay && now <= asked + max_delay {
            return asked;
        }
        let policy = self.policies.get(queue).unwrap_or(&self.policy);
        let id = id.to_string();
        // The first retry is the second attempt.
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
    fn a_queue_can_override_delays_and_retries() {
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
        assert_eq!(schedule.max_retries("orders", 0), 3, "the default");
    }

    #[test]
    fn a_plausible_requested_retry_time_is_used() {
        let schedule = Settings { jitter: Duration::ZERO, ..Settings::default() }.schedule().unwrap();
        let due =
            |asked: i64| schedule.due(task_id("m", "q", 0), "q", 0, asked, NOW).as_millis() - NOW.as_millis();
        let now = NOW.as_millis();
        assert_eq!(due(now + 7), 7);
        assert_eq!(due(now - 7), -7, "a past time is due at once");
        assert_eq!(
            [due(0), due(-5), due(i64::MIN), due(i64::MAX), due(now + 31 * 24 * 3_600_000)],
            [2000; 5]
        );
    }

    #[test]
    fn inconsistent_settings_are_refused() {
        let settings = Settings { base_delay: Duration::from_secs(90), ..Settings::default() };
        assert!(settings.schedule().is_err(), "the base is above the cap");
        assert!(Settings::default().republishing().is_ok());
    }
}
