//! Classifies a line of an audit log and verifies its decision record.

use redrive_retry::decision::DecisionRecord;
use redrive_store::RecordedAttempt;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::format;

/// Result for one line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Decision that matches the rules.
    Verified,
    /// Decision that was changed or does not match the rules, with the reason.
    Discrepancy(String),
    /// Not JSON, or an invalid record, with the reason.
    Unreadable(String),
    /// Another audit event.
    Other,
    Blank,
}

/// Fields that tell the kind of a line. A derived struct, because serde then refuses duplicate fields: a line that two parsers
/// read differently must not verify.
#[derive(Deserialize)]
struct Probe {
    event_type: Option<EventType>,
    digest: Option<IgnoredAny>,
    record: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum EventType {
    Name(String),
    Else(IgnoredAny),
}

/// Audit event with a record.
#[derive(Deserialize)]
struct Audited {
    record: DecisionRecord,
}

/// Audit event with the record as a string, as a tracing field has it.
#[derive(Deserialize)]
struct AuditedText {
    record: String,
}

/// Types of audit events.
pub(super) const EVENT_TYPES: [&str; 4] =
    ["retry_attempt", "retry_exhausted", "idempotency", "retry_decision"];

/// Whether a line is a JSON object of another kind: a bare decision record, or a log line of another program.
pub(super) fn is_other_object(line: &[u8]) -> bool {
    let is_event = |probe: Probe| match probe.event_type {
        Some(EventType::Name(name)) => EVENT_TYPES.contains(&name.as_str()),
        Some(EventType::Else(_)) | None => false,
    };
    let is_object = line.trim_ascii().first() == Some(&b'{');
    is_object && serde_json::from_slice(line).is_ok_and(|probe| !is_event(probe))
}

/// Classifies and verifies a line.
pub(crate) fn judge(line: &[u8]) -> Verdict {
    let line = line.trim_ascii();
    if line.is_empty() {
        return Verdict::Blank;
    }
    if line.first() != Some(&b'{') {
        return Verdict::Unreadable("not a JSON object, as every line of an audit log must be".to_owned());
    }
    let probe: Probe = match serde_json::from_slice(line) {
        Ok(probe) => probe,
        Err(error) => return Verdict::Unreadable(format!("not a JSON object: {}", explain(&error))),
    };
    let is_decision = matches!(&probe.event_type, Some(EventType::Name(name)) if name == "retry_decision");
    let record = if is_decision {
        audited(line)
    } else if probe.record.is_some() {
        let why = "the line has a decision record, but its event_type is not retry_decision: it was changed";
        return Verdict::Discrepancy(why.to_owned());
    } else if probe.digest.is_some() {
        serde_json::from_slice(line)
    } else {
        return Verdict::Other;
    };
    match record.map(|record| verify(&record, line)) {
        Ok(Ok(())) => Verdict::Verified,
        Ok(Err(why)) => Verdict::Discrepancy(printable(&why)),
        Err(error) => Verdict::Unreadable(format!("invalid decision record: {}", explain(&error))),
    }
}

/// Verifies the decision record of an attempt, and its agreement with the row that it is in.
pub(crate) fn judge_attempt(row: &RecordedAttempt) -> Verdict {
    let attempt = &row.attempt;
    let Some(record) = &attempt.record else { return Verdict::Other };
    let verdict = judge(record.0.as_bytes());
    let parsed: Result<DecisionRecord, _> = serde_json::from_str(&record.0);
    match (verdict, parsed) {
        (Verdict::Verified, Ok(record)) => {
            let situation = record.situation();
            let (event, number) = (row.event_id.to_string(), attempt.attempt.to_string());
            let recorded_number = situation.attempt.to_string();
            let fields = [
                ("event", &*event, &*situation.event),
                ("subscription", &*attempt.subscription, &*situation.subscription),
                ("attempt", &*number, &*recorded_number),
            ];
            let differs = fields.iter().find(|(_, row, record)| row != record);
            differs.map_or(Verdict::Verified, |(name, row, record)| {
                let why = format!("the row has {name} {row:?}, its record {record:?}: one was changed");
                Verdict::Discrepancy(printable(&why))
            })
        }
        (Verdict::Verified | Verdict::Other | Verdict::Blank, _) => {
            Verdict::Unreadable("the record is not a decision record: it was changed".to_owned())
        }
        (problem, _) => problem,
    }
}

/// Verifies the record and its agreement with the other fields of the line.
fn verify(record: &DecisionRecord, line: &[u8]) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Beside {
        operation: Option<String>,
    }
    record.verify().map_err(|discrepancy| discrepancy.to_string())?;
    let beside: Option<Beside> = serde_json::from_slice(line).ok();
    match beside.and_then(|beside| beside.operation) {
        Some(operation) if operation != record.situation().subscription => Err(format!(
            "the line has operation {operation:?}, its record {:?}: one was changed",
            record.situation().subscription
        )),
        _ => Ok(()),
    }
}

fn audited(line: &[u8]) -> Result<DecisionRecord, serde_json::Error> {
    match serde_json::from_slice::<AuditedText>(line) {
        Ok(audited) => serde_json::from_str(&audited.record),
        Err(_) => serde_json::from_slice::<Audited>(line).map(|audited| audited.record),
    }
}

