//! A random history, and the way to a shorter one that fails as well.

use std::time::{Duration, Instant};

use proptest::strategy::{Just, Strategy, ValueTree};
use proptest::test_runner::{Reason, TestRunner};

use super::case::{self, Tally};
use super::operation::{Operation, operation, scene};
use super::scene::Scene;

/// The longest history of one case.
const MOST_OPERATIONS: u32 = 400;

/// How long a shorter one is looked for.
const PATIENCE: Duration = Duration::from_secs(20);

/// So often a shorter history is tried before it counts as one that does not fail: the writer is a thread of its own.
const TRIES: u32 = 3;

type Tree<T> = Box<dyn ValueTree<Value = T>>;

/// A scene and what happens there, each with its own ways to become simpler.
pub(super) struct History {
    scene: Tree<Scene>,
    operations: Vec<Tree<Operation>>,
}

impl History {
    pub(super) fn new(runner: &mut TestRunner, on_file: bool) -> Result<Self, Reason> {
        let length = (1..=MOST_OPERATIONS).new_tree(runner)?.current();
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

/// Leaves out what is not needed for a failure, then makes what is left simpler, as long as there is time.
pub(super) fn shortest(mut history: History, mut why: String) -> (History, String) {
    let until = Instant::now() + PATIENCE;
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

/// Makes one part simpler as long as it fails, and back where it does not, and leaves the simplest that fails.
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
