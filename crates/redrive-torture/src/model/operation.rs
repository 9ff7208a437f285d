//! Operations on both buses, and their random generator.

use proptest::prelude::*;

use super::scene::{KINDS, Scene, TOPICS};

/// Behaviour of one handler call.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) enum Act {
    Succeed,
    Fail,
    FailForGood,
    Panic,
    /// Never ends: the timeout cancels it.
    Hang,
    /// Asks for a retry after this many milliseconds.
    AskForTime(i64),
    SucceedAfter(i64),
    FailAfter(i64),
}

/// Behaviour of the handlers of an event, call after call; after the last entry they succeed.
pub(super) type Plan = Vec<Act>;

/// End of a life of the bus.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) enum End {
    /// Shutdown at rest.
    Shutdown,
    /// Shutdown with work in flight.
    ShutdownAtOnce,
    /// Crash while nothing is being written.
    Crash,
    /// Crash with work in flight.
    CrashAtOnce,
}

/// One operation on both.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    Publish {
        topic: usize,
        plan: Plan,
        delay_ms: i64,
        attempts: Option<u32>,
    },
    /// With one of a few ids: often one that is taken.
    PublishUnder {
        id: u8,
        topic: usize,
        plan: Plan,
    },
    PublishBatch {
        topic: usize,
        plans: Vec<Plan>,
        too_large: bool,
    },
    /// Waits until it is handled or dead.
    PublishAndWait {
        topic: usize,
        plan: Plan,
    },
    /// In a transaction of another process; only on a file.
    PublishExternal {
        topic: usize,
        plan: Plan,
        is_told: bool,
    },
    Subscribe(usize),
    Unsubscribe(usize),
    /// Time passes, and everything that is due happens.
    Pass(i64),
    /// The clock is set forward: deliveries that were due in between are late.
    Jump(i64),
    Redrive {
        which: usize,
        edited: Option<Plan>,
    },
    RedriveAll {
        per_second: Option<u32>,
    },
    /// Up to the instant of one event, or a millisecond beside it.
    PurgeDead {
        which: usize,
        beside_ms: i64,
    },
    PurgeDone {
        which: usize,
        beside_ms: i64,
    },
    Pause,
    Resume,
    /// The process restarts; only on a file.
    Restart {
        end: End,
        /// Offset of the clock after the restart.
        clock_ms: i64,
        per_subscription: bool,
        /// Subscription that is not registered again.
        without: Option<usize>,
        is_paused: bool,
    },
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => Just(Act::Succeed),
        6 => Just(Act::Fail),
        1 => Just(Act::FailForGood),
        1 => Just(Act::Panic),
        1 => Just(Act::Hang),
        1 => (1i64..900).prop_map(Act::AskForTime),
        2 => (1i64..600).prop_map(Act::SucceedAfter),
        1 => (1i64..600).prop_map(Act::FailAfter),
    ]
}

fn plan() -> impl Strategy<Value = Plan> {
    prop_oneof![
        3 => Just(Vec::new()),
        3 => proptest::collection::vec(act(), 1..3),
        2 => proptest::collection::vec(act(), 3..9),
    ]
}

fn topic() -> impl Strategy<Value = usize> {
    0..TOPICS.len()
}

fn kind() -> impl Strategy<Value = usize> {
    0..KINDS.len()
}

pub(super) fn operation(on_file: bool) -> BoxedStrategy<Operation> {
    if on_file {
        let beside = (topic(), plan(), any::<bool>())
            .prop_map(|(topic, plan, is_told)| Operation::PublishExternal { topic, plan, is_told });
        prop_oneof![90 => anywhere(), 4 => beside, 6 => restart()].boxed()
    } else {
        anywhere().boxed()
    }
}

fn anywhere() -> impl Strategy<Value = Operation> {
    let delay = prop_oneof![4 => Just(0i64), 1 => 1i64..2000];
    let attempts = prop_oneof![6 => Just(None), 1 => (1u32..7).prop_map(Some)];
    prop_oneof![
        20 => (topic(), plan(), delay, attempts)
            .prop_map(|(topic, plan, delay_ms, attempts)| Operation::Publish { topic, plan, delay_ms, attempts }),
        5 => (0u8..6, topic(), plan()).prop_map(|(id, topic, plan)| Operation::PublishUnder { id, topic, plan }),
        4 => (topic(), proptest::collection::vec(plan(), 1..5), proptest::bool::weighted(0.1))
            .prop_map(|(topic, plans, too_large)| Operation::PublishBatch { topic, plans, too_large }),
        3 => (topic(), plan()).prop_map(|(topic, plan)| Operation::PublishAndWait { topic, plan }),
        3 => kind().prop_map(Operation::Subscribe),
        2 => kind().prop_map(Operation::Unsubscribe),
        12 => (1i64..120).prop_map(Operation::Pass),
        8 => (120i64..3000).prop_map(Operation::Pass),
        1 => (3000i64..70_000).prop_map(Operation::Pass),
        1 => (1i64..5000).prop_map(Operation::Jump),
        8 => (any::<usize>(), proptest::option::weighted(0.4, plan()))
            .prop_map(|(which, edited)| Operation::Redrive { which, edited }),
        1 => prop_oneof![Just(None), (1u32..20).prop_map(Some)]
            .prop_map(|per_second| Operation::RedriveAll { per_second }),
        2 => (any::<usize>(), -1i64..=1).prop_map(|(which, beside_ms)| Operation::PurgeDead { which, beside_ms }),
        1 => (any::<usize>(), -1i64..=1).prop_map(|(which, beside_ms)| Operation::PurgeDone { which, beside_ms }),
        1 => Just(Operation::Pause),
        3 => Just(Operation::Resume),
    ]
}

fn restart() -> impl Strategy<Value = Operation> {
    let end = prop_oneof![
        2 => Just(End::Shutdown),
        1 => Just(End::ShutdownAtOnce),
        3 => Just(End::Crash),
        2 => Just(End::CrashAtOnce),
    ];
    let clock = prop_oneof![4 => Just(0i64), 1 => -5000i64..0, 1 => 1i64..5000];
    (end, clock, any::<bool>(), proptest::option::weighted(0.15, kind()), proptest::bool::weighted(0.1))
        .prop_map(|(end, clock_ms, per_subscription, without, is_paused)| Operation::Restart {
            end,
            clock_ms,
            per_subscription,
            without,
            is_paused,
        })
}

pub(super) fn scene(on_file: bool) -> impl Strategy<Value = Scene> {
    let slots = prop_oneof![1 => 1usize..4, 2 => Just(64usize)];
    let subscribed = proptest::sample::subsequence((0..KINDS.len()).collect::<Vec<_>>(), 0..=KINDS.len());
    (
        any::<bool>(),
        any::<bool>(),
        slots,
        proptest::option::weighted(0.25, 200i64..2000),
        proptest::option::weighted(0.25, 500i64..60_000),
        100i64..5000,
        subscribed,
    )
        .prop_map(
            move |(
                per_subscription,
                unmatched_dies,
                in_flight,
                deadline_ms,
                retention_ms,
                shutdown_ms,
                subscribed,
            )| {
                Scene {
                    per_subscription,
                    unmatched_dies,
                    in_flight,
                    deadline_ms,
                    retention_ms,
                    shutdown_ms,
                    subscribed,
                    on_file,
                }
            },
        )
}
