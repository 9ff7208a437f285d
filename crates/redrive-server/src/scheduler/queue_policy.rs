//! Parses the settings of one queue: `orders=base_delay:5s,max_delay:10m,max_retries:8`.

use std::str::FromStr;

use redrive_scheduler::QueueSettings;

use super::delay::milliseconds;

/// Keys of the settings.
pub(crate) const KEYS: [&str; 3] = ["base_delay", "max_delay", "max_retries"];

/// A queue and its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueuePolicy {
    pub(super) queue: String,
    pub(super) settings: QueueSettings,
}

impl FromStr for QueuePolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A queue name may contain =, its settings may not.
        let (queue, list) =
            text.rsplit_once('=').filter(|(queue, _)| !queue.is_empty()).ok_or_else(|| {
                "use QUEUE=SETTINGS, such as orders=base_delay:5s,max_delay:10m,max_retries:8".to_owned()
            })?;
        let mut settings = QueueSettings::default();
        for part in list.split(',') {
            let (key, value) = part.split_once(':').unwrap_or((part, ""));
            set(&mut settings, key.trim(), value.trim())?;
        }
        Ok(QueuePolicy { queue: queue.to_owned(), settings })
    }
}

fn set(settings: &mut QueueSettings, key: &str, value: &str) -> Result<(), String> {
    match key {
        "base_delay" => settings.base_delay = Some(milliseconds(value)?),
        "max_delay" => settings.max_delay = Some(milliseconds(value)?),
        "max_retries" => {
            let number = value.parse().ok().filter(|number| *number <= 10_000);
            settings.max_retries =
                Some(number.ok_or_else(|| format!("max_retries is {value:?}: use a number up to 10000"))?);
        }
        _ => return Err(format!("there is no setting {key:?} of a queue: use {}", KEYS.join(", "))),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn settings_of_a_queue_are_parsed() {
        let policy: QueuePolicy = "a=b.orders=base_delay:500,max_delay:10m,max_retries:8".parse().unwrap();
        assert_eq!(policy.queue, "a=b.orders");
        assert_eq!(
            policy.settings,
            QueueSettings {
                base_delay: Some(Duration::from_millis(500)),
                max_delay: Some(Duration::from_secs(600)),
                max_retries: Some(8)
            }
        );
        for bad in
            ["orders", "=max_retries:1", "q=max_retries:many", "q=base_delay:soon", "q=colour:red", "q="]
        {
            assert!(bad.parse::<QueuePolicy>().is_err(), "{bad}");
        }
    }
}
