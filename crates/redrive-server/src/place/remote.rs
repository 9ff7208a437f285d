//! A server that runs elsewhere, by HTTP.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Request, Response, Uri, header};

use crate::failure::Failure;
use crate::https::{self, HttpsClient};
use crate::label;

/// How long a server may take until it begins to answer: longer than it allows itself.
const PATIENCE: Duration = Duration::from_secs(70);

/// The address of a server: scheme, host, port, and a path if it is not at the top.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerUrl(String);

impl FromStr for ServerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let say = "use an address such as https://events.example.com or http://127.0.0.1:8080";
        let uri: Uri = text.parse().map_err(|_| say.to_owned())?;
        let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
        // A name or a password in it would be sent to nobody, and shown.
        let is_plain = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
        if !is_http || !is_plain || uri.query().is_some() {
            return Err(say.to_owned());
        }
        Ok(ServerUrl(text.trim_end_matches('/').to_owned()))
    }
}

/// A server and who asks.
pub(crate) struct Remote {
    url: ServerUrl,
    token: Option<HeaderValue>,
    http: HttpsClient<Body>,
}

impl Remote {
    pub(super) fn new(url: ServerUrl, token: Option<String>) -> Result<Self, Failure> {
        let token = token.map(|token| bearer(&token)).transpose()?;
        Ok(Remote { url, token, http: https::client(Vec::new())? })
    }

    pub(super) fn flag(&self) -> String {
        let named = std::env::var("REDRIVE_SERVER").ok().and_then(|text| text.parse().ok());
        if named.as_ref() == Some(&self.url) { String::new() } else { format!(" --server {}", self.url.0) }
    }

    pub(super) async fn call(
        &self,
        mut request: Request<Body>,
        path: &str,
    ) -> Result<Response<Body>, Failure> {
        let uri = format!("{}{path}", self.url.0);
        *request.uri_mut() =
            uri.parse().map_err(|_| Failure::Usage(format!("{} is no address", label::one_line(&uri))))?;
        if let Some(token) = &self.token {
            request.headers_mut().insert(header::AUTHORIZATION, token.clone());
        }
        let answered = tokio::time::timeout(PATIENCE, self.http.request(request)).await;
        let failed = |why: &str| {
            let url = &self.url.0;
            Failure::Failed(format!(
                "{url} cannot be asked: {why}; check the address, and that `redrive serve` runs there"
            ))
        };
        match answered {
            Ok(Ok(response)) => Ok(response.map(Body::new)),
            Ok(Err(error)) => Err(failed(&https::cause(&error))),
            Err(_) => Err(failed(&format!("it has not answered for {} seconds", PATIENCE.as_secs()))),
        }
    }
}

fn bearer(token: &str) -> Result<HeaderValue, Failure> {
    let mut value = HeaderValue::try_from(format!("Bearer {}", token.trim())).map_err(|_| {
        Failure::Usage("the token has characters in it that no token has: it begins with rdt_".to_owned())
    })?;
    value.set_sensitive(true);
    Ok(value)
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("url", &self.url).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_a_server_is_http_and_has_no_secret_in_it() {
        for good in ["http://127.0.0.1:8080", "https://events.example.com/", "https://example.com/redrive"] {
            assert!(good.parse::<ServerUrl>().is_ok(), "{good}");
        }
        for bad in [
            "",
            "localhost:8080",
            "ftp://x",
            "https://anna:pw@example.com",
            "https://example.com/?a=b",
            "postgres://x/y",
        ] {
            assert!(bad.parse::<ServerUrl>().unwrap_err().contains("such as"), "{bad}");
        }
        assert_eq!("https://a.b/".parse::<ServerUrl>().unwrap().0, "https://a.b");
    }

    #[test]
    fn a_token_is_not_shown() {
        let remote = Remote::new("http://127.0.0.1:1".parse().unwrap(), Some("rdt_s3cret".into())).unwrap();
        assert!(!format!("{remote:?} {:?}", remote.token).contains("s3cret"));
        assert!(Remote::new("http://127.0.0.1:1".parse().unwrap(), Some("a\nb".into())).is_err());
    }
}
