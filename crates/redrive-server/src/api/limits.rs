//! Limits on connections, requests and body memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::{Args, Command, FromArgMatches as _};
use redrive_retry::duration::parse_duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use crate::bucket::Bucket;

/// Bytes of one permit: the number of permits must fit 32 bits.
const BLOCK: usize = 1024;

/// Limits of the HTTP server.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitArgs {
    /// Open connections at a time; further ones wait
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max_connections: u32,
    /// Requests per second, of all callers together
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub rate_limit: u32,
    /// Requests per second of one token
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub token_rate_limit: u32,
    /// Timeout of the header of a request, and of an idle connection
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "15s")]
    pub header_timeout: Duration,
    /// Timeout of the body of a request, and of a client that does not read its answer
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "30s")]
    pub body_timeout: Duration,
    /// Memory for the bodies of requests, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 128, value_parser = clap::value_parser!(u32).range(32..=1_000_000))]
    pub body_memory: u32,
}

impl Default for LimitArgs {
    /// The defaults of the flags.
    fn default() -> Self {
        let none = LimitArgs::augment_args(Command::new("limits")).get_matches_from(["limits"]);
        LimitArgs::from_arg_matches(&none).expect("every limit has a default")
    }
}

/// State of the limits.
#[derive(Debug)]
pub(crate) struct Limits {
    pub requests: Bucket,
    pub connections: Arc<Connections>,
    /// Timeout of a body.
    pub body_timeout: Duration,
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

    /// Memory that is reserved for bodies now.
    pub(crate) fn body_bytes(&self) -> u64 {
        ((self.body_blocks - self.bodies.available_permits()) * BLOCK) as u64
    }

    /// A reservation for a body, empty at first.
    pub(crate) fn reserve_body(&self) -> BodyReservation<'_> {
        BodyReservation { bodies: &self.bodies, blocks: None }
    }
}

/// Memory reservation of a body. It grows with the bytes that arrive: an announced length may never arrive.
#[derive(Debug)]
pub(crate) struct BodyReservation<'a> {
    bodies: &'a Semaphore,
    blocks: Option<SemaphorePermit<'a>>,
}

impl BodyReservation<'_> {
    /// Waits until the reservation covers this many bytes.
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

/// Counts open connections and bounds their number.
#[derive(Debug)]
pub(crate) struct Connections {
    free: Arc<Semaphore>,
    open: AtomicU64,
}

/// Slot of one open connection; freed on drop.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    all: Arc<Connections>,
    _permit: OwnedSemaphorePermit,
}

impl Connections {
    pub(crate) fn new(max: u32) -> Self {
        Connections { free: Arc::new(Semaphore::new(max as usize)), open: AtomicU64::new(0) }
    }

    /// Waits until one more connection is allowed.
    pub(crate) async fn acquire(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.free).acquire_owned().await.expect("the semaphore is never closed")
    }

    /// Counts an accepted connection until its slot is dropped.
    pub(crate) fn opened(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> ConnectionSlot {
        self.open.fetch_add(1, Ordering::Relaxed);
        ConnectionSlot { all: Arc::clone(self), _permit: permit }
    }

    /// Number of open connections.
    pub(crate) fn count(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.all.open.fetch_sub(1, Ordering::Relaxed);
    }
}
