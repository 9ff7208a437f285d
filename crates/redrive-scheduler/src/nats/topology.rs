//! Creates the streams for failed messages and review, and the durable consumer; validates names.

use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::context::GetStreamByNameErrorKind;
use async_nats::jetstream::stream::{Config, RetentionPolicy, StorageType};

use super::NatsSettings;
use crate::error::SchedulerError;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// `max_ack_pending` as a multiple of the prefetch, so that unacked messages of a dead process do not block other processes.
const PREFETCH_FACTOR: i64 = 16;

/// Creates a stream for the review subject, unless one has it.
pub(super) async fn review_stream(context: &Context, settings: &NatsSettings) -> Result<(), Error> {
    // No limits by default, so that messages wait for review as long as it takes.
    let config = config(settings, &settings.review_stream, &settings.review_subject, RetentionPolicy::Limits);
    stream_of(context, config).await.map(drop)
}

/// Creates the stream for failed messages and its durable consumer. Existing ones with other settings are used, if they ack explicitly.
pub(super) async fn consumer(context: &Context, settings: &NatsSettings) -> Result<PullConsumer, Error> {
    // Acked messages are removed.
    let config = config(settings, &settings.stream, &settings.retry_subject, RetentionPolicy::WorkQueue);
    let stream = context.get_stream(stream_of(context, config).await?).await?;
    let wanted = pull::Config {
        durable_name: Some(settings.consumer.clone()),
        description: Some("the retry scheduler".to_owned()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: settings.ack_wait,
        max_ack_pending: i64::from(settings.prefetch.max(1)) * PREFETCH_FACTOR,
        filter_subject: settings.retry_subject.clone(),
        ..pull::Config::default()
    };
    // Updates an existing consumer where NATS allows it.
    let refused = match stream.create_consumer(wanted).await {
        Ok(consumer) => return Ok(consumer),
        Err(error) => error,
    };
    let Ok(consumer) = stream.get_consumer::<pull::Config>(&settings.consumer).await else {
        return Err(refused.into());
    };
    if consumer.cached_info().config.ack_policy != AckPolicy::Explicit {
        let name = &settings.consumer;
        return Err(
            format!("consumer {name:?} does not use explicit acks: delete it, or name another one").into()
        );
    }
    Ok(consumer)
}

fn config(settings: &NatsSettings, name: &str, subject: &str, retention: RetentionPolicy) -> Config {
    Config {
        name: name.to_owned(),
        subjects: vec![subject.to_owned()],
        retention,
        storage: StorageType::File,
        num_replicas: settings.replicas,
        allow_direct: true,
        ..Config::default()
    }
}

/// Name of the stream that has this subject, created if there is none.
async fn stream_of(context: &Context, config: Config) -> Result<String, Error> {
    let subject = config.subjects.first().cloned().unwrap_or_default();
    match context.stream_by_subject(subject).await {
        Ok(name) => Ok(name),
        Err(error) if matches!(error.kind(), GetStreamByNameErrorKind::NotFound) => {
            let name = config.name.clone();
            // Creating an identical stream twice, in two processes, is no error.
            context.create_stream(config).await?;
            Ok(name)
        }
        Err(error) => Err(error.into()),
    }
}

/// Checks that the names are valid in NATS.
pub(super) fn check(settings: &NatsSettings) -> Result<(), SchedulerError> {
    for (setting, name) in [
        ("the stream", &settings.stream),
        ("the review stream", &settings.review_stream),
        ("the consumer", &settings.consumer),
    ] {
        let is_bad =
            |byte: u8| byte.is_ascii_whitespace() || byte.is_ascii_control() || b".*>/\\".contains(&byte);
        if name.is_empty() || name.len() > 255 || name.bytes().any(is_bad) {
            let rule = "use no spaces, dots, stars, > or slashes";
            return Err(SchedulerError::NatsName { setting, name: name.clone(), kind: "name", rule });
        }
    }
    for (setting, name) in
        [("RETRY_QUEUE", &settings.retry_subject), ("MANUAL_REVIEW_QUEUE", &settings.review_subject)]
    {
        subject(name).map_err(|rule| SchedulerError::NatsName {
            setting,
            name: name.clone(),
            kind: "subject to publish to",
            rule,
        })?;
    }
    Ok(())
}

/// Checks that a subject can be published to; returns the rule it breaks.
pub(super) fn subject(name: &str) -> Result<(), &'static str> {
    if name.bytes().any(|byte| byte.is_ascii_whitespace() || byte.is_ascii_control()) {
        return Err("it contains white space");
    }
    if name.split('.').any(|word| matches!(word, "" | "*" | ">")) {
        return Err("use words separated by dots, without * and >");
    }
    // A failed message could otherwise make us call the server's API.
    if name.starts_with('$') || name.starts_with("_INBOX.") {
        return Err("it is reserved for the server");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    #[test]
    fn subjects_of_the_server_api_are_refused() {
        for good in ["orders", "orders.created", "a*b.c>d", "größe"] {
            assert_eq!(subject(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            ".",
            "a..b",
            "a.",
            "orders.*",
            ">",
            "a b",
            "a\r\nPUB x",
            "$JS.API.STREAM.DELETE.ORDERS",
            "_INBOX.x",
        ] {
            assert!(subject(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_invalid_in_nats_are_refused() {
        let good = NatsSettings::new("nats://host", &Settings::default());
        check(&good).unwrap();
        for (bad, what) in [
            (NatsSettings { stream: "a.b".into(), ..good.clone() }, "the stream"),
            (NatsSettings { consumer: String::new(), ..good.clone() }, "the consumer"),
            (NatsSettings { retry_subject: "retry.>".into(), ..good }, "RETRY_QUEUE"),
        ] {
            assert!(check(&bad).unwrap_err().to_string().contains(what));
        }
    }
}
