//! Memory for request bodies: of each pool one caller gets at most half, and small bodies have a pool of their own.
//!
//! So neither one caller with many large bodies nor many callers with large bodies delay a small body of another caller.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Bytes of one permit: the number of permits must fit 32 bits.
const BLOCK: usize = 1024;

/// A body up to this size takes its memory from the reserve.
const MAX_SMALL_BODY_BYTES: usize = 64 << 10;

/// The reserve for small bodies.
const RESERVE_BYTES: usize = 16 << 20;

/// The memory for the bodies of all requests.
#[derive(Debug)]
pub(crate) struct BodyMemory {
    small: Pool,
    large: Pool,
}

impl BodyMemory {
    /// Memory for this many bytes of large bodies, and the reserve for small ones.
    pub(crate) fn new(large_bytes: usize) -> Self {
        BodyMemory { small: Pool::new(RESERVE_BYTES), large: Pool::new(large_bytes) }
    }

    /// Bytes that are reserved now.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        let blocks = |pool: &Pool| pool.blocks - pool.free.available_permits();
        ((blocks(&self.small) + blocks(&self.large)) * BLOCK) as u64
    }

    /// A reservation of this caller, empty at first.
    pub(crate) fn reserve<'a>(&'a self, caller: &str) -> BodyReservation<'a> {
        BodyReservation { memory: self, caller: caller.to_owned(), is_large: false, held: None }
    }
}

/// One pool and the shares of the callers that use it now.
#[derive(Debug)]
struct Pool {
    free: Semaphore,
    blocks: usize,
    /// The free part of each caller's share. A std mutex: locked for a map operation, never across an await.
    shares: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl Pool {
    fn new(bytes: usize) -> Self {
        let blocks = bytes / BLOCK;
        Pool { free: Semaphore::new(blocks), blocks, shares: Mutex::default() }
    }

    fn share(&self, caller: &str) -> Arc<Semaphore> {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = shares.get(caller).and_then(Weak::upgrade) {
            return share;
        }
        shares.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(Semaphore::new(self.blocks / 2));
        shares.insert(caller.to_owned(), Arc::downgrade(&share));
        share
    }

    async fn take(&self, caller: &str, blocks: u32) -> Held<'_> {
        const OPEN: &str = "it is never closed";
        let share = self.share(caller).acquire_many_owned(blocks).await.expect(OPEN);
        Held { share, all: self.free.acquire_many(blocks).await.expect(OPEN) }
    }
}

/// Memory that a body holds, in its caller's share and in the pool.
#[derive(Debug)]
struct Held<'a> {
    share: OwnedSemaphorePermit,
    all: SemaphorePermit<'a>,
}

/// Memory reservation of a body. It grows with the bytes that arrive: an announced length may never arrive.
#[derive(Debug)]
pub(crate) struct BodyReservation<'a> {
    memory: &'a BodyMemory,
    caller: String,
    is_large: bool,
    held: Option<Held<'a>>,
}

impl BodyReservation<'_> {
    /// Waits until the reservation covers this many bytes.
    pub(crate) async fn grow_to(&mut self, bytes: usize) {
        if bytes > MAX_SMALL_BODY_BYTES && !self.is_large {
            let held = self.memory.large.take(&self.caller, blocks(bytes)).await;
            (self.is_large, self.held) = (true, Some(held)); // gives back what it had of the reserve
            return;
        }
        let held = self.held.as_ref().map_or(0, |held| held.all.num_permits());
        let missing = blocks(bytes).saturating_sub(u32::try_from(held).unwrap_or(u32::MAX));
        if missing > 0 {
            let pool = if self.is_large { &self.memory.large } else { &self.memory.small };
            let more = pool.take(&self.caller, missing).await;
            match &mut self.held {
                Some(held) => {
                    held.share.merge(more.share);
                    held.all.merge(more.all);
                }
                none => *none = Some(more),
            }
        }
    }
}

fn blocks(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(BLOCK)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const MIB: usize = 1 << 20;

    /// Whether the reservation grows without waiting.
    fn grows(reservation: &mut BodyReservation<'_>, bytes: usize) -> bool {
        reservation.grow_to(bytes).now_or_never().is_some()
    }

    #[test]
    fn one_caller_gets_at_most_half_of_the_memory() {
        let memory = BodyMemory::new(32 * MIB);
        let mut greedy: Vec<_> = (0..4).map(|_| memory.reserve("greedy")).collect();
        let got = greedy.iter_mut().filter_map(|body| grows(body, 8 * MIB).then_some(8)).sum::<usize>();
        assert_eq!(got, 16);
        assert!(grows(&mut memory.reserve("other"), 16 * MIB), "the other half is free");
        drop(greedy);
        assert!(grows(&mut memory.reserve("greedy"), 16 * MIB), "what was given back is free again");
    }

    #[test]
    fn small_bodies_need_no_memory_of_large_ones() {
        let memory = BodyMemory::new(32 * MIB);
        let (mut one, mut two) = (memory.reserve("one"), memory.reserve("two"));
        assert!(grows(&mut one, 16 * MIB) && grows(&mut two, 16 * MIB), "all of it");
        let mut small = memory.reserve("one");
        assert!(grows(&mut small, 1000) && grows(&mut small, 64 << 10));
        assert!(!grows(&mut small, 65 << 10), "it is no small body any more");
        drop((one, two));
        assert!(grows(&mut small, 65 << 10));
        assert_eq!(memory.reserved_bytes(), 65 << 10, "the reserve got its memory back");
        drop(small);
        assert_eq!(memory.reserved_bytes(), 0);
    }
}
