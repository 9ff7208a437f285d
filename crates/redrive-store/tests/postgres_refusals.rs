//! Failures between the store and its server: their error messages, which never show the password, and their retries.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive_retry::FailureClass;
use redrive_retry::decision::DeadReason;
use redrive_store::traits::*;
use redrive_store::{
    Appended, ClaimSink, DlqFilter, DlqPage, FailedAttempt, Finished, PostgresOptions, PostgresStore,
    Redrive, Settlement, Store, StoreError, SubscriptionName, Verdict,
};
use tokio_postgres::Config;

use crate::postgres_proxy::Proxy;
use crate::postgres_server::{Schema, connect, event, now, server, settlement};

const SECRET: &str = "hunter2-secret";

/// The privileges that the guide and the error message name.
const ALL_PRIVILEGES: &str = "GRANT USAGE ON SCHEMA @schema TO @user;
    GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA @schema TO @user;
    GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA @schema TO @user";

/// The client configuration of the server, changed.
fn config_with(change: impl FnOnce(&mut Config) -> &mut Config) -> Config {
    let mut config: Config = server().parse().unwrap();
    change(&mut config).clone()
}

/// A database user for one test.
struct User(String);

impl User {
    /// Creates a user that needs its password, if the server asks for passwords.
    async fn new(schema: &Schema) -> Self {
        let user = User(format!("r{}", schema.name));
        let create = format!(
            "DO $$ BEGIN CREATE ROLE with_password NOLOGIN; EXCEPTION WHEN OTHERS THEN NULL; END $$;
             CREATE ROLE {} LOGIN PASSWORD '{SECRET}' IN ROLE with_password",
            user.0
        );
        connect().await.batch_execute(&create).await.unwrap();
        user
    }

    fn config(&self) -> Config {
        config_with(|config| config.user(&self.0).password(SECRET))
    }

    async fn grant(&self, schema: &Schema, privileges: &str) {
        let privileges = privileges.replace("@schema", &schema.name).replace("@user", &self.0);
        connect().await.batch_execute(&privileges).await.unwrap();
    }

    async fn drop_role(self) {
        let drop = format!("DROP OWNED BY {0}; DROP ROLE {0}", self.0);
        connect().await.batch_execute(&drop).await.unwrap();
    }
}

