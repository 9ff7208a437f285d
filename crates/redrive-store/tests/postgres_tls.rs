//! TLS connections to a server with a certificate of the test's own authority.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::path::Path;

use redrive_servers::{Authority, Postgres};
use redrive_store::traits::*;
use redrive_store::{PostgresOptions, PostgresStore, Store, StoreError};

/// Opens a store with a TLS mode and a certificate authority.
async fn open(server: &Postgres, tls: &str, authority: Option<&Path>) -> Result<PostgresStore, StoreError> {
    let authority = authority.map(|path| format!("&sslrootcert={}", path.display())).unwrap_or_default();
    let address = format!("{}?sslmode={tls}{authority}", server.url());
    PostgresStore::open(&address, PostgresOptions::default()).await
}

async fn is_encrypted(server: &Postgres, authority: &Path) -> bool {
    let store = open(server, "require", Some(authority)).await.unwrap();
    store.heartbeat().await.unwrap();
    let (client, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    let query = "SELECT bool_and(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid)
                 WHERE a.application_name = 'redrive'";
    let is_encrypted = client.query_one(query, &[]).await.unwrap().get(0);
    store.close().await.unwrap();
    is_encrypted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_trusted_only_by_its_certificate_authority() {
    let server = Postgres::start().unwrap_or_else(|missing| panic!("{missing}"));
    let error = open(&server, "require", None).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "the server has no TLS: {error}");
    assert!(error.to_string().contains("TLS"), "{error}");

    let (authority, stranger) = (Authority::new().unwrap(), Authority::new().unwrap());
    let (key, certificate) = authority.sign().unwrap();
    server.enable_tls(&key, &certificate).unwrap();
    let (known, unknown) = (authority.certificate(), stranger.certificate());
    for tls in ["require", "verify-full", "prefer"] {
        let store = open(&server, tls, Some(&known)).await.unwrap_or_else(|error| panic!("{tls}: {error}"));
        store.close().await.unwrap();
        for trusted in [Some(unknown.as_path()), None] {
            let error = open(&server, tls, trusted).await.unwrap_err();
            assert!(matches!(error, StoreError::Untrusted { .. }), "{tls}: {error}");
            assert!(error.to_string().contains("sslrootcert"), "the error names the parameter: {error}");
        }
    }
    assert!(is_encrypted(&server, &known).await);
    let plain = open(&server, "disable", None).await.unwrap();
    plain.close().await.unwrap();
    let error = open(&server, "require", Some(Path::new("/nowhere/ca.pem"))).await.unwrap_err();
    assert!(error.to_string().contains("/nowhere/ca.pem"), "{error}");
}
