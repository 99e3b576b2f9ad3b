# Everything a user or a machine asks of this repository. The verbs do what CONTRIBUTING.md says;
# each works in a fresh clone with cargo, gcc and make present.

PREFIX ?= /usr/local
TARGET := $(or $(CARGO_TARGET_DIR),target)
RELEASE := $(TARGET)/release
export PATH := $(HOME)/.cargo/bin:$(PATH)

# What is installed, but for the library that runs inside programs. Always built together, so that
# what they have in common is built once.
PROGRAMS := -p holdfast-cli -p holdfast-c -p holdfast-bench -p holdfast-export \
  -p holdfast-nbdkit -p holdfast-manual

.PHONY: all need-rust fio-engine test demo bench install uninstall deb tidy clean

all: need-rust
	cargo build --release $(PROGRAMS) $(CARGO_FLAGS)
	cargo build --release -p holdfast-preload $(CARGO_FLAGS)

# Before cargo ends deep in a build for want of a newer one.
need-rust:
	@packaging/need-rust

# The engine for fio, which is built against the source of the fio that is installed: FIO=DIR.
fio-engine:
	@bindings/fio/build "$(FIO)" $(RELEASE)

test: need-rust
	@tests/prepare
	@tests/all

demo:
	@tests/prepare demo
	@$(MAKE) --no-print-directory --silent all CARGO_FLAGS=--quiet
	@demo/demo.sh $(RELEASE)/holdfast

BUILD_PEERS := cargo build --release --quiet --locked --manifest-path bench/kv/Cargo.toml \
  --target-dir $(TARGET)

# Where `bench disk` measures: a directory on an ordinary file system.
BENCH_DIR ?= $(TARGET)/bench-disk

bench:
	@tests/prepare bench
	@$(MAKE) --no-print-directory --silent all CARGO_FLAGS=--quiet
	@$(BUILD_PEERS) || { echo "bench: RocksDB cannot be built here; without it" >&2; \
	  $(BUILD_PEERS) --no-default-features; }
	@$(RELEASE)/holdfast bench files
	@$(RELEASE)/holdfast bench programs
	@$(RELEASE)/holdfast bench kv
	@$(RELEASE)/holdfast bench webproxy
	@$(RELEASE)/holdfast bench sharing
	@$(RELEASE)/holdfast bench mapping
	@mkdir -p $(BENCH_DIR)
	@$(RELEASE)/holdfast bench disk $(BENCH_DIR)

# The installed tree finds its own parts relative to bin/holdfast, so it may be moved. DEBUG=yes
# installs the symbols of its programs beside them, for debuggers.
DEBUG ?= no
install: all
	@rm -rf $(TARGET)/stage
	@packaging/stage $(RELEASE) $(TARGET)/stage $(PREFIX) $(DEBUG)
	packaging/install $(TARGET)/stage $(DESTDIR)$(PREFIX)

uninstall:
	packaging/uninstall $(DESTDIR)$(PREFIX)

# A package for Debian and what descends from it, as TARGET/debian/holdfast_VERSION_ARCH.deb.
deb: all
	@packaging/deb $(RELEASE) $(TARGET)/debian

tidy:
	cargo xtask tidy

clean:
	cargo clean
