# Every task of the project. `make help` lists those that a person needs, `make help-all` all; CI calls nothing else.

SHELL       := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# With -j of a user's MAKEFLAGS, `make release sign` would sign what an earlier release has left. go itself uses all processors.
.NOTPARALLEL:

# The version that every binary prints and sends in its User-Agent.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# Static and reproducible: no cgo, no build paths, no state of a clone, no symbol tables, for which compilers need not make DWARF.
# grpcnotrace removes gRPC's debug pages, which nothing serves (docs/decisions/0047).
GOBUILD := CGO_ENABLED=0 go build -tags grpcnotrace -trimpath -buildvcs=false -gcflags=all=-dwarf=false -ldflags '-s -w -X main.version=$(VERSION)'

# For every processor: of `go env`, a builder's own would make a release that ends on others with SIGILL or an error.
export GOAMD64 := v1
export GOARM64 := v8.0

# The real parts (etcd, kube-apiserver, kubectl, …) and the linters are built once, from Go modules, into this folder.
export FAIRLEAD_TOOLS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/fairlead/tools
TOOLS := go run ./tests/tools/build

# When a suite of CI counts as hung: no limit of the product's, but far beyond what the slowest machine needs to build it and run it.
HUNG := 90m
# The time for each fuzz target.
FUZZTIME ?= 60s
# Where a run keeps the number of cases of each suite, the time, and failures.
TIMES ?= bin/times
# Which benchmarks run, and for how long each.
BENCH     ?= .
BENCHTIME ?= 1s
IMAGE     ?= fairlead:$(VERSION)

# $(call needs,COMMANDS,PACKAGES) installs packages of Debian if a command is missing. A new machine's list of packages may be old, or empty.
needs = @for tool in $(1); do command -v $$tool >/dev/null || { apt-get update -qq; apt-get install -y --no-install-recommends $(2); break; }; done

# What a person needs; help-all has what suites and releases are made of, too.
NEEDED := example run standalone build quick test verify slow bench release

