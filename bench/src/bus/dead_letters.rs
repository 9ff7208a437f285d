//! Latency of dead-letter queries, with few and with very many dead events.

use std::path::Path;

use redrive::EventType;
use redrive::dlq::{DlqFilter, DlqInspector, DlqPage};
use redrive::retry::{BoxError, Timestamp};
use tokio::runtime::Runtime;

use super::figure::{Figure, Goal, Unit, count};
use super::fill::{APART, Fill, RARE};
use super::{progress, timed};
use crate::report::median;

/// Specified for 10,000 dead events, in milliseconds.
const SPECIFIED: f64 = 50.0;

/// Queries of each kind.
const QUERIES: usize = 15;

pub(super) fn measure(folder: &Path, sizes: [u32; 2], runtime: &Runtime) -> Result<Vec<Figure>, BoxError> {
    let mut figures = Vec::new();
    for size in sizes {
        progress(&format!("making {} dead events", count(size)));
        let path = folder.join(format!("{size}.db"));
        let fill = Fill::open(&path)?;
        fill.dead(size)?;
        fill.finish()?;
        figures.extend(looks(&path, size, size == sizes[0], runtime)?);
        std::fs::remove_file(&path)?;
    }
    Ok(figures)
}

fn looks(path: &Path, size: u32, is_specified: bool, runtime: &Runtime) -> Result<Vec<Figure>, BoxError> {
    let page = DlqPage::default();
    let specified = Goal::Within(SPECIFIED);
    let figure = |key: &str, what: &str, value: f64| {
        Figure::new(
            format!("dlq_{key}_{size}_ms"),
            format!("{} dead: {what}", count(size)),
            value,
            Unit::Millis,
        )
    };
    let inspector = runtime.block_on(DlqInspector::open(path))?;
    let (first, took) = timed(runtime, inspector.list(DlqFilter::default(), page))?;
    let mut figures = vec![figure("opening_page", "first page, on a new connection", took).goal(specified)];
    let newest = first.first().ok_or("there should be a dead event")?.created_at.as_millis();
    // Median of many queries of one kind, and the entries of the last one.
    let look = |filter: DlqFilter, page: DlqPage| -> Result<(f64, usize), BoxError> {
        let (mut times, mut found) = (Vec::new(), 0);
        for _ in 0..QUERIES {
            let (list, took) = timed(runtime, inspector.list(filter.clone(), page))?;
            times.push(took);
            found = list.len();
        }
        Ok((median(times), found))
    };
    let (took, _) = look(DlqFilter::default(), page)?;
    figures.push(figure("first_page", "first page", took).goal(specified));

    let half = size / 2;
    let until = Some(Timestamp::from_millis(newest - i64::from(half) * APART));
    let there = DlqPage { limit: 1, ..page };
    let (middle, _) = timed(runtime, inspector.list(DlqFilter { until, ..DlqFilter::default() }, there))?;
    let after = middle.first().map(|dead| dead.cursor);
    let (took, _) = look(DlqFilter::default(), DlqPage { after, ..page })?;
    figures.push(
        figure("cursor_page", &format!("page after entry {}, by cursor", count(half)), took).goal(specified),
    );
    let (took, _) = look(DlqFilter::default(), DlqPage { offset: half, ..page })?;
    figures.push(
        figure("offset_page", &format!("page after entry {}, by offset", count(half)), took)
            .note("for comparison"),
    );

    let rare = DlqFilter { event_type: Some(EventType::new(RARE)?), ..DlqFilter::default() };
    let (took, found) = look(rare, page)?;
    let by_type = figure("type_page", "first page of a type, 1 in 1,000", took);
    figures.push(by_type.goal(specified).note(format!("{found} entries")));
    let (groups, _) = timed(runtime, inspector.groups(DlqFilter::default()))?;
    let fingerprint = groups.first().map(|group| group.fingerprint.clone());
    let (took, _) = look(DlqFilter { fingerprint, ..DlqFilter::default() }, page)?;
    figures.push(figure("group_page", "first page of a group, 1 in 20", took).goal(specified));
    let text = Some("no error says so".to_owned());
    let (took, _) = look(DlqFilter { text, ..DlqFilter::default() }, page)?;
    figures.push(figure("text_page", "text search without a match", took).note("scans all entries"));

    let mut times = Vec::new();
    for _ in 0..QUERIES {
        times.push(timed(runtime, inspector.groups(DlqFilter::default()))?.1);
    }
    let by_group = figure("groups", "groups", median(times)).note(format!("{} groups", groups.len()));
    figures.push(if is_specified { by_group.goal(specified) } else { by_group });
    Ok(figures)
}