/// Returns the error and its message, and checks that the password is not in it.
fn open_error(opened: Result<PostgresStore, StoreError>) -> (StoreError, String) {
    let error = opened.map(drop).unwrap_err();
    let message = error.to_string();
    assert!(!format!("{message} {error:?}").contains(SECRET), "{error:?}");
    (error, message)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_wrong_addresses_explain_them_without_the_password() {
    let schema = Schema::new();
    let unused_port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for (address, why) in [
        (format!("postgres://anna:{SECRET}@[::1"), "not an address of a PostgreSQL server"),
        (format!("postgres://anna:{SECRET}@host:seven/shop"), "not an address of a PostgreSQL server"),
        (format!("postgres://anna:{SECRET}@host/shop?nonsense=1"), "unknown option"),
        (format!("postgres://anna:{SECRET}@host/shop?poll_only=perhaps"), "poll_only is true or false"),
        (format!("postgres://anna:{SECRET}@host/shop?schema=a&schema=b"), "two values for schema"),
        (
            format!("postgres://anna:{SECRET}@host/shop?sslrootcert=/no/such.pem"),
            "/no/such.pem cannot be read",
        ),
        (format!("postgres://anna:{SECRET}@host.invalid/shop"), "host.invalid:5432 cannot be reached"),
        (format!("postgres://anna:{SECRET}@127.0.0.1:{unused_port}/shop"), "check host, port, network"),
    ] {
        let began = Instant::now();
        let (_, message) = open_error(PostgresStore::open(&address, schema.options()).await);
        assert!(message.contains(why), "{message}");
        assert!(began.elapsed() < Duration::from_secs(10), "opening fails at once: {message}");
    }
    let unknown = config_with(|config| config.dbname("no_such_database"));
    let (error, message) = open_error(PostgresStore::open_with(unknown, schema.options()).await);
    assert!(
        matches!(error, StoreError::NoSuchDatabase { .. }) && message.contains("no_such_database"),
        "{message}"
    );
    let unknown = config_with(|config| config.user("no_such_user"));
    let (error, message) = open_error(PostgresStore::open_with(unknown, schema.options()).await);
    assert!(matches!(error, StoreError::Login { .. }) && message.contains("no_such_user"), "{message}");
    let without_create = PostgresOptions { create: false, ..schema.options() };
    let (error, message) = open_error(PostgresStore::open(&server(), without_create).await);
    assert!(matches!(error, StoreError::NoSchema { .. }) && message.contains(&schema.name), "{message}");

    let store = PostgresStore::open(&server(), schema.options()).await.unwrap();
    let password = server().parse::<Config>().unwrap().get_password().map(<[u8]>::to_vec);
    if let Some(password) = password.filter(|password| !password.is_empty()) {
        assert!(!format!("{store:?}").contains(&String::from_utf8(password).unwrap()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_and_a_missing_privilege_are_explained() {
    let schema = Schema::new();
    let user = User::new(&schema).await;
    // A server with trust authentication accepts the login, and forbids the rest.
    let wrong = config_with(|config| config.user(&user.0).password(format!("{SECRET}-but-wrong")));
    let (error, message) = open_error(PostgresStore::open_with(wrong, schema.options()).await);
    assert!(matches!(&error, StoreError::Login { .. } | StoreError::Forbidden { .. }), "{message}");
    if let StoreError::Login { user: who, .. } = &error {
        assert_eq!(who, &user.0);
        assert!(message.contains("check user and password"), "{message}");
        let mut none = Config::new();
        none.host("127.0.0.1").port(server().parse::<Config>().unwrap().get_ports()[0]).user(&user.0);
        let (error, message) = open_error(PostgresStore::open_with(none, schema.options()).await);
        assert!(
            matches!(error, StoreError::Login { .. }) && message.contains("password missing"),
            "{message}"
        );
    }
    // The schema does not exist, and the user may not create it.
    let (error, message) = open_error(PostgresStore::open_with(user.config(), schema.options()).await);
    assert!(matches!(error, StoreError::Forbidden { .. }), "{message}");
    assert!(message.contains("permission denied") && message.contains("may create schemas"), "{message}");
    // The schema exists, and the user has no privileges on it.
    drop(PostgresStore::open(&server(), schema.options()).await.unwrap());
    let (error, message) = open_error(PostgresStore::open_with(user.config(), schema.options()).await);
    assert!(matches!(error, StoreError::Forbidden { .. }), "{message}");
    assert!(message.contains(&schema.name) && message.contains("USAGE on the schema"), "{message}");
    user.drop_role().await;
}

/// Uses the store once like a bus.
async fn exercise(store: &PostgresStore) -> Result<(), StoreError> {
    store.heartbeat().await?;
    store.recover(now()).await?;
    let (sink, mut claims) = ClaimSink::new(10);
    store.attach(Some(sink));
    let new = event();
    let id = new.id;
    store.append(vec![new]).await?;
    store.settle(claims.try_recv().unwrap(), settlement(Verdict::Dead(DeadReason::Permanent))).await?;
    store.redrive(id, Redrive { at: now(), payload: None }).await?;
    assert_eq!(store.claim(now()).await?, 1);
    let finished = store.settle(claims.try_recv().unwrap(), settlement(Verdict::Done)).await?;
    assert_eq!(finished, Finished::Done { retried: false });
    store.maintain(now(), Some(Duration::ZERO)).await?;
    store.purge_dead(now()).await?;
    store.stats().await?;
    store.depth().await?;
    store.close().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_privileges_are_enough_and_reading_needs_fewer() {
    let schema = Schema::new();
    drop(PostgresStore::open(&server(), schema.options()).await.unwrap());
    let user = User::new(&schema).await;
    user.grant(
        &schema,
        "GRANT USAGE ON SCHEMA @schema TO @user; GRANT SELECT ON ALL TABLES IN SCHEMA @schema TO @user",
    )
    .await;
    let store = PostgresStore::open_with(user.config(), schema.options()).await.unwrap();
    store.stats().await.unwrap();
    store.dead_letters(DlqFilter::default(), DlqPage::default()).await.unwrap();
    let error = store.append(vec![event()]).await.unwrap_err();
    assert!(matches!(&error, StoreError::Forbidden { why } if why.contains("permission denied")), "{error}");

    // A store that is open already uses new privileges at once.
    user.grant(&schema, ALL_PRIVILEGES).await;
    exercise(&store).await.unwrap();
    drop(store);
    user.drop_role().await;
}

async fn through(proxy: &Proxy, options: PostgresOptions) -> PostgresStore {
    PostgresStore::open_with(proxy.config(), options).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_fail_during_an_outage_and_succeed_after_it() {
    let schema = Schema::new();
    let proxy = Proxy::start().await;
    let options = PostgresOptions { outage_timeout: Duration::from_millis(300), ..schema.options() };
    let store = Arc::new(through(&proxy, options).await);
    let (sink, mut claims) = ClaimSink::new(100);
    store.attach(Some(sink));
    store.append(vec![event()]).await.unwrap();
    let claimed = claims.try_recv().unwrap();
    proxy.refuse();
    let began = Instant::now();
    let error = store.append(vec![event()]).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. } | StoreError::Unknown { .. }), "{error}");
    let error = store.append(vec![event()]).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "nothing was sent: {error}");
    assert!(began.elapsed() < Duration::from_secs(15), "the call fails in time");
    // The settlement waits for the server.
    let settling = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.settle(claimed, settlement(Verdict::Done)).await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    proxy.heal();
    assert_eq!(settling.await.unwrap().unwrap(), Finished::Done { retried: false });
    assert_eq!(store.append(vec![event()]).await.unwrap(), [Appended::New]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_server_does_not_block_callers_for_ever() {
    let schema = Schema::new();
    let proxy = Proxy::start().await;
    let mut config = proxy.config();
    config.connect_timeout(Duration::from_millis(300));
    let options = PostgresOptions { outage_timeout: Duration::from_secs(1), ..schema.options() };
    let store = PostgresStore::open_with(config, options).await.unwrap();
    store.append(vec![event()]).await.unwrap();
    proxy.fall_silent();
    for _ in 0..3 {
        let append = tokio::time::timeout(Duration::from_secs(20), store.append(vec![event()]));
        let error = append.await.expect("the call fails in time").unwrap_err();
        assert!(matches!(error, StoreError::Unreachable { .. } | StoreError::Unknown { .. }), "{error}");
    }
    proxy.heal();
    let began = Instant::now();
    let mut appended = store.append(vec![event()]).await;
    while appended.is_err() && began.elapsed() < Duration::from_secs(20) {
        appended = store.append(vec![event()]).await;
    }
    assert_eq!(appended.unwrap(), [Appended::New], "the store reconnects");
}

/// All callers of a process share one reconnect loop with growing delays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_make_few_connection_attempts_during_an_outage() {
    let schema = Schema::new();
    let proxy = Proxy::start().await;
    let options = PostgresOptions { outage_timeout: Duration::from_secs(20), ..schema.options() };
    let max_connections = options.write_connections + options.pool + 4;
    let store = Arc::new(through(&proxy, options).await);
    let (_sink, mut claims) = {
        let (sink, claims) = ClaimSink::new(100);
        store.attach(Some(sink.clone()));
        (sink, claims)
    };
    store.append(vec![event()]).await.unwrap();
    proxy.refuse();
    let mut publishers = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let store = Arc::clone(&store);
        publishers.spawn(async move { store.append(vec![event()]).await });
    }
    let others = tokio::spawn({
        let store = Arc::clone(&store);
        async move {
            loop {
                let again = Duration::from_millis(10);
                let _ = tokio::join!(
                    tokio::time::timeout(again, store.heartbeat()),
                    tokio::time::timeout(again, store.claim(now())),
                    tokio::time::timeout(again, store.maintain(now(), None)),
                    tokio::time::timeout(again, store.stats()),
                );
            }
        }
    });
    let claimed = claims.try_recv().unwrap();
    let settling = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.settle(claimed, settlement(Verdict::Done)).await }
    });
    tokio::time::sleep(Duration::from_secs(4)).await;
    let attempts = proxy.attempts();
    assert!((3..=14).contains(&attempts), "{attempts} attempts in four seconds");
    proxy.heal();
    for appended in publishers.join_all().await {
        // An append in flight when the connection broke was sent again, and stored one event.
        assert_eq!(appended.unwrap(), [Appended::New]);
    }
    settling.await.unwrap().unwrap();
    others.abort();
    let attempts = proxy.attempts() - attempts;
    assert!(attempts <= max_connections, "{attempts} connections, and at most {max_connections} are needed");
    assert_eq!(store.stats().await.unwrap().done, 1);
}

