//! Flags of `redrive scheduler`; they also define its variables and its keys in `redrive.toml`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use redrive_retry::duration::parse_duration;
use redrive_scheduler::{Nats, NatsSettings, Rabbit, RabbitSettings, SchedulerError, Settings, Transport};

use super::delay::milliseconds;
use super::queue_policy::QueuePolicy;
use crate::api::LimitArgs;
use crate::database::DatabaseArgs;
use crate::failure::Failure;
use crate::hidden_text::HiddenText;
use crate::serve::defaults::Retention;
use crate::serve::log::{LogFormat, LogRetries};
use crate::telemetry::TelemetryArgs;

const DEFAULT_RABBITMQ_URL: &str = "amqp://localhost:5672";

const RABBITMQ_URL: &str = "RABBITMQ_URL";
const NATS_URL: &str = "NATS_URL";

/// Flags of `redrive scheduler`.
#[derive(Debug, Args)]
pub struct SchedulerArgs {
    /// Service name, shown by the broker, in logs and by a collector
    #[arg(long, value_name = "NAME", env = "SERVICE_NAME", default_value = "retry-scheduler")]
    pub(super) service_name: String,
    /// Port for health, metrics and review, on 127.0.0.1 unless --bind (REDRIVE_SCHEDULER_BIND) names another address
    #[arg(long, value_name = "PORT", env = "HTTP_PORT", default_value_t = 8086)]
    http_port: u16,
    /// Address to listen on; beyond this machine (0.0.0.0), review requires a token
    #[arg(long, value_name = "ADDRESS", env = "REDRIVE_SCHEDULER_BIND", default_value = "127.0.0.1")]
    bind: IpAddr,
    /// Format of the log lines on standard error; RUST_LOG selects them
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "text")]
    pub(super) log_format: LogFormat,
    /// Log failed attempts one by one, or as one line per subscription and minute
    #[arg(long, value_name = "MODE", value_enum, default_value = "each")]
    pub(super) log_retries: LogRetries,
    /// Maximum time to finish work in flight when the service is stopped
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "30s")]
    pub(super) shutdown_timeout: Duration,
    #[command(flatten)]
    /// Database of the tasks.
    pub database: DatabaseArgs,
    #[command(flatten)]
    broker: BrokerArgs,
    #[command(flatten)]
    retrying: RetryArgs,
    #[command(flatten)]
    pub(super) limits: LimitArgs,
    #[command(flatten)]
    pub(super) telemetry: TelemetryArgs,
}

/// Flags for the broker and its queues.
#[derive(Debug, Args)]
#[command(next_help_heading = "Broker")]
struct BrokerArgs {
    /// RabbitMQ: amqp://user:password@host:5672/vhost, or amqps://…
    // The variable may hold a password: its value is hidden.
    #[arg(
        long,
        value_name = "URL",
        env = "RABBITMQ_URL",
        hide_env_values = true,
        default_value = DEFAULT_RABBITMQ_URL
    )]
    rabbitmq_url: HiddenText,
    #[command(flatten)]
    nats: NatsArgs,
    /// Queue to consume failed messages from; created if missing
    #[arg(long, value_name = "QUEUE", env = "RETRY_QUEUE", default_value = "retry.scheduled")]
    retry_queue: String,
    /// Queue for messages in manual review; created if missing
    #[arg(long, value_name = "QUEUE", env = "MANUAL_REVIEW_QUEUE", default_value = "manual-review.pending")]
    manual_review_queue: String,
    /// Maximum unacknowledged messages that the broker sends
    #[arg(long, value_name = "N", env = "REDRIVE_SCHEDULER_PREFETCH", default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..))]
    prefetch: u16,
}

/// Flags for NATS, where queues are subjects.
#[derive(Debug, Args)]
struct NatsArgs {
    /// Use NATS with JetStream instead of RabbitMQ: nats://user:password@host:4222, nats://token@host or tls://…, separated by commas
    #[arg(long, value_name = "URL", env = "NATS_URL", hide_env_values = true)]
    nats_url: Option<HiddenText>,
    /// Credentials file for NATS
    #[arg(long, value_name = "FILE", env = "REDRIVE_SCHEDULER_NATS_CREDENTIALS")]
    nats_credentials: Option<PathBuf>,
    /// Stream to create if none has the subject of failed messages
    #[arg(long, value_name = "NAME", env = "REDRIVE_SCHEDULER_NATS_STREAM", default_value = "RETRY")]
    nats_stream: String,
    /// Stream to create if none has the subject for manual review
    #[arg(
        long,
        value_name = "NAME",
        env = "REDRIVE_SCHEDULER_NATS_REVIEW_STREAM",
        default_value = "MANUAL_REVIEW"
    )]
    nats_review_stream: String,
    /// Durable consumer; schedulers with one database share it
    #[arg(
        long,
        value_name = "NAME",
        env = "REDRIVE_SCHEDULER_NATS_CONSUMER",
        default_value = "retry-scheduler"
    )]
    nats_consumer: String,
    /// Replicas of the created streams
    #[arg(long, value_name = "N", env = "REDRIVE_SCHEDULER_NATS_REPLICAS", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=5))]
    nats_replicas: u8,
}

