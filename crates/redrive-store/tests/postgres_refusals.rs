//! What goes wrong between a store and its server, one by one: it is said, with what to do, and without the password; it is
//! tried again where that helps, and not all at once.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive_retry::{DeadReason, FailureClass};
use redrive_store::{
    Appended, ClaimSink, DlqFilter, DlqPage, FailedAttempt, Finished, PostgresOptions, PostgresStore,
    Redrive, Settlement, Store, StoreError, SubscriptionName, Verdict,
};
use tokio_postgres::Config;

use crate::postgres_proxy::Proxy;
use crate::postgres_server::{Schema, connect, event, now, server, settlement};

const SECRET: &str = "hunter2-secret";

/// As the guide names them, and the error.
const ALL_RIGHTS: &str = "GRANT USAGE ON SCHEMA @schema TO @user;
    GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA @schema TO @user;
    GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA @schema TO @user";

/// The address of the server with other parts.
fn elsewhere(change: impl FnOnce(&mut Config) -> &mut Config) -> Config {
    let mut config: Config = server().parse().unwrap();
    change(&mut config).clone()
}

/// A user of this server, gone with the test.
struct User(String);

impl User {
    /// Who must give its password, if the server asks anybody for one.
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
        elsewhere(|config| config.user(&self.0).password(SECRET))
    }

    async fn may(&self, schema: &Schema, rights: &str) {
        let rights = rights.replace("@schema", &schema.name).replace("@user", &self.0);
        connect().await.batch_execute(&rights).await.unwrap();
    }

    async fn leave(self) {
        let leave = format!("DROP OWNED BY {0}; DROP ROLE {0}", self.0);
        connect().await.batch_execute(&leave).await.unwrap();
    }
}

