//! TLS with a certificate authority of the test.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use redrive_scheduler::{Rabbit, RabbitSettings, SchedulerError, Transport as _};
use redrive_servers::Authority;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::world::{Client, TIMEOUT, settings, shared_broker};

/// TLS proxy in front of the broker.
async fn listen(key: &Path, certificate: &Path, broker: SocketAddr) -> SocketAddr {
    let certificates = CertificateDer::pem_file_iter(certificate).unwrap().map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(key).unwrap();
    let config =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(certificates, key)
            .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut outside = acceptor.accept(stream).await.ok()?;
                let mut inside = TcpStream::connect(broker).await.ok()?;
                tokio::io::copy_bidirectional(&mut outside, &mut inside).await.ok()
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_trusts_only_the_given_certificate_authority() {
    let (authority, stranger) = (Authority::new().unwrap(), Authority::new().unwrap());
    let (key, certificate) = authority.sign().unwrap();
    let plain = shared_broker();
    let host = plain.rsplit('@').next().unwrap().split('/').next().unwrap();
    let address = listen(&key, &certificate, host.parse().unwrap()).await;
    let settings = settings();
    let connect = |trusted: Option<&Path>| -> Result<Rabbit, SchedulerError> {
        let trusted = trusted.map(|path| format!("?cacertfile={}", path.display())).unwrap_or_default();
        Rabbit::connect(RabbitSettings::new(format!("amqps://guest:guest@{address}/%2f{trusted}"), &settings))
    };
    let (known, unknown) = (authority.certificate(), stranger.certificate());
    let rabbit = connect(Some(&known)).unwrap();
    tokio::time::timeout(TIMEOUT, rabbit.ready()).await.expect("a trusted broker is connected");
    assert!(rabbit.state().publishing);
    rabbit.close().await;
    for trusted in [None, Some(unknown.as_path())] {
        let rabbit = connect(trusted).unwrap();
        // Several attempts fail in this time.
        let ready = tokio::time::timeout(std::time::Duration::from_secs(1), rabbit.ready()).await;
        assert!(ready.is_err() && rabbit.state().connects == 0, "{trusted:?}");
        rabbit.close().await;
    }
    let client = Client::connect(&plain, &settings).await;
    for queue in [&settings.retry_queue, &settings.review_queue] {
        client.delete(queue).await;
    }
}
