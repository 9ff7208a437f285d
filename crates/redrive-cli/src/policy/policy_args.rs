//! Flags of a policy: a preset and overrides.

use std::fmt::Write;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use redrive_retry::duration::{format_duration, parse_duration};
use redrive_retry::policy::PolicyError;
use redrive_retry::{Category, Jitter, RetryPolicy};

use super::description::describe;
use crate::failure::Failure;

/// Named presets; every category is a preset, too.
const NAMED: [&str; 6] = ["bus", "webhook", "standard", "patient", "scheduler", "call"];
/// A static, because clap needs names with static lifetime.
static CATEGORIES: [Category; 17] = Category::ALL;

#[derive(Debug, Args)]
#[command(next_help_heading = "Policy")]
pub(crate) struct PolicyArgs {
    /// Preset: bus, webhook, standard, patient, scheduler, call, or a category such as API_REQUEST
    #[arg(long, value_name = "NAME", default_value = "bus", value_parser = presets(), hide_possible_values = true)]
    preset: String,
    /// Maximum attempts after the first
    #[arg(long, value_name = "N", conflicts_with = "max_attempts")]
    max_retries: Option<u64>,
    /// Total attempts, including the first
    #[arg(long, value_name = "N")]
    max_attempts: Option<u64>,
    /// Delay before the second attempt, such as 250ms or 1s
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    base: Option<Duration>,
    /// Factor for each further delay; 1 keeps the delay constant
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    multiplier: Option<f64>,
    /// Maximum delay, before jitter
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    cap: Option<Duration>,
    /// Jitter: 10% (±), 0..1s (added), full (0 to the delay), equal (half to the whole delay), none
    #[arg(long, value_name = "JITTER")]
    jitter: Option<Jitter>,
}

fn presets() -> PossibleValuesParser {
    let named = NAMED.map(|name| PossibleValue::new(name).help(summary(name)));
    // By name and by code, as in `RetryPolicy::preset`.
    let categories =
        CATEGORIES.iter().map(|category| PossibleValue::new(category.name()).alias(category.code()));
    PossibleValuesParser::new(named.into_iter().chain(categories))
}

/// Description of a preset, computed from its policy.
fn summary(preset: &str) -> String {
    RetryPolicy::preset(preset).map_or_else(|error| error.to_string(), |policy| describe(&policy))
}

/// Appends the list of all presets to a help text.
pub(crate) fn with_presets(help: &str) -> String {
    let mut text = format!("{help}\n\nPresets:\n");
    for name in NAMED {
        let _ = writeln!(text, "  {name:10} {}", summary(name)); // writing into a String cannot fail
    }
    let categories: Vec<&str> = CATEGORIES.iter().map(Category::name).collect();
    text + "and the categories of the retry manager: " + &categories.join(", ")
}

impl PolicyArgs {
    /// Name of the preset, marked if it was changed.
    pub(crate) fn name(&self) -> String {
        let name = &self.preset;
        if self.flags() == format!("--preset {name}") { name.clone() } else { format!("{name} (changed)") }
    }

    /// Builds the policy; an error names the flag to change.
    pub(crate) fn policy(&self) -> Result<RetryPolicy, Failure> {
        self.build().map_err(|error| {
            let hint = match &error {
                PolicyError::CapBelowBase { .. } => "\n  flags: --cap sets max_delay, --base sets base_delay",
                PolicyError::TooLong { field: "base_delay", .. } => "\n  flag: --base sets base_delay",
                PolicyError::TooLong { field: "max_delay", .. } => "\n  flag: --cap sets max_delay",
                _ => "",
            };
            Failure::Usage(format!("{error}{hint}"))
        })
    }

