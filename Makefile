# Everything a user or a machine asks of this repository. The verbs do what CONTRIBUTING.md says;
# each works in a fresh clone with cargo, gcc and make present.

PREFIX ?= /usr/local
TARGET := $(or $(CARGO_TARGET_DIR),target)
RELEASE := $(TARGET)/release
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
export PATH := $(HOME)/.cargo/bin:$(PATH)

# What is installed, but for the library that runs inside programs. Always built together, so that
# what they have in common is built once.
PROGRAMS := -p holdfast-cli -p holdfast-c -p holdfast-bench -p holdfast-export \
  -p holdfast-nbdkit

.PHONY: all fio-engine test demo bench install tidy clean

all:
	cargo build --release $(PROGRAMS) $(CARGO_FLAGS)
	cargo build --release -p holdfast-preload $(CARGO_FLAGS)

# The engine for fio, which is built against the source of the fio that is installed: FIO=DIR.
fio-engine:
	@bindings/fio/build "$(FIO)" $(RELEASE)

test:
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

# The installed tree finds its own parts relative to bin/holdfast, so it may be moved.
install: all
	install -D -m 0755 $(RELEASE)/holdfast-bench \
	  $(DESTDIR)$(PREFIX)/libexec/holdfast/holdfast-bench
	install -D -m 0755 $(RELEASE)/holdfast-bench-mapper \
	  $(DESTDIR)$(PREFIX)/libexec/holdfast/holdfast-bench-mapper
	install -D -m 0755 $(RELEASE)/holdfast-export \
	  $(DESTDIR)$(PREFIX)/libexec/holdfast/holdfast-export
	install -D -m 0755 $(RELEASE)/holdfast $(DESTDIR)$(PREFIX)/bin/holdfast
	install -D -m 0755 $(RELEASE)/libholdfast_preload.so \
	  $(DESTDIR)$(PREFIX)/lib/libholdfast_preload.so
	install -D -m 0755 $(RELEASE)/libholdfast_nbdkit.so \
	  $(DESTDIR)$(PREFIX)/lib/holdfast/nbdkit-holdfast-plugin.so
	if [ -e $(RELEASE)/libholdfast_fio.so ]; then \
	  install -D -m 0755 $(RELEASE)/libholdfast_fio.so \
	    $(DESTDIR)$(PREFIX)/lib/holdfast/libholdfast_fio.so; fi
	install -D -m 0755 $(RELEASE)/libholdfast_c.so $(DESTDIR)$(PREFIX)/lib/libholdfast.so
	install -D -m 0644 bindings/c/include/holdfast.h $(DESTDIR)$(PREFIX)/include/holdfast.h
	install -D -m 0644 bindings/c/holdfast.pc $(DESTDIR)$(PREFIX)/lib/pkgconfig/holdfast.pc
	sed -i 's/@VERSION@/$(VERSION)/' $(DESTDIR)$(PREFIX)/lib/pkgconfig/holdfast.pc
	for manager in system user; do for unit in crates/cli/systemd/*; do \
	  install -D -m 0644 $$unit $(DESTDIR)$(PREFIX)/lib/systemd/$$manager/$${unit##*/} && \
	  sed -i 's|@PREFIX@|$(PREFIX)|' $(DESTDIR)$(PREFIX)/lib/systemd/$$manager/$${unit##*/} \
	  || exit; done; done

tidy:
	cargo xtask tidy

clean:
	cargo clean
