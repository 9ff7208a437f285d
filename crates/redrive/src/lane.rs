//! How much of one subscription may be under way at once, and how fast.
//!
//! What finds no room waits on disk until it is called up: so one that is slow, throttled or gone holds no place that others need,
//! however much is owed to it. A few more than can run are kept in memory, so that the next one begins without a look at the disk.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive_retry::Timestamp;
use redrive_store::{CalledUp, HELD};
use tokio::sync::Notify;

use crate::pull::Demand;

/// Whoever has called something up and not seen it within this time does not count on it any more: it came to its end before its turn.
const CALLED_FOR: Duration = Duration::from_secs(2);

/// What a failure says about when to try again closes a lane for at most this long.
const LONGEST_CLOSED: Duration = Duration::from_secs(3600);

/// So much of a second's share may begin at once. The rest is spread.
const BURST: f64 = 0.25;

/// So many times as many as may run wait in memory at most.
const DEEPEST: usize = 16;

/// Where nothing has begun for so long, no more wait in memory than may run: the others go back to the disk, and others may need their
/// places.
const PATIENCE: Duration = Duration::from_secs(1);

/// The limits of one subscription.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Limits {
    /// How many attempts may be under way at once. 0 is as 1.
    pub concurrency: usize,
    /// How many attempts may begin in a second.
    pub per_second: Option<f64>,
}

/// The way to one handler.
#[derive(Debug)]
pub(crate) struct Lane {
    limits: Limits,
    // A std mutex: held for a few instructions, never across an await.
    state: Mutex<State>,
    /// Woken when an attempt has ended: for those that wait in memory.
    freed: Notify,
    /// Woken when there may be room for what is held on disk.
    room: Arc<Notify>,
    /// What nobody has asked for is held; nothing where nobody has to ask.
    demand: Option<Arc<Demand>>,
}

#[derive(Debug)]
struct State {
    running: usize,
    /// In memory, until one that runs has ended.
    waiting: usize,
    /// How many may wait there: as many as may run, and more where attempts end faster than the disk answers.
    depth: usize,
    /// The fewest who waited when an attempt ended, since something was called up.
    fewest: Option<usize>,
    /// When an attempt began last.
    begun_at: Timestamp,
    /// Called up, and not arrived yet.
    called: usize,
    called_at: Timestamp,
    /// Whether there may be something on disk, and how often something was put there.
    may_hold: bool,
    held: u64,
    closed_until: Option<Timestamp>,
    /// Attempts that may begin now, and since when that is so.
    tokens: f64,
    filled_at: Timestamp,
}

/// What is to be called up, and under which circumstances that was found out.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) most: usize,
    /// Nobody runs, waits in memory or is on the way.
    is_first: bool,
    held: u64,
}

impl Wanted {
    /// The same for a circuit that wants to see one call end before it lets others through; `None` while somebody is there already.
    pub(crate) fn for_a_probe(self) -> Option<Self> {
        self.is_first.then_some(Wanted { most: 1, ..self })
    }
}

/// What a look at a lane has shown.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Room {
    /// For so many.
    For(Wanted),
    /// None before this instant.
    At(Timestamp),
    /// None before something happens.
    Full,
}

impl Lane {
    pub(crate) fn new(
        limits: Limits,
        now: Timestamp,
        room: Arc<Notify>,
        demand: Option<Arc<Demand>>,
    ) -> Self {
        if let Some(demand) = &demand {
            demand.wakes(Arc::clone(&room));
        }
        let limits = Limits { concurrency: limits.concurrency.max(1), ..limits };
        let state = State {
            running: 0,
            waiting: 0,
            depth: limits.concurrency,
            fewest: None,
            begun_at: now,
            called: 0,
            called_at: now,
            may_hold: true, // by a process before this one
            held: 0,
            closed_until: None,
            tokens: burst(&limits),
            filled_at: now,
        };
        Lane { limits, state: Mutex::new(state), freed: Notify::new(), room, demand }
    }

