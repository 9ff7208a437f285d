//! Behaviour tests with NATS JetStream.

mod outages;
mod republish;
mod scene;
mod subjects;
