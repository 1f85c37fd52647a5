//! Generates the ttrpc services and messages from `proto/*.proto` with a parser written in Rust, so no `protoc` is needed.

use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=proto");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    ttrpc_codegen::Codegen::new()
        .out_dir(&out)
        .input("proto/thaw.proto")
        .input("proto/runtimeoptions.proto")
        .include("proto")
        .rust_protobuf()
        .customize(ttrpc_codegen::Customize {
            async_all: true,
            ..Default::default()
        })
        .rust_protobuf_customize(ttrpc_codegen::ProtobufCustomize::default().gen_mod_rs(false))
        .run()
        .expect("proto/*.proto generate");
    // The generator's own mod file starts with an inner attribute, which `include!` does not take.
    std::fs::write(
        out.join("services.rs"),
        "pub mod runtimeoptions;\npub mod thaw;\npub mod thaw_ttrpc;\n",
    )
    .expect("OUT_DIR is writable");
}
