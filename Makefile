# Every task of the project. `make help` lists them; CI calls nothing else.

SHELL       := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The version that every binary prints and sends in its User-Agent.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# Static and reproducible: no cgo, no build paths, no state of a clone, no symbol tables.
# grpcnotrace is gRPC's own: without its pages for debugging the linker can leave out 9 MB (docs/decisions/0023).
GOBUILD := CGO_ENABLED=0 go build -tags grpcnotrace -trimpath -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION)'

# The real parts (etcd, kube-apiserver, kubectl, …) and the linters are built once, from Go modules, into this folder.
export FAIRLEAD_TOOLS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/fairlead/tools
TOOLS := go run ./tests/tools/build

# What CI spends on each fuzz target.
FUZZTIME ?= 60s
# Benchmarks whose names match, and for how long each.
BENCH     ?= .
BENCHTIME ?= 1s
IMAGE     ?= fairlead:$(VERSION)

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/fairlead, bin/kubectl-fairlead and bin/fairlead-dev (static)
	@mkdir -p bin
	$(GOBUILD) -o bin/ ./cmd/...

.PHONY: run
run: build ## Bring up a whole cluster on loopback behind Fairlead; Ctrl-C ends it
	@bin/fairlead-dev

.PHONY: example
example: build ## Fairlead before two extension servers and a folder of manifests, without a cluster; Ctrl-C ends all
	@go run ./examples/directory $(EXAMPLEARGS)

.PHONY: test
test: unit race e2e ## Unit tests, race tests and e2e on real parts

.PHONY: unit
unit: ## Unit tests without the race detector (allocation and timing budgets hold only there)
	go test ./...

.PHONY: race
race: ## Unit tests under the race detector
	go test -race -timeout 20m ./...

.PHONY: e2e
e2e: ## End-to-end tests on real parts; fails when fewer cases ran than the files COUNT say
	$(TOOLS)
	go test -tags e2e -count=1 -parallel 16 -timeout 45m -json ./tests/e2e/... ./tests/cluster ./cmd/fairlead-dev | go run ./tests/count -want tests/e2e/COUNT

.PHONY: slow
slow: ## Suites with bounds in seconds (faults, rotations, operation, directory, differential): for a machine that is otherwise idle
	$(TOOLS)
	$(TOOLS) helm kubeadm # before the tests: their network has no way out
	@command -v ip >/dev/null || apt-get install -y iproute2
	go test -tags e2e -count=1 -parallel 12 -timeout 20m -json ./tests/faults | go run ./tests/count -want tests/faults/COUNT
	go test -tags e2e -count=1 -parallel 32 -timeout 15m -json ./tests/rotation | go run ./tests/count -want tests/rotation/COUNT
	go test -tags e2e -count=1 -timeout 10m -json ./tests/entrypoint | go run ./tests/count -want tests/entrypoint/COUNT
	@for tool in chromium promtool curl openssl; do command -v $$tool >/dev/null || { apt-get update -qq; apt-get install -y --no-install-recommends chromium prometheus curl openssl; break; }; done
	go test -tags e2e -count=1 -parallel 32 -timeout 15m -json ./tests/operate | go run ./tests/count -want tests/operate/COUNT
	go test -tags e2e -count=1 -timeout 15m -json ./tests/directory | go run ./tests/count -want tests/directory/COUNT
	go test -tags e2e -count=1 -timeout 15m -json ./tests/differential | go run ./tests/count -want tests/differential/COUNT

# What Fairlead offers its clients in make conformance and make soak: h2 or http1; direct is without Fairlead.
LANE ?= h2

.PHONY: conformance
conformance: build ## Kubernetes' own specs of sig-api-machinery that need no pods, through Fairlead (LANE=h2|http1|direct); minutes, outside CI
	go run ./tests/conformance -lane=$(LANE) -want=56

# How long to break things, and what is drawn from.
MINUTES ?= 20
SEED    ?= 1

.PHONY: soak
soak: build ## Break everything at random under load and keep account, for MINUTES=20 with SEED=1 on LANE=h2|http1 (Linux, root)
	$(TOOLS) -q etcd kube-apiserver
	@command -v ip >/dev/null || apt-get install -y iproute2
	go run ./tests/soak -minutes=$(MINUTES) -seed=$(SEED) -lane=$(LANE)

.PHONY: recovery
recovery: ## Real extension servers ended and started again: how soon Fairlead serves them again (6 min; root, otherwise idle)
	$(TOOLS) -q etcd kube-apiserver sample-apiserver test-adapter
	@command -v ip >/dev/null || apt-get install -y iproute2
	go test -tags e2e -count=1 -timeout 30m -json ./tests/recovery | go run ./tests/count -v -want tests/recovery/COUNT

