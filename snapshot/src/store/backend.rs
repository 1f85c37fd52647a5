//! Opens a back end by its URL.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::list::PaginatedListStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ClientConfigKey, ObjectStore, RetryConfig};
use url::Url;

use super::error::OpenError;

/// A reachable or unreachable back end; nothing is asked of it when it is opened.
#[derive(Clone)]
pub(super) struct Backend {
    pub(super) objects: Arc<dyn ObjectStore>,
    /// For LIST requests that ask for a few names only; the local one lists directories.
    pub(super) pages: Option<Arc<dyn PaginatedListStore>>,
    /// The directory of a local store.
    pub(super) local: Option<PathBuf>,
    pub(super) prefix: Path,
}

/// Defaults of the HTTP client; deadlines of whole requests are ours.
const CLIENT: &[(ClientConfigKey, &str)] = &[
    (ClientConfigKey::ConnectTimeout, "2 seconds"),
    (ClientConfigKey::Timeout, "10 minutes"),
];

fn no_retries() -> RetryConfig {
    RetryConfig {
        max_retries: 0,
        retry_timeout: Duration::ZERO,
        ..RetryConfig::default()
    }
}

pub(super) fn open(text: &str, options: &BTreeMap<String, String>) -> Result<Backend, OpenError> {
    let url = Url::parse(text).map_err(|source| OpenError::Url {
        url: text.to_owned(),
        source,
    })?;
    match url.scheme() {
        "file" => open_local(text, &url, options),
        "s3" => open_s3(text, &url, options),
        "gs" => open_gcs(text, &url, options),
        "az" => open_azure(text, &url, options),
        _ => Err(OpenError::Scheme {
            url: text.to_owned(),
        }),
    }
}

fn open_local(
    text: &str,
    url: &Url,
    options: &BTreeMap<String, String>,
) -> Result<Backend, OpenError> {
    if let Some(key) = options.keys().next() {
        return Err(OpenError::Option {
            key: key.clone(),
            backend: "file",
        });
    }
    let dir = url
        .to_file_path()
        .ok()
        .filter(|dir| dir.parent().is_some())
        .ok_or(OpenError::Incomplete {
            url: text.to_owned(),
            what: "an absolute directory, as in file:///var/lib/thaw/store",
        })?;
    let prefix = Path::from_absolute_path(&dir).map_err(backend_error(text))?;
    Ok(Backend {
        // The root is part of each path: a back end of its own root would have to exist already.
        objects: Arc::new(LocalFileSystem::new().with_fsync(true)),
        pages: None,
        local: Some(dir),
        prefix,
    })
}

fn remote(text: &str, url: &Url, what: &'static str) -> Result<(String, Path), OpenError> {
    let bucket = url
        .host_str()
        .filter(|host| !host.is_empty())
        .ok_or(OpenError::Incomplete {
            url: text.to_owned(),
            what,
        })?;
    let prefix = Path::from_url_path(url.path()).map_err(backend_error(text))?;
    Ok((bucket.to_owned(), prefix))
}

fn backend_error<E: std::fmt::Display>(text: &str) -> impl Fn(E) -> OpenError + use<E> {
    let url = text.to_owned();
    move |error| OpenError::Backend {
        url: url.clone(),
        message: error.to_string(),
    }
}

/// Parses the configured keys as keys of one back end.
fn keys<'a, K: std::str::FromStr>(
    options: &'a BTreeMap<String, String>,
    backend: &'static str,
) -> Result<Vec<(K, &'a String)>, OpenError> {
    options
        .iter()
        .map(|(key, value)| {
            let parsed = key
                .to_ascii_lowercase()
                .parse()
                .map_err(|_| OpenError::Option {
                    key: key.clone(),
                    backend,
                })?;
            Ok((parsed, value))
        })
        .collect()
}