.PHONY: help help-all
help: ## The ten targets that a person needs
	@awk -v needed=' $(NEEDED) ' 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / && index(needed, " " $$1 " ") {printf "  %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST); echo '  make help-all lists the others.'
help-all: ## All targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/fairlead, bin/kubectl-fairlead and bin/fairlead-dev (static)
	@mkdir -p bin; test -e bin/fairlead || echo 'building fairlead: two minutes on two cores when nothing is cached'
	@$(GOBUILD) -o bin/ ./cmd/... ./tests/tools/fairlead-dev

.PHONY: run standalone
run: ## Bring up a whole cluster on loopback behind Fairlead; Ctrl-C ends it
	$(dev)
standalone: ## Two Fairleads on one etcd and an extension server, without kube-apiserver; prints what to try, Ctrl-C ends all
	$(dev) -standalone -dir .standalone
# What only the suggested commands need is built once Fairlead serves. What the parts are made of comes while Fairlead is compiled.
define dev
@mkdir -p bin; test -e bin/fairlead || { echo 'building fairlead: two minutes on two cores when nothing is cached'; \
  for module in etcd kubernetes; do GOWORK=off GOFLAGS=-mod=readonly go list -C tests/tools/$$module -deps tool; done >/dev/null 2>&1 & }
@$(GOBUILD) -o bin/ ./cmd/fairlead ./tests/tools/fairlead-dev
@bin/fairlead-dev -later "$(GOBUILD) -o bin/ ./cmd/kubectl-fairlead"
endef

.PHONY: example
example: build ## Fairlead with two extension servers and a folder of manifests, without a cluster; Ctrl-C ends all
	@$(GOBUILD) -o bin/ ./examples/directory
	@bin/directory $(EXAMPLEARGS)

# Runs targets one after the other, even if one fails, and prints the cases and the seconds of each at the end.
# A target that is no suite, or failed before its tests ran, gets a line too.
define each
@rm -f '$(TIMES)'; mkdir -p "$$(dirname '$(TIMES)')"; failed=; \
for target in $(1); do \
  begun=$$SECONDS; outcome=ok; echo "== $$target"; $(MAKE) --no-print-directory $$target || { outcome=failed; failed+=" $$target"; }; \
  grep -qs "^$$target"$$'\t' '$(TIMES)' || printf '%s\t\t%s\t%s\n' "$$target" $$((SECONDS - begun)) $$outcome >>'$(TIMES)'; \
done; \
awk -F '\t' 'BEGIN {print "suite        cases  seconds  outcome"} {printf "%-11s  %5s  %7s  %s\n", $$1, $$2, $$3, $$4}' '$(TIMES)'; test -z "$$failed" || { echo "FAIL:$$failed"; exit 1; }
endef

# $(call count,SUITE,FLAGS) reads go test -json, and keeps the number of cases, the time, and failures.
count = go run ./tests/tools/count -suite $(1) -times '$(TIMES)' $(2)
# $(call suite,FLAGS) runs the suite with the target's name.
folder = $(firstword $(wildcard tests/e2e/$@ tests/chaos/$@ tests/$@))
suite = go test -tags e2e -count=1 $(1) -json ./$(folder) | $(call count,$@,-want $(folder)/COUNT)

# Suites on the real parts whose bounds are seconds, and those that need more than the default parts.
SLOW := faults entrypoint behind operate directory etcd differential releases dashboards balancer
# What CI runs besides verify and test: suites that guard a security property, and one older release of Kubernetes. They have no limits in seconds, so a busy machine does not break them.
GUARDS := directory etcd attacks skew-one fuzz-one

.PHONY: test
test: ## Unit tests, and end-to-end tests on real parts
	$(call each,unit parts e2e managed)

.PHONY: slow
slow: ## Suites with limits in seconds (faults, entrypoint, …), or that need more programs; on an idle machine
	$(call each,parts $(SLOW))

.PHONY: guards
guards: ## Suites that guard a security property, an older release of Kubernetes, and a minute of fuzzing
	$(call each,parts $(GUARDS))

# What a change is compared with: the commit where its branch began or, on main, the last commit.
BASE ?= $(shell git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main)

.PHONY: quick
quick: ## Packages changed since BASE (main): gofmt, vet, lint of the changes, unit tests; and the rules. A minute, two for proxy
	@test -n '$(BASE)' || { echo 'quick: there is no main to compare with: give BASE=COMMIT'; exit 1; }; \
	files=$$({ git diff --name-only --no-renames --relative '$(BASE)' && git ls-files -o --exclude-standard; } | { grep -E '\.go$$|/testdata/' || true; }); \
	test -n "$$files" || { echo "no Go file and no story differs from $(BASE)"; exit 0; }; \
	go=$$(while read -r file; do case $$file in *.go) test ! -e "$$file" || echo "$$file" ;; esac; done <<<"$$files"); \
	out=$$(test -z "$$go" || gofmt -l $$go); test -z "$$out" || { echo "gofmt: $$out"; exit 1; }; \
	folders=$$(dirname $$(sed 's,/testdata/.*,/testdata,' <<<"$$files") | sort -u | while read -r folder; do test ! -d "$$folder" || echo "./$$folder"; done); \
	packages=$$(go list -e -tags e2e -f '{{if .Name}}{{.ImportPath}}{{end}}' $$folders); \
	echo $$packages; \
	test -z "$$packages" || { go vet -tags e2e $$packages; "$$($(TOOLS) golangci-lint)" run --new-from-rev=$(BASE) $$(sed 's,$$,/,' <<<"$$folders"); }; \
	go test -parallel 8 -json $$packages ./tests/rules | go run ./tests/tools/count -q # they wait for deadlines most of the time

.PHONY: unit
unit: ## Unit tests, once: under the race detector, and without it for code that differs without it
	@# ./tests/rules and ./tests/rules/loops are the rules, which verify checks. Bounds of allocations and memory hold without the race detector, under which proxy/h2 has other system calls, too.
	go test -race -timeout $(HUNG) -json $$(go list ./... | grep -Ev '/tests/rules(/loops)?$$') | $(call count,unit,-q -want tests/tools/count/UNIT)
	go test -timeout $(HUNG) -json ./proxy/... ./internal/... ./registry/... | $(call count,unit-plain,-q)

.PHONY: parts
parts: ## Build the real parts that the end-to-end tests need
	$(TOOLS) -q

.PHONY: e2e
e2e: parts ## End-to-end tests on real parts; fails if fewer cases ran than the COUNT files say
	go test -tags e2e -count=1 -parallel 16 -timeout $(HUNG) -json ./tests/e2e ./tests/cluster ./tests/tools/fairlead-dev | $(call count,$@,-want tests/e2e/COUNT)