/// Says why the store is refused, and that the password is not in it.
fn refused(opened: Result<PostgresStore, StoreError>) -> (StoreError, String) {
    let error = opened.map(drop).unwrap_err();
    let said = error.to_string();
    assert!(!format!("{said} {error:?}").contains(SECRET), "{error:?}");
    (error, said)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_an_address_is_said_and_no_password() {
    let schema = Schema::new();
    let nobody_there = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
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
        (format!("postgres://anna:{SECRET}@127.0.0.1:{nobody_there}/shop"), "check host, port, network"),
    ] {
        let began = Instant::now();
        let (_, said) = refused(PostgresStore::open(&address, schema.options()).await);
        assert!(said.contains(why), "{said}");
        assert!(began.elapsed() < Duration::from_secs(10), "who opens a store hears it at once: {said}");
    }
    let unknown = elsewhere(|config| config.dbname("there_is_none"));
    let (error, said) = refused(PostgresStore::open_with(unknown, schema.options()).await);
    assert!(matches!(error, StoreError::NoSuchDatabase { .. }) && said.contains("there_is_none"), "{said}");
    let unknown = elsewhere(|config| config.user("there_is_nobody"));
    let (error, said) = refused(PostgresStore::open_with(unknown, schema.options()).await);
    assert!(matches!(error, StoreError::Login { .. }) && said.contains("there_is_nobody"), "{said}");
    let unmade = PostgresOptions { create: false, ..schema.options() };
    let (error, said) = refused(PostgresStore::open(&server(), unmade).await);
    assert!(matches!(error, StoreError::NoSchema { .. }) && said.contains(&schema.name), "{said}");

    let store = PostgresStore::open(&server(), schema.options()).await.unwrap();
    let password = server().parse::<Config>().unwrap().get_password().map(<[u8]>::to_vec);
    if let Some(password) = password.filter(|password| !password.is_empty()) {
        assert!(!format!("{store:?}").contains(&String::from_utf8(password).unwrap()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_and_a_missing_right_are_said() {
    let schema = Schema::new();
    let user = User::new(&schema).await;
    // A server that trusts everybody lets it in, and forbids the rest.
    let wrong = elsewhere(|config| config.user(&user.0).password(format!("{SECRET}-but-wrong")));
    let (error, said) = refused(PostgresStore::open_with(wrong, schema.options()).await);
    assert!(matches!(&error, StoreError::Login { .. } | StoreError::Forbidden { .. }), "{said}");
    if let StoreError::Login { user: who, .. } = &error {
        assert_eq!(who, &user.0);
        assert!(said.contains("check user and password"), "{said}");
        let mut none = Config::new();
        none.host("127.0.0.1").port(server().parse::<Config>().unwrap().get_ports()[0]).user(&user.0);
        let (error, said) = refused(PostgresStore::open_with(none, schema.options()).await);
        assert!(matches!(error, StoreError::Login { .. }) && said.contains("password missing"), "{said}");
    }
    // Nobody has made the schema, and this one may not.
    let (error, said) = refused(PostgresStore::open_with(user.config(), schema.options()).await);
    assert!(matches!(error, StoreError::Forbidden { .. }), "{said}");
    assert!(said.contains("permission denied") && said.contains("may create schemas"), "{said}");
    // It is there, and not this one's.
    drop(PostgresStore::open(&server(), schema.options()).await.unwrap());
    let (error, said) = refused(PostgresStore::open_with(user.config(), schema.options()).await);
    assert!(matches!(error, StoreError::Forbidden { .. }), "{said}");
    assert!(said.contains(&schema.name) && said.contains("USAGE on the schema"), "{said}");
    user.leave().await;
}

/// Everything that a bus does, once.
async fn use_it(store: &PostgresStore) -> Result<(), StoreError> {
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
async fn the_rights_that_are_asked_for_are_enough_and_looking_needs_less() {
    let schema = Schema::new();
    drop(PostgresStore::open(&server(), schema.options()).await.unwrap());
    let user = User::new(&schema).await;
    user.may(
        &schema,
        "GRANT USAGE ON SCHEMA @schema TO @user; GRANT SELECT ON ALL TABLES IN SCHEMA @schema TO @user",
    )
    .await;
    let store = PostgresStore::open_with(user.config(), schema.options()).await.unwrap();
    store.stats().await.unwrap();
    store.dead_letters(DlqFilter::default(), DlqPage::default()).await.unwrap();
    let error = store.append(vec![event()]).await.unwrap_err();
    assert!(matches!(&error, StoreError::Forbidden { why } if why.contains("permission denied")), "{error}");

    // Of a store that is open already: as soon as it may, it can.
    user.may(&schema, ALL_RIGHTS).await;
    use_it(&store).await.unwrap();
    drop(store);
    user.leave().await;
}

async fn through(proxy: &Proxy, options: PostgresOptions) -> PostgresStore {
    PostgresStore::open_with(proxy.config(), options).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_goes_away_is_said_to_be_away_and_found_again() {
    let schema = Schema::new();
    let proxy = Proxy::start().await;
    let options = PostgresOptions { patience: Duration::from_millis(300), ..schema.options() };
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
    assert!(began.elapsed() < Duration::from_secs(15), "it does not wait for ever");
    // The work was done; its end waits for the server.
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
async fn a_server_that_takes_connections_and_says_nothing_holds_nobody_up_for_ever() {
    let schema = Schema::new();
    let proxy = Proxy::start().await;
    let mut config = proxy.config();
    config.connect_timeout(Duration::from_millis(300));
    let options = PostgresOptions { patience: Duration::from_secs(1), ..schema.options() };
    let store = PostgresStore::open_with(config, options).await.unwrap();
    store.append(vec![event()]).await.unwrap();
    proxy.fall_silent();
    for _ in 0..3 {
        let append = tokio::time::timeout(Duration::from_secs(20), store.append(vec![event()]));
        let error = append.await.expect("it does not wait for ever").unwrap_err();
        assert!(matches!(error, StoreError::Unreachable { .. } | StoreError::Unknown { .. }), "{error}");
    }
    proxy.heal();
    let began = Instant::now();
    let mut appended = store.append(vec![event()]).await;
    while appended.is_err() && began.elapsed() < Duration::from_secs(20) {
        appended = store.append(vec![event()]).await;
    }
    assert_eq!(appended.unwrap(), [Appended::New], "it is found again");
}

/// Whatever a process wants of a server that is away: there is one line for all of it, and the pauses grow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_server_is_away_few_attempts_are_made_however_many_want_it() {
    let schema = Schema::new();
    let proxy = Proxy::start().await;
    let options = PostgresOptions { patience: Duration::from_secs(20), ..schema.options() };
    let most = options.lanes + options.pool + 4;
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
        // What was on its way when the connection broke was sent once more, and is one event.
        assert_eq!(appended.unwrap(), [Appended::New]);
    }
    settling.await.unwrap().unwrap();
    others.abort();
    let attempts = proxy.attempts() - attempts;
    assert!(attempts <= most, "{attempts} connections, and at most {most} are needed");
    assert_eq!(store.stats().await.unwrap().done, 1);
}

/// Who gives up in the middle of an attempt has tried like anybody else: the next one keeps the pause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_give_up_early_make_no_storm_either() {
    let schema = Schema::new();
    let proxy = Proxy::start().await;
    // Nobody listens then: whoever waits for an answer in patience would have the line for itself.
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

/// Nobody is let in any more: that does not pass by itself, and is not tried all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_was_changed_meanwhile_is_said_and_makes_no_storm() {
    let schema = Schema::new();
    drop(PostgresStore::open(&server(), schema.options()).await.unwrap());
    let user = User::new(&schema).await;
    user.may(&schema, ALL_RIGHTS).await;
    let proxy = Proxy::start().await;
    let mut config = proxy.config();
    config.user(&user.0).password(SECRET);
    let store = PostgresStore::open_with(config, schema.options()).await.unwrap();
    store.append(vec![event()]).await.unwrap();
    user.may(&schema, "ALTER ROLE @user NOLOGIN").await;
    proxy.refuse();
    proxy.heal();
    let (began, mut said) = (Instant::now(), String::new());
    while began.elapsed() < Duration::from_secs(3) {
        if let Err(error) = store.append(vec![event()]).await {
            said = format!("{said}\n{error}");
        }
    }
    assert!(said.contains("does not let") && !said.contains(SECRET), "{said}");
    assert!(proxy.attempts() <= 14, "{} attempts", proxy.attempts());
    user.may(&schema, "ALTER ROLE @user LOGIN").await;
    let mut appended = store.append(vec![event()]).await;
    while appended.is_err() && began.elapsed() < Duration::from_secs(20) {
        appended = store.append(vec![event()]).await;
    }
    assert_eq!(appended.unwrap(), [Appended::New], "and it goes on when it may");
    drop(store);
    user.leave().await;
}

/// Its handler is done, and the process that holds it lives on: nobody else would ever take it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_that_the_server_refuses_for_now_is_written_down_when_it_takes_it() {
    let schema = Schema::new();
    drop(PostgresStore::open(&server(), schema.options()).await.unwrap());
    let user = User::new(&schema).await;
    user.may(&schema, ALL_RIGHTS).await;
    let options = PostgresOptions { statement_timeout: Duration::from_millis(300), ..schema.options() };
    let store = Arc::new(PostgresStore::open_with(user.config(), options).await.unwrap());
    let (sink, mut claims) = ClaimSink::new(10);
    store.attach(Some(sink));
    store.append(vec![event(), event()]).await.unwrap();
    let settle = |claimed| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.settle(claimed, settlement(Verdict::Done)).await })
    };
    // Somebody changes the table, and takes longer than a statement may wait.
    let mut client = connect().await;
    let change = client.transaction().await.unwrap();
    change.batch_execute(&schema.sql("LOCK TABLE redrive.event IN ACCESS EXCLUSIVE MODE")).await.unwrap();
    let settling = settle(claims.try_recv().unwrap());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!settling.is_finished(), "it is tried again");
    change.commit().await.unwrap();
    assert_eq!(settling.await.unwrap().unwrap(), Finished::Done { retried: false });

    user.may(&schema, "REVOKE UPDATE ON @schema.event FROM @user").await;
    let settling = settle(claims.try_recv().unwrap());
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!settling.is_finished(), "it is tried again");
    user.may(&schema, "GRANT UPDATE ON @schema.event TO @user").await;
    assert_eq!(settling.await.unwrap().unwrap(), Finished::Done { retried: false });
    store.close().await.unwrap();
    drop(store);
    user.leave().await;
}

