//! `redrive events tail`

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::world::{World, until};

#[test]
fn tail_shows_published_events_from_a_file_and_a_server() {
    let mut world = World::on_file();
    world.serve(&[]);
    let server = ["--server".to_owned(), world.address()];
    let host = world.address().trim_start_matches("http://").to_owned();
    let mut stream = TcpStream::connect(&host).unwrap();
    write!(stream, "GET /v1/stream?type=order.* HTTP/1.1\r\nhost: {host}\r\n\r\n").unwrap();
    let by_http = lines_of(stream);
    until("the stream is open", || contains(&by_http, ": watching"));
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
        let mut line: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&line["event"], &line["type"]), (&"published".into(), &"order.created".into()), "{line}");
        let mut data = until("the stream of the API has it", || {
            let lines = by_http.lock().unwrap();
            let is_it =
                |text: &&String| text.starts_with("data: ") && text.contains(line["id"].as_str().unwrap());
            let first = lines.iter().find(is_it)?;
            Some(serde_json::from_str::<Value>(&first["data: ".len()..]).unwrap())
        });
        line.as_object_mut().unwrap().remove("event");
        // A database is polled, so that the event may have ended meanwhile.
        for changing in ["status", "updated_at"].iter().filter(|_| side.is_empty()) {
            (line[changing], data[changing]) = (Value::Null, Value::Null);
        }
        assert_eq!(line, data, "a line has what a message of the stream has");
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