/// Flags for retries.
#[derive(Debug, Args)]
#[command(next_help_heading = "Retries")]
struct RetryArgs {
    /// Retries of a message without a maximum of its own
    #[arg(long, value_name = "N", env = "DEFAULT_MAX_RETRIES", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    default_max_retries: u32,
    /// Delay before the first retry; doubles with each retry, plus 0 to 1 s. A bare number is in milliseconds
    #[arg(long, value_name = "DURATION", env = "BASE_DELAY_MS", value_parser = milliseconds, default_value = "2s")]
    base_delay: Duration,
    /// Maximum delay. A bare number is in milliseconds
    #[arg(long, value_name = "DURATION", env = "MAX_DELAY_MS", value_parser = milliseconds, default_value = "60s")]
    max_delay: Duration,
    /// Poll interval of the database, a safety net: due messages start on time without it. A bare number is in milliseconds
    #[arg(long, value_name = "DURATION", env = "RETRY_POLL_INTERVAL_MS", value_parser = poll_interval, default_value = "10s")]
    poll_interval: Duration,
    /// Override settings for one queue, such as orders=base_delay:5s,max_delay:10m,max_retries:8; repeatable
    #[arg(long, value_name = "QUEUE=SETTINGS")]
    queue: Vec<QueuePolicy>,
    /// Maximum republishes in flight; the rest waits on disk
    #[arg(long, value_name = "N", env = "REDRIVE_SCHEDULER_IN_FLIGHT", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    in_flight: u32,
    /// Keep republished messages for this time, or forever
    #[arg(long, value_name = "DURATION", env = "REDRIVE_SCHEDULER_RETENTION", default_value = "7d")]
    retention: Retention,
}

impl SchedulerArgs {
    pub(super) fn listen(&self) -> SocketAddr {
        SocketAddr::new(self.bind, self.http_port)
    }

    /// Validates the settings together; returns the broker's address without the password.
    pub fn check(&self) -> Result<String, Failure> {
        let settings = self.settings();
        settings.check().map_err(|error| Failure::Usage(error.to_string()))?;
        self.telemetry.headers()?;
        match self.broker(&settings)? {
            Broker::Rabbit(rabbit) => rabbit.address().map_err(|error| usage(RABBITMQ_URL, &error)),
            Broker::Nats(nats) => nats.address().map_err(|error| usage(NATS_URL, &error)),
        }
    }

    pub(super) fn settings(&self) -> Settings {
        let retrying = &self.retrying;
        Settings {
            service_name: self.service_name.clone(),
            retry_queue: self.broker.retry_queue.clone(),
            review_queue: self.broker.manual_review_queue.clone(),
            default_max_retries: retrying.default_max_retries,
            base_delay: retrying.base_delay,
            max_delay: retrying.max_delay,
            poll_interval: retrying.poll_interval,
            queues: retrying.queue.iter().map(|one| (one.queue.clone(), one.settings.clone())).collect(),
            prefetch: self.broker.prefetch,
            in_flight: retrying.in_flight as usize,
            retention: retrying.retention.0,
            shutdown_timeout: self.shutdown_timeout,
            ..Settings::default()
        }
    }

    /// Starts to connect to the broker. An outage at the start is retried like any other.
    pub(super) fn connect(&self, settings: &Settings) -> Result<Arc<dyn Transport>, Failure> {
        Ok(match self.broker(settings)? {
            Broker::Rabbit(rabbit) => {
                Arc::new(Rabbit::connect(rabbit).map_err(|error| usage(RABBITMQ_URL, &error))?)
            }
            Broker::Nats(nats) => Arc::new(Nats::connect(nats).map_err(|error| usage(NATS_URL, &error))?),
        })
    }

