# Everything a user or a machine asks of this repository. The verbs do what CONTRIBUTING.md says;
# each works in a fresh clone with cargo, gcc and make present.

PREFIX ?= /usr/local
TARGET := $(or $(CARGO_TARGET_DIR),target)
RELEASE := $(TARGET)/release
export PATH := $(HOME)/.cargo/bin:$(PATH)

.PHONY: all test demo bench install tidy clean

all:
	cargo build --release
	cargo build --release -p holdfast-preload

test:
	@tests/prepare
	@tests/all

demo:
	@tests/prepare demo
	@cargo build --release --quiet -p holdfast-cli
	@cargo build --release --quiet -p holdfast-preload
	@demo/demo.sh $(RELEASE)/holdfast

BUILD_PEERS := cargo build --release --quiet --locked --manifest-path bench/kv/Cargo.toml \
  --target-dir $(TARGET)

bench:
	@tests/prepare bench
	@cargo build --release --quiet -p holdfast-cli
	@cargo build --release --quiet -p holdfast-preload
	@$(BUILD_PEERS) || { echo "bench: RocksDB cannot be built here; without it" >&2; \
	  $(BUILD_PEERS) --no-default-features; }
	@$(RELEASE)/holdfast bench files
	@$(RELEASE)/holdfast bench kv
	@$(RELEASE)/holdfast bench webproxy

# The installed tree finds its own parts relative to bin/holdfast, so it may be moved.
install:
	cargo build --release -p holdfast-cli
	cargo build --release -p holdfast-preload
	install -D -m 0755 $(RELEASE)/holdfast $(DESTDIR)$(PREFIX)/bin/holdfast
	install -D -m 0755 $(RELEASE)/libholdfast_preload.so \
	  $(DESTDIR)$(PREFIX)/lib/libholdfast_preload.so

tidy:
	cargo xtask tidy

clean:
	cargo clean
