//! `redrive replay …`

use serde_json::json;

use super::receiver::Receiver;
use super::world::{World, until};

#[test]
fn a_replay_sends_missed_events_again() {
    let receiver = Receiver::start(500);
    let world = World::through_server();
    let made =
        world.json(&["endpoints", "add", &receiver.url(), "--pattern", "order.*", "--max-attempts", "1"]);
    let id = made["id"].as_str().unwrap();
    let event = world.publish("order.created", "1");
    let dry = ["replay", "endpoint", id, "--dry-run"];
    until("it is dead-lettered", || (world.json(&dry) == json!({"would_replay": 1})).then_some(()));
    assert!(world.text(&dry).contains("1 event would go"));
    assert_eq!(
        world.json(&[&dry[..], &["--until", "2020-01-01T00:00:00Z"]].concat()),
        json!({"would_replay": 0})
    );
    receiver.respond_with(204);
    let begun = world.json(&["replay", "endpoint", id, "--since", "1h", "--per-second", "50"]);
    let job = begun["id"].as_str().unwrap();
    let done = until("the replay is done", || {
        let job = world.json(&["replay", "show", job]);
        (job["state"] == "done").then_some(job)
    });
    assert_eq!((&done["replayed"], &done["per_second"]), (&json!(1), &json!(50.0)));
    until("it was sent again", || (receiver.requests().len() >= 2).then_some(()));
    assert!(world.text(&["replay", "list"]).contains(job));
    assert!(world.text(&["replay", "show", job]).contains("done"));
    assert_eq!(world.json(&["replay", "cancel", job])["state"], "done", "a finished replay stays done");
    until("the event is done", || {
        let answer = world.json(&["replay", "event", &event, "--endpoint", id]);
        (answer["replayed"] == true).then_some(())
    });
    assert!(
        world
            .refused(1, &["replay", "show", "rp_00000000000000000000000000000000"])
            .contains("there is no replay")
    );
    assert!(world.refused(2, &["replay", "show", "x"]).contains("rp_"));
    assert!(world.refused(2, &["replay", "endpoint", id, "--per-second", "0"]).contains("per_second"));
}

#[test]
fn a_replay_stored_in_a_file_runs_at_the_next_server_start() {
    let receiver = Receiver::start(500);
    let mut world = World::on_file();
    world.serve(&["--allow-range", "127.0.0.0/8", "--max-attempts", "1"]);
    let made = world.json(&["endpoints", "add", &receiver.url(), "--pattern", "order.*"]);
    let id = made["id"].as_str().unwrap();
    world.wait_for_endpoint(id);
    world.publish("order.created", "1");
    let dry = ["replay", "endpoint", id, "--dry-run"];
    until("it is dead-lettered", || (world.json(&dry) == json!({"would_replay": 1})).then_some(()));
    world.stop();
    receiver.respond_with(204);
    let said = world.text(&["replay", "endpoint", id]);
    assert!(said.contains("stored") && said.contains("the server that runs on this database"), "{said}");
    assert_eq!(world.json(&["replay", "list"])["data"][0]["state"], "running");
    let before = receiver.requests().len();
    world.serve(&["--allow-range", "127.0.0.0/8"]);
    until("the next server has sent it", || (receiver.requests().len() > before).then_some(()));
}