/// A connection attempt that is cancelled counts: the next one keeps the delay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_callers_make_few_connection_attempts() {
    let schema = Schema::new();
    let proxy = Proxy::start().await;
    // Without the listening connection, which would occupy the reconnect loop with its longer timeout.
    let store = through(&proxy, PostgresOptions { poll_only: true, ..schema.options() }).await;
    proxy.fall_silent();
    let (before, began) = (proxy.attempts(), Instant::now());
    while began.elapsed() < Duration::from_secs(2) {
        let _ = tokio::time::timeout(Duration::from_millis(10), store.stats()).await;
    }
    let attempts = proxy.attempts() - before;
    assert!((1..=12).contains(&attempts), "{attempts} attempts in two seconds");
    proxy.heal();
    store.stats().await.unwrap();
}

/// A refused login is no transient error, and is not retried all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_password_is_reported_with_few_connection_attempts() {
    let schema = Schema::new();
    drop(PostgresStore::open(&server(), schema.options()).await.unwrap());
    let user = User::new(&schema).await;
    user.grant(&schema, ALL_PRIVILEGES).await;
    let proxy = Proxy::start().await;
    let mut config = proxy.config();
    config.user(&user.0).password(SECRET);
    let store = PostgresStore::open_with(config, schema.options()).await.unwrap();
    store.append(vec![event()]).await.unwrap();
    user.grant(&schema, "ALTER ROLE @user NOLOGIN").await;
    proxy.refuse();
    proxy.heal();
    let (began, mut message) = (Instant::now(), String::new());
    while began.elapsed() < Duration::from_secs(3) {
        if let Err(error) = store.append(vec![event()]).await {
            message = format!("{message}\n{error}");
        }
    }
    assert!(message.contains("refuses the login") && !message.contains(SECRET), "{message}");
    assert!(proxy.attempts() <= 14, "{} attempts", proxy.attempts());
    user.grant(&schema, "ALTER ROLE @user LOGIN").await;
    let mut appended = store.append(vec![event()]).await;
    while appended.is_err() && began.elapsed() < Duration::from_secs(20) {
        appended = store.append(vec![event()]).await;
    }
    assert_eq!(appended.unwrap(), [Appended::New], "it succeeds once the login works");
    drop(store);
    user.drop_role().await;
}

