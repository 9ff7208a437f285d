# Everything a newcomer needs. `make demo` shows it, `make test` proves it.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
CARGO ?= cargo

.PHONY: help
help: ## This list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/make \1\t\2/' | expand -t 16

.PHONY: demo
demo: ## A shop that fails in every usual way and loses nothing: needs nothing but the Rust toolchain
	$(CARGO) run --release --quiet --locked -p redrive-server -- demo

.PHONY: test
test: ## All tests, the examples and the conformance table
	$(CARGO) run --quiet --locked -p xtask -- programs
	$(CARGO) test --workspace --all-targets --locked
	$(CARGO) test --locked -p redrive-store --features shuttle --lib interleavings
	REDRIVE_TEST_STORE=postgres $(CARGO) test --workspace --locked --test on_any_store --test span
	$(CARGO) test --workspace --doc --locked
	$(CARGO) run --quiet --locked -p xtask -- conformance

TORTURE_SECONDS ?= 120
.PHONY: torture
torture: ## Tries to make it lose an event, for TORTURE_SECONDS (120), and must find every planted bug
	$(CARGO) run --quiet --locked -p xtask -- programs
	$(CARGO) build --locked -p redrive-server
	$(CARGO) build --locked -p redrive-torture --features planted
	cp $${CARGO_TARGET_DIR:-target}/debug/redrive-torture $${CARGO_TARGET_DIR:-target}/debug/redrive-torture-planted
	$(CARGO) run --quiet --locked -p redrive-torture -- all --seconds $(TORTURE_SECONDS) --planted $${CARGO_TARGET_DIR:-target}/debug/redrive-torture-planted

.PHONY: coverage
coverage: ## How much of the scheduler its tests run through; at least 90 % of its lines
	$(CARGO) run --quiet --locked -p xtask -- programs
	$(CARGO) run --quiet --locked -p xtask -- coverage redrive-scheduler 90

.PHONY: check
check: fmt-check clippy doc-check features deny ## Formatting, lints, documentation, features, dependencies

.PHONY: fmt-check
fmt-check:
	$(CARGO) fmt --all --check

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

.PHONY: bench
bench: ## Side-by-side measurements; a quiet machine, please
	$(CARGO) run --release --locked -p redrive-bench
	$(CARGO) run --release --quiet --locked -p redrive-server -- bench --dir .

.PHONY: doc
doc: ## The API documentation, in target/doc
	$(CARGO) doc --workspace --no-deps --locked
	@echo "target/doc/redrive_retry/index.html"

.PHONY: pictures
pictures: ## Draws docs/pictures anew
	$(CARGO) run --release --quiet --locked -p redrive-server -- policy explain --preset webhook --svg docs/pictures/explain-webhook.svg >/dev/null
	$(CARGO) run --release --quiet --locked -p redrive-server -- policy simulate --preset webhook --max-attempts 7 --jitter equal --events 1000 --outage 20s --capacity 100 --svg docs/pictures/simulate-webhook.svg >/dev/null
