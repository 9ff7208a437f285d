//! Who may do what.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::world::{Place, World, refused};

const EVENT: &str = r#"{"type":"a","payload":1}"#;

#[test]
fn without_tokens_whoever_is_here_may_do_everything_and_the_log_says_so() {
    let world = World::new();
    assert_eq!(world.get("/v1/tokens").ok(200), json!({"data": [], "next": null}));
    assert!(
        world.log().contains("there are no tokens: whoever is on this machine may do everything"),
        "{}",
        world.log()
    );
}

#[test]
fn others_are_not_let_in_without_a_token() {
    let place = Place::file();
    let said = refused(&place, &["--listen", "0.0.0.0:0"]);
    assert!(said.contains("redrive tokens create --name admin --scope admin"), "{said}");
    place.token("admin", &[]);
    let place = Arc::new(place);
    let world = World::start(Arc::clone(&place), &["--listen", "0.0.0.0:0"]);
    assert!(world.address.ip().is_unspecified());
}

#[test]
fn a_token_does_what_its_scopes_say() {
    for place in [Place::file(), Place::server()] {
        let (publish, _) = place.token("publish", &[]);
        let (read, _) = place.token("read", &[]);
        let (admin, _) = place.token("admin", &[]);
        let world = place.serve(&[]);
        for path in ["/v1/events", "/v1/dlq", "/v1/stats", "/v1/stream", "/v1/tokens", "/metrics"] {
            let answer = world.get(path);
            answer.problem(401, "token_required");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        }
        assert_eq!(world.get("/healthz").status, 200);
        assert_eq!(world.get("/readyz").status, 200);
        assert_eq!(world.get("/openapi.json").status, 200);
        assert_eq!(world.as_holder(&publish, "POST", "/v1/events", EVENT).status, 202);
        assert_eq!(world.as_holder(&admin, "POST", "/v1/events", EVENT).status, 202);
        world.as_holder(&read, "POST", "/v1/events", EVENT).problem(403, "missing_scope");
        assert_eq!(world.as_holder(&read, "GET", "/v1/events", "").status, 200);
        assert_eq!(world.as_holder(&read, "GET", "/metrics", "").status, 200);
        world.as_holder(&publish, "GET", "/v1/events", "").problem(403, "missing_scope");
        world.as_holder(&read, "DELETE", "/v1/dlq?older_than=7d", "").problem(403, "missing_scope");
        world.as_holder(&read, "GET", "/v1/tokens", "").problem(403, "missing_scope");
        world.as_holder("rdt_nonsense", "GET", "/v1/events", "").problem(401, "invalid_token");
        world.send("GET", "/v1/events", &[("authorization", "Basic YTpi")], "").problem(401, "invalid_token");
        world.get(&format!("/v1/events?token={admin}")).problem(401, "token_required");
        for secret in [&publish, &read, &admin] {
            assert!(!world.log().contains(secret.as_str()), "{}", world.log());
        }
    }
}