.PHONY: managed directory etcd differential
managed: parts ## docs/managed.md, step by step
	$(call suite,-timeout $(HUNG))
directory: parts build ## Fairlead without a cluster: APIServices from a folder
	$(call suite,-timeout $(HUNG))
etcd: parts ## APIServices in etcd
	$(call suite,-timeout $(HUNG))
differential: parts ## The same requests to Fairlead and to kube-apiserver
	$(call suite,-timeout $(HUNG))

.PHONY: netns
netns:
	$(call needs,ip,iproute2)

.PHONY: faults entrypoint behind
faults: parts netns ## One thing at a time breaks or is replaced under load: backends, Fairlead, every certificate and CA; real extension servers restart (15 min; root, otherwise idle)
	$(TOOLS) -q test-adapter # before the tests: their network has no way out
	$(call suite,-timeout 40m) -v
entrypoint: parts netns ## The cluster's own clients come through Fairlead (root)
	$(call suite,-timeout 10m)
behind: parts netns ## The cluster's own aggregator sends APIServices to Fairlead, beside it alone (8 min; root, otherwise idle)
	$(TOOLS) -q test-adapter
	$(call needs,curl,curl)
	$(call suite,-timeout 20m)

.PHONY: operate releases
operate: parts netns ## Manifests, roles, alerts, page and commands (root; otherwise idle)
	$(TOOLS) -q helm kubeadm # before the tests: their network has no way out
	$(call needs,chromium promtool amtool curl openssl haproxy zsh nft ss,chromium prometheus prometheus-alertmanager curl openssl haproxy zsh nftables iproute2)
	$(call suite,-parallel 32 -timeout 15m)
releases: parts ## Test the files of make release, built twice (root)
	$(call needs,groff systemd-analyze,groff-base systemd)
	go test -tags e2e -count=1 -timeout 15m -json ./tests/e2e/release | $(call count,$@,-want tests/e2e/release/COUNT)

# Releases of Kubernetes beside the pinned one, and the cases that need only little of a release.
OTHERS := v1.30.14 v1.34.4 v1.36.3
PINNED  = $(shell sed -n 's,^require k8s.io/kubernetes ,,p' tests/tools/kubernetes/go.mod)
SKEW   := TestE2E/^h2$$/^(admin|kubectl|crd|controllers|nodes|identity)$$|^TestDiscovery$$|^TestOpenAPI$$

.PHONY: skew skew-one
skew: ## kubectl, controllers, identities and discovery before four releases of Kubernetes, or only RELEASE=v1.30.14; builds each once (7 min)
	@$(TOOLS) -q etcd sample-apiserver metrics-server
	@failed=; for release in $(or $(RELEASE),$(OTHERS) $(PINNED)); do \
	  echo "== Kubernetes $$release"; export FAIRLEAD_KUBERNETES=$$release; \
	  { $(TOOLS) -q kube-apiserver kubectl kube-controller-manager && \
	    go test -tags e2e -count=1 -parallel 16 -timeout $(HUNG) -json -run '$(SKEW)' ./tests/e2e ./tests/e2e/differential | $(call count,$$release,-want tests/e2e/SKEW); } || failed+=" $$release"; \
	done; test -z "$$failed" || { echo "FAIL:$$failed"; exit 1; }
skew-one: ## make skew before one of the releases that are not pinned, chosen by the commit
	@$(MAKE) --no-print-directory skew RELEASE=$$(echo $(OTHERS) | cut -d' ' -f$$((0x$$(git rev-parse --short=8 HEAD) % $(words $(OTHERS)) + 1)))

# What Fairlead offers its clients in make conformance and make soak: h2 or http1; direct is without Fairlead, impersonate with a kube-apiserver that trusts no front proxy.
LANE ?= h2

