//! The shaped S3 server, seen through the client that Thaw uses.

use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{
    ClientOptions, Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    PutPayload, RetryConfig, WriteMultipart,
};
use thaw_testkit::s3::{Admin, Backend, Fault, FaultRule, Latency, S3Options, S3Server, Shape};

const BUCKET: &str = "bucket";

fn client(server: &S3Server) -> AmazonS3 {
    AmazonS3Builder::new()
        .with_endpoint(server.endpoint())
        .with_allow_http(true)
        .with_region("test-1")
        .with_bucket_name(BUCKET)
        .with_access_key_id("any")
        .with_secret_access_key("any")
        .with_client_options(
            ClientOptions::new()
                .with_allow_http(true)
                .with_timeout(Duration::from_secs(2)),
        )
        // Faults are to be seen, not retried away.
        .with_retry(RetryConfig {
            max_retries: 0,
            ..RetryConfig::default()
        })
        .build()
        .unwrap()
}

fn both() -> (tempfile::TempDir, Vec<S3Server>) {
    let dir = tempfile::tempdir().unwrap();
    let backends = [
        Backend::default(),
        Backend::Directory(dir.path().join("objects")),
    ];
    let servers = backends
        .into_iter()
        .map(|backend| {
            S3Server::start(S3Options {
                backend,
                ..S3Options::default()
            })
            .unwrap()
        })
        .collect();
    (dir, servers)
}

fn create() -> PutOptions {
    PutOptions {
        mode: PutMode::Create,
        ..PutOptions::default()
    }
}

#[tokio::test]
async fn objects_are_created_read_in_ranges_and_deleted() {
    let (_dir, servers) = both();
    for server in &servers {
        let store = client(server);
        let path = Path::from("a/b c/object");
        let data: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        store
            .put_opts(&path, PutPayload::from(data.clone()), create())
            .await
            .unwrap();
        let again = store
            .put_opts(&path, PutPayload::from_static(b"other"), create())
            .await;
        assert!(
            matches!(again, Err(Error::AlreadyExists { .. })),
            "{again:?}"
        );

        let meta = store.head(&path).await.unwrap();
        assert_eq!(meta.size, data.len() as u64);
        let whole = store.get(&path).await.unwrap().bytes().await.unwrap();
        assert_eq!(whole, data);
        assert_eq!(
            store.get_range(&path, 1_000..2_000).await.unwrap(),
            data[1_000..2_000]
        );
        let suffix = GetOptions {
            range: Some(GetRange::Suffix(10)),
            ..GetOptions::default()
        };
        let suffix = store.get_opts(&path, suffix).await.unwrap();
        assert_eq!(suffix.bytes().await.unwrap(), data[data.len() - 10..]);

        store.delete(&path).await.unwrap();
        assert!(matches!(
            store.get(&path).await,
            Err(Error::NotFound { .. })
        ));
    }
}

#[tokio::test]
async fn listings_page_group_and_start_after() {
    let (_dir, servers) = both();
    for server in &servers {
        let store = client(server);
        for i in 0..1_005 {
            server
                .backend()
                .put(&format!("{BUCKET}/many/{i:05}"), "x".into())
                .unwrap();
        }
        store.put(&Path::from("other/x"), "x".into()).await.unwrap();

        let many = Path::from("many");
        let all: Vec<_> = store.list(Some(&many)).try_collect().await.unwrap();
        assert_eq!(all.len(), 1_005);
        let offset = Path::from("many/01000");
        let rest: Vec<_> = store
            .list_with_offset(Some(&many), &offset)
            .try_collect()
            .await
            .unwrap();
        assert_eq!(rest.len(), 4);
        let top = store.list_with_delimiter(None).await.unwrap();
        assert_eq!(top.common_prefixes, [many, Path::from("other")]);
        assert!(top.objects.is_empty());
    }
}

