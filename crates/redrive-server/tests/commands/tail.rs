//! `redrive events tail`

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value;

use super::world::World;

#[test]
fn what_is_published_is_shown_from_a_file_and_from_a_server() {
    let mut world = World::on_a_file();
    world.serve(&[]);
    let server = ["--server".to_owned(), world.address()];
    for side in [&[][..], &server[..]] {
        let mut command = world.command(&["events", "tail", "--type", "order.*", "--json"]);
        let mut child = command.args(side).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // What is published before it watches is not shown, so publish until something is.
        let (world, stop) = (&world, std::sync::atomic::AtomicBool::new(false));
        let line = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    world.publish("user.created", "1");
                    world.publish("order.created", "1");
                    std::thread::sleep(std::time::Duration::from_millis(100));
                }
            });
            // What was on its way when it began to watch may be over first.
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
