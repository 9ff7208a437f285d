//! Readiness, and failures at the start.

use std::sync::Arc;

use redrive_servers::RabbitMq;

use super::broker::failure;
use super::world::{Shop, metric};
use crate::world::{TestDatabase, World};

#[test]
fn the_scheduler_starts_without_a_broker_and_becomes_ready_when_it_is_back() {
    let server = RabbitMq::start().unwrap_or_else(|missing| panic!("{missing}"));
    server.crash();
    let database = Arc::new(TestDatabase::sqlite());
    let url = server.url();
    let variables = [("HTTP_PORT", "0"), ("RABBITMQ_URL", url.as_str()), ("BASE_DELAY_MS", "20")];
    let world = World::spawn(Arc::clone(&database), &["scheduler"], &variables);
    let is_down = || {
        let problem = world.get("/readyz").problem(503, "unavailable");
        let detail = problem["detail"].as_str().unwrap().to_owned();
        detail.contains("for consuming") && detail.contains("for publishing")
    };
    assert!(is_down());
    for alive in ["/healthz", "/health"] {
        assert_eq!(world.get(alive).ok(200)["status"], "ok");
    }
    assert_eq!(metric(&world, "redrive_scheduler_connected{purpose=\"publish\"}"), Some(0));
    world.until("the log has the cause", || {
        world.log().contains("cannot connect") || world.log().contains("refused")
    });
    assert!(!world.log().contains("guest:guest"), "no password: {}", world.log());

    server.resume().unwrap();
    world.until("it is ready", || world.get("/readyz").status == 200);
    let shop = Shop::at(server.url(), "");
    shop.client.send_failure("retry.scheduled", &failure("m-1", "orders", 0));
    shop.client.next("orders", || world.log());

    server.crash();
    world.until("it is not ready", || world.get("/readyz").status == 503 && is_down());
    server.resume().unwrap();
    world.until("it is ready again", || world.get("/readyz").status == 200);
    let shop = Shop::at(server.url(), "");
    shop.client.send_failure("retry.scheduled", &failure("m-2", "orders", 0));
    // A crashed queue may redeliver a consumed message.
    while shop.client.next("orders", || world.log()).id() != "m-2" {}
}

/// Starts a scheduler that must fail with this exit code; returns its error text.
fn refused(database: &TestDatabase, code: i32, variables: &[(&str, &str)]) -> String {
    let output = database
        .command(&["scheduler"])
        .envs(variables.iter().copied())
        .env("HTTP_PORT", "0")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_failed_start_reports_the_reason() {
    let (shop, database) = (Shop::new(), Arc::new(TestDatabase::sqlite()));
    let said = refused(&database, 2, &[("DATABASE_URL", "mysql://anna:s3cret@127.0.0.1/shop")]);
    assert!(said.contains("mysql") && !said.contains("s3cret"), "{said}");
    let said = refused(&database, 2, &[("RABBITMQ_URL", "http://anna:s3cret@host")]);
    assert!(said.contains("RABBITMQ_URL") && !said.contains("s3cret"), "{said}");
    let said = refused(&database, 2, &[("BASE_DELAY_MS", "soon")]);
    assert!(said.contains("soon"), "{said}");
    let said = refused(&database, 2, &[("BASE_DELAY_MS", "90000")]);
    assert!(said.contains("delay"), "{said}");
    let said = refused(&database, 2, &[("RETRY_QUEUE", "q"), ("MANUAL_REVIEW_QUEUE", "q")]);
    assert!(said.contains("RETRY_QUEUE"), "{said}");

    // A file has one dispatcher.
    let world = shop.schedule(&database, &[]);
    let said = refused(&database, 1, &[("RABBITMQ_URL", &shop.broker)]);
    assert!(said.contains("is in use by process") && said.contains(&world.child.id().to_string()), "{said}");
    let output =
        database.command(&["scheduler", "--http-port", &world.address.port().to_string()]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("HTTP_PORT"), "{said}");
}