#[tokio::test]
async fn multipart_and_bulk_delete() {
    let (_dir, servers) = both();
    for server in &servers {
        let store = client(server);
        let path = Path::from("large");
        let mut writer =
            WriteMultipart::new_with_chunk_size(store.put_multipart(&path).await.unwrap(), 5 << 20);
        let data = vec![7; 12 << 20];
        writer.write(&data);
        writer.finish().await.unwrap();
        assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), data);

        store
            .put_multipart(&path)
            .await
            .unwrap()
            .abort()
            .await
            .unwrap();

        let copy = Path::from("copy");
        store.copy(&path, &copy).await.unwrap();
        let paths = futures::stream::iter([Ok(path), Ok(copy)]).boxed();
        let gone: Vec<_> = store.delete_stream(paths).try_collect().await.unwrap();
        assert_eq!(gone.len(), 2);
        assert_eq!(store.list(None).count().await, 0);
    }
}

#[tokio::test]
async fn each_fault_is_what_it_says() {
    let server = S3Server::start(S3Options::default()).unwrap();
    let store = client(&server);
    let path = Path::from("v1/t/x/packs/p");
    let data = vec![1u8; 300_000];
    store.put(&path, data.clone().into()).await.unwrap();
    let get = async |fault| {
        server.set_faults(vec![
            FaultRule::new("bucket/*/packs/*", fault).method("GET"),
        ]);
        match store.get(&path).await {
            Ok(found) => found.bytes().await,
            Err(e) => Err(e),
        }
    };

    let denied = get(Fault::Status { status: 403 }).await.unwrap_err();
    assert!(
        matches!(denied, Error::PermissionDenied { .. }),
        "{denied:?}"
    );
    get(Fault::Status { status: 500 }).await.unwrap_err();
    get(Fault::Status { status: 503 }).await.unwrap_err();
    get(Fault::Cut { after: 100_000 }).await.unwrap_err();
    let late = get(Fault::Stall {
        after: 1_000,
        ms: 10_000,
    });
    late.await.unwrap_err();
    let flipped = get(Fault::Flip { offset: 5 }).await.unwrap();
    let wrong: Vec<usize> = (0..data.len())
        .filter(|i| flipped[*i] != data[*i])
        .collect();
    assert_eq!(wrong, [5]);
    assert!(get(Fault::Empty).await.unwrap().is_empty());
    let document = get(Fault::ErrorDocument).await.unwrap();
    assert!(document.starts_with(b"<?xml"));
    assert_eq!(get(Fault::Delay { ms: 1 }).await.unwrap(), data);

    server.set_faults(Vec::new());
    let found = store.get(&path).await.unwrap().bytes().await.unwrap();
    assert_eq!(found, data);
}

#[tokio::test]
async fn latency_and_bandwidth_are_kept() {
    let server = S3Server::start(S3Options::default()).unwrap();
    let store = client(&server);
    let path = Path::from("object");
    store.put(&path, vec![0u8; 1 << 20].into()).await.unwrap();
    server.set_shape(Shape {
        latency: Latency::Fixed { ms: 50.0 },
        total_bytes_per_s: 10 << 20,
        connection_bytes_per_s: 0,
    });
    let started = Instant::now();
    store.get(&path).await.unwrap().bytes().await.unwrap();
    // 50 ms, then a tenth of a second for 1 MiB. No upper bound: the machine may be busy.
    assert!(started.elapsed() >= Duration::from_millis(145));
}

#[test]
fn a_server_is_steered_from_outside() {
    let server = S3Server::start(S3Options::default()).unwrap();
    let admin = Admin::new(server.address());
    server
        .backend()
        .put("b/v1/t/x/packs/p", "abc".into())
        .unwrap();
    assert_eq!(admin.keys("b/").unwrap(), ["b/v1/t/x/packs/p"]);
    let get = || {
        thaw_testkit::http::get(
            server.address(),
            "/b/v1/t/x/packs/p",
            Duration::from_secs(5),
        )
        .unwrap()
    };
    assert_eq!(get().text(), "abc");
    admin.flip("b/v1/t/x/packs/p", 1).unwrap();
    assert_eq!(get().text(), "a`c");
    assert!(admin.flip("b/v1/t/x/packs/p", 3).is_err());
    admin
        .set_faults(&[FaultRule::new("*", Fault::Status { status: 403 }).times(1)])
        .unwrap();
    assert_eq!((get().status, get().status), (403, 200));
    let totals = admin.totals().unwrap();
    assert_eq!(totals["packs"].requests, 4);
    assert_eq!(admin.journal().unwrap().len(), 4);
    admin.clear_journal().unwrap();
    assert!(admin.journal().unwrap().is_empty());
}