    /// Goes on where the one before it stood: what its handler has asked for is not over because something else was changed.
    pub(crate) fn go_on_from(&self, before: &Lane, now: Timestamp) {
        let before = before.lock();
        let (closed_until, tokens, filled_at) = (before.closed_until, before.tokens, before.filled_at);
        drop(before);
        let mut state = self.lock();
        state.closed_until = closed_until.filter(|until| now < *until && *until != HELD);
        if self.limits.per_second.is_some() {
            state.tokens = state.tokens.min(tokens);
            state.filled_at = filled_at;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every method leaves the state valid, so a poisoned lock is still good to use.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The leave to make one attempt, once there is room; `None` if it is to be held on disk.
    pub(crate) async fn enter(self: &Arc<Self>, now: impl Fn() -> Timestamp) -> Option<Turn> {
        let mut place = {
            let mut state = self.lock();
            state.called = state.called.saturating_sub(1);
            if state.is_closed(now()) || state.waiting >= state.depth {
                return None;
            }
            // Nobody overtakes those who wait.
            if state.waiting == 0 && state.running < self.limits.concurrency {
                return self.begin(&mut state, now());
            }
            state.waiting += 1;
            Place { lane: self, is_taken: true }
        };
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable(); // before looking, so that nothing is missed in between
            {
                let mut state = self.lock();
                if state.is_closed(now()) {
                    place.leave(&mut state);
                    return None;
                }
                if state.running < self.limits.concurrency {
                    place.leave(&mut state);
                    let turn = self.begin(&mut state, now());
                    // It may not begin, and there will be no end of it: so the next one looks for itself.
                    if turn.is_none() && state.waiting > 0 {
                        self.freed.notify_one();
                    }
                    return turn;
                }
                if state.waiting > state.depth {
                    place.leave(&mut state);
                    return None;
                }
            }
            freed.await;
        }
    }

    fn begin(self: &Arc<Self>, state: &mut State, now: Timestamp) -> Option<Turn> {
        if let Some(rate) = self.limits.per_second {
            state.fill(rate, burst(&self.limits), now);
            if state.tokens < 1.0 {
                return None;
            }
            state.tokens -= 1.0;
        }
        if self.demand.as_ref().is_some_and(|demand| !demand.take()) {
            return None;
        }
        state.running += 1;
        state.begun_at = now;
        Some(Turn { lane: Arc::clone(self) })
    }

    /// What was to be held is on disk now.
    pub(crate) fn is_held(&self) {
        let mut state = self.lock();
        state.may_hold = true;
        state.held += 1;
        drop(state);
        self.room.notify_one();
    }

    /// Nothing more begins before this much time has passed.
    pub(crate) fn close_for(&self, wait: Duration, now: Timestamp) {
        if self.demand.is_some() {
            return; // whoever fetches knows best when to come again
        }
        let until = now + wait.min(LONGEST_CLOSED);
        let mut state = self.lock();
        state.closed_until = Some(state.closed_until.map_or(until, |before| before.max(until)));
        drop(state);
        self.freed.notify_waiters(); // who waits in memory goes to the disk
        self.room.notify_one();
    }

    /// Nothing more begins in this process: who waits in memory goes to the disk, and is charged nothing.
    pub(crate) fn shut(&self) {
        self.lock().closed_until = Some(HELD);
        self.freed.notify_waiters();
    }

    /// Until when nothing begins, if it is closed.
    pub(crate) fn closed_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.lock().closed_until.filter(|until| now < *until)
    }

    /// Others may have put something on disk.
    pub(crate) fn look_again(&self) {
        self.lock().may_hold = true;
    }

    /// How much to call up now.
    pub(crate) fn room(&self, now: Timestamp) -> Room {
        let mut state = self.lock();
        let room = self.room_for_more(&mut state, now);
        if state.waiting <= self.limits.concurrency {
            return room;
        }
        let patient_until = state.begun_at + PATIENCE;
        if patient_until <= now || now < state.begun_at {
            state.depth = self.limits.concurrency;
            drop(state);
            self.freed.notify_waiters();
            return room;
        }
        match room {
            Room::For(_) => room,
            Room::At(at) => Room::At(at.min(patient_until)),
            Room::Full => Room::At(patient_until),
        }
    }

