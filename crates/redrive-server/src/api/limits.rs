//! How much is served at once.

use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Command, FromArgMatches as _};
use redrive_retry::parse_duration;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::serve::bucket::Bucket;
use crate::serve::places::Connections;

/// Permits are counted in blocks of so many bytes, because there may be no more than fit 32 bits.
const BLOCK: usize = 1024;

/// How much is served at once.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    /// Connections at a time; those beyond wait
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) max_connections: u32,
    /// Requests in a second, all together
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rate_limit: u32,
    /// Requests in a second by one token
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) token_rate_limit: u32,
    /// How long the header of a request may take to arrive, and a connection may be idle
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "15s")]
    pub(crate) header_timeout: Duration,
    /// How long a body may take to arrive, and a client may not read what it asked for
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "30s")]
    pub(crate) body_timeout: Duration,
    /// Memory for the bodies of requests, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 128, value_parser = clap::value_parser!(u32).range(32..=1_000_000))]
    pub(crate) body_memory: u32,
}

impl Default for LimitArgs {
    /// As the flags have it.
    fn default() -> Self {
        let none = LimitArgs::augment_args(Command::new("limits")).get_matches_from(["limits"]);
        LimitArgs::from_arg_matches(&none).expect("every limit has a default")
    }
}

/// The limits at work.
#[derive(Debug)]
pub(crate) struct Limits {
    pub(crate) requests: Bucket,
    pub(crate) connections: Arc<Connections>,
    /// How long a body may take to arrive.
    pub(crate) body_timeout: Duration,
    bodies: Semaphore,
    body_blocks: usize,
}

impl Limits {
    pub(crate) fn new(args: &LimitArgs) -> Self {
        let blocks = args.body_memory as usize * (1 << 20) / BLOCK;
        Limits {
            connections: Arc::new(Connections::new(args.max_connections)),
            requests: Bucket::new(args.rate_limit),
            body_timeout: args.body_timeout,
            bodies: Semaphore::new(blocks),
            body_blocks: blocks,
        }
    }

    /// How much memory is set aside for bodies now.
    pub(crate) fn body_bytes(&self) -> u64 {
        ((self.body_blocks - self.bodies.available_permits()) * BLOCK) as u64
    }

    /// For a body of which nothing has come yet.
    pub(crate) fn room_for_body(&self) -> BodyRoom<'_> {
        BodyRoom { bodies: &self.bodies, blocks: None }
    }
}

/// The room that a body takes up in memory while it is held: as much as has come of it, because what is only announced may never
/// come.
#[derive(Debug)]
pub(crate) struct BodyRoom<'a> {
    bodies: &'a Semaphore,
    blocks: Option<SemaphorePermit<'a>>,
}

impl BodyRoom<'_> {
    /// Waits until so many bytes of it may be in memory.
    pub(crate) async fn grow_to(&mut self, bytes: usize) {
        let held = self.blocks.as_ref().map_or(0, SemaphorePermit::num_permits);
        let missing = u32::try_from(bytes.div_ceil(BLOCK).saturating_sub(held)).unwrap_or(u32::MAX);
        if missing > 0 {
            let more = self.bodies.acquire_many(missing).await.expect("it is never closed");
            match &mut self.blocks {
                Some(blocks) => blocks.merge(more),
                none => *none = Some(more),
            }
        }
    }
}
