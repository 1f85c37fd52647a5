# `make` alone lists what there is.

TARGET := x86_64-unknown-linux-gnu
RELEASE := $(or $(CARGO_TARGET_DIR),target)/$(TARGET)/release

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench conform tools release clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## A Python service started normally, captured, restored, and refused for a reason (15 min at first, then 2)
	@tools/install.sh packages runsc containerd python-rootfs
	@tools/release.sh -p thaw-testkit -p thaw-example-local-ctr
	@$(RELEASE)/thaw-demo --binaries $(RELEASE) --result target/demo.json

test: ## All checks and test suites, a time for each and one summary
	@tools/test.sh

bench: ## Measures; ROW=start, capture, run, idle, stats, soak or size for one row, REPEAT=n for more repetitions
	@tools/install.sh packages runsc containerd python-rootfs gvisor-shim
	@tools/release.sh -p thaw-testkit -p thaw-bench
	@$(RELEASE)/thaw-bench --binaries $(RELEASE) $(if $(ROW),--row $(ROW)) $(if $(REPEAT),--repeat $(REPEAT))

conform: ## Other people's suites against runc's shim, gVisor's and Thaw (40 min); SUITE=client or cri, SHIM=runc, gvisor or thaw for one
	@tools/install.sh packages runsc containerd client-suite critest gvisor-shim $(if $(SUITE)$(SHIM),,old-containerds)
	@cargo build --locked --workspace --bins --features thaw-proto/failpoints
	@$(or $(CARGO_TARGET_DIR),target)/debug/thaw-conform --binaries $(or $(CARGO_TARGET_DIR),target)/debug $(if $(SUITE),--suite $(SUITE)) $(if $(SHIM),--shim $(SHIM))
	@$(if $(SUITE)$(SHIM),,THAW_PEERS=all tools/test.sh suite:shim_differential suite:versions)

lint: ## Formatting, clippy, documentation, dependencies
	@tools/test.sh format clippy docs deny

tools: ## Install the real components (runsc, containerd, ...) into .tools
	@tools/install.sh

release: ## Static, stripped binaries in target/x86_64-unknown-linux-gnu/release
	@tools/release.sh

clean: ## Remove what was built; installed components stay
	cargo clean