#[test]
fn tokens_are_made_and_revoked_by_http() {
    let mut world = World::new();
    let made = world.post("/v1/tokens", &json!({"name": "admin", "scopes": ["admin"]})).ok(201);
    let secret = made["token"].as_str().unwrap().to_owned();
    assert!(secret.starts_with("rdt_"));
    world.get("/v1/tokens").problem(401, "token_required");
    world.token = Some(secret);
    let body = json!({"name": "shop", "scopes": ["read", "publish", "read"], "expires_in_s": 3600});
    let shop = world.post("/v1/tokens", &body).ok(201);
    assert_eq!(shop["scopes"], json!(["publish", "read"]));
    let listed = world.get("/v1/tokens").ok(200);
    assert_eq!(listed["data"].as_array().unwrap().len(), 2);
    assert!(!listed.to_string().contains("rdt_") && !listed.to_string().contains("sha256"), "{listed}");
    world
        .until("its use is noted", || world.get("/v1/tokens").ok(200)["data"][0]["last_used_at"].is_string());
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
    let place = Place::file();
    let (admin, _) = place.token("admin", &[]);
    let mut world = place.serve(&[]);
    world.token = Some(admin);
    for n in 0..4 {
        world.post("/v1/tokens", &json!({"name": format!("n{n}"), "scopes": ["read"]})).ok(201);
    }
    let (mut names, mut after) = (Vec::new(), String::new());
    loop {
        let page = world.get(&format!("/v1/tokens?limit=2{after}")).ok(200);
        let data = page["data"].as_array().unwrap();
        names.extend(data.iter().map(|token| token["name"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
        // Where the next page begins does not hang on a token that may be gone by then.
        let last = data.last().unwrap();
        if last["name"] == "n2" {
            world.send("DELETE", &format!("/v1/tokens/{}", last["id"].as_str().unwrap()), &[], "");
        }
    }
    assert_eq!(names, ["test", "n0", "n1", "n2", "n3"]);
    for bad in ["limit=0", "limit=201", "after=x", "after=", "after=1.", "after=-1.a", "page=2"] {
        world.get(&format!("/v1/tokens?{bad}")).problem(400, "invalid_request");
    }
}

#[test]
fn what_is_revoked_elsewhere_is_refused_here_within_a_second() {
    for place in [Place::file(), Place::server()] {
        let (token, id) = place.token("read", &[]);
        place.token("admin", &[]);
        let place = Arc::new(place);
        let world = World::start(Arc::clone(&place), &[]);
        assert_eq!(world.as_holder(&token, "GET", "/v1/events", "").status, 200);
        place.text(&["tokens", "revoke", &id]);
        std::thread::sleep(std::time::Duration::from_secs(1)); // the promise itself
        world.as_holder(&token, "GET", "/v1/events", "").problem(401, "invalid_token");
    }
}

#[test]
fn a_token_expires() {
    let place = Place::file();
    let (token, _) = place.token("read", &["--expires-in", "2s"]);
    let world = place.serve(&[]);
    assert_eq!(world.as_holder(&token, "GET", "/v1/events", "").status, 200);
    world.until("it has expired", || world.as_holder(&token, "GET", "/v1/events", "").status == 401);
    let problem = world.as_holder(&token, "GET", "/v1/events", "").problem(401, "invalid_token");
    assert!(problem["detail"].as_str().unwrap().contains("expired"), "{problem}");
    world.get("/v1/events").problem(401, "token_required");
}

#[test]
fn the_command_shows_a_token_once_and_keeps_its_hash_only() {
    let place = Place::file();
    let (token, id) = place.token("publish,read", &["--expires-in", "30d"]);
    let listed: Value = serde_json::from_str(&place.text(&["tokens", "list", "--json"])).unwrap();
    assert_eq!(listed["tokens"][0]["id"], id.as_str());
    assert_eq!(listed["tokens"][0]["scopes"], json!(["publish", "read"]));
    assert!(place.text(&["tokens", "list"]).contains("publish,read"));
    let file = std::fs::read(place.name()).unwrap();
    assert!(
        !file.windows(token.len()).any(|part| part == token.as_bytes()),
        "the secret is nowhere in the file"
    );
    let plain = place.text(&["tokens", "create", "--name", "ci", "--scope", "read"]);
    assert!(plain.starts_with("rdt_") && plain.lines().count() == 1, "{plain}");
    assert!(place.text(&["tokens", "revoke", &id]).contains("refused from now on"));
    let again = place.command(&["tokens", "revoke", &id]).output().unwrap();
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    let none = place.command(&["tokens", "create", "--name", "ci", "--scope", "write"]).output().unwrap();
    assert_eq!(none.status.code(), Some(2), "{none:?}");
}

#[test]
fn each_token_has_its_own_rate() {
    let place = Place::file();
    let (one, _) = place.token("publish", &[]);
    let (two, _) = place.token("publish", &[]);
    let world = place.serve(&["--token-rate-limit", "2"]);
    let statuses: Vec<_> = (0..40).map(|_| world.as_holder(&one, "POST", "/v1/events", EVENT)).collect();
    let limited =
        statuses.iter().find(|answer| answer.status == 429).expect("40 at once are more than 2 in a second");
    limited.problem(429, "rate_limited");
    assert_eq!(limited.header("retry-after"), Some("1"));
    assert_eq!(world.as_holder(&two, "POST", "/v1/events", EVENT).status, 202);
}

#[test]
fn no_secret_is_in_the_log_however_much_is_logged() {
    let place = Place::file();
    let (admin, _) = place.token("admin", &[]);
    let world = World::start_with(Arc::new(place), &[], &[("RUST_LOG", "trace")]);
    let made =
        world.as_holder(&admin, "POST", "/v1/tokens", r#"{"name":"shop","scopes":["publish"]}"#).ok(201);
    let made = made["token"].as_str().unwrap();
    assert_eq!(world.as_holder(made, "POST", "/v1/events", EVENT).status, 202);
    world.as_holder("rdt_mistyped_but_secret", "GET", "/v1/events", "").problem(401, "invalid_token");
    world.until("requests are logged", || world.log().contains("status=401"));
    let log = world.log();
    for secret in [&admin, made, "rdt_mistyped_but_secret"] {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
}

#[tokio::test]
async fn a_token_that_somebody_has_spoilt_opens_nothing() {
    let place = Place::file();
    let options = redrive::SqliteOptions { owner: false, ..Default::default() };
    let store = redrive::SqliteStore::open(place.name(), options).unwrap();
    redrive_store::Documents::create(&store, "token/bad".parse().unwrap(), "1".to_owned()).await.unwrap();
    redrive::Store::close(&store).await.unwrap();
    let world = place.serve(&[]);
    world.get("/v1/events").problem(401, "token_required");
}
