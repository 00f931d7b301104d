package certs

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/story"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/pki/cast"
)

// stage is a Store with the files and the ConfigMap of a story.
type stage struct {
	*Store
	t          *testing.T
	tale       *story.Story
	at         string // the step
	dir        string
	cast       cast.Cast
	refusal    error
	generation uint64
	taken      string
	findings   Findings
	metrics    *prometheus.Registry
}

// pair issues a certificate that has its CA's name, unless it has another.
func (s *stage) pair(text string) *pki.Pair {
	ca, _, _ := strings.Cut(text, ",")
	return s.cast.Pair(s.t, pki.Leaf{CommonName: ca}, text)
}

func (s *stage) path(file string) string { return filepath.Join(s.dir, file) }

func (s *stage) write(file string, data []byte) {
	s.t.Helper()
	must.Do(s.t, os.WriteFile(s.path(file), data, 0o600))
}

func (s *stage) config(options []string) (cfg Config) {
	source := func(text string) (p PairSource) {
		text, names, named := strings.Cut(text, "@")
		if named {
			p.Names = strings.Split(names, "|")
		}
		cert, key, both := strings.Cut(text, ":")
		if !both {
			cert, key = text+".crt", text+".key"
		}
		if cert != "" {
			p.Cert = s.path(cert)
		}
		if key != "" {
			p.Key = s.path(key)
		}
		return p
	}
	set := map[string]func(v string){
		"serving":          func(v string) { cfg.Serving = source(v) },
		"sni":              func(v string) { cfg.SNI = append(cfg.SNI, source(v)) },
		"proxy-client":     func(v string) { cfg.ProxyClient = source(v) },
		"client-ca":        func(v string) { cfg.ClientCA = s.path(v) },
		"requestheader-ca": func(v string) { cfg.RequestHeaderCA = s.path(v) },
		"allowed":          func(v string) { cfg.AllowedNames = strings.Split(v, ",") },
		"config":           func(v string) { cfg.Files = []File{{Use: "config", Path: s.path(v), Take: s.take}} },
		"configmap": func(v string) {
			cfg.TrustConfigMap = v == "trusted"
			cfg.ConfigMap = types.NamespacedName{Namespace: "kube-system", Name: "extension-apiserver-authentication"}
			cfg.Watch = func(context.Context, types.NamespacedName, func(map[string][]byte, error)) error { return nil }
		},
	}
	story.Set(s.t, s.at, options, set)
	s.metrics = prometheus.NewPedanticRegistry() // rejects undescribed metrics
	cfg.Metrics = s.metrics
	return cfg
}

// value returns what is followed for a use.
func (s *stage) value(use string) *followed {
	s.t.Helper()
	i := slices.IndexFunc(s.followed, func(f *followed) bool { return f.use == use })
	must.Be(s.t, i >= 0, "%s: nothing is followed for %s", s.at, use)
	return s.followed[i]
}

// take takes a config, which names a file.
func (s *stage) take(file []byte) error {
	data, err := os.ReadFile(s.path(string(file)))
	if err == nil {
		s.taken = string(data)
	}
	return err
}

// configMap is the cluster's, with changes, or only what is named.
func (s *stage) configMap(changes []string) map[string][]byte {
	data := map[string][]byte{
		"client-ca-file":                     s.cast.Bundle("kubernetes"),
		"requestheader-client-ca-file":       s.cast.Bundle("front-proxy-ca"),
		"requestheader-username-headers":     []byte(`["X-Remote-User"]`),
		"requestheader-group-headers":        []byte(`["X-Remote-Group"]`),
		"requestheader-uid-headers":          []byte(`["x-remote-uid"]`),
		"requestheader-extra-headers-prefix": []byte(`["X-Remote-Extra-"]`),
		"requestheader-allowed-names":        []byte(`["front-proxy-client"]`),
	}
	for _, change := range changes {
		switch key, value, _ := strings.Cut(change, "="); key {
		case "only":
			clear(data)
		case "client-ca-file", "requestheader-client-ca-file":
			data[key] = s.cast.Bundle(value)
		default:
			data["requestheader-"+key] = []byte(value)
		}
	}
	return data
}

// chain is a certificate's, which is sent so often, or none.
func (s *stage) chain(certificate string) []*x509.Certificate {
	switch certificate {
	case "-":
		return []*x509.Certificate{}
	case "unreached":
		return nil
	}
	certificate, times, _ := strings.Cut(certificate, "*")
	return slices.Repeat(s.pair(certificate).Chain(), int(must.Get(strconv.ParseInt(cmp.Or(times, "1"), 10, 0))(s.t)))
}

// headers checks what is known of the ConfigMap's header names.
func (s *stage) headers(want string) {
	s.t.Helper()
	names, known := s.Clients().Headers()
	got := fmt.Sprintf("%+v\n", names)
	switch want {
	case "unknown":
		check.Same(s.t, false, known, "%s: known", s.at)
	case "none":
		check.Same(s.t, "true <nil>\n", fmt.Sprint(known, " ", got), "%s: known, and names", s.at)
	default:
		check.Same(s.t, true, known, "%s: known", s.at)
		s.tale.Expect(s.t, s.at, want, got)
	}
}

// shown is an error without the story's directory.
func (s *stage) shown(err error) string {
	return strings.ReplaceAll(fmt.Sprint(err), s.dir+"/", "")
}

// check has advice on a certificate, a bundle or a backend, which the following steps name.
func (s *stage) check(what, subject string, words []string) {
	s.t.Helper()
	s.findings = nil
	switch what {
	case "proxy-client": // certificate and changes of the ConfigMap, or unread
		data := s.configMap(words)
		if len(words) == 1 && words[0] == "unread" {
			data = nil
		}
		s.findings.CheckProxyClient(s.chain(subject), data)
	case "serving": // certificate, and names that clients use
		s.findings.CheckServing("serving certificate", s.chain(subject), words)
	case "bundle":
		s.findings.CheckBundle("client CA", s.cast.Bundle(subject))
	case "backend": // bundle, system or insecure, and what its endpoints a, b … present
		live := map[string][]*x509.Certificate{}
		for i, certificate := range words {
			live[string(rune('a'+i))] = s.chain(certificate)
		}
		b := &registry.Backend{ServerName: "metrics.svc", Insecure: subject == "insecure"}
		s.findings.CheckBackend("APIService v1.metrics", b, s.cast.Bundle(strings.TrimPrefix(subject, "system")), live)
	}
	for _, f := range s.findings {
		line := f.String()
		check.Same(s.t, true, f.Message != "" && f.Do != "" && !strings.Contains(line, "\n") && strings.HasSuffix(line, f.Do), "%s: one line with an instruction: %q", s.at, line)
	}
}

// met checks that the steps have named all findings, and why there is no Store, before the next.
func (s *stage) met(next string) {
	s.t.Helper()
	must.Be(s.t, s.refusal == nil || next == "refused", "%s: %v", s.at, s.refusal)
	must.Be(s.t, len(s.findings) == 0 || next == "finds", "%s: not named: %q", s.at, s.findings)
}