    fn room_for_more(&self, state: &mut State, now: Timestamp) -> Room {
        if !state.may_hold {
            return Room::Full;
        }
        if let Some(until) = state.closed_until.filter(|until| now < *until) {
            return Room::At(until);
        }
        let called_until = state.called_at + CALLED_FOR;
        if called_until <= now || now < state.called_at {
            state.called = 0;
        }
        let mut most = if state.is_worth_a_call(self.limits.concurrency) {
            state.places(self.limits.concurrency)
        } else {
            0
        };
        if let Some(demand) = &self.demand {
            most = most.min(demand.asked().saturating_sub(state.called));
        }
        if most == 0 {
            return if state.called > 0 { Room::At(called_until) } else { Room::Full };
        }
        if let Some(rate) = self.limits.per_second {
            state.fill(rate, burst(&self.limits), now);
            let due = whole(state.tokens).saturating_sub(state.waiting + state.called);
            if due == 0 {
                // The wait for one attempt's share, in steps that are worth a look at the disk.
                let wait = ((1.0 - state.tokens.fract()) / rate).clamp(0.02, 60.0);
                return Room::At(now + Duration::from_secs_f64(wait));
            }
            most = most.min(due);
        }
        let is_first = state.running + state.waiting + state.called == 0;
        Room::For(Wanted { most, is_first, held: state.held })
    }

    /// Whether whatever comes now has to be held.
    pub(crate) fn is_full(&self, now: Timestamp) -> bool {
        let state = self.lock();
        state.waiting >= state.depth || state.is_closed(now)
    }

    /// So many are being called up. Counted before they can arrive.
    pub(crate) fn call(&self, wanted: Wanted, now: Timestamp) {
        let mut state = self.lock();
        state.called += wanted.most;
        state.called_at = now;
    }

    /// So many of them were called up.
    pub(crate) fn called(&self, wanted: Wanted, called: CalledUp) {
        let mut state = self.lock();
        state.called = state.called.saturating_sub(wanted.most.saturating_sub(called.claimed));
        // Who runs dry because nothing is left needs no more places.
        if called.may_be_more {
            state.adjust_depth(self.limits.concurrency);
        }
        // Nothing is left, unless something has come meanwhile.
        if !called.may_be_more && state.held == wanted.held {
            state.may_hold = false;
        }
    }
}

fn burst(limits: &Limits) -> f64 {
    limits.per_second.map_or(0.0, |rate| (rate * BURST).max(1.0))
}

/// Without its fraction; never negative.
fn whole(tokens: f64) -> usize {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // saturates, which is what is meant
    let whole = tokens as usize;
    whole
}

impl State {
    /// For how many there is room.
    fn places(&self, concurrency: usize) -> usize {
        (concurrency + self.depth).saturating_sub(self.running + self.waiting + self.called)
    }

    /// A look at the disk is worth it for several at once, and for one if nobody is there to begin next. Early enough that those who
    /// wait last until it is answered.
    fn is_worth_a_call(&self, concurrency: usize) -> bool {
        let places = self.places(concurrency);
        places * 4 >= self.depth || places > 0 && self.waiting + self.called == 0
    }

    /// More wait from now on if few were left before the disk had answered, and fewer if there were plenty: where attempts are slow
    /// nobody occupies a place for nothing, where they are fast nobody runs dry.
    fn adjust_depth(&mut self, concurrency: usize) {
        match self.fewest.take() {
            Some(fewest) if fewest * 4 < self.depth => {
                self.depth = (self.depth * 2).min(concurrency * DEEPEST);
            }
            Some(fewest) if fewest * 2 > self.depth => {
                self.depth = (self.depth - self.depth.div_ceil(8)).max(concurrency);
            }
            _ => {}
        }
    }

    fn is_closed(&self, now: Timestamp) -> bool {
        self.closed_until.is_some_and(|until| now < until)
    }

    fn fill(&mut self, rate: f64, most: f64, now: Timestamp) {
        let passed = now.since(self.filled_at).as_secs_f64(); // nothing if the clock was set back
        self.tokens = (self.tokens + passed * rate).min(most);
        self.filled_at = now;
    }
}

/// A place among those that wait in memory; given back also if whoever waits is dropped.
struct Place<'a> {
    lane: &'a Lane,
    is_taken: bool,
}

impl Place<'_> {
    fn leave(&mut self, state: &mut State) {
        state.waiting -= 1;
        self.is_taken = false;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.is_taken {
            self.lane.lock().waiting -= 1;
        }
    }
}

