package trust

import (
	"crypto/x509"
	"errors"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// If the URLs have several hosts, a certificate must name one of them, whichever address presents
// it. A part of a host, or the list of all, is refused, as is a certificate without names.
func TestNamesOfSeveralURLs(t *testing.T) {
	ca := pki.NewCA("ca")
	b := newBench(t, Config{})
	b.set(func(s *registry.Backend) {
		s.CABundle, s.ServerName = string(pki.Bundle(ca)), "a.example.com,2001:db8::1,10.0.0.1"
	})
	cfg, err := b.TLS(b.name, b.spec)
	if err != nil || cfg.ServerName != "" {
		t.Fatalf("%q is sent to all hosts: %v", cfg.ServerName, err)
	}
	for _, tt := range []struct {
		names []string
		want  string
	}{
		{[]string{"a.example.com"}, ""},
		{[]string{"other.example.com", "10.0.0.1"}, ""},
		{[]string{"2001:db8::1"}, ""},
		{[]string{"*.example.com"}, ""},
		{[]string{"example.com"}, "WrongServerName"},
		{[]string{"10.0.0.2"}, "WrongServerName"},
		{[]string{serverName}, "WrongServerName"},
		{[]string{"a.example.com,2001:db8::1,10.0.0.1"}, "WrongServerName"},
		{nil, "MissingSAN"},
	} {
		pair := ca.Issue(pki.Leaf{CommonName: "a.example.com", Names: tt.names})
		err := b.dial(pair)
		_, cause := errors.AsType[x509.HostnameError](err)
		if got := reason(t, err); got != tt.want || got == "WrongServerName" && (!cause || !strings.Contains(err.Error(), b.spec.ServerName)) {
			t.Errorf("a certificate for %q: %v, want %q", tt.names, err, tt.want)
		}
		open, release := b.Guard(b.name, b.spec, pair.Chain())
		if lost(open) != (tt.want != "") {
			t.Errorf("a connection with a certificate for %q ends: %v", tt.names, lost(open))
		}
		if release(); b.backends[b.name].guarding() {
			t.Error("a closed connection is still guarded")
		}
	}
	b.wants("somebody else's certificate", pki.NewCA("other").Issue(pki.Leaf{Names: []string{"a.example.com"}}), "UnknownAuthority")
	for _, none := range []string{"", ",", ",other.example.com"} { // the first is from an invalid annotation
		b.set(func(s *registry.Backend) { s.ServerName = none })
		b.wants("with the name "+none, ca.Issue(pki.Leaf{Names: []string{"a.example.com"}}), "WrongServerName")
	}
}
