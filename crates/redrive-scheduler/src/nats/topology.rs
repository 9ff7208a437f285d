//! What must be on the server: a stream for failed messages with a consumer on it, and a stream for review.

use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::context::GetStreamByNameErrorKind;
use async_nats::jetstream::stream::{Config, RetentionPolicy, StorageType};

use super::NatsSettings;
use crate::error::SchedulerError;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// So many times what one process may hold may be unaccepted in all: so that what a dead one held does not keep the others waiting.
const PROCESSES: i64 = 16;

/// Makes sure that a stream takes the subject for review. Whichever does so already is good enough.
pub(super) async fn review_stream(context: &Context, settings: &NatsSettings) -> Result<(), Error> {
    // Kept until somebody sets a limit or removes it: what a person has not seen is not lost for want of a reader.
    let config = Config { retention: RetentionPolicy::Limits, ..config(settings) };
    let config = Config {
        name: settings.review_stream.clone(),
        subjects: vec![settings.review_subject.clone()],
        ..config
    };
    stream_of(context, config).await.map(drop)
}

/// Makes sure that a stream takes failed messages, and that there is a consumer of them. What is there already with other settings is
/// used as it is, if nothing can be lost by it.
pub(super) async fn consumer(context: &Context, settings: &NatsSettings) -> Result<PullConsumer, Error> {
    // What is accepted is removed.
    let config = Config { retention: RetentionPolicy::WorkQueue, ..config(settings) };
    let config =
        Config { name: settings.stream.clone(), subjects: vec![settings.retry_subject.clone()], ..config };
    let stream = context.get_stream(stream_of(context, config).await?).await?;
    let wanted = pull::Config {
        durable_name: Some(settings.consumer.clone()),
        description: Some("the retry scheduler".to_owned()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: settings.ack_wait,
        max_ack_pending: i64::from(settings.prefetch.max(1)) * PROCESSES,
        filter_subject: settings.retry_subject.clone(),
        ..pull::Config::default()
    };
    // Changes what may be changed, such as how much may be unaccepted.
    let refused = match stream.create_consumer(wanted).await {
        Ok(consumer) => return Ok(consumer),
        Err(error) => error,
    };
    let Ok(consumer) = stream.get_consumer::<pull::Config>(&settings.consumer).await else {
        return Err(refused.into());
    };
    if consumer.cached_info().config.ack_policy != AckPolicy::Explicit {
        let name = &settings.consumer;
        return Err(format!(
            "consumer {name:?} does not wait for each message to be accepted: delete it, or name another one"
        )
        .into());
    }
    Ok(consumer)
}

fn config(settings: &NatsSettings) -> Config {
    // Whoever looks at single messages need not be a consumer.
    Config {
        storage: StorageType::File,
        num_replicas: settings.replicas,
        allow_direct: true,
        ..Config::default()
    }
}

/// The name of the stream that takes this subject; it is made if there is none.
async fn stream_of(context: &Context, config: Config) -> Result<String, Error> {
    let subject = config.subjects.first().cloned().unwrap_or_default();
    match context.stream_by_subject(subject).await {
        Ok(name) => Ok(name),
        Err(error) if matches!(error.kind(), GetStreamByNameErrorKind::NotFound) => {
            let name = config.name.clone();
            // Another process may be making it as well; the same once more is no mistake.
            context.create_stream(config).await?;
            Ok(name)
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether NATS takes these names.
pub(super) fn check(settings: &NatsSettings) -> Result<(), SchedulerError> {
    for (setting, name) in [
        ("the stream", &settings.stream),
        ("the stream for review", &settings.review_stream),
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

/// Whether something may be published there; if not, how a subject looks.
pub(super) fn subject(name: &str) -> Result<(), &'static str> {
    if name.bytes().any(|byte| byte.is_ascii_whitespace() || byte.is_ascii_control()) {
        return Err("it has a space in it");
    }
    if name.split('.').any(|word| matches!(word, "" | "*" | ">")) {
        return Err("use words with dots between, without * and >");
    }
    // Whoever can send a failed message could have the server do anything in our name.
    if name.starts_with('$') || name.starts_with("_INBOX.") {
        return Err("it is the server's own");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    #[test]
    fn nothing_is_published_where_it_would_be_a_command() {
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
    fn names_that_nats_does_not_take_are_refused() {
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