.PHONY: dashboards
dashboards: ## Check the dashboards by Grafana's own types, and that the check finds a mistake (npm)
	$(call needs,npm,npm)
	@dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	  npm install --silent --no-audit --no-fund --prefix "$$dir" typescript@5.6.3 @grafana/schema@11.0.0 && mkdir "$$dir/right" "$$dir/wrong" && \
	  for file in deploy/components/monitoring/*.json; do \
	    { echo 'import { Dashboard, ThresholdsMode } from "@grafana/schema"; export const d: Dashboard ='; sed 's/"mode": "absolute"/"mode": ThresholdsMode.Absolute/' "$$file"; } >"$$dir/right/$$(basename "$$file" .json).ts"; \
	  done && sed 's/"gridPos"/"gridpos"/' "$$dir/right/fairlead.ts" >"$$dir/wrong/fairlead.ts" && \
	  check() { "$$dir/node_modules/.bin/tsc" --noEmit --strict --skipLibCheck --module esnext --moduleResolution bundler --target es2022 "$$@"; } && \
	  check "$$dir"/right/*.ts && ! check "$$dir"/wrong/*.ts >/dev/null

.PHONY: screenshots
screenshots: netns ## The pictures of the status page in docs/, taken by its own test in Chromium
	$(TOOLS)
	$(call needs,chromium,chromium)
	@dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	  go test -tags e2e -count=1 -artifacts -outputdir "$$dir" -run 'TestOperate/^page$$' ./tests/e2e/operate && mkdir -p docs/screenshots && \
	  for name in light dark narrow detail; do cp "$$dir"/_artifacts/*/$$name.webp docs/screenshots/; done

.PHONY: conformance
conformance: build ## Kubernetes' own specs of sig-api-machinery that need no pods, through Fairlead (LANE=h2|http1|impersonate|direct); minutes, outside CI
	go run ./tests/e2e/conformance -lane=$(LANE) -want=56

# How long the soak runs, and its seed.
MINUTES ?= 20
SEED    ?= 1

.PHONY: soak
soak: ## Random faults of all parts under load, with every request checked, for MINUTES=20 with SEED=1 on LANE=h2|http1 (Linux, root)
	$(TOOLS) -q etcd kube-apiserver
	$(call needs,ip,iproute2)
	go test -tags e2e -count=1 -timeout 0 -v ./tests/chaos/soak -args -minutes=$(MINUTES) -seed=$(SEED) -lane=$(LANE)

.PHONY: balancer
balancer: parts ## HAProxy tells Fairlead, and kube-apiserver, its clients' addresses by the PROXY protocol
	$(call needs,haproxy,haproxy)
	$(call suite,-timeout 10m) -v

.PHONY: storm
storm: parts ## What one who lists 20,000 pods every second does to others, without a rule, with one, and with priority and fairness (5 min, otherwise idle)
	$(call suite,-timeout 30m) -v

.PHONY: critical
critical: parts netns ## Three nodes, of which one has its pod network late, behind HAProxy; an extension server dies for all (3 min; root, otherwise idle)
	$(call needs,haproxy,haproxy)
	$(call suite,-timeout 15m) -v

.PHONY: routes
routes: parts netns ## Several metrics servers behind one APIService: autoscalers on prometheus-adapter and KEDA, one killed at a time; a standby (5 min, and 15 for building KEDA once; root, otherwise idle)
	$(TOOLS) -q prometheus-adapter keda-adapter keda-operator # before the tests: their network has no way out
	@go mod download -C tests/tools/keda github.com/kedacore/keda/v2 # for its CRDs
	$(call needs,prometheus,prometheus)
	$(call suite,-timeout 30m) -v

.PHONY: konnectivity
konnectivity: parts netns ## An extension server that is reached only through konnectivity's own server and agent, which are killed and stopped; beside kube-apiserver (10 min; root, otherwise idle)
	$(TOOLS) -q konnectivity-server konnectivity-agent # before the tests: their network has no way out
	$(call suite,-timeout 30m) -v

.PHONY: incidents
incidents: parts netns ## Nineteen outages: what the first command says, which alerts fire, and that all is well again (6 min; root, otherwise idle)
	$(call needs,promtool,prometheus)
	$(call suite,-parallel 6 -timeout 20m)

.PHONY: etcd-load
etcd-load: ## 10,000 APIServices written at 500 a second to two Fairleads: both route each within 100 ms; again while leaders are killed (otherwise idle)
	$(TOOLS) -q etcd kubectl
	go test -tags e2e -count=1 -timeout 30m -json -run 'TestEtcd/(load|leader)' ./tests/e2e/etcd -args -apiservices=10000 -within=100ms | go run ./tests/tools/count -v

.PHONY: streams
streams: ## Backends with few streams a connection, beside kube-apiserver's own aggregator (30 min; root, otherwise idle)
	$(TOOLS) -q etcd kube-apiserver
	$(call needs,ip,iproute2)
	$(call needs,h2load,nghttp2-client)
	go test -tags e2e -count=1 -timeout 60m -json ./tests/chaos/streams | go run ./tests/tools/count -v -want tests/chaos/streams/COUNT

