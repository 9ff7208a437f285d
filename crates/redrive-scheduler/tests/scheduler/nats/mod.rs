//! The same on NATS: streams instead of queues.

mod coming_back;
mod outages;
mod scene;
mod subjects;
