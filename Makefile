# Build, test and check targets; `make help` lists them.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
CARGO ?= cargo

.PHONY: help
help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/make \1\t\2/' | expand -t 16

.PHONY: demo
demo: ## Run a shop whose handlers fail, and check that no event is lost; needs only the Rust toolchain
	@echo "The first build compiles SQLite and all dependencies in release mode: several minutes. Later runs start at once."
	$(CARGO) run --release --locked -p redrive-cli -- demo

.PHONY: test
test: ## Run all tests, those of the clients, the examples and the check of the conformance table
	$(CARGO) run --quiet --locked -p xtask -- programs
	$(CARGO) test --workspace --all-targets --locked
	$(CARGO) test --locked -p redrive-store --features shuttle --lib interleavings
	REDRIVE_TEST_STORE=postgres $(CARGO) test --workspace --locked --test on_any_store --test span
	$(CARGO) test --workspace --doc --locked
	$(CARGO) run --quiet --locked -p xtask -- conformance
	REDRIVE_BIN=$${CARGO_TARGET_DIR:-target}/debug/redrive clients/test.sh

TORTURE_SECONDS ?= 120
.PHONY: torture
torture: ## Inject faults for TORTURE_SECONDS (120); no event may be lost, every planted bug must be found
	$(CARGO) run --quiet --locked -p xtask -- programs
	$(CARGO) build --locked -p redrive-cli
	$(CARGO) build --locked -p redrive-torture --features planted
	cp $${CARGO_TARGET_DIR:-target}/debug/redrive-torture $${CARGO_TARGET_DIR:-target}/debug/redrive-torture-planted
	$(CARGO) run --quiet --locked -p redrive-torture -- all --seconds $(TORTURE_SECONDS) --planted $${CARGO_TARGET_DIR:-target}/debug/redrive-torture-planted

.PHONY: coverage
coverage: ## Measure the scheduler's line coverage; at least 90 %
	$(CARGO) run --quiet --locked -p xtask -- programs
	$(CARGO) run --quiet --locked -p xtask -- coverage redrive-scheduler 90

.PHONY: check
check: fmt-check words openapi-check clippy doc-check features deny ## Check formatting, wording, the API document, lints, documentation, features, dependencies

.PHONY: fmt-check
fmt-check:
	$(CARGO) fmt --all --check

# Wording, retired names, sizes of files and functions: xtask/words.toml.
.PHONY: words
words:
	$(CARGO) run --quiet --locked -p xtask -- words

# docs/openapi.json may break its users only if the changelog says so.
.PHONY: openapi-check
openapi-check:
	$(CARGO) run --quiet --locked -p xtask -- openapi

.PHONY: clippy
clippy:
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

.PHONY: doc-check
doc-check:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --document-private-items --locked

# The library alone, with each feature alone: what its users build.
.PHONY: features
features:
	$(CARGO) check -p redrive-retry --no-default-features --locked
	$(CARGO) check -p redrive-retry --no-default-features --features conformance --locked
	$(CARGO) check -p redrive-nats --locked
	$(CARGO) check -p redrive-store --no-default-features --locked
	$(CARGO) check -p redrive --no-default-features --locked
	$(CARGO) check -p redrive --features postgres --locked

# Licences, duplicate and banned crates, sources. Advisories are left to a scheduled job: they need their database.
.PHONY: deny
deny:
	@command -v cargo-deny >/dev/null || { echo "cargo-deny is missing; installing it from crates.io (a minute or two, once)"; \
		$(CARGO) install cargo-deny --locked --quiet --debug; }
	$(CARGO) deny --workspace check bans licenses sources

.PHONY: package
package: ## Package every published crate and compile each package
	$(CARGO) package --locked $(foreach crate,retry store nats webhook scheduler api server cli,-p redrive-$(crate)) -p redrive

.PHONY: bench
bench: ## Run the side-by-side measurements; needs an idle machine
	$(CARGO) run --release --locked -p redrive-bench
	$(CARGO) run --release --quiet --locked -p redrive-cli -- bench --dir .

.PHONY: doc
doc: ## Build the API documentation in target/doc
	$(CARGO) doc --workspace --no-deps --locked
	@echo "target/doc/redrive_retry/index.html"

.PHONY: pictures
pictures: ## Redraw docs/pictures
	$(CARGO) run --release --quiet --locked -p redrive-cli -- policy explain --preset webhook --svg docs/pictures/explain-webhook.svg >/dev/null
	$(CARGO) run --release --quiet --locked -p redrive-cli -- policy simulate --preset webhook --max-attempts 7 --jitter equal --events 1000 --outage 20s --capacity 100 --svg docs/pictures/simulate-webhook.svg >/dev/null