.PHONY: fleet
fleet: ## Two control planes behind HAProxy with hollow kubelets: every server stopped and replaced; three upgraded and back (28 min; root, otherwise idle)
	$(TOOLS) -q etcd kube-apiserver kube-controller-manager kube-scheduler kubemark
	FAIRLEAD_KUBERNETES=v1.36.3 $(TOOLS) -q kube-apiserver kube-controller-manager kube-scheduler kubemark
	$(call needs,ip,iproute2)
	$(call needs,haproxy,haproxy)
	go test -tags e2e -count=1 -timeout 60m -json ./tests/chaos/fleet | go run ./tests/tools/count -v -want tests/chaos/fleet/COUNT

# What make interop needs of Debian and npm.
INTEROP_APT := curl nghttp2-client nginx apache2 gunicorn openssl default-jdk-headless libtomcat10-java libtomcat10-embed-java python3-httpx python3-h2 python3-hypercorn python3-kubernetes
INTEROP_NPM := undici@6 ws@8 @kubernetes/client-node@1

.PHONY: interop
interop: export NODE_PATH = $(CURDIR)/bin/interop/node_modules
interop: parts ## Clients and servers that are not ours, through Fairlead as directly (installs packages, root; otherwise idle); curl, nghttp, node and a gigabyte each way against the engine
	@dpkg -s $(INTEROP_APT) >/dev/null 2>&1 || { apt-get update -qq; apt-get install -y --no-install-recommends $(INTEROP_APT); }
	$(call needs,npm,npm)
	@test -d '$(NODE_PATH)/@kubernetes' || npm install --prefix bin/interop --no-audit --no-fund $(INTEROP_NPM)
	go test -tags e2e -count=1 -timeout 10m -run 'Interop|LargeBodies' ./proxy/h2 -args -body=1073741824
	@# Of 64 at a time so many clients start at once that servers fall silent for half a minute.
	$(call suite,-parallel 20 -timeout 15m)

.PHONY: hostile
hostile: ## Attacks on the real binary (47 min): floods, slow peers, smuggling, malicious backends, mixed-up users, a small container; prints figures (as root, otherwise idle)
	$(TOOLS) -q etcd kube-apiserver h2spec
	$(call suite,-timeout 90m) -v

# Parts of hostile that need no idle machine and end within three minutes.
ATTACKS := TestIdentity|TestProportion/statuses|TestProtocol/h2spec|TestProtocol/frame/(smuggling|backends)

.PHONY: attacks
attacks: ## Attacks on the real binary that take two minutes or three: mixed-up users, smuggling, malicious backends, heads of all shapes, h2spec
	$(TOOLS) -q etcd kube-apiserver h2spec
	go test -tags e2e -count=1 -timeout $(HUNG) -json -run '$(ATTACKS)' ./tests/hostile | $(call count,$@,-want tests/hostile/ATTACKS)

# How many changes to make, and in which packages; by default all that decide.
MUTANTS ?= 300
PACKAGES ?=

.PHONY: mutants
mutants: ## Change the code MUTANTS=300 times, chosen by SEED=1 from PACKAGES="…", and check that unit tests fail (30 min); -at in MUTANTARGS
	go run ./tests/tools/mutants -n=$(MUTANTS) -seed=$(SEED) $(MUTANTARGS) $(PACKAGES)

.PHONY: lint
lint: ## golangci-lint, with a reason for every linter in .golangci.yml
	"$$($(TOOLS) golangci-lint)" run ./...

.PHONY: verify
verify: tidy-diff lint ## Everything that needs no test run: tidy modules, linters, gofmt, vet, style and dependency rules, workflows
	@out=$$(git ls-files -z '*.go' | xargs -0 gofmt -l); test -z "$$out" || { echo "gofmt: $$out"; exit 1; }
	go vet ./...
	go vet -tags e2e ./tests/...
	GOARCH=arm64 go vet ./proxy/h2 # whose system calls have constants of their own there
	GOOS=windows go vet ./cmd/kubectl-fairlead # which is released for it
	go vet -C tests/tools/oci ./...
	go test -count=1 -timeout $(HUNG) ./tests/rules ./tests/rules/loops
	"$$($(TOOLS) actionlint)"
	@$(vulncheck); test $$code != 1
	@$(MAKE) --no-print-directory size