/// A parser error without its line number, which is always 1.
fn explain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    let what = text.strip_suffix(&position).unwrap_or(&text);
    printable(&format!("{what} (column {})", error.column()))
}

/// Text of one line and bounded length, safe for a terminal.
fn printable(text: &str) -> String {
    const MAX_CHARS: usize = 400;
    format::one_line(&format::cut(text, MAX_CHARS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive_retry::decision::{Identity, Outcome, Situation};
    use redrive_retry::{FailureClass, RetryPolicy, Timestamp};

    fn record() -> String {
        let situation = Situation::new(
            &RetryPolicy::webhook(),
            Identity::new(7, "order-1", "shipping"),
            2,
            Outcome::Failed(FailureClass::Transient),
            Timestamp::from_millis(1_767_225_600_000),
        );
        serde_json::to_string(&DecisionRecord::decide(situation)).unwrap()
    }

    #[test]
    fn fields_outside_the_record_must_agree_with_it() {
        let line = |event_type: &str, operation: &str| {
            format!(r#"{{"event_type":"{event_type}","operation":"{operation}","record":{}}}"#, record())
        };
        assert_eq!(verdict(&line("retry_decision", "shipping")), Verdict::Verified);
        assert!(matches!(verdict(&line("retry_decision", "shopping")), Verdict::Discrepancy(_)));
        assert!(matches!(verdict(&line("retry_decisioN", "shipping")), Verdict::Discrepancy(_)));
    }

    fn verdict(line: &str) -> Verdict {
        judge(line.as_bytes())
    }

    #[test]
    fn a_record_verifies_bare_in_an_audit_event_and_as_a_string() {
        let record = record();
        assert_eq!(verdict(&record), Verdict::Verified);
        assert_eq!(verdict(&format!("  {record}\r")), Verdict::Verified);
        let event = format!(r#"{{"event_type":"retry_decision","operation":"shipping","record":{record}}}"#);
        assert_eq!(verdict(&event), Verdict::Verified);
        let text = serde_json::to_string(&record).unwrap();
        let event = format!(r#"{{"event_type":"retry_decision","record":{text}}}"#);
        assert_eq!(verdict(&event), Verdict::Verified);
    }

    #[test]
    fn a_changed_record_is_a_discrepancy() {
        let changed = record().replace("order-1", "order-2");
        assert!(
            matches!(verdict(&changed), Verdict::Discrepancy(why) if why.contains("changed after it was written"))
        );
    }

    #[test]
    fn an_unreadable_line_has_a_reason() {
        let record = record();
        for (line, why) in [
            ("nonsense".to_owned(), "not a JSON object"),
            ("[1]".to_owned(), "not a JSON object"),
            (record[..40].to_owned(), "EOF while parsing"),
            (r#"{"event_type":"retry_decision"}"#.to_owned(), "missing field `record` (column"),
            (r#"{"event_type":"retry_decision","record":null}"#.to_owned(), "invalid decision record"),
            (r#"{"event_type":"retry_decision","record":"x"}"#.to_owned(), "invalid decision record"),
            (r#"{"digest":"00"}"#.to_owned(), "missing field"),
            (record.replacen('{', r#"{"more":1,"#, 1), "unknown field `more`"),
            (record.replacen('{', r#"{"version":1,"#, 1), "duplicate field `version`"),
            (r#"{"event_type":"x","event_type":"y"}"#.to_owned(), "duplicate field `event_type`"),
        ] {
            match verdict(&line) {
                Verdict::Unreadable(said) => assert!(said.contains(why), "{said} lacks {why}"),
                other => panic!("{line}: {other:?}"),
            }
        }
        assert!(matches!(judge(b"{\xff\xfe}"), Verdict::Unreadable(_)));
    }

    #[test]
    fn other_objects_and_blank_lines_are_not_problems() {
        for line in [r#"{"event_type":"retry_attempt"}"#, "{}", r#"{"event_type":5}"#, r#"{"digest":null}"#] {
            assert_eq!(verdict(line), Verdict::Other, "{line}");
        }
        assert_eq!(verdict(" \t"), Verdict::Blank);
    }

    #[test]
    fn control_bidi_and_zero_width_characters_of_a_file_are_escaped() {
        for (character, shown) in [('\x1b', "1b"), ('\u{202e}', "202e"), ('\u{200b}', "200b")] {
            // As text: a map would sort the unknown field behind the other one.
            let name = serde_json::json!(format!("{character}[2J"));
            let Verdict::Unreadable(said) = verdict(&format!(r#"{{{name}:2,"digest":1}}"#)) else {
                panic!("an unknown field must be refused");
            };
            assert!(!said.contains(character) && said.contains(shown), "{said:?}");
        }
    }

    #[test]
    fn an_audit_event_that_cannot_be_read_is_no_other_object() {
        for (line, is_other) in [
            (r#"{"level":"INFO"}"#, true),
            (r#" {"event_type":"order.created"}"#, true),
            (r#"{"event_type":5}"#, true),
            (r#"{"event_type":"retry_attempt"}"#, false),
            ("[1]", false),
            ("{", false),
            ("", false),
        ] {
            assert_eq!(is_other_object(line.as_bytes()), is_other, "{line}");
        }
    }
}
