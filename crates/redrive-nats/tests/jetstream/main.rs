//! Tests of the store on a real NATS server.
#![allow(clippy::unwrap_used)] // a panic is a failed test

mod bucket;
mod outages;
mod proxy;
mod racing;
mod scene;
mod suite;
