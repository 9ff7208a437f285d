//! The document, and whether the server does what it says.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::world::Place;

/// Every operation that is documented with a scope refuses who has no token, and who has the wrong one.
#[test]
fn every_operation_asks_for_the_scope_that_it_names() {
    let place = Place::file();
    let (publish, _) = place.token("publish", &[]);
    let (read, _) = place.token("read", &[]);
    let world = place.serve(&[]);
    let document = world.get("/openapi.json").ok(200);
    let mut checked = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let scope = operation["security"][0]["token"][0].as_str();
            assert_eq!(scope.is_none(), ["/healthz", "/readyz"].contains(&path.as_str()), "{method} {path}");
            let Some(scope) = scope else { continue };
            let (method, path) =
                (method.to_uppercase(), path.replace("{id}", "0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19"));
            world.send(&method, &path, &[], "").problem(401, "token_required");
            let wrong = if scope == "read" { &publish } else { &read };
            world.as_holder(wrong, &method, &path, "").problem(403, "missing_scope");
            checked += 1;
        }
    }
    assert!(checked >= 15, "{checked}");
}

/// Thousands of requests, made from the document: nothing breaks the server, and every answer is as documented.
#[tokio::test]
async fn the_server_does_what_its_document_says() {
    let schemathesis = installed();
    for (place, examples) in [(Place::file(), "40"), (Place::server(), "10")] {
        does_as_documented(&schemathesis, place, examples).await;
    }
}

async fn does_as_documented(schemathesis: &Path, place: Place, examples: &str) {
    place.die(&["bad.card", "bad.order", "bad.order"]).await;
    let (admin, _) = place.token("admin", &[]);
    let world = place.serve(&[]);
    let output = Command::new(schemathesis)
        .args(["run", &format!("http://{}/openapi.json", world.address)])
        .args(["--header", &format!("Authorization: Bearer {admin}")])
        .args(["--exclude-path", "/v1/stream"]) // it has no end
        .args(["--exclude-path", "/v1/subscriptions/{name}/pull"]) // it waits as long as it is told to
        // Some rules cannot be said in a schema: not both of due_at and delay_ms, not the same key for another body.
        .args(["--exclude-checks", "positive_data_acceptance"])
        .args(["--max-examples", examples, "--generation-deterministic", "--no-color"])
        .current_dir(tempfile::tempdir().unwrap().path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(!world.log().contains("ERROR"), "{}", world.log());
    let metrics = world.as_holder(&admin, "GET", "/metrics", "").body;
    assert!(!metrics.contains("status=\"5"), "{metrics}");
}

/// Finds schemathesis, or installs it beside what was built.
fn installed() -> PathBuf {
    if let Some(named) = std::env::var_os("REDRIVE_SCHEMATHESIS") {
        return named.into();
    }
    let target = Path::new(env!("CARGO_BIN_EXE_redrive")).ancestors().nth(2).unwrap();
    let folder = target.join("schemathesis");
    let program = folder.join("bin/schemathesis");
    if !program.exists() {
        let run = |command: &mut Command| {
            let output = command.output();
            assert!(
                output.as_ref().is_ok_and(|output| output.status.success()),
                "schemathesis is missing and cannot be installed into {}: it needs python3 with venv, and pypi.org; or name \
                 one in REDRIVE_SCHEMATHESIS. {output:?}",
                folder.display()
            );
        };
        run(Command::new("python3").args(["-m", "venv"]).arg(&folder));
        run(Command::new(folder.join("bin/pip")).args(["install", "--quiet", "schemathesis==4.32.5"]));
    }
    program
}

#[test]
fn the_document_names_every_route_and_no_secret() {
    let world = Place::file().serve(&[]);
    let document = world.get("/openapi.json").ok(200);
    assert_eq!(document["openapi"].as_str().unwrap().split('.').next(), Some("3"));
    for path in [
        "/v1/events",
        "/v1/events/batch",
        "/v1/events/{id}",
        "/v1/dlq",
        "/v1/dlq/groups",
        "/v1/dlq/{id}",
        "/v1/dlq/{id}/retry",
        "/v1/dlq/retry",
        "/v1/stats",
        "/v1/stream",
        "/v1/tokens",
        "/v1/tokens/{id}",
        "/metrics",
        "/healthz",
        "/readyz",
    ] {
        let item = document["paths"][path].as_object().unwrap_or_else(|| panic!("{path}"));
        for operation in item.values() {
            assert_eq!(
                operation["responses"]["default"]["content"]["application/problem+json"]["schema"]["$ref"],
                "#/components/schemas/Problem"
            );
            assert!(operation["summary"].is_string(), "{path}");
        }
    }
}