/// The claim belongs to a live process, so no takeover would ever release it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_that_fails_temporarily_is_retried_until_it_succeeds() {
    let schema = Schema::new();
    drop(PostgresStore::open(&server(), schema.options()).await.unwrap());
    let user = User::new(&schema).await;
    user.grant(&schema, ALL_PRIVILEGES).await;
    let options = PostgresOptions { statement_timeout: Duration::from_millis(300), ..schema.options() };
    let store = Arc::new(PostgresStore::open_with(user.config(), options).await.unwrap());
    let (sink, mut claims) = ClaimSink::new(10);
    store.attach(Some(sink));
    store.append(vec![event(), event()]).await.unwrap();
    let settle = |claimed| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.settle(claimed, settlement(Verdict::Done)).await })
    };
    // A table lock that outlasts the statement timeout.
    let mut client = connect().await;
    let change = client.transaction().await.unwrap();
    change.batch_execute(&schema.sql("LOCK TABLE redrive.event IN ACCESS EXCLUSIVE MODE")).await.unwrap();
    let settling = settle(claims.try_recv().unwrap());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!settling.is_finished(), "the settlement is retried");
    change.commit().await.unwrap();
    assert_eq!(settling.await.unwrap().unwrap(), Finished::Done { retried: false });

    user.grant(&schema, "REVOKE UPDATE ON @schema.event FROM @user").await;
    let settling = settle(claims.try_recv().unwrap());
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!settling.is_finished(), "the settlement is retried");
    user.grant(&schema, "GRANT UPDATE ON @schema.event TO @user").await;
    assert_eq!(settling.await.unwrap().unwrap(), Finished::Done { retried: false });
    store.close().await.unwrap();
    drop(store);
    user.drop_role().await;
}