/// The leave to make one attempt. Dropped at its end.
#[derive(Debug)]
#[must_use = "the attempt is over when this is dropped"]
pub(crate) struct Turn {
    lane: Arc<Lane>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.lane.lock();
        state.running -= 1;
        state.fewest = Some(state.fewest.map_or(state.waiting, |fewest| fewest.min(state.waiting)));
        let is_worth_a_call = state.may_hold && state.is_worth_a_call(self.lane.limits.concurrency);
        drop(state);
        self.lane.freed.notify_one();
        if is_worth_a_call {
            self.lane.room.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive_retry::VirtualTime;

    const START: Timestamp = Timestamp::from_millis(1_767_225_600_000);

    fn lane(concurrency: usize, per_second: Option<f64>) -> Arc<Lane> {
        Arc::new(Lane::new(Limits { concurrency, per_second }, START, Arc::default(), None))
    }

    fn called(claimed: usize, may_be_more: bool) -> CalledUp {
        CalledUp { claimed, may_be_more }
    }

    fn most(room: Room) -> usize {
        match room {
            Room::For(call) => call.most,
            Room::At(_) | Room::Full => 0,
        }
    }

    #[tokio::test]
    async fn so_many_run_as_many_wait_and_the_rest_is_held() {
        let lane = lane(2, None);
        let (one, two) = (lane.enter(|| START).await.unwrap(), lane.enter(|| START).await.unwrap());
        let enter = || {
            let lane = Arc::clone(&lane);
            tokio::spawn(async move { lane.enter(|| START).await })
        };
        let (three, four) = (enter(), enter());
        tokio::task::yield_now().await;
        assert!(lane.enter(|| START).await.is_none(), "held");
        assert_eq!(most(lane.room(START)), 0, "there is no room for it");
        drop(one);
        let three = three.await.unwrap().expect("its turn has come");
        assert_eq!(most(lane.room(START)), 1);
        four.abort();
        assert!(four.await.is_err());
        assert_eq!(most(lane.room(START)), 2, "who stops waiting gives its place back");
        drop((two, three));
        assert_eq!(most(lane.room(START)), 4);
    }

    /// A lane whose attempts end in an instant, and who has waited for the disk meanwhile.
    async fn work(lane: &Arc<Lane>, ends_meanwhile: usize) {
        let Room::For(call) = lane.room(START) else { return };
        for _ in 0..ends_meanwhile {
            drop(lane.enter(|| START).await);
        }
        lane.call(call, START);
        lane.called(call, called(0, true));
    }

    #[tokio::test]
    async fn more_wait_in_memory_where_attempts_end_faster_than_the_disk_answers() {
        let lane = lane(4, None);
        assert_eq!(most(lane.room(START)), 8);
        work(&lane, 1).await;
        assert_eq!(most(lane.room(START)), 12, "it ran dry");
        for _ in 0..10 {
            work(&lane, 1).await;
        }
        assert_eq!(most(lane.room(START)), 4 + 4 * DEEPEST, "and never more than that");

        let mut state = lane.lock();
        state.fewest = Some(40);
        state.adjust_depth(4);
        assert_eq!(state.depth, 56, "plenty were left");
        for _ in 0..40 {
            state.fewest = Some(state.depth - state.depth / 4);
            state.adjust_depth(4);
        }
        assert_eq!(state.depth, 4, "few are enough where attempts are slow");
    }

    #[tokio::test]
    async fn who_waits_behind_one_that_stands_still_goes_back_to_the_disk() {
        let lane = lane(2, None);
        lane.lock().depth = 8;
        let running = (lane.enter(|| START).await, lane.enter(|| START).await);
        let enter = |_| {
            let lane = Arc::clone(&lane);
            tokio::spawn(async move { lane.enter(|| START).await })
        };
        let waiting: Vec<_> = (0..6).map(enter).collect();
        tokio::task::yield_now().await;
        let stalled = START + PATIENCE;
        assert!(matches!(lane.room(START), Room::For(_)), "two more may come");
        lane.lock().may_hold = false;
        assert!(matches!(lane.room(START), Room::At(at) if at == stalled), "it is looked at again");
        lane.room(stalled);
        let (mut left, mut stayed) = (0, 0);
        for one in waiting {
            // Those who stay wait for those who run.
            match tokio::time::timeout(Duration::from_millis(20), one).await {
                Ok(turn) => left += usize::from(turn.unwrap().is_none()),
                Err(_) => stayed += 1,
            }
        }
        assert_eq!((left, stayed), (4, 2));
        drop(running);
    }

    #[tokio::test]
    async fn what_is_called_up_is_counted_until_it_arrives_or_does_not() {
        let lane = lane(2, None);
        let Room::For(call) = lane.room(START) else { panic!("something may be there since before") };
        lane.call(call, START);
        lane.called(call, called(4, true));
        assert!(matches!(lane.room(START), Room::At(_)), "as many as there is room for are on their way");
        let turn = lane.enter(|| START).await.unwrap();
        let later = START + CALLED_FOR;
        assert_eq!(most(lane.room(later)), 3, "the other three have not come to their turn");
        drop(turn);
        let Room::For(call) = lane.room(later) else { panic!("there is room") };
        lane.call(call, later);
        lane.called(call, called(0, false));
        assert!(matches!(lane.room(later), Room::Full), "nothing is there");
    }

    #[tokio::test]
    async fn what_is_held_while_it_is_called_up_is_not_forgotten() {
        let lane = lane(1, None);
        let turn = lane.enter(|| START).await.unwrap();
        let Room::For(call) = lane.room(START) else { panic!("one can wait") };
        lane.call(call, START);
        let waiting = lane.enter(|| START);
        let mut waiting = std::pin::pin!(waiting);
        assert!(futures_poll(waiting.as_mut()).is_none());
        assert!(lane.enter(|| START).await.is_none(), "held");
        lane.is_held();
        lane.called(call, called(0, false));
        drop(turn);
        drop(waiting.await.unwrap());
        assert_eq!(most(lane.room(START)), 2, "it is looked for");
    }

    fn futures_poll<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match future.poll(&mut context) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        }
    }

    #[tokio::test]
    async fn so_many_begin_in_a_second_and_no_more() {
        let lane = lane(100, Some(10.0));
        let time = VirtualTime::starting_at(START);
        let clock = time.clock();
        let mut begun = 0;
        for _ in 0..1000 {
            if lane.enter(|| clock.now()).await.is_some() {
                begun += 1;
            }
            time.advance(Duration::from_millis(10));
        }
        assert!((100..=103).contains(&begun), "{begun} in ten seconds");
        assert!(matches!(lane.room(clock.now()), Room::At(_)) || most(lane.room(clock.now())) <= 2);
    }

    /// None of them may wait for the end of an attempt that nobody makes.
    #[tokio::test]
    async fn who_waits_behind_one_that_may_not_begin_yet_goes_back_to_the_disk_as_well() {
        let lane = lane(1, Some(1.0));
        lane.lock().depth = 16;
        let running = lane.enter(|| START).await.unwrap();
        let enter = |_| {
            let lane = Arc::clone(&lane);
            tokio::spawn(async move { lane.enter(|| START).await })
        };
        let waiting: Vec<_> = (0..5).map(enter).collect();
        tokio::task::yield_now().await;
        drop(running);
        for one in waiting {
            let turn = tokio::time::timeout(Duration::from_secs(10), one).await.expect("nobody is forgotten");
            assert!(turn.unwrap().is_none(), "there is no share of this second left");
        }
        assert_eq!(lane.lock().waiting, 0);
    }

    /// What arrives before it is known how many come is counted all the same.
    #[tokio::test]
    async fn who_arrives_early_is_not_waited_for() {
        let lane = lane(2, None);
        let Room::For(call) = lane.room(START) else { panic!("there is room") };
        lane.call(call, START);
        let turns = (lane.enter(|| START).await, lane.enter(|| START).await);
        lane.called(call, called(2, true));
        assert_eq!(lane.lock().called, 0);
        drop(turns);
    }

    #[tokio::test]
    async fn a_closed_lane_lets_nobody_in_and_opens_by_itself() {
        let lane = lane(2, None);
        let (one, two) = (lane.enter(|| START).await, lane.enter(|| START).await);
        let waiting = {
            let lane = Arc::clone(&lane);
            tokio::spawn(async move { lane.enter(|| START).await })
        };
        tokio::task::yield_now().await;
        lane.close_for(Duration::from_secs(5), START);
        assert!(waiting.await.unwrap().is_none(), "who waits in memory goes to the disk");
        lane.close_for(Duration::from_secs(1), START);
        assert_eq!(lane.closed_until(START), Some(START + Duration::from_secs(5)), "the longer wait holds");
        drop((one, two));
        assert!(lane.enter(|| START).await.is_none());
        assert!(matches!(lane.room(START), Room::At(until) if until == START + Duration::from_secs(5)));
        let open = START + Duration::from_secs(5);
        assert_eq!(most(lane.room(open)), 4);
        assert!(lane.enter(|| open).await.is_some());
        lane.close_for(Duration::from_secs(1 << 40), open);
        assert_eq!(lane.closed_until(open), Some(open + LONGEST_CLOSED), "nobody closes it for ever");
    }
}
