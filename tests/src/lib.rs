//! What Thaw's suites, benchmarks and demo stand on: a shaped S3 server, a private containerd, a stand-in for it, network
//! namespaces, images and guests, and other people's suites in worlds of their own.

pub mod command;
pub mod conform;
pub mod http;
pub mod image;
pub mod mock;
pub mod netns;
pub mod node;
pub mod pods;
pub mod s3;
pub mod scene;
pub mod tools;
