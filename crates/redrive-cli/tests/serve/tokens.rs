//! Tokens, scopes and rate limits.

use std::sync::Arc;

use redrive_api::page::PageQuery;
use serde_json::{Value, json};

use crate::world::{TestDatabase, World, ok, refused};

const EVENT: &str = r#"{"type":"a","payload":1}"#;

#[test]
fn without_tokens_local_clients_have_full_access_with_a_warning() {
    let world = World::new();
    assert_eq!(world.get("/v1/tokens").ok(200), json!({"data": [], "next": null}));
    assert!(
        world.log().contains("there are no tokens: local clients of this user and root have full access"),
        "{}",
        world.log()
    );
}

#[test]
fn listening_beyond_loopback_requires_a_token() {
    let database = TestDatabase::sqlite();
    let said = refused(&database, &["--listen", "0.0.0.0:0"]);
    assert!(said.contains("redrive tokens create --name admin --scope admin"), "{said}");
    database.token("admin", &[]);
    let database = Arc::new(database);
    let world = World::start(Arc::clone(&database), &["--listen", "0.0.0.0:0"]);
    assert!(world.address.ip().is_unspecified());
}

#[test]
fn a_token_is_limited_to_its_scopes() {
    for database in [TestDatabase::sqlite(), TestDatabase::postgres()] {
        let (publish, _) = database.token("publish", &[]);
        let (read, _) = database.token("read", &[]);
        let (admin, _) = database.token("admin", &[]);
        let world = database.serve(&[]);
        for path in ["/v1/events", "/v1/dlq", "/v1/stats", "/v1/stream", "/v1/tokens", "/metrics"] {
            let answer = world.get(path);
            answer.problem(401, "token_required");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        }
        assert_eq!(world.get("/healthz").status, 200);
        assert_eq!(world.get("/readyz").status, 200);
        assert_eq!(world.get("/openapi.json").status, 200);
        assert_eq!(world.send_as(&publish, "POST", "/v1/events", EVENT).status, 202);
        assert_eq!(world.send_as(&admin, "POST", "/v1/events", EVENT).status, 202);
        world.send_as(&read, "POST", "/v1/events", EVENT).problem(403, "missing_scope");
        assert_eq!(world.send_as(&read, "GET", "/v1/events", "").status, 200);
        assert_eq!(world.send_as(&read, "GET", "/metrics", "").status, 200);
        world.send_as(&publish, "GET", "/v1/events", "").problem(403, "missing_scope");
        world.send_as(&read, "DELETE", "/v1/dlq?older_than=7d", "").problem(403, "missing_scope");
        world.send_as(&read, "GET", "/v1/tokens", "").problem(403, "missing_scope");
        world.send_as("rdt_nonsense", "GET", "/v1/events", "").problem(401, "invalid_token");
        world.send("GET", "/v1/events", &[("authorization", "Basic YTpi")], "").problem(401, "invalid_token");
        world.get(&format!("/v1/events?token={admin}")).problem(401, "token_required");
        for secret in [&publish, &read, &admin] {
            assert!(!world.log().contains(secret.as_str()), "{}", world.log());
        }
    }
}

#[test]
fn tokens_are_created_and_revoked_by_http() {
    let database = TestDatabase::sqlite();
    let (secret, _) = database.token("admin", &[]);
    let mut world = database.serve(&[]);
    world.get("/v1/tokens").problem(401, "token_required");
    world.token = Some(secret);
    let body = json!({"name": "shop", "scopes": ["read", "publish", "read"], "expires_in_s": 3600});
    let shop = world.post("/v1/tokens", &body).ok(201);
    assert_eq!(shop["scopes"], json!(["publish", "read"]));
    let listed = world.get("/v1/tokens").ok(200);
    assert_eq!(listed["data"].as_array().unwrap().len(), 2);
    assert!(!listed.to_string().contains("rdt_") && !listed.to_string().contains("sha256"), "{listed}");
    world.until("its use is recorded", || {
        world.get("/v1/tokens").ok(200)["data"][0]["last_used_at"].is_string()
    });
    for bad in [
        json!({"name": "", "scopes": ["read"]}),
        json!({"name": "a\nb", "scopes": ["read"]}),
        json!({"name": "a", "scopes": []}),
        json!({"name": "a", "scopes": ["write"]}),
        json!({"name": "a", "scopes": ["read"], "expires_in_s": 0}),
        json!({"name": "a"}),
    ] {
        world.post("/v1/tokens", &bad).problem(400, "invalid_request");
    }
    let shop_token = shop["token"].as_str().unwrap();
    let events =
        |token: &str| world.send("GET", "/v1/events", &[("authorization", &format!("Bearer {token}"))], "");
    assert_eq!(events(shop_token).status, 200);
    let revoke = world.send("DELETE", &format!("/v1/tokens/{}", shop["id"].as_str().unwrap()), &[], "");
    assert_eq!((revoke.status, revoke.body.as_str()), (204, ""));
    events(shop_token).problem(401, "invalid_token");
    world.send("DELETE", "/v1/tokens/none", &[], "").problem(404, "not_found");
    world.send("DELETE", "/v1/tokens/%2F", &[], "").problem(404, "not_found");
}

