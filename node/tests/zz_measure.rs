mod common;
use std::os::fd::AsFd;
use std::time::Instant;
use common::*;
use thaw_proto::data::*;
use thaw_node::packets::Packets;
#[tokio::test(flavor = "multi_thread")]
async fn measure() {
    let node = TestNode::new().await;
    let cap = node.capture_begin("c1", &spec("a")).await.unwrap();
    let p = Packets::connect(&node.config.data_socket()).unwrap();
    p.send(&ToNode::Capture{capture: cap.clone()}.encode(), None).await.unwrap();
    let mut b = vec![0; MAX_PACKET];
    p.recv(&mut b).await.unwrap();
    let block = content(5, 1<<20);
    let n: u64 = 1<<30;
    let m = memfd(&[]);
    for i in 0..n>>20 { std::os::unix::fs::FileExt::write_all_at(&m, &block, i<<20).unwrap(); }
    p.send(&ToNode::ClientFile{file: File::Pages, handle: 0}.encode(), Some(m.as_fd())).await.unwrap();
    for round in 0..1 {
        let t = Instant::now();
        let io = 1u64<<20; let mut out = 0; 
        for i in 0..n/io {
            p.send(&ToNode::Write{tag: i as u32, file: File::Pages, handle: 0, reserve: n, ranges: vec![Range{start:i*io,end:(i+1)*io}]}.encode(), None).await.unwrap();
            out += 1;
            if out == 8 { p.recv(&mut b).await.unwrap(); out -= 1; }
        }
        for _ in 0..out { p.recv(&mut b).await.unwrap(); }
        eprintln!("round {round}: {:.0} MB/s", n as f64 / 1e6 / t.elapsed().as_secs_f64());
    }
}
