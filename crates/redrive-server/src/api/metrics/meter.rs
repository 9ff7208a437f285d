//! Counts HTTP requests and their durations by route; a client cannot create a series.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::{Method, StatusCode};

use crate::metric_family::{Family, Kind, Times};

/// Upper bounds of the buckets; the last bucket has none.
const BOUNDS_US: [u64; 12] =
    [500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 5_000_000, 30_000_000];

/// Request counters.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// A std mutex, locked for two additions only.
    routes: Mutex<BTreeMap<String, Route>>,
}

#[derive(Debug, Default)]
struct Route {
    answers: BTreeMap<(&'static str, u16), u64>,
    buckets: [u64; BOUNDS_US.len() + 1],
    sum_us: u64,
}

impl Meter {
    pub(crate) fn count(&self, method: &Method, route: &str, status: StatusCode, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        if !routes.contains_key(route) {
            routes.insert(route.to_owned(), Route::default());
        }
        let Some(entry) = routes.get_mut(route) else { return };
        *entry.answers.entry((known(method), status.as_u16())).or_default() += 1;
        entry.buckets[BOUNDS_US.partition_point(|bound| *bound < micros)] += 1;
        entry.sum_us = entry.sum_us.saturating_add(micros);
    }

    pub(crate) fn families(&self) -> [Family; 2] {
        let routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut answers = Family::new(
            "redrive_http_requests_total",
            "HTTP requests, by method, route and status.",
            Kind::Counter,
        );
        let mut durations = Family::new(
            "redrive_http_request_duration_seconds",
            "Duration of HTTP requests, by route.",
            Kind::Histogram,
        );
        for (route, entry) in routes.iter() {
            for ((method, status), count) in &entry.answers {
                let labels = [("method", *method), ("route", route), ("status", &status.to_string())];
                answers = answers.with(labels.map(|(name, value)| (name, value.to_owned())).into(), *count);
            }
            let buckets = BOUNDS_US.iter().copied().map(Some).chain([None]).zip(entry.buckets).collect();
            let times = Times { buckets, sum_us: entry.sum_us };
            durations = durations.with_times(vec![("route", route.clone())], times);
        }
        [answers, durations]
    }
}

/// Name of a standard method, or `OTHER`, so that a client cannot create a label value.
pub(crate) fn known(method: &Method) -> &'static str {
    [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS]
        .iter()
        .zip(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
        .find(|(known, _)| *known == method)
        .map_or("OTHER", |(_, name)| name)
}