.PHONY: streams
streams: ## Backends with few streams a connection, beside kube-apiserver's own aggregator (30 min; root, otherwise idle)
	$(TOOLS) -q etcd kube-apiserver
	@command -v ip >/dev/null || apt-get install -y iproute2
	@command -v h2load >/dev/null || apt-get install -y --no-install-recommends nghttp2-client
	go test -tags e2e -count=1 -timeout 60m -json ./tests/streams | go run ./tests/count -v -want tests/streams/COUNT

.PHONY: fleet
fleet: ## Two control planes behind HAProxy with hollow kubelets: every server stopped and replaced (12 min; root, otherwise idle)
	$(TOOLS) -q etcd kube-apiserver kube-controller-manager kube-scheduler kubemark
	@command -v ip >/dev/null || apt-get install -y iproute2
	@command -v haproxy >/dev/null || apt-get install -y --no-install-recommends haproxy
	go test -tags e2e -count=1 -timeout 60m -json ./tests/fleet | go run ./tests/count -v -want tests/fleet/COUNT

.PHONY: interop
interop: ## h2spec, curl, nghttp and node (from the machine), and a gigabyte each way, against the engine, on each of its drivers
	go test -tags e2e -count=1 -timeout 10m -run 'H2spec|Interop|Gigabyte' ./proxy/h2

.PHONY: hostile
hostile: ## Attacks on the real binary (40 min): floods, smuggling, malicious backends, forged identities, exhausted machine; prints figures (as root, otherwise idle)
	$(TOOLS) -q etcd kube-apiserver h2spec
	go test -tags e2e -count=1 -timeout 90m -json ./tests/hostile | go run ./tests/count -v -want tests/hostile/COUNT

.PHONY: lint
lint: ## golangci-lint, with a reason for every linter in .golangci.yml
	"$$($(TOOLS) golangci-lint)" run ./...

.PHONY: verify
verify: tidy-diff lint ## Everything that needs no test run: tidy modules, linters, gofmt, vet, style and dependency rules
	@out=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$out" || { echo "gofmt: $$out"; exit 1; }
	go vet ./...
	go vet -tags e2e ./tests/...
	go test -count=1 ./tests
	go run ./tests/vulncheck -unchecked-ok
	@$(MAKE) --no-print-directory size

.PHONY: size
size: ## Lines of Go that ship, and lines of tests (*_test.go and tests/); examples are neither
	@echo "lines that ship: $$(git ls-files -z '*.go' ':!tests' ':!examples' ':!*_test.go' | xargs -0 cat | wc -l)"
	@echo "lines of tests: $$(git ls-files -z '*_test.go' 'tests/*.go' ':!examples' | xargs -0 cat | wc -l)"

.PHONY: vulncheck
vulncheck: ## Known vulnerabilities that the code reaches (govulncheck); fails when the database cannot be read. VULNDB=url of a mirror
	go run ./tests/vulncheck

.PHONY: reproducible
reproducible: ## Build twice, from two folders and with two caches: the bytes must be equal (minutes)
	go run ./tests/reproducible -version $(VERSION)

.PHONY: tidy-diff
tidy-diff:
	go mod tidy -diff
	go mod verify

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME
	@# 10x: coverage of code that uses crypto/rand differs from run to run, and the minute that is spent on making each input smaller would be all of FUZZTIME.
	@go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... | while read -r pkg; do \
	  { go test -list '^Fuzz' "$$pkg" | grep '^Fuzz' || true; } | while read -r target; do \
	    echo "== $$pkg $$target"; \
	    go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x "$$pkg" </dev/null; \
	  done; \
	done

.PHONY: bench
bench: build ## Measure Fairlead beside its peers; BENCHARGS=-full for all of docs/performance.md (45 min), list: -scenarios list
	@command -v haproxy >/dev/null && command -v nginx >/dev/null && command -v nghttpx >/dev/null || apt-get install -y --no-install-recommends haproxy nginx-light nghttp2-proxy
	$(TOOLS) -q etcd kube-apiserver
	go run ./tests/bench $(BENCHARGS)

.PHONY: microbench
microbench: ## Go benchmarks with allocations (BENCH=regexp, BENCHTIME=1s)
	go test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -benchmem ./...

.PHONY: sbom
sbom: build ## Bills of materials of what the image holds, CycloneDX: bin/*.cdx.json
	@for bin in fairlead kubectl-fairlead; do \
	  "$$($(TOOLS) cyclonedx-gomod)" bin -json -noserial -notimestamp -std -version $(VERSION) -output bin/$$bin.cdx.json bin/$$bin; \
	done

.PHONY: image
image: sbom ## Build the container image, and the bills of materials beside it
	docker build --build-arg VERSION=$(VERSION) -t $(IMAGE) .