.PHONY: size
size: ## Lines of Go that ship, lines of tests (*_test.go and tests/), and of their stories (txtar); examples are neither
	@echo "lines that ship: $$(git ls-files -z '*.go' ':!tests' ':!examples' ':!*_test.go' | xargs -0 cat | wc -l)"
	@echo "lines of tests: $$(git ls-files -z '*_test.go' 'tests/*.go' ':!examples' | xargs -0 cat | wc -l)"
	@echo "lines of stories: $$(git ls-files -z '*.txtar' | xargs -0 cat | wc -l)"

# The database of known vulnerabilities, or a mirror.
VULNDB ?= https://vuln.go.dev
# Exits 0 if no known vulnerability is reached and 1 if one is. If nothing was checked, because the database cannot be read, it says so and sets 2: that is no pass.
vulncheck = "$$($(TOOLS) govulncheck)" -db '$(VULNDB)' ./... && code=0 || code=$$?; \
  case $$code in 0) ;; 3) code=1;; *) code=2; echo "vulncheck: NOT CHECKED for known vulnerabilities: govulncheck could not run";; esac

.PHONY: vulncheck
vulncheck: ## Known vulnerabilities that the code reaches (govulncheck); fails if the database cannot be read. VULNDB=url of a mirror
	@$(vulncheck); exit $$code

.PHONY: outdated
outdated: ## List direct modules, also of the tools, that have a newer version
	@for mod in go.mod $$(git ls-files '*/go.mod'); do \
	  echo "$$mod"; \
	  (cd "$$(dirname "$$mod")"; { go list -m -f '{{if not (or .Main .Indirect)}}{{.Path}}{{end}}' all; go list -f '{{.Module.Path}}' tool 2>/dev/null; } | sed '/^$$/d' | sort -u | \
	    xargs -r go list -m -u -f '{{with .Update}}  {{.Path}} {{$$.Version}} -> {{.Version}} of {{.Time.Format "2006-01-02"}}{{end}}' | sed '/^$$/d' || echo '  not all could be asked for'); \
	done

