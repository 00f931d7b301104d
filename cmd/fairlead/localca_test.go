package main

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// The kubeconfig may embed the local apiserver's CA or name its file, and change from one to the
// other: the CA that it says now is the one that is trusted.
func TestFollowLocalCA(t *testing.T) {
	first, second, third := pki.NewCA("first"), pki.NewCA("second"), pki.NewCA("third")
	dir := t.TempDir()
	path := filepath.Join(dir, "kubeconfig")
	embeds := func(ca *pki.CA) string { return kubeconfigText("https://192.0.2.1:6443", ca, `"token":"x"`) }
	names := func(file string) string {
		return strings.Replace(embeds(nil), `"server":`, `"certificate-authority":"`+file+`","server":`, 1)
	}
	type step struct {
		name, kubeconfig string
		file             []byte // new content of the file that was named at the start
		want             string
		refused          bool
	}
	for name, steps := range map[string][]step{
		"embedded at the start": {
			{name: "embedded", kubeconfig: embeds(first), want: "first"},
			{name: "a file", kubeconfig: names("second.crt"), want: "second"},
			{name: "an empty file", kubeconfig: names("empty.crt"), want: "second", refused: true},
			{name: "no such file", kubeconfig: names("none.crt"), want: "second", refused: true},
			{name: "embedded again", kubeconfig: embeds(first), want: "first"},
			{name: "none: the system's", kubeconfig: embeds(nil), want: ""},
		},
		"a file at the start": {
			{name: "the file", kubeconfig: names("followed.crt"), want: "first"},
			{name: "its content changes", file: second.PEM(), want: "second"},
			{name: "embedded", kubeconfig: embeds(third), want: "third"},
			{name: "the former file changes", file: first.PEM(), want: "third"},
			{name: "the file again", kubeconfig: names("followed.crt"), want: "first"},
			{name: "its content changes again", file: second.PEM(), want: "second"},
			{name: "another file", kubeconfig: names("third.crt"), want: "third"},
		},
	} {
		writeFile(t, filepath.Join(dir, "followed.crt"), string(first.PEM()))
		writeFile(t, filepath.Join(dir, "second.crt"), string(second.PEM()))
		writeFile(t, filepath.Join(dir, "third.crt"), string(third.PEM()))
		writeFile(t, filepath.Join(dir, "empty.crt"), "")
		kube, _, _, err := clientConfig(writeFile(t, path, steps[0].kubeconfig), nil)
		must.Do(t, err)
		var logged bytes.Buffer
		log := slog.New(slog.NewTextHandler(&logged, nil))
		d := &door{o: &options{kubeconfig: path}, log: log, kube: kube, trust: must.Get(trust.New(trust.Config{}))(t)}
		d.follower, _ = must.Get2(follow(kube, log))(t)
		takes := map[string]certs.File{}
		for _, f := range d.localFiles() {
			takes[f.Use] = f
		}
		if f, ok := takes["local-apiserver-ca"]; ok {
			must.Do(t, f.Take(first.PEM()))
		}
		for _, s := range steps {
			var err error
			if s.file != nil {
				writeFile(t, filepath.Join(dir, "followed.crt"), string(s.file))
				err = takes["local-apiserver-ca"].Take(s.file)
			} else {
				err = takes["kubeconfig"].Take([]byte(s.kubeconfig))
			}
			var got []string
			for _, c := range d.trust.Status()[0].CAs {
				got = append(got, c.Subject)
			}
			if (err != nil) != s.refused || strings.Join(got, ",") != s.want {
				t.Errorf("%s, %s: trusts %q (%v), want %q", name, s.name, got, err, s.want)
			}
		}
		if n := strings.Count(logged.String(), "names another CA file"); n == 0 {
			t.Errorf("%s: nothing is said about the file that is not followed: %s", name, logged.String())
		}
	}
}

// A kubeconfig that gains or loses insecure-skip-tls-verify is followed for forwarded requests only
// after a restart. One warning for each change says so.
func TestInsecureNeedsRestart(t *testing.T) {
	secure := kubeconfigText("https://192.0.2.1:6443", nil, `"token":"x"`)
	insecure := strings.Replace(secure, `"server":`, `"insecure-skip-tls-verify":true,"server":`, 1)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	for _, tt := range []struct {
		name  string
		at    string
		other string
		says  string
	}{{"gained", secure, insecure, "insecure=true"}, {"lost", insecure, secure, "insecure=false"}} {
		kube, _, _, err := clientConfig(writeFile(t, path, tt.at), nil)
		must.Do(t, err)
		var logged bytes.Buffer
		f, _ := must.Get2(follow(kube, slog.New(slog.NewTextHandler(&logged, nil))))(t)
		renewed := strings.Replace(tt.other, `"token":"x"`, `"token":"y"`, 1)
		for i, step := range []struct {
			text string
			want int // warnings so far
		}{{tt.at, 0}, {tt.other, 1}, {renewed, 1}, {tt.at, 1}, {tt.other, 2}} {
			must.Get(f.reload(path, []byte(step.text)))(t)
			if n := strings.Count(logged.String(), "restart to follow it"); n != step.want || strings.Count(logged.String(), tt.says) != n {
				t.Errorf("%s, step %d: %d warnings, want %d: %s", tt.name, i, n, step.want, logged.String())
			}
		}
	}
}