    /// Selects the broker: NATS if its URL is set, else RabbitMQ. A default RabbitMQ URL counts as unset.
    fn broker(&self, settings: &Settings) -> Result<Broker, Failure> {
        let BrokerArgs { rabbitmq_url, nats, .. } = &self.broker;
        let Some(url) = nats.nats_url.as_ref().filter(|url| !url.0.is_empty()) else {
            return Ok(Broker::Rabbit(RabbitSettings::new(rabbitmq_url.0.clone(), settings)));
        };
        if rabbitmq_url.0 != DEFAULT_RABBITMQ_URL {
            let why = format!(
                "{RABBITMQ_URL} and {NATS_URL} are both set: a scheduler uses one broker, so unset one of them"
            );
            return Err(Failure::Usage(why));
        }
        Ok(Broker::Nats(NatsSettings {
            credentials_file: nats.nats_credentials.clone(),
            stream: nats.nats_stream.clone(),
            review_stream: nats.nats_review_stream.clone(),
            consumer: nats.nats_consumer.clone(),
            replicas: usize::from(nats.nats_replicas),
            ..NatsSettings::new(url.0.clone(), settings)
        }))
    }
}

/// Settings of the selected broker.
enum Broker {
    Rabbit(RabbitSettings),
    Nats(NatsSettings),
}

fn usage(variable: &str, error: &SchedulerError) -> Failure {
    Failure::Usage(format!("{variable}: {error}"))
}

/// Parses a poll interval; a shorter one would keep the database busy.
fn poll_interval(text: &str) -> Result<Duration, String> {
    let interval = milliseconds(text)?;
    let is_sane = (Duration::from_millis(10)..=Duration::from_secs(86_400)).contains(&interval);
    if is_sane { Ok(interval) } else { Err("use 10ms to 24h".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, FromArgMatches as _};

    fn parse(flags: &[&str]) -> SchedulerArgs {
        let command = SchedulerArgs::augment_args(Command::new("test"))
            .mut_args(|arg| arg.env(clap::builder::Resettable::<clap::builder::OsStr>::Reset));
        let matches = command.get_matches_from([&["test"], flags].concat());
        SchedulerArgs::from_arg_matches(&matches).unwrap()
    }

    #[test]
    fn the_defaults_are_the_specified_ones() {
        let (args, specified) = (parse(&[]), Settings::default());
        let settings = args.settings();
        assert_eq!(format!("{settings:?}"), format!("{specified:?}"));
        assert_eq!(args.listen().to_string(), "127.0.0.1:8086");
        assert_eq!(args.check().unwrap(), "amqp://guest@localhost:5672", "the default user of AMQP");
    }

    #[test]
    fn contradictory_settings_are_refused_without_showing_a_password() {
        let wrong = |flags: &[&str]| match parse(flags).check() {
            Err(Failure::Usage(why)) => why,
            other => panic!("{other:?}"),
        };
        assert!(wrong(&["--base-delay", "2h"]).contains("delay"));
        assert!(wrong(&["--retry-queue", "q", "--manual-review-queue", "q"]).contains("RETRY_QUEUE"));
        let said = wrong(&["--rabbitmq-url", "http://anna:s3cret@host"]);
        assert!(said.contains("RABBITMQ_URL") && !said.contains("s3cret"), "{said}");
        let both = wrong(&["--rabbitmq-url", "amqp://s3cret@host", "--nats-url", "nats://s3cret@host"]);
        assert!(both.contains("RABBITMQ_URL and NATS_URL") && !both.contains("s3cret"), "{both}");
        let said = wrong(&["--nats-url", "http://anna:s3cret@host"]);
        assert!(said.contains("NATS_URL") && !said.contains("s3cret"), "{said}");
        assert!(wrong(&["--nats-url", "nats://host", "--nats-stream", "a.b"]).contains("stream"));
        assert!(wrong(&["--nats-url", "nats://host", "--retry-queue", "a b"]).contains("RETRY_QUEUE"));
        let none = wrong(&["--nats-url", "nats://host", "--nats-credentials", "/nowhere/user.creds"]);
        assert!(none.contains("user.creds") && none.contains("No such file"), "{none}");
        let args = parse(&["--nats-url", "nats://anna:s3cret@host"]);
        assert_eq!(args.check().unwrap(), "nats://anna@host:4222");
        assert!(!format!("{args:?}").contains("s3cret"));
        assert_eq!(
            parse(&["--nats-url", ""]).check().unwrap(),
            "amqp://guest@localhost:5672",
            "an empty URL counts as unset"
        );
        let args = parse(&["--rabbitmq-url", "amqp://anna:s3cret@host/shop"]);
        assert!(!format!("{args:?} {}", args.check().unwrap()).contains("s3cret"));
    }
}