/// Takes down under which setting every event is stored.
const NOTE: &str = "
    CREATE TABLE @schema.seen (setting text);
    CREATE FUNCTION @schema.note() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN INSERT INTO @schema.seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$;
    CREATE TRIGGER note AFTER INSERT ON @schema.event FOR EACH ROW EXECUTE FUNCTION @schema.note();
    GRANT ALL ON @schema.seen TO @user";

/// The setting can become another one after the opening, for the connections that are made then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_stored_by_a_connection_that_would_not_wait_for_the_disk() {
    let schema = Schema::new();
    drop(PostgresStore::open(&server(), schema.options()).await.unwrap());
    let user = User::new(&schema).await;
    user.may(&schema, ALL_RIGHTS).await;
    user.may(&schema, NOTE).await;
    let pooled = PostgresOptions { poll_only: true, ..schema.options() };
    let sessions = PostgresStore::open_with(user.config(), schema.options()).await.unwrap();
    let pooled = PostgresStore::open_with(user.config(), pooled).await.unwrap();
    user.may(&schema, "ALTER ROLE @user SET synchronous_commit = off").await;
    let all = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{}'", user.0);
    connect().await.batch_execute(&all).await.unwrap();
    assert_eq!(sessions.append(vec![event()]).await.unwrap(), [Appended::New]);
    // Where nothing can be set for the whole session, it is said.
    let error = pooled.append(vec![event()]).await.unwrap_err();
    assert!(error.to_string().contains("set synchronous_commit = on"), "{error}");
    let seen = format!("SELECT DISTINCT setting FROM {}.seen", schema.name);
    let seen: Vec<String> =
        connect().await.query(&seen, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(seen, ["on"]);
    drop((sessions, pooled));
    user.leave().await;
}

