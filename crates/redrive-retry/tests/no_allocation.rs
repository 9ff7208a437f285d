//! A call that succeeds at once makes no heap allocation.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::convert::Infallible;

use redrive_retry::{Category, RetryManager};

#[test]
fn a_call_that_succeeds_at_once_allocates_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let manager = RetryManager::new();
    runtime.block_on(async {
        let before = allocation_counter::measure(|| drop(std::hint::black_box(Box::new(1))));
        assert_eq!(before.count_total, 1, "the counter counts");
        let mut call = std::pin::pin!(
            manager
                .execute(&Category::ApiRequest, "op")
                .tenant("tenant-123")
                .correlation("corr-456")
                .run(|attempt| async move { Ok::<u32, Infallible>(attempt.number()) })
        );
        let mut polled = None;
        let waker = std::task::Waker::noop();
        let counted = allocation_counter::measure(|| {
            polled = Some(call.as_mut().poll(&mut std::task::Context::from_waker(waker)));
        });
        assert!(matches!(polled, Some(std::task::Poll::Ready(Ok(1)))));
        assert_eq!(counted.count_total, 0, "{counted:?}");
    });
    // Describing the call counts as well.
    let described = allocation_counter::measure(|| {
        let run =
            manager.execute(&Category::KvGet, "op").tenant("t").run(|_| async { Ok::<(), Infallible>(()) });
        drop(run);
    });
    assert_eq!(described.count_total, 0, "{described:?}");
}