/// Records the commit setting of every stored event.
const RECORD_SETTING: &str = "
    CREATE TABLE @schema.seen (setting text);
    CREATE FUNCTION @schema.note() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN INSERT INTO @schema.seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$;
    CREATE TRIGGER note AFTER INSERT ON @schema.event FOR EACH ROW EXECUTE FUNCTION @schema.note();
    GRANT ALL ON @schema.seen TO @user";

/// The setting of new connections can change after the store is opened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_event_is_stored_by_a_connection_with_asynchronous_commit() {
    let schema = Schema::new();
    drop(PostgresStore::open(&server(), schema.options()).await.unwrap());
    let user = User::new(&schema).await;
    user.grant(&schema, ALL_PRIVILEGES).await;
    user.grant(&schema, RECORD_SETTING).await;
    let poll_only = PostgresOptions { poll_only: true, ..schema.options() };
    let sessions = PostgresStore::open_with(user.config(), schema.options()).await.unwrap();
    let poll_only = PostgresStore::open_with(user.config(), poll_only).await.unwrap();
    user.grant(&schema, "ALTER ROLE @user SET synchronous_commit = off").await;
    let all = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{}'", user.0);
    connect().await.batch_execute(&all).await.unwrap();
    assert_eq!(sessions.append(vec![event()]).await.unwrap(), [Appended::New]);
    // Behind a pooler the setting cannot be fixed for the session, so the append fails.
    let error = poll_only.append(vec![event()]).await.unwrap_err();
    assert!(error.to_string().contains("set synchronous_commit = on"), "{error}");
    let seen = format!("SELECT DISTINCT setting FROM {}.seen", schema.name);
    let seen: Vec<String> =
        connect().await.query(&seen, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(seen, ["on"]);
    drop((sessions, poll_only));
    user.drop_role().await;
}