/// The same values are refused again and again; nobody else would ever take it, and nobody would see it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_that_the_server_refuses_for_its_values_is_in_the_dead_letter_queue_with_the_reason() {
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
        Settlement { failure: Some(failure), ..settlement(Verdict::Retry(now())) },
        Settlement { parked: vec![(billing, now())], ..settlement(Verdict::Done) },
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
            error.contains("could not be written down") && error.contains("nothing is kept of this"),
            "{error}"
        );
        store.redrive(id, Redrive { at: now(), payload: None }).await.unwrap();
        assert_eq!(store.claim(now()).await.unwrap(), 1, "it can be sent back");
        store.settle(claims.try_recv().unwrap(), settlement(Verdict::Done)).await.unwrap();
    }
    store.close().await.unwrap();
}

/// Neither the system nor the server says that nobody is there: whoever is in between answers for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_carries_nothing_is_noticed_and_everything_goes_on_when_it_does() {
    let schema = Schema::new();
    let proxy = Proxy::start().await;
    let options = PostgresOptions {
        patience: Duration::from_millis(300),
        statement_timeout: Duration::from_secs(3),
        lanes: 1, // whose connection is there already
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
    let error = appended.expect("told in seconds").unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. } | StoreError::Unknown { .. }), "{error}");
    let beat = tokio::time::timeout(Duration::from_secs(60), store.heartbeat()).await;
    let error = beat.expect("told in seconds").unwrap_err();
    assert!(!matches!(error, StoreError::Server { .. }), "{error}");
    let error = PostgresStore::open_with(proxy.config(), options).await.unwrap_err();
    assert!(error.to_string().contains("said nothing"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(120), "each of them is told in seconds");
    assert!(!settling.is_finished());
    proxy.heal();
    assert_eq!(settling.await.unwrap().unwrap(), Finished::Done { retried: false });
    let appended = async {
        // The line of those who want a connection gets there in seconds.
        loop {
            match store.append(vec![lost.clone()]).await {
                Ok(appended) => return appended,
                Err(error) => assert!(!matches!(error, StoreError::Server { .. }), "{error}"),
            }
        }
    };
    let appended = tokio::time::timeout(Duration::from_secs(60), appended).await.expect("it goes on");
    assert!(matches!(appended[..], [Appended::New | Appended::Duplicate]));
}
