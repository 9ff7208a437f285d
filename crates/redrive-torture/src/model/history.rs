//! Generates random histories and shrinks failing ones.

use std::time::{Duration, Instant};

use proptest::strategy::{Just, Strategy, ValueTree};
use proptest::test_runner::{Reason, TestRunner};

use super::case::{self, Tally};
use super::operation::{Operation, operation, scene};
use super::scene::Scene;

/// The longest history of one case.
const MAX_OPERATIONS: u32 = 400;

/// Time limit of shrinking.
const SHRINK_TIMEOUT: Duration = Duration::from_secs(20);

/// Runs of a shorter history before it counts as passing: the writer is a thread of its own.
const TRIES: u32 = 3;

type Tree<T> = Box<dyn ValueTree<Value = T>>;

/// A scene and its operations, each with its own shrinker.
pub(super) struct History {
    scene: Tree<Scene>,
    operations: Vec<Tree<Operation>>,
}

impl History {
    pub(super) fn new(runner: &mut TestRunner, on_file: bool) -> Result<Self, Reason> {
        let length = (1..=MAX_OPERATIONS).new_tree(runner)?.current();
        let one = operation(on_file);
        let operations = (0..length).map(|_| one.new_tree(runner)).collect::<Result<_, _>>()?;
        Ok(History { scene: Box::new(scene(on_file).new_tree(runner)?), operations })
    }

    pub(super) fn scene(&self) -> Scene {
        self.scene.current()
    }

    pub(super) fn operations(&self) -> Vec<Operation> {
        self.operations.iter().map(|tree| tree.current()).collect()
    }

    fn failure(&self) -> Option<String> {
        let (scene, operations) = (self.scene(), self.operations());
        (0..TRIES).find_map(|_| case::run(&scene, &operations, &mut Tally::default()).err())
    }
}

/// Removes operations that the failure does not need, then simplifies the rest, within the time limit.
pub(super) fn shortest(mut history: History, mut why: String) -> (History, String) {
    let until = Instant::now() + SHRINK_TIMEOUT;
    let mut size = history.operations.len();
    while size > 0 && Instant::now() < until {
        let mut from = 0;
        while from < history.operations.len() && Instant::now() < until {
            let to = (from + size).min(history.operations.len());
            let removed: Vec<_> = history.operations.drain(from..to).collect();
            match history.failure() {
                Some(still) if !history.operations.is_empty() => why = still,
                _ => {
                    history.operations.splice(from..from, removed);
                    from = to;
                }
            }
        }
        size /= 2;
    }
    for place in 0..history.operations.len() {
        why = simplest(&mut history, |history| &mut history.operations[place], why, until);
    }
    why = simplest(&mut history, |history| &mut history.scene, why, until);
    (history, why)
}

/// Simplifies one part as long as the history fails, and returns the simplest failing one.
fn simplest<T: Clone + std::fmt::Debug + 'static>(
    history: &mut History,
    part: impl Fn(&mut History) -> &mut Tree<T>,
    mut why: String,
    until: Instant,
) -> String {
    let mut best = part(history).current();
    let mut goes_on = part(history).simplify();
    while goes_on && Instant::now() < until {
        goes_on = match history.failure() {
            Some(still) => {
                (best, why) = (part(history).current(), still);
                part(history).simplify()
            }
            None => part(history).complicate(),
        };
    }
    *part(history) = Box::new(Just(best));
    why
}