.PHONY: reproducible
reproducible: ## Build twice, from two folders and with two caches: the bytes must be equal (minutes)
	@dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	for place in a deeper/and/elsewhere; do \
	  mkdir -p "$$dir/$$place"; git ls-files -z | tar --null -T - -cf - | tar -xf - -C "$$dir/$$place"; \
	  GOCACHE="$$dir/cache-$$(basename $$place)" GOFLAGS= $(MAKE) -s -C "$$dir/$$place" build VERSION=$(VERSION); \
	done; \
	cd "$$dir"; sha256sum a/bin/* deeper/and/elsewhere/bin/*; diff -r a/bin deeper/and/elsewhere/bin && echo "two builds are equal"

.PHONY: tidy-diff
tidy-diff:
	go mod tidy -diff
	go mod verify

# Every fuzz target: package and name.
FUZZES := git grep '^func Fuzz' -- '*_test.go' | sed -E 's,^(.*)/[^/]*:func (\w+).*,./\1 \2,'
# 10x: coverage of code that uses crypto/rand differs from run to run, so minimizing inputs would take all of FUZZTIME.
# Until Go 1.27 the end of FUZZTIME may count as a failure, mostly on a busy machine (go.dev/issue/75804): then no input is named.
FUZZ := while read -r package target; do \
  echo "== $$package $$target"; \
  out=$$(go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x "$$package" </dev/null 2>&1 | tee >(cat >&2)) || \
    { grep -qx ' *context deadline exceeded' <<<"$$out" && ! grep -qE 'Failing input|failure while|panic: ' <<<"$$out" && go test -run "^$$target\$$" "$$package" </dev/null; } || exit 1; \
done

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME
	@$(FUZZES) | $(FUZZ)

.PHONY: fuzz-one
fuzz-one: ## Run one fuzz target for FUZZTIME, chosen by the commit
	@$(FUZZES) | sed -n "$$((0x$$(git rev-parse --short=8 HEAD) % $$($(FUZZES) | wc -l) + 1))p" | $(FUZZ)

.PHONY: bench
bench: build ## Measure Fairlead beside its peers; BENCHARGS=-full for all of docs/evidence/measurements.md (55 min), list: -scenarios list
	$(call needs,haproxy nginx nghttpx,haproxy nginx-light nghttp2-proxy)
	$(TOOLS) -q etcd kube-apiserver
	go run ./tests/bench $(BENCHARGS)

.PHONY: microbench
microbench: ## Go benchmarks with allocations (BENCH=regexp, BENCHTIME=1s)
	go test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -benchmem ./...

# A release: from a tag, dated by its commit; its platforms, and where its image and files will be.
RELEASE_TARGETS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64
RELEASE_IMAGE   ?= ghcr.io/fairlead-proxy/fairlead
RELEASE_URL     ?= https://github.com/fairlead-proxy/fairlead/releases/download/$(VERSION)
OUT             ?= dist

.PHONY: release
release: build ## All files of a release page, into OUT=dist: archives, deb, rpm, image, chart, manifests, bills of materials, checksums
	@test '$(VERSION)' != unknown && test -n "$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null)}" || { echo 'release: this is no clone, whose commit would give date and version: give SOURCE_DATE_EPOCH and VERSION=v…'; exit 1; }
	@test ! -e '$(OUT)' || test -e '$(OUT)/SHA256SUMS' || { echo 'release: $(OUT) exists and is no earlier release (no SHA256SUMS): remove it, or choose OUT'; exit 1; }; rm -rf '$(OUT)'
	@for target in $(RELEASE_TARGETS); do \
	  echo "release: building for $$target"; \
	  export GOOS=$${target%/*} GOARCH=$${target#*/}; mkdir -p '$(OUT)'/bin/$$target; \
	  if test $$GOOS = linux; then cmds='./cmd/fairlead ./cmd/kubectl-fairlead'; else cmds=./cmd/kubectl-fairlead; fi; \
	  $(GOBUILD) -o '$(OUT)'/bin/$$target/ $$cmds; \
	done
	@sbom=$$($(TOOLS) cyclonedx-gomod); for bin in '$(OUT)'/bin/*/*/*; do \
	  target=$${bin#'$(OUT)'/bin/}; os=$${target%%/*}; target=$${target#*/}; \
	  "$$sbom" bin -json -noserial -notimestamp -std -version $(VERSION) -output '$(OUT)'/$$(basename $$bin .exe)_$(VERSION)_$${os}_$${target%%/*}.cdx.json $$bin; \
	done
	@SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} deploy/release/release.sh '$(abspath $(OUT))' $(VERSION) $(RELEASE_IMAGE) $(RELEASE_URL) "$$($(TOOLS) nfpm)"
	@cat '$(OUT)'/image.digest

# With COSIGN_PRIVATE_KEY (and COSIGN_PASSWORD) cosign signs with that key alone, and nothing leaves the machine; without, it signs
# as who it runs for (a workflow's identity) and enters that into the public log.
COSIGNARGS := --yes $(if $(COSIGN_PRIVATE_KEY),--key env://COSIGN_PRIVATE_KEY --use-signing-config=false --tlog-upload=false)

.PHONY: sign
sign: ## Sign the files of make release with cosign, by COSIGN_PRIVATE_KEY or, without it, by the identity of a workflow
	@cosign=$$($(TOOLS) cosign); cd '$(OUT)'; \
	  "$$cosign" attest-blob $(COSIGNARGS) --statement provenance.json --bundle provenance.sigstore.json; \
	  "$$cosign" sign-blob $(COSIGNARGS) --bundle SHA256SUMS.sigstore.json SHA256SUMS

.PHONY: push
push: ## Push image and chart of make release to RELEASE_IMAGE and its folder charts, signed if SIGN=yes; CRANEARGS=--insecure for a registry without TLS
	@crane=$$($(TOOLS) crane); chart=$(dir $(RELEASE_IMAGE))charts/fairlead; \
	  "$$crane" push $(CRANEARGS) '$(OUT)'/image $(RELEASE_IMAGE):$(VERSION) | tee '$(OUT)'/pushed; \
	  "$$crane" push $(CRANEARGS) '$(OUT)'/chart $$chart:$$(basename '$(OUT)'/fairlead-*.tgz .tgz | cut -d- -f2-) | tee -a '$(OUT)'/pushed; \
	  test -z '$(SIGN)' || { cosign=$$($(TOOLS) cosign); xargs -n1 "$$cosign" sign $(COSIGNARGS) $(if $(CRANEARGS),--allow-http-registry) <'$(OUT)'/pushed; }

.PHONY: image
image: ## Build the container image with docker; make release makes one without
	docker build --build-arg VERSION=$(VERSION) -t $(IMAGE) .