fn open_s3(
    text: &str,
    url: &Url,
    options: &BTreeMap<String, String>,
) -> Result<Backend, OpenError> {
    let (bucket, prefix) = remote(text, url, "a bucket, as in s3://bucket/prefix")?;
    let mut builder = AmazonS3Builder::new();
    for (key, value) in CLIENT {
        builder = builder.with_config(AmazonS3ConfigKey::Client(*key), *value);
    }
    for (key, value) in environment::<AmazonS3ConfigKey>("AWS_") {
        builder = builder.with_config(key, value);
    }
    for (key, value) in keys(options, "s3")? {
        builder = builder.with_config(key, value);
    }
    let store = builder
        .with_bucket_name(bucket)
        .with_retry(no_retries())
        .build()
        .map_err(backend_error(text))?;
    Ok(shared(Arc::new(store), prefix))
}

fn open_gcs(
    text: &str,
    url: &Url,
    options: &BTreeMap<String, String>,
) -> Result<Backend, OpenError> {
    let (bucket, prefix) = remote(text, url, "a bucket, as in gs://bucket/prefix")?;
    let mut builder = GoogleCloudStorageBuilder::from_env();
    for (key, value) in CLIENT {
        builder = builder.with_config(GoogleConfigKey::Client(*key), *value);
    }
    for (key, value) in keys(options, "gs")? {
        builder = builder.with_config(key, value);
    }
    let store = builder
        .with_bucket_name(bucket)
        .with_retry(no_retries())
        .build()
        .map_err(backend_error(text))?;
    Ok(shared(Arc::new(store), prefix))
}

fn open_azure(
    text: &str,
    url: &Url,
    options: &BTreeMap<String, String>,
) -> Result<Backend, OpenError> {
    let (container, prefix) = remote(text, url, "a container, as in az://container/prefix")?;
    let mut builder = MicrosoftAzureBuilder::from_env();
    for (key, value) in CLIENT {
        builder = builder.with_config(AzureConfigKey::Client(*key), *value);
    }
    for (key, value) in keys(options, "az")? {
        builder = builder.with_config(key, value);
    }
    let store = builder
        .with_container_name(container)
        .with_retry(no_retries())
        .build()
        .map_err(backend_error(text))?;
    Ok(shared(Arc::new(store), prefix))
}

fn shared<S: ObjectStore + PaginatedListStore>(store: Arc<S>, prefix: Path) -> Backend {
    Backend {
        objects: store.clone(),
        pages: Some(store),
        local: None,
        prefix,
    }
}

/// What the process's environment says to a back end.
fn environment<K: std::str::FromStr>(prefix: &str) -> Vec<(K, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| name.starts_with(prefix))
        .filter_map(|(name, value)| Some((name.to_ascii_lowercase().parse().ok()?, value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str, options: &[(&str, &str)]) -> String {
        let options = options
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        match open(url, &options) {
            Ok(_) => panic!("{url} was accepted"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn bad_urls_and_options_say_what_is_wrong() {
        assert!(refused("ftp://a/b", &[]).contains("file, s3, gs or az"));
        assert!(refused("store", &[]).contains("not a url"));
        assert!(refused("s3:///prefix", &[]).contains("a bucket"));
        assert!(refused("file:///", &[]).contains("absolute directory"));
        assert!(refused("file://host/dir", &[]).contains("absolute directory"));
        assert!(refused("s3://b", &[("aws_endpont", "x")]).contains("aws_endpont"));
        assert!(refused("file:///tmp/x", &[("aws_region", "x")]).contains("file back end"));
    }

    #[test]
    fn good_urls_open_without_asking_anybody() {
        let s3 = open(
            "s3://bucket/some/prefix",
            &BTreeMap::from([
                ("aws_endpoint".to_owned(), "http://127.0.0.1:1".to_owned()),
                ("aws_allow_http".to_owned(), "true".to_owned()),
                ("aws_region".to_owned(), "x".to_owned()),
            ]),
        )
        .unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(s3.prefix.as_ref(), "some/prefix");
        let local = open("file:///no/such/dir", &BTreeMap::new()).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(local.local, Some(PathBuf::from("/no/such/dir")));
    }
}