/// A retry would be rejected again, and no takeover would ever release the claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_with_rejected_values_becomes_a_dead_letter_with_the_reason() {
    let schema = Schema::new();
    let store = PostgresStore::open(&server(), schema.options()).await.unwrap();
    let refuse = "
        CREATE FUNCTION redrive.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          RAISE EXCEPTION 'nothing is kept of this' USING ERRCODE = 'check_violation';
        END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON redrive.attempt FOR EACH ROW
          WHEN (NEW.error LIKE '%spoilt%') EXECUTE FUNCTION redrive.refuse();
        CREATE TRIGGER refuse BEFORE INSERT ON redrive.delivery FOR EACH ROW
          WHEN (NEW.subscription = 'billing') EXECUTE FUNCTION redrive.refuse()";
    connect().await.batch_execute(&schema.sql(refuse)).await.unwrap();
    let (sink, mut claims) = ClaimSink::new(10);
    store.attach(Some(sink));
    let failure = FailedAttempt {
        subscription: SubscriptionName::new("shipping").unwrap(),
        started_at: now(),
        duration_ms: 1,
        class: FailureClass::Transient,
        delay_ms: 1,
        error: "spoilt".to_owned(),
        record: None,
        detail: None,
    };
    let billing = SubscriptionName::new("billing").unwrap();
    let ends = [
        Settlement { failure: Some(failure), ..settlement(Verdict::Retry(now().into())) },
        Settlement { split_off: vec![(billing, now().into())], ..settlement(Verdict::Done) },
    ];
    for end in ends {
        let event = event();
        let id = event.id;
        store.append(vec![event]).await.unwrap();
        let finished = store.settle(claims.try_recv().unwrap(), end).await.unwrap();
        assert_eq!(finished, Finished::Dead { retried: false });
        let letters = store.dead_letter(id).await.unwrap();
        let error = letters[0].errors.last().unwrap();
        assert!(
            error.contains("could not be stored") && error.contains("nothing is kept of this"),
            "{error}"
        );
        store.redrive(id, Redrive { at: now(), payload: None }).await.unwrap();
        assert_eq!(store.claim(now()).await.unwrap(), 1, "it can be redriven");
        store.settle(claims.try_recv().unwrap(), settlement(Verdict::Done)).await.unwrap();
    }
    store.close().await.unwrap();
}

/// The proxy keeps the connections open, so neither TCP nor the server reports the outage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_network_is_noticed_and_work_continues_after_it() {
    let schema = Schema::new();
    let proxy = Proxy::start().await;
    let options = PostgresOptions {
        outage_timeout: Duration::from_millis(300),
        statement_timeout: Duration::from_secs(3),
        write_connections: 1, // connected already
        ..schema.options()
    };
    let store = Arc::new(through(&proxy, options.clone()).await);
    store.heartbeat().await.unwrap();
    let (sink, mut claims) = ClaimSink::new(100);
    store.attach(Some(sink));
    store.append(vec![event()]).await.unwrap();
    let claimed = claims.try_recv().unwrap();
    proxy.be_silent();
    let began = Instant::now();
    let settling = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.settle(claimed, settlement(Verdict::Done)).await }
    });
    let lost = event();
    let appended = tokio::time::timeout(Duration::from_secs(60), store.append(vec![lost.clone()])).await;
    let error = appended.expect("the call fails within seconds").unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. } | StoreError::Unknown { .. }), "{error}");
    let heartbeat = tokio::time::timeout(Duration::from_secs(60), store.heartbeat()).await;
    let error = heartbeat.expect("the call fails within seconds").unwrap_err();
    assert!(!matches!(error, StoreError::Server { .. }), "{error}");
    let error = PostgresStore::open_with(proxy.config(), options).await.unwrap_err();
    assert!(error.to_string().contains("not answered"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(120), "each call fails within seconds");
    assert!(!settling.is_finished());
    proxy.heal();
    assert_eq!(settling.await.unwrap().unwrap(), Finished::Done { retried: false });
    let appended = async {
        // The reconnect loop succeeds within seconds.
        loop {
            match store.append(vec![lost.clone()]).await {
                Ok(appended) => return appended,
                Err(error) => assert!(!matches!(error, StoreError::Server { .. }), "{error}"),
            }
        }
    };
    let appended =
        tokio::time::timeout(Duration::from_secs(60), appended).await.expect("appends succeed again");
    assert!(matches!(appended[..], [Appended::New | Appended::Duplicate]));
}