#[test]
fn tokens_are_listed_in_pages_the_oldest_first() {
    let database = TestDatabase::sqlite();
    let (admin, _) = database.token("admin", &[]);
    let mut world = database.serve(&[]);
    world.token = Some(admin);
    for n in 0..4 {
        world.post("/v1/tokens", &json!({"name": format!("n{n}"), "scopes": ["read"]})).ok(201);
    }
    let client = world.client();
    let (mut names, mut times, mut query) = (Vec::new(), Vec::new(), PageQuery::default());
    query.limit = Some(2);
    loop {
        let page = ok(client.tokens().list(&query));
        times.extend(page.data.iter().map(|token| token.created_at.0));
        names.extend(page.data.iter().map(|token| token.name.clone()));
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
        // The cursor still works after its token is revoked.
        if names.len() == 4 {
            ok(client.tokens().revoke(&page.data[1].id));
        }
    }
    // Tokens of one millisecond have no order among them.
    assert!(times.is_sorted(), "{times:?}");
    names.sort();
    assert_eq!(names, ["n0", "n1", "n2", "n3", "test"]);
    for bad in ["limit=0", "limit=201", "after=x", "after=", "after=1.", "after=-1.a", "page=2"] {
        world.get(&format!("/v1/tokens?{bad}")).problem(400, "invalid_request");
    }
}

#[test]
fn a_token_revoked_by_another_process_is_refused_within_a_second() {
    for database in [TestDatabase::sqlite(), TestDatabase::postgres()] {
        let (token, id) = database.token("read", &[]);
        database.token("admin", &[]);
        let database = Arc::new(database);
        let world = World::start(Arc::clone(&database), &[]);
        assert_eq!(world.send_as(&token, "GET", "/v1/events", "").status, 200);
        database.text(&["tokens", "revoke", &id]);
        std::thread::sleep(std::time::Duration::from_secs(1)); // the documented bound
        world.send_as(&token, "GET", "/v1/events", "").problem(401, "invalid_token");
    }
}

#[test]
fn a_token_expires() {
    let database = TestDatabase::sqlite();
    let (token, _) = database.token("read", &["--expires-in", "2s"]);
    let world = database.serve(&[]);
    assert_eq!(world.send_as(&token, "GET", "/v1/events", "").status, 200);
    world.until("it has expired", || world.send_as(&token, "GET", "/v1/events", "").status == 401);
    let problem = world.send_as(&token, "GET", "/v1/events", "").problem(401, "invalid_token");
    assert!(problem["detail"].as_str().unwrap().contains("expired"), "{problem}");
    world.get("/v1/events").problem(401, "token_required");
}

#[test]
fn a_token_is_shown_once_and_stored_as_a_hash() {
    let database = TestDatabase::sqlite();
    let (token, id) = database.token("publish,read", &["--expires-in", "30d"]);
    let listed: Value = serde_json::from_str(&database.text(&["tokens", "list", "--json"])).unwrap();
    assert_eq!(listed["data"][0]["id"], id.as_str());
    assert_eq!(listed["data"][0]["scopes"], json!(["publish", "read"]));
    assert!(database.text(&["tokens", "list"]).contains("publish,read"));
    let file = std::fs::read(database.name()).unwrap();
    assert!(!file.windows(token.len()).any(|part| part == token.as_bytes()), "the secret is not in the file");
    let plain = database.text(&["tokens", "create", "--name", "ci", "--scope", "read"]);
    assert!(plain.starts_with("rdt_") && plain.lines().count() == 1, "{plain}");
    assert!(database.text(&["tokens", "revoke", &id]).contains("is revoked"));
    let again = database.command(&["tokens", "revoke", &id]).output().unwrap();
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    let none = database.command(&["tokens", "create", "--name", "ci", "--scope", "write"]).output().unwrap();
    assert_eq!(none.status.code(), Some(2), "{none:?}");
}

#[test]
fn each_token_has_its_own_rate_limit() {
    let database = TestDatabase::sqlite();
    let (one, _) = database.token("publish", &[]);
    let (two, _) = database.token("publish", &[]);
    let world = database.serve(&["--token-rate-limit", "2"]);
    let statuses: Vec<_> = (0..40).map(|_| world.send_as(&one, "POST", "/v1/events", EVENT)).collect();
    let limited =
        statuses.iter().find(|answer| answer.status == 429).expect("40 requests at once exceed 2 per second");
    limited.problem(429, "rate_limited");
    assert_eq!(limited.header("retry-after"), Some("1"));
    assert_eq!(world.send_as(&two, "POST", "/v1/events", EVENT).status, 202);
}

#[test]
fn trace_logging_shows_no_secret() {
    let database = TestDatabase::sqlite();
    let (admin, _) = database.token("admin", &[]);
    let world = World::start_with(Arc::new(database), &[], &[("RUST_LOG", "trace")]);
    let made = world.send_as(&admin, "POST", "/v1/tokens", r#"{"name":"shop","scopes":["publish"]}"#).ok(201);
    let made = made["token"].as_str().unwrap();
    assert_eq!(world.send_as(made, "POST", "/v1/events", EVENT).status, 202);
    world.send_as("rdt_mistyped_but_secret", "GET", "/v1/events", "").problem(401, "invalid_token");
    world.until("requests are logged", || world.log().contains("status=401"));
    let log = world.log();
    for secret in [&admin, made, "rdt_mistyped_but_secret"] {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
}

#[tokio::test]
async fn a_corrupt_token_grants_nothing() {
    let database = TestDatabase::sqlite();
    let options = redrive::store::SqliteOptions { owner: false, ..Default::default() };
    let store = redrive::store::SqliteStore::open(database.name(), options).unwrap();
    redrive_store::Documents::create(&store, "token/bad".parse().unwrap(), "1".to_owned()).await.unwrap();
    redrive::store::Store::close(&store).await.unwrap();
    let world = database.serve(&[]);
    world.get("/v1/events").problem(401, "token_required");
}
