package tools

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"github.com/fairlead-proxy/fairlead/tests/kit/try"
)

// part is a program and its source.
type part struct {
	name    string // of the resulting file
	module  string // folder under tests/tools whose go.mod pins it
	from    string // module that contains it, for its version
	pkg     string // package to build
	test    bool   // pkg is a test binary (go test -c)
	stamped bool   // Kubernetes' version is linked in: clients and its own e2e suite refuse a program without it
	cold    string // duration of a cold build on two cores, for the progress line
}

func parts() []part {
	const k8s, adapter, keda = "k8s.io/kubernetes", "sigs.k8s.io/custom-metrics-apiserver", "github.com/kedacore/keda/v2"
	const proxy = "sigs.k8s.io/apiserver-network-proxy"
	return []part{
		{name: "etcd", module: "etcd", from: "go.etcd.io/etcd/server/v3", pkg: "go.etcd.io/etcd/server/v3", cold: "40s"},
		{name: "kube-apiserver", module: "kubernetes", from: k8s, pkg: k8s + "/cmd/kube-apiserver", stamped: true, cold: "5m"},
		{name: "kubectl", module: "kubernetes", from: k8s, pkg: k8s + "/cmd/kubectl", stamped: true, cold: "30s"},
		{name: "sample-apiserver", module: "kubernetes", from: "k8s.io/sample-apiserver", pkg: "k8s.io/sample-apiserver", cold: "15s"},
		{name: "kube-controller-manager", module: "kubernetes", from: k8s, pkg: k8s + "/cmd/kube-controller-manager", stamped: true, cold: "1m"},
		{name: "metrics-server", module: "metrics", from: "sigs.k8s.io/metrics-server", pkg: "sigs.k8s.io/metrics-server/cmd/metrics-server", cold: "2m"},
		{name: "helm", module: "helm", from: "helm.sh/helm/v4", pkg: "helm.sh/helm/v4/cmd/helm", cold: "2m"},
		{name: "kubeadm", module: "kubeadm", from: k8s, pkg: k8s + "/cmd/kubeadm", stamped: true, cold: "2m"},
		{name: "golangci-lint", module: "lint", from: "github.com/golangci/golangci-lint/v2", pkg: "github.com/golangci/golangci-lint/v2/cmd/golangci-lint", cold: "4m"},
		{name: "govulncheck", module: "lint", from: "golang.org/x/vuln", pkg: "golang.org/x/vuln/cmd/govulncheck", cold: "15s"},
		{name: "cyclonedx-gomod", module: "sbom", from: "github.com/CycloneDX/cyclonedx-gomod", pkg: "github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod", cold: "20s"},
		{name: "crane", module: "sbom", from: "github.com/google/go-containerregistry", pkg: "github.com/google/go-containerregistry/cmd/crane", cold: "20s"},
		{name: "nfpm", module: "sbom", from: "github.com/goreleaser/nfpm/v2", pkg: "github.com/goreleaser/nfpm/v2/cmd/nfpm", cold: "40s"},
		{name: "actionlint", module: "sbom", from: "github.com/rhysd/actionlint", pkg: "github.com/rhysd/actionlint/cmd/actionlint", cold: "20s"},
		{name: "cosign", module: "cosign", from: "github.com/sigstore/cosign/v3", pkg: "github.com/sigstore/cosign/v3/cmd/cosign", cold: "4m"},
		{name: "h2spec", module: "lint", from: "github.com/summerwind/h2spec", pkg: "github.com/summerwind/h2spec/cmd/h2spec", cold: "10s"},
		{name: "kube-scheduler", module: "kubernetes", from: k8s, pkg: k8s + "/cmd/kube-scheduler", stamped: true, cold: "1m"},
		{name: "kubemark", module: "kubemark", from: k8s, pkg: k8s + "/cmd/kubemark", stamped: true, cold: "1m"},
		{name: "kwok", module: "kwok", from: "sigs.k8s.io/kwok", pkg: "sigs.k8s.io/kwok/cmd/kwok", cold: "1m"},
		{name: "test-adapter", module: "custommetrics", from: adapter, pkg: adapter + "/test-adapter", cold: "1m"},
		{name: "prometheus-adapter", module: "promadapter", from: "sigs.k8s.io/prometheus-adapter", pkg: "sigs.k8s.io/prometheus-adapter/cmd/adapter", cold: "2m"},
		{name: "keda-adapter", module: "keda", from: keda, pkg: keda + "/cmd/adapter", cold: "8m"},
		{name: "keda-operator", module: "keda", from: keda, pkg: keda + "/cmd/operator", cold: "7m"},
		{name: "konnectivity-server", module: "konnectivity", from: proxy, pkg: proxy + "/cmd/server", cold: "2m"},
		{name: "konnectivity-agent", module: "konnectivity", from: proxy, pkg: proxy + "/cmd/agent", cold: "10s"},
		{name: "e2e.test", module: "kubernetes", from: k8s, pkg: k8s + "/test/e2e", test: true, stamped: true, cold: "3m"},
	}
}

