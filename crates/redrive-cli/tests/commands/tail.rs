//! `redrive events tail`

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::world::{World, until};

#[test]
fn tail_shows_published_events_from_a_file_and_a_server() {
    let mut world = World::on_file();
    world.serve(&[]);
    let server = ["--server".to_owned(), world.address()];
    for side in [&[][..], &server[..]] {
        let mut command = world.command(&["events", "tail", "--type", "order.*", "--json"]);
        let mut child = command.args(side).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // Events before the start of tail are not shown, so publish until one is.
        let (world, stop) = (&world, std::sync::atomic::AtomicBool::new(false));
        let line = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    world.publish("user.created", "1");
                    world.publish("order.created", "1");
                    std::thread::sleep(std::time::Duration::from_millis(100));
                }
            });
            // A delivery in flight at the start may be shown as done first.
            let line = lines.map_while(Result::ok).find(|line| line.contains("\"published\"")).unwrap();
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            line
        });
        child.kill().unwrap();
        child.wait().unwrap();
        let line: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&line["event"], &line["type"]), (&"published".into(), &"order.created".into()), "{line}");
    }
}

#[test]
fn tail_resumes_after_a_disconnect() {
    let mut world = World::on_file();
    world.serve(&[]);
    let address = world.address();
    let mut child = world
        .command(&["events", "tail", "--type", "order.*", "--json", "--server", &address])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let notes = lines_of(child.stderr.take().unwrap());
    let shown = lines_of(child.stdout.take().unwrap());
    let first = until("tail shows an event", || {
        world.publish("order.created", "1");
        shown.lock().unwrap().first().cloned()
    });
    world.stop();
    until("the disconnect is reported", || contains(&notes, "trying again"));
    let missed = world.publish("order.paid", "2");
    world.publish("user.created", "3");
    world.serve_at(address.trim_start_matches("http://"), &[]);
    until("tail has reconnected", || contains(&notes, "connected again"));
    let after = until("the missed event is shown", || {
        let shown = shown.lock().unwrap();
        shown.iter().any(|line| line.contains(&missed) && line.contains("\"done\"")).then(|| shown.clone())
    });
    let count =
        |what: &str| after.iter().filter(|line| line.contains(&missed) && line.contains(what)).count();
    assert_eq!((count("\"published\""), count("\"event\":\"done\"")), (1, 1), "{after:?}");
    assert_eq!(after.iter().filter(|line| **line == first).count(), 1, "no event is shown twice: {after:?}");
    assert!(!after.iter().any(|line| line.contains("user.created")), "{after:?}");
    let new = world.publish("order.created", "4");
    until("a new event is shown", || contains(&shown, &new));
    child.kill().unwrap();
    child.wait().unwrap();
}

type Lines = Arc<Mutex<Vec<String>>>;

fn lines_of(pipe: impl std::io::Read + Send + 'static) -> Lines {
    let lines = Lines::default();
    let kept = Arc::clone(&lines);
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            kept.lock().unwrap().push(line);
        }
    });
    lines
}

fn contains(lines: &Lines, what: &str) -> Option<()> {
    lines.lock().unwrap().iter().any(|line| line.contains(what)).then_some(())
}