    fn build(&self) -> Result<RetryPolicy, PolicyError> {
        let mut builder = RetryPolicy::preset(&self.preset)?.to_builder();
        let attempts =
            self.max_attempts.or_else(|| self.max_retries.map(|retries| retries.saturating_add(1)));
        if let Some(attempts) = attempts {
            let fitting = u32::try_from(attempts).map_err(|_| PolicyError::TooManyAttempts { attempts })?;
            builder = builder.max_attempts(fitting);
        }
        if let Some(base) = self.base {
            builder = builder.base_delay(base);
        }
        if let Some(multiplier) = self.multiplier {
            builder = builder.multiplier(multiplier);
        }
        if let Some(cap) = self.cap {
            builder = builder.max_delay(cap);
        }
        if let Some(jitter) = self.jitter {
            builder = builder.jitter(jitter);
        }
        builder.build()
    }

    /// The flags as typed on a command line.
    pub(crate) fn flags(&self) -> String {
        let mut flags = format!("--preset {}", self.preset);
        let duration =
            |duration: Option<Duration>| duration.map(|duration| format_duration(duration).replace(' ', ""));
        let given = [
            ("max-retries", self.max_retries.map(|n| n.to_string())),
            ("max-attempts", self.max_attempts.map(|n| n.to_string())),
            ("base", duration(self.base)),
            ("multiplier", self.multiplier.map(|x| x.to_string())),
            ("cap", duration(self.cap)),
            ("jitter", self.jitter.map(|jitter| jitter.to_string().replace(' ', ""))),
        ];
        for (flag, value) in given {
            if let Some(value) = value {
                let _ = write!(flags, " --{flag} {value}"); // writing into a String cannot fail
            }
        }
        flags
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Only {
        #[command(flatten)]
        policy: PolicyArgs,
    }

    fn parse(flags: &str) -> PolicyArgs {
        let words = std::iter::once("test").chain(flags.split_whitespace());
        Only::try_parse_from(words).unwrap().policy
    }

    #[test]
    fn no_flags_are_the_bus_preset() {
        assert_eq!(parse("").policy().unwrap(), RetryPolicy::bus());
        assert_eq!(parse("").name(), "bus");
    }

    #[test]
    fn every_preset_is_found_by_name_and_by_code() {
        for name in NAMED {
            assert_eq!(
                parse(&format!("--preset {name}")).policy().unwrap(),
                RetryPolicy::preset(name).unwrap()
            );
        }
        for category in Category::ALL {
            for name in [category.name(), category.code()] {
                let policy = parse(&format!("--preset {name}")).policy().unwrap();
                assert_eq!(policy, RetryPolicy::for_category(&category), "{name}");
            }
        }
    }

    #[test]
    fn flags_override_the_preset_and_round_trip() {
        let flags =
            "--preset webhook --max-retries 7 --base 250ms --multiplier 1.5 --cap 1m30s --jitter 0..1s500ms";
        let args = parse(flags);
        assert_eq!(args.flags(), flags);
        assert_eq!(args.name(), "webhook (changed)");
        let policy = args.policy().unwrap();
        assert_eq!(policy.max_attempts(), 8);
        assert_eq!(policy.base_delay(), Duration::from_millis(250));
        assert_eq!(policy.max_delay(), Duration::from_secs(90));
        assert_eq!(policy.jitter(), Jitter::Additive(Duration::from_millis(1500)));
    }

    #[test]
    fn an_invalid_policy_names_the_flag_to_change() {
        for (flags, remedy) in [
            ("--base 1m", "--cap sets max_delay"),
            ("--max-attempts 0", "set it to 1"),
            ("--max-attempts 9999999999", "9999999999 attempts are more than 1000000"),
            ("--multiplier 0.5", "from 1 (constant delay)"),
            ("--multiplier NaN", "from 1 (constant delay)"),
            ("--cap 2y", "--cap sets max_delay"),
        ] {
            match parse(flags).policy() {
                Err(Failure::Usage(message)) => assert!(message.contains(remedy), "{message}"),
                other => panic!("{flags}: {other:?}"),
            }
        }
    }
}
