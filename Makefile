# Two commands do everything on a fresh Debian 12 machine with a Rust toolchain, as root:
#   make demo      see it work: a target on a veth pair, and RDMA programs of Debian without a kernel module as its clients
#   make test      all tests
# Both put the machine back as it was, apart from the Debian packages that they installed.

CARGO ?= cargo
export CARGO

# Every Debian package that building and testing need.
BUILD_PACKAGES = libdpdk-dev dpdk clang libclang-dev pkg-config gcc libc6-dev make binutils dpkg-dev xz-utils
TEST_PACKAGES = qemu-system-x86 busybox-static python3 python3-prometheus-client python3-venv iproute2 kmod cpio zstd \
	lintian dpdk-dev util-linux procps tmux systemd valgrind tcpdump tshark \
	perftest rdmacm-utils ibverbs-utils ibverbs-providers rdma-core libibverbs-dev librdmacm-dev python3-pyverbs nvme-cli e2fsprogs fio
# What the nightly run and the benchmarks need besides.
NIGHTLY_PACKAGES = libfabric-bin ucx-utils
# Memory in hugepages, in MiB, that the tests and the demonstration want free.
HUGE_MIB = 1024

.PHONY: help setup unsetup packages build deb test nightly soak bench docs demo demo-kernel clean

help:
	@sed -n '/^# Two/,/^$$/s/^# \{0,1\}//p' Makefile
	@echo "Also: make demo-kernel, setup, unsetup, build, deb, nightly, soak, bench, docs, clean."

# Debian packages that are missing, and hugepages. `make unsetup` gives the hugepages back.
setup: packages
	@conf/host-setup hugepages $(HUGE_MIB)

unsetup:
	@conf/host-setup undo

packages:
	@missing=; for p in $(BUILD_PACKAGES) $(TEST_PACKAGES) $(if $(RXE_NIGHTLY),$(NIGHTLY_PACKAGES)); do \
		dpkg-query -W -f='$${db:Status-Abbrev}' $$p 2>/dev/null | grep -q '^ii' || missing="$$missing $$p"; \
	done; \
	if [ -n "$$missing" ]; then \
		echo "setup: installing$$missing"; \
		export DEBIAN_FRONTEND=noninteractive; \
		apt-get -qq update && apt-get -qq -o Dpkg::Use-Pty=0 install -y --no-install-recommends $$missing >/dev/null; \
	fi

build:
	$(CARGO) build --release --locked

# The Debian package, in target/debian.
deb: build
	@package/deb

test:
	@tests/run test

# As `make test`, with every flag of the client programs at every MTU and port type, the release build, and a guest with a
# newer kernel (Debian's backports).
nightly:
	@RXE_NIGHTLY=1 tests/run test

# The release build for MINUTES under clients that connect, work, disconnect and vanish; fails when something of them is left.
MINUTES ?= 10
soak:
	@tests/run soak $(MINUTES)

# Measures, on two CPUs or more without other load, and writes docs/performance.md, its plots, the table of ports and the
# summary in README.md;
# SECTIONS (rows, sizes, latency, ...) measures some sections and writes copies below target/bench.
bench:
	@tests/run bench $(SECTIONS)

# Writes docs/clients.md and the outputs in docs/tutorial.md from runs of the clients; GROUPS selects some of them.
GROUPS ?= pingpong perftest vhost af_packet rdmacm rsocket mckey rc-example clients tutorial
docs:
	@tests/run docs $(GROUPS)

demo:
	@tests/run demo

# The same with a Linux guest, whose kernel's soft-RoCE is the client.
demo-kernel:
	@tests/run demo-kernel

clean:
	$(CARGO) clean
