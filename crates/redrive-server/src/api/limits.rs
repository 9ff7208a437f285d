//! Limits on connections, requests and body memory. Each has a share that no single caller or address can use up.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::{Args, Command, FromArgMatches as _};
use redrive_retry::duration::parse_duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::auth::too_many;
use super::body_memory::BodyMemory;
use super::health::is_health_check;
use super::problem::Problem;
use crate::bucket::Bucket;
use crate::open_files;

/// Requests per second without a valid token, of all clients together.
const ANONYMOUS_RATE: u32 = 1000;

/// Requests per second for metrics that need no token.
const PUBLIC_METRICS_RATE: u32 = 100;

/// Limits of the HTTP server.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitArgs {
    /// Open connections at a time; further ones wait
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max_connections: u32,
    /// Open connections of one address, or of one IPv6 network (/64); further ones are refused [default: half of --max-connections]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max_connections_per_address: Option<u32>,
    /// Requests per second, of all authenticated callers together
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub rate_limit: u32,
    /// Requests per second of one token
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub token_rate_limit: u32,
    /// Timeout of the header of a request, and of an idle connection
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "15s")]
    pub header_timeout: Duration,
    /// Timeout of a request body, and of a client that does not read its response
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "30s")]
    pub body_timeout: Duration,
    /// Memory for the bodies of requests above 64 KiB, in MiB; one caller gets at most half
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
    /// Requests without a valid token have a bucket of their own, so that they cost authenticated callers nothing.
    anonymous: Bucket,
    /// Metrics that need no token have a bucket of their own, so that bad tokens do not end the monitoring.
    public_metrics: Bucket,
    pub connections: Arc<Connections>,
    /// Timeout of a body.
    pub body_timeout: Duration,
    pub bodies: BodyMemory,
}

impl Limits {
    pub(crate) fn new(args: &LimitArgs) -> Self {
        let max_connections = open_files::clamp_connections(args.max_connections);
        let max_per_address = args.max_connections_per_address.unwrap_or(max_connections.div_ceil(2));
        Limits {
            connections: Arc::new(Connections::new(max_connections, max_per_address)),
            requests: Bucket::new(args.rate_limit),
            anonymous: Bucket::new(ANONYMOUS_RATE),
            public_metrics: Bucket::new(PUBLIC_METRICS_RATE),
            body_timeout: args.body_timeout,
            bodies: BodyMemory::new((args.body_memory as usize) << 20),
        }
    }

    /// Counts a request without a valid token.
    pub(crate) fn take_anonymous(&self) -> Result<(), Problem> {
        self.anonymous.take().map_err(|wait| too_many("clients without a valid token ask", wait))
    }

    /// Counts a request for a route that needs no token. Health checks are not limited.
    pub(crate) fn take_public(&self, route: &str) -> Result<(), Problem> {
        match route {
            _ if is_health_check(route) => Ok(()),
            "/metrics" => {
                self.public_metrics.take().map_err(|wait| too_many("public metrics are read", wait))
            }
            _ => self.take_anonymous(),
        }
    }
}

/// Counts open connections and bounds their number, in all and by address.
#[derive(Debug)]
pub(crate) struct Connections {
    free: Arc<Semaphore>,
    open: AtomicU64,
    max_per_address: u32,
    /// Open connections by address. A std mutex: locked for a map operation, never across an await.
    by_address: Mutex<HashMap<IpAddr, u32>>,
}

/// Slot of one open connection; freed on drop.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    all: Arc<Connections>,
    address: IpAddr,
    _permit: OwnedSemaphorePermit,
}

impl Connections {
    pub(crate) fn new(max: u32, max_per_address: u32) -> Self {
        Connections {
            free: Arc::new(Semaphore::new(max as usize)),
            open: AtomicU64::new(0),
            max_per_address,
            by_address: Mutex::default(),
        }
    }

    /// Waits until one more connection is allowed.
    pub(crate) async fn acquire(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.free).acquire_owned().await.expect("the semaphore is never closed")
    }

    /// Counts an accepted connection until its slot is dropped; `None` if its address has too many.
    pub(crate) fn opened(
        self: &Arc<Self>,
        permit: OwnedSemaphorePermit,
        peer: IpAddr,
    ) -> Option<ConnectionSlot> {
        let address = network(peer);
        let mut by_address = self.by_address();
        let count = by_address.entry(address).or_default();
        if *count >= self.max_per_address {
            return None;
        }
        *count += 1;
        self.open.fetch_add(1, Ordering::Relaxed);
        Some(ConnectionSlot { all: Arc::clone(self), address, _permit: permit })
    }

    fn by_address(&self) -> MutexGuard<'_, HashMap<IpAddr, u32>> {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of open connections.
    pub(crate) fn count(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.all.open.fetch_sub(1, Ordering::Relaxed);
        let mut by_address = self.all.by_address();
        if let Some(count) = by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                by_address.remove(&self.address);
            }
        }
    }
}

/// The address, or its network of IPv6, of which one host usually has all addresses.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn callers_without_a_valid_token_take_nothing_from_metrics_and_health() {
        let limits = Limits::new(&LimitArgs::default());
        while limits.take_anonymous().is_ok() {}
        for route in ["/metrics", "/healthz", "/readyz"] {
            assert!(limits.take_public(route).is_ok(), "{route}");
        }
        while limits.take_public("/metrics").is_ok() {}
        while limits.take_public("/openapi.json").is_ok() {}
        assert!(limits.take_public("/healthz").is_ok(), "health checks are not limited");
    }

    #[tokio::test]
    async fn connections_are_counted_by_address_and_by_ipv6_network() {
        let connections = Arc::new(Connections::new(10, 2));
        let open = async |address: &str| {
            let permit = connections.acquire().await;
            connections.opened(permit, address.parse().unwrap())
        };
        let (one, two) = (open("10.0.0.1").await, open("::ffff:10.0.0.1").await);
        assert!(one.is_some() && two.is_some());
        assert!(open("10.0.0.1").await.is_none(), "the address has its share");
        let _other = open("10.0.0.2").await.unwrap();
        let (_a, _b) = (open("2001:db8::1").await.unwrap(), open("2001:db8::2").await.unwrap());
        assert!(open("2001:db8::3").await.is_none(), "of one network");
        assert!(open("2001:db8:0:1::1").await.is_some());
        drop(one);
        assert!(open("10.0.0.1").await.is_some(), "a closed connection counts no more");
        drop(two);
        assert_eq!(connections.count(), 3);
        assert_eq!(connections.by_address().len(), 2, "addresses without connections are forgotten");
    }
}