func (p part) arguments(pins pins, out string) []string {
	verb := []string{"build"}
	if p.test {
		verb = []string{"test", "-c"}
	}
	// -s and -w drop DWARF, so compilers need not make it: a seventh of a cold build's processor time. With the
	// Makefile's flags for Fairlead, what both link is compiled once. A tag counts, too: with another gRPC all above it
	// differs.
	return append(verb, "-tags", "grpcnotrace", "-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false",
		"-ldflags", p.ldflags(pins), "-o", out, p.pkg)
}

func (p part) ldflags(pins pins) string {
	flags := []string{"-s", "-w"} // without symbols a kube-apiserver is a third smaller, and it is not debugged here
	if !p.stamped {
		return strings.Join(flags, " ")
	}
	version := pins.version(p.from)
	major, minor, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, v := range [][2]string{
			{"gitVersion", version}, {"gitMajor", major}, {"gitMinor", minor}, {"gitCommit", version}, {"gitTreeState", "clean"},
		} {
			flags = append(flags, fmt.Sprintf("-X %s.%s=%s", pkg, v[0], v[1]))
		}
	}
	return strings.Join(flags, " ")
}

// pins are the go.mod and go.sum of a module of parts.
type pins struct {
	dir string // empty: none yet
	mod []byte
	sum []byte
}

func readPins(dir string) pins {
	return pins{dir: dir, mod: try.Get(os.ReadFile(filepath.Join(dir, "go.mod"))), sum: try.Get(os.ReadFile(filepath.Join(dir, "go.sum")))}
}

// other reports whether a release of Kubernetes has a part that is not the pinned one.
// sample-apiserver has releases of its own, which cannot all be had.
func (p part) other(release string, pins pins) bool {
	return p.stamped && p.module == "kubernetes" && release != "" && release != pins.version(p.from)
}

// at returns the pins of another release of Kubernetes: its own, with staging repositories of that
// release, which are all that the checksum database must vouch for.
func at(ctx context.Context, release string) pins {
	var module struct{ Dir, Error string }
	out, failed := exec.CommandContext(ctx, "go", "mod", "download", "-json", "k8s.io/kubernetes@"+release).Output()
	unread := json.Unmarshal(out, &module)
	if failed != nil {
		try.Do(fmt.Errorf("downloading Kubernetes %s: %w: %s", release, failed, module.Error))
	}
	try.Do(unread)
	p := readPins(module.Dir)
	return pins{mod: staged(p.mod, release), sum: p.sum}
}

// staged makes the go.mod of a release of Kubernetes that of a module which requires the release.
func staged(mod []byte, release string) []byte {
	mod = regexp.MustCompile(`(?m)^module .*`).ReplaceAll(mod, []byte("module parts\n\nrequire k8s.io/kubernetes "+release))
	return regexp.MustCompile(`(\S+) => \./staging/\S+`).ReplaceAll(mod, []byte("$1 => $1 v0."+strings.TrimPrefix(release, "v1.")))
}

// version returns the version at which module is required, or "" if it is not.
func (p pins) version(module string) string {
	m := regexp.MustCompile(`(?m)^\s*(?:require )?` + regexp.QuoteMeta(module) + ` (v\S+)`).FindSubmatch(p.mod)
	if m == nil {
		return ""
	}
	return string(m[1])
}

// key returns the name of a part's folder, a hash of everything that determines the part's bytes.
// Eight bytes of it distinguish the few sets of pins on one machine.
func (p pins) key(of part) string {
	all := fmt.Sprintf("%s %s/%s\n%d %d\n%s%s%s",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, len(p.mod), len(p.sum), p.mod, p.sum, of.arguments(p, ""))
	return fmt.Sprintf("%s-%x", of.module, sha256.Sum256([]byte(all)))[:len(of.module)+1+16]
}
